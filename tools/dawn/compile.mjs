// Compiles WGSL with Chrome's own compiler (Tint, through Dawn for Node) on whatever GPU is there.
//
//   node compile.mjs shaders.json     {"name": "source", ...}; prints {"name": "complaint", ...}

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

// Installed apart from this file: POCKETSD_DAWN is the folder that holds node_modules.
const require = createRequire(join(process.env.POCKETSD_DAWN, "package.json"));
const { create, globals } = require("webgpu");
Object.assign(globalThis, globals);

const gpu = create([]); // kept: collected, it would take the device along
const adapter = await gpu.requestAdapter();
if (!adapter) {
  console.error("Dawn sees no adapter");
  process.exit(2);
}
const wanted = ["shader-f16", "subgroups"].filter((name) => adapter.features.has(name));
const device = await adapter.requestDevice({ requiredFeatures: wanted });
const complaints = {};
const modules = [];
for (const [name, code] of Object.entries(JSON.parse(readFileSync(process.argv[2])))) {
  const module = device.createShaderModule({ code, label: name });
  modules.push(module);
  const { messages } = await module.getCompilationInfo();
  const errors = messages.filter((m) => m.type === "error").map((m) => `${m.lineNum}: ${m.message}`);
  if (errors.length) complaints[name] = errors.join("; ");
}
console.log(JSON.stringify(complaints));
if (!gpu || modules.length < 0) throw new Error("unreachable; keeps both alive until here");
process.exit(0); // Dawn's threads would keep Node alive
