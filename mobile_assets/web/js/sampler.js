// Samplers as tables: one loop plays every scheduler; runtime_py/sampler.py says what a row means.

import { PocketSDError, located } from "./errors.js";
import { integer, list, number, parsed, record, text, tuple } from "./schema.js";

/** How many latents and outputs a row may look back on, its own included. */
export const HISTORY = 4;

/** @typedef {ReturnType<typeof row>} Row */
/** @typedef {ReturnType<typeof start>} Start */
/** @typedef {{rows: Row[], signal: number, noise: number}} Schedule */

const rowLayout = tuple(
  number, number, list(number), list(number), number, tuple(number, number),
);
/** @type {(value: unknown, path: string) => {timestep: number, inputScale: number,
 *    latents: number[], outputs: number[], noise: number, keep: [number, number]}} */
const row = (value, path) => {
  const [timestep, inputScale, latents, outputs, noise, keep] = rowLayout(value, path);
  return { timestep, inputScale, latents, outputs, noise, keep };
};
const startLayout = tuple(integer, number, number, list(row));
/** @type {(value: unknown, path: string) => {row: number, signal: number, noise: number,
 *    warmUp: Row[]}} */
const start = (value, path) => {
  const [first, signal, noise, warmUp] = startLayout(value, path);
  return { row: first, signal, noise, warmUp };
};
const layout = record({
  scheduler: text,
  steps: integer,
  prediction: text,
  rows: list(row),
  initial_noise: number,
  starts: list(start),
});

/** One scheduler at one number of steps. */
export class SamplerTable {
  /** @param {ReturnType<typeof layout>} content */
  constructor({ scheduler, steps, prediction, rows, initial_noise, starts }) {
    this.scheduler = scheduler;
    this.steps = steps;
    this.prediction = prediction;
    this.rows = rows;
    this.initialNoise = initial_noise;
    this.starts = starts;
    check(this);
  }

  /**
   * @param {BufferSource} bytes
   * @param {string} where
   */
  static read(bytes, where) {
    return located(where, "not a sampler table: ", () => SamplerTable.from(parsed(bytes)));
  }

  /** @param {unknown} content plain data */
  static from(content) {
    return new SamplerTable(layout(content, "$"));
  }

  /**
   * Text to image.
   *
   * @returns {Schedule}
   */
  fromNoise() {
    return { rows: this.rows, signal: 0, noise: this.initialNoise };
  }

  /**
   * Image to image: plays the last `strength` of the steps, rounded down.
   *
   * @param {number} strength
   * @returns {Schedule}
   */
  fromStrength(strength) {
    if (!(strength > 0 && strength <= 1)) {
      throw new PocketSDError(`strength is ${strength}, must be above 0 and at most 1`);
    }
    const played = Math.floor(this.steps * strength);
    if (played < 1) {
      throw new PocketSDError(
        `strength ${strength} leaves none of ${this.steps} steps to play`,
        { mend: `use at least ${(1 / this.steps).toPrecision(3)}` },
      );
    }
    const { row: first, warmUp, signal, noise } = this.starts[this.steps - played];
    return { rows: [...warmUp, ...this.rows.slice(first + warmUp.length)], signal, noise };
  }
}

/**
 * x_0 from unit noise and, for img2img, the encoded picture.
 *
 * @param {Schedule} schedule
 * @param {Float32Array} noise
 * @param {Float32Array | null} [picture]
 */
export function begin(schedule, noise, picture = null) {
  return noise.map((drawn, i) =>
    (picture ? picture[i] * schedule.signal : 0) + drawn * schedule.noise);
}

/**
 * Yield [k, x_{k+1}] for every row.
 *
 * `evaluate(scaled latent, timestep)` is the UNet with guidance done, `noise(k)` unit noise, asked
 * for only where a row uses it. What is yielded is what the next row reads: inpainting blends the
 * known picture into it in place.
 *
 * @param {Schedule} schedule
 * @param {Float32Array} latent
 * @param {(scaled: Float32Array, timestep: number) => Promise<Float32Array>} evaluate
 * @param {(k: number) => Float32Array} noise
 * @returns {AsyncGenerator<[number, Float32Array]>}
 */
export async function* play(schedule, latent, evaluate, noise) {
  let latents = [latent]; // newest first
  /** @type {Float32Array[]} */
  let outputs = [];
  for (const [k, each] of schedule.rows.entries()) {
    const scaled = latents[0].map((x) => x * each.inputScale);
    outputs = [await evaluate(scaled, each.timestep), ...outputs].slice(0, HISTORY);
    const terms = each.latents.map((weight, i) => ({ weight, values: latents[i] }));
    terms.push(...each.outputs.map((weight, i) => ({ weight, values: outputs[i] })));
    if (each.noise) terms.push({ weight: each.noise, values: noise(k) });
    const next = latent.map((_, i) =>
      terms.reduce((sum, { weight, values }) => sum + weight * values[i], 0));
    latents = [next, ...latents].slice(0, HISTORY);
    yield [k, next];
  }
}

/**
 * Classifier-free guidance; scale 1 is the conditional output alone.
 *
 * @param {Float32Array} conditional
 * @param {Float32Array} unconditional
 * @param {number} scale
 */
export function guided(conditional, unconditional, scale) {
  return conditional.map((value, i) => unconditional[i] + scale * (value - unconditional[i]));
}

/**
 * Refuse what `play` would misread. Depth matters: a row must not reach before its start.
 *
 * @param {SamplerTable} table
 */
function check({ scheduler, steps, rows, starts }) {
  /** @type {(what: string) => never} */
  const refuse = (what) => {
    throw new PocketSDError(`sampler table ${scheduler} x ${steps}: ${what}`);
  };
  /** @type {(each: Row, k: number) => void} */
  const checkRow = ({ latents, outputs }, k) => {
    const depth = Math.max(latents.length, outputs.length);
    if (depth > Math.min(k + 1, HISTORY)) {
      refuse(`row ${k} of a schedule looks back ${depth} evaluations`);
    }
    if (!depth) refuse(`row ${k} of a schedule is incomplete`);
  };
  if (!rows.length || steps < 1 || starts.length !== steps) {
    refuse(`${rows.length} rows and ${starts.length} starts do not make ${steps} steps`);
  }
  rows.forEach(checkRow);
  for (const { row: first, warmUp } of starts) {
    const left = rows.length - first;
    if (!(left > 0 && left <= rows.length) || warmUp.length > left) {
      refuse(`a start at row ${first} lies outside the ${rows.length} rows`);
    }
    warmUp.forEach(checkRow);
    // The table's own rows, played while the history is still short.
    for (let k = warmUp.length; k < Math.min(left, HISTORY); k++) checkRow(rows[first + k], k);
  }
}
