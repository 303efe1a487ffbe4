// Gaussian noise that is the same on every device: Philox4x32-10 and Box-Muller.
//
// Element i of a stream is a pure function of (seed, stream, i); runtime_py/noise.py has the
// definition. Seeds and streams are BigInts below 2^64.

import { PocketSDError } from "./errors.js";

/** The stream of the initial latent. */
export const INITIAL = 0n;
const [M0, M1] = [0xd2511f53, 0xcd9e8d57];
const [W0, W1] = [0x9e3779b9, 0xbb67ae85];
const WORD = 2 ** 32;

/** @typedef {[number, number, number, number]} Words */

/**
 * Unit normal noise. A larger count begins with the same numbers.
 *
 * @param {bigint} seed
 * @param {bigint} stream
 * @param {number} count
 */
export function gaussian(seed, stream, count) {
  if (BigInt.asUintN(64, seed) !== seed || BigInt.asUintN(64, stream) !== stream) {
    throw new PocketSDError(`seed ${seed} (stream ${stream}) is not within 0 .. 2^64 - 1`);
  }
  const [key, [s0, s1]] = [halves(seed), halves(stream)];
  const values = new Float32Array(count);
  for (let i = 0; i < count; i += 4) {
    const block = i / 4;
    const words = philox([block % WORD, Math.floor(block / WORD), s0, s1], key);
    const uniform = words.map((word) => (word + 0.5) / WORD);
    const normal = [...pair(uniform[0], uniform[1]), ...pair(uniform[2], uniform[3])];
    values.set(normal.slice(0, count - i), i);
  }
  return values;
}

/**
 * The stream of row k's fresh noise.
 *
 * @param {number} k
 */
export const rowStream = (k) => BigInt(k) + 1n;

/**
 * Philox4x32-10 (Salmon et al., SC 2011).
 *
 * @param {Words} counter
 * @param {[number, number]} key
 * @returns {Words}
 */
export function philox([c0, c1, c2, c3], [k0, k1]) {
  for (let round = 0; round < 10; round++) {
    const [high0, low0] = product(M0, c0);
    const [high1, low1] = product(M1, c2);
    [c0, c1, c2, c3] = [(high1 ^ c1 ^ k0) >>> 0, low1, (high0 ^ c3 ^ k1) >>> 0, low0];
    [k0, k1] = [(k0 + W0) >>> 0, (k1 + W1) >>> 0];
  }
  return [c0, c1, c2, c3];
}

/**
 * Box-Muller.
 *
 * @param {number} u0
 * @param {number} u1
 */
function pair(u0, u1) {
  const radius = Math.sqrt(-2 * Math.log(u0));
  const angle = 2 * Math.PI * u1;
  return [radius * Math.cos(angle), radius * Math.sin(angle)];
}

/**
 * The halves of a 64-bit product, by products that a double holds exactly.
 *
 * @param {number} a
 * @param {number} b
 */
function product(a, b) {
  const [ah, al, bh, bl] = [a >>> 16, a & 0xffff, b >>> 16, b & 0xffff];
  const middle = ah * bl + Math.floor((al * bl) / 0x10000); // below 2^33
  const rest = al * bh + (middle % 0x10000);
  const high = ah * bh + Math.floor(middle / 0x10000) + Math.floor(rest / 0x10000);
  return [high >>> 0, Math.imul(a, b) >>> 0];
}

/**
 * @param {bigint} value
 * @returns {[number, number]} low and high
 */
function halves(value) {
  return [Number(BigInt.asUintN(32, value)), Number(value >> 32n)];
}
