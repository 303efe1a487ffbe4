// The plan of a component: every kernel to run, in order, with every byte it touches.
//
// Plain data, decided when the component was converted; the twin of runtime_py/webgpu/plan.py.

import { PocketSDError, located } from "./errors.js";
import { dictionary, integer, list, optional, parsed, record, text, tuple } from "./schema.js";

export const FORMAT = "pocketsd-webgpu-plan";
export const VERSION = 1;
export const ARENA = "arena";
/** A weight too, but bound as a uniform, last: the sizes and strides of a dispatch. */
export const NUMBERS = "numbers";
/** WebGPU's own: a binding begins at a multiple of this. */
export const ALIGNMENT = 256;
const MOST_GROUPS = 65535;

const binding = record({ buffer: text, offset: integer, size: integer });
const dispatch = record({
  label: text,
  shader: text,
  groups: tuple(integer, integer, integer),
  bindings: list(binding),
  flops: optional(integer, 0),
  bytes: optional(integer, 0),
});
const port = record({ buffer: text, shape: list(integer), dtype: text });
const head = record({ format: optional(text, FORMAT), version: optional(integer, VERSION) });
const layout = record({
  component: text,
  arithmetic: text,
  features: list(text),
  arena: integer,
  live: integer,
  shaders: dictionary(text),
  dispatches: list(dispatch),
  inputs: dictionary(port),
  outputs: dictionary(port),
  weights: optional(dictionary(integer), /** @type {Map<string, number>} */ (new Map())),
  subgroup_shaders: optional(dictionary(text), /** @type {Map<string, string>} */ (new Map())),
});

/** @typedef {ReturnType<typeof binding>} Binding */
/** @typedef {ReturnType<typeof dispatch>} Dispatch */
/** @typedef {ReturnType<typeof port>} Port */
/** @typedef {ReturnType<typeof layout>} Plan */

/**
 * Read and check a plan: nothing in it may reach outside of its buffers.
 *
 * @param {BufferSource} bytes
 * @param {string} where
 * @returns {Plan}
 */
export function readPlan(bytes, where) {
  return located(where, "damaged plan, ", () => {
    const content = parsed(bytes);
    const { format, version } = head(content, "$");
    if (format !== FORMAT || version > VERSION) {
      const known = `${FORMAT} ${VERSION}`;
      throw new PocketSDError(
        `${format} ${version} is not a plan this PocketSD reads (${known})`, { where },
      );
    }
    const plan = layout(content, "$");
    checkPlan(plan);
    return plan;
  });
}

/**
 * @param {Port} described
 * @returns {number} in the order of the manifest's layout, 4 bytes an element
 */
export const portBytes = (described) => described.shape.reduce((count, n) => count * n, 4);

/**
 * Every buffer the plan needs, by name, in bytes.
 *
 * @param {Plan} plan
 * @returns {Map<string, number>}
 */
export function bufferSizes(plan) {
  const ports = [...plan.inputs.values(), ...plan.outputs.values()];
  return new Map([
    [ARENA, plan.arena],
    ...ports.map((each) => /** @type {const} */ ([each.buffer, portBytes(each)])),
    ...plan.weights,
  ]);
}

/** @param {Plan} plan */
export const largestBinding = (plan) =>
  plan.dispatches.reduce(
    (most, each) => each.bindings.reduce((n, b) => Math.max(n, b.size), most), 0,
  );

/** @param {Plan} plan */
export function checkPlan(plan) {
  const sizes = bufferSizes(plan);
  if ([...sizes.values()].some((size) => size < 0)) {
    throw new PocketSDError("a buffer has a negative size");
  }
  for (const name of plan.subgroup_shaders.keys()) {
    if (!plan.shaders.has(name)) {
      throw new PocketSDError(`there is no shader '${name}' to be faster than`);
    }
  }
  plan.dispatches.forEach((each, index) => {
    const name = `dispatch ${index} (${each.label})`;
    if (!plan.shaders.has(each.shader)) {
      throw new PocketSDError(`${name} wants a shader that is not there, '${each.shader}'`);
    }
    if (!each.groups.every((n) => 0 < n && n <= MOST_GROUPS)) {
      const groups = `(${each.groups.join(", ")})`;
      throw new PocketSDError(`${name} has ${groups} workgroups, 1 to ${MOST_GROUPS} are allowed`);
    }
    for (const bound of each.bindings) checkBinding(bound, sizes, name);
    checkOverlaps(each, name);
  });
}

/**
 * @param {Binding} bound
 * @param {Map<string, number>} sizes
 * @param {string} name
 */
function checkBinding({ buffer, offset, size }, sizes, name) {
  const there = sizes.get(buffer);
  if (there === undefined) throw new PocketSDError(`${name} binds an unknown buffer '${buffer}'`);
  if (offset < 0 || offset % ALIGNMENT || size <= 0 || size % 4) {
    throw new PocketSDError(
      `${name} binds ${size} bytes at ${offset} of ${buffer}; offsets are multiples of` +
        ` ${ALIGNMENT}, sizes of 4`,
    );
  }
  if (offset + size > there) {
    const end = offset + size;
    throw new PocketSDError(`${name} reaches byte ${end} of ${buffer}, which has ${there}`);
  }
}

/**
 * All of the arena is bound for writing, and WebGPU lets no two such ranges overlap.
 *
 * @param {Dispatch} each
 * @param {string} name
 */
function checkOverlaps(each, name) {
  const ranges = each.bindings.filter((b) => b.buffer === ARENA);
  ranges.sort((a, b) => a.offset - b.offset);
  for (let i = 1; i < ranges.length; i++) {
    const [before, after] = [ranges[i - 1], ranges[i]];
    if (after.offset < before.offset + before.size) {
      throw new PocketSDError(`${name} binds overlapping ranges of the arena, at ${after.offset}`);
    }
  }
}
