// Numbers with a shape, in row-major order.

import { PocketSDError } from "./errors.js";

/**
 * @template {Float32Array | Int32Array} [A=Float32Array | Int32Array]
 * @typedef {{shape: readonly number[], data: A}} Tensor
 */

/** @typedef {Tensor<Float32Array>} Floats */


/** @param {readonly number[]} shape */
export const countOf = (shape) => shape.reduce((count, n) => count * n, 1);

/** @param {string} dtype */
export function arrayOf(dtype) {
  if (dtype === "float32") return Float32Array;
  if (dtype === "int32") return Int32Array;
  throw new PocketSDError(`numbers of type ${dtype} are not known here`);
}

/**
 * @template {Float32Array | Int32Array} A
 * @param {readonly number[]} shape
 * @param {A} data
 * @returns {Tensor<A>}
 */
export function tensor(shape, data) {
  if (countOf(shape) !== data.length) {
    throw new PocketSDError(`${data.length} numbers do not make [${shape.join(", ")}]`);
  }
  return { shape, data };
}

/**
 * These rows of the first axis, in this order.
 *
 * @template {Float32Array | Int32Array} A
 * @param {Tensor<A>} from
 * @param {readonly number[]} indices
 * @returns {Tensor<A>}
 */
export function rows({ shape, data }, indices) {
  const size = countOf(shape.slice(1));
  const kind = /** @type {new (length: number) => A} */ (data.constructor);
  const chosen = new kind(size * indices.length);
  indices.forEach((row, place) => {
    chosen.set(data.subarray(row * size, (row + 1) * size), place * size);
  });
  return { shape: [indices.length, ...shape.slice(1)], data: chosen };
}

/**
 * One after the other along the first axis.
 *
 * @param {readonly Floats[]} parts
 * @returns {Floats}
 */
export function joined(parts) {
  const data = new Float32Array(parts.reduce((count, part) => count + part.data.length, 0));
  let at = 0;
  for (const part of parts) {
    data.set(part.data, at);
    at += part.data.length;
  }
  const length = parts.reduce((count, part) => count + part.shape[0], 0);
  return { shape: [length, ...parts[0].shape.slice(1)], data };
}

/** @param {Float32Array | Int32Array} data */
export const allFinite = (data) => data.every(Number.isFinite);
