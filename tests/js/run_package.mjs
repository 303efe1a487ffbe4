// Runs a webgpu package on Dawn for Node, for the tests to compare with Python's answers.
//
//   node run_package.mjs FOLDER REQUESTS OUT
//
// FOLDER is a package. REQUESTS is JSON, a list of {"run": component, "inputs": safetensors file} or
// {"destroy": true}. OUT gets the bytes of each request's outputs (`0.noise.f32`); the last line of
// stdout is JSON: of every request its outputs, or why it was refused.

import { openAsBlob, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

// Installed apart from this file: POCKETSD_DAWN is the folder that holds node_modules.
const require = createRequire(join(process.env.POCKETSD_DAWN, "package.json"));
const { create, globals } = require("webgpu");
Object.assign(globalThis, globals);

const { PocketSDError } = await import("../../mobile_assets/web/js/errors.js");
const { WebGPUEngine } = await import("../../mobile_assets/web/js/engine.js");
const { Package } = await import("../../mobile_assets/web/js/package.js");
const { SafeTensors } = await import("../../mobile_assets/web/js/safetensors.js");

const [folder, requests, out] = process.argv.slice(2);
const files = (name) => openAsBlob(join(folder, name)).catch(() => null);

async function tensors(path) {
  const { file, entries } = await SafeTensors.open(await openAsBlob(path), path);
  const read = [...entries].map(async ([name, { dtype, shape, begin, end }]) => {
    const bytes = await file.slice(begin, end).arrayBuffer();
    const data = dtype === "I32" ? new Int32Array(bytes) : new Float32Array(bytes);
    return [name, { shape, data }];
  });
  return new Map(await Promise.all(read));
}

const kept = (index, name, data) => writeFileSync(join(out, `${index}.${name}.f32`), data);

async function served(engine, request, index) {
  if (request.run) {
    const answer = await engine.run(request.run, await tensors(request.inputs));
    for (const [name, { data }] of answer) kept(index, name, data);
    return { outputs: [...answer.keys()] };
  }
  engine.gpu.device.destroy();
  return {};
}

const results = [];
let engine;
try {
  const source = await Package.open(files, { check: false });
  engine = await WebGPUEngine.open(source, create([]));
  for (const [index, request] of JSON.parse(readFileSync(requests)).entries()) {
    results.push(await served(engine, request, index).catch((error) => {
      if (!(error instanceof PocketSDError)) throw error;
      return { refused: error.message };
    }));
  }
} catch (error) {
  if (!(error instanceof PocketSDError)) throw error;
  results.push({ refused: error.message });
}
console.log(JSON.stringify({ adapter: engine?.gpu.name ?? null, results }));
process.exit(0); // Dawn's threads would keep Node alive
