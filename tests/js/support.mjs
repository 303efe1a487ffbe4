// What the tests of the web runtime share: golden vectors, packages in memory, the fake engine.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

import { PocketSDError } from "../../mobile_assets/web/js/errors.js";
import { countOf, tensor } from "../../mobile_assets/web/js/tensor.js";

const ASSETS = new URL("../../mobile_assets/", import.meta.url);

export const asset = (name) => readFileSync(new URL(name, ASSETS));
export const golden = (name) => JSON.parse(asset(`golden/${name}.json`).toString("utf8"));
export const bytesOf = (text) => new TextEncoder().encode(text);

export function close(found, expected, tolerance) {
  assert.equal(found.length, expected.length);
  const worst = expected.reduce((most, value, i) => Math.max(most, Math.abs(value - found[i])), 0);
  assert.ok(worst <= tolerance, `off by ${worst}`);
}

export const refused = (pattern) => (error) => {
  assert.ok(error instanceof PocketSDError, error.stack);
  assert.ok(!error.message.includes("\n"));
  assert.match(error.message, pattern);
  return true;
};

/** The files of a package of golden/package.json, in memory. */
export function fakeFiles(batch = "any") {
  const { files, manifests } = golden("package");
  const all = new Map(Object.entries({ ...files, "manifest.json": manifests[batch] }));
  return new Map([...all].map(([name, text]) => [name, bytesOf(text)]));
}

/** Files in memory as the package wants them. */
export const served = (files) => async (name) =>
  files.has(name) ? new Blob([files.get(name)]) : null;

/** The engine of tools/fake_engine.py. */
export class FakeEngine {
  calls = [];

  constructor(source) {
    this.source = source;
  }

  async run(component, inputs) {
    this.calls.push([component, [...inputs.values()][0].shape[0]]);
    const { name } = this.source.component(component).outputs[0];
    const given = Object.fromEntries(inputs);
    return new Map([[name, ANSWERS[component](given)]]);
  }

  unload(component) {
    this.calls.push(["unload", component]);
  }
}

const made = (shape, value) => {
  const index = (i) => shape.map((n, axis) => Math.floor(i / countOf(shape.slice(axis + 1))) % n);
  const data = Float32Array.from({ length: countOf(shape) }, (_, i) => value(...index(i)));
  return tensor(shape, data);
};

const ANSWERS = {
  text_encoder: ({ tokens: { shape: [count, length], data } }) =>
    made([count, length, 2], (b, i, c) => ((data[b * length + i] * (c + 1) + i) % 64) / 64),

  unet({ latent: { shape, data }, timestep, embedding }) {
    const [, channels, height, width] = shape;
    const size = embedding.data.length / shape[0];
    const biases = Array.from({ length: shape[0] }, (_, b) =>
      embedding.data.slice(b * size, (b + 1) * size).reduce((sum, x) => sum + x, 0) / 128 - 0.5);
    const at = (b, c, y, x) => data[((b * channels + c) * height + y) * width + x];
    return made(shape, (b, c, y, x) => {
      const [z, w] = [at(b, c, y, x), at(b, (c + channels - 1) % channels, y, x)];
      const mixed = 0.25 * z - 0.125 * w + biases[b];
      return mixed / (1 + Math.abs(z)) + timestep.data[b] / 2048;
    });
  },

  vae_encoder: ({ picture: { shape: [count, , height, width], data } }) =>
    made([count, 4, height / 8, width / 8], (b, c, y, x) =>
      data[((b * 3 + (c % 3)) * height + 8 * y) * width + 8 * x] / 2),

  vae_decoder: ({ latent: { shape: [count, channels, height, width], data } }) =>
    made([count, 3, 8 * height, 8 * width], (b, c, y, x) => {
      const cell = ((b * channels + c) * height + Math.floor(y / 8)) * width + Math.floor(x / 8);
      return data[cell] / 2 + ((x + y) % 8) / 16;
    }),
};
