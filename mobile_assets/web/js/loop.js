// The denoising loop with its latents on the GPU: of a row, the host sends the factors only.

import { HISTORY } from "./sampler.js";
import { portBytes } from "./plan.js";
import { rows, tensor } from "./tensor.js";

/** @typedef {import("./executor.js").Executor} Executor */
/** @typedef {import("./sampler.js").Row} Row */
/** @typedef {import("./sampler.js").Schedule} Schedule */
/** @typedef {import("./tensor.js").Floats} Floats */

/** See the kernel: by slot HISTORY for latents and as many for answers, then six more. */
const FACTORS = 2 * HISTORY + 6;

/**
 * Like `play` of sampler.js, guidance and the UNet included.
 *
 * @param {Executor} unet
 * @param {Executor} sampler
 * @param {Schedule} schedule
 * @param {Floats} latent [1, 4, h, w]
 * @param {Floats} embedding [1 or 2, tokens, width]: unconditional first
 * @param {number} scale
 * @param {(k: number) => Float32Array} noise
 * @returns {AsyncGenerator<[number, Float32Array]>}
 */
export async function* play(unet, sampler, schedule, latent, embedding, scale, noise) {
  const size = input(unet, "latent").shape[0];
  const prompts = embedding.shape[0];
  const [output] = unet.plan.outputs.keys();
  const each = portBytes(input(unet, "latent")) / size;
  const count = schedule.rows.length;
  sampler.write(new Map([["noise", latent], factors(beginning(schedule.rows[0].inputScale))]));
  sampler.submit();
  for (const [k, row] of schedule.rows.entries()) {
    const timestep = tensor([size], new Float32Array(size).fill(row.timestep));
    for (let first = 0; first < prompts; first += size) {
      const chosen = Array.from({ length: size }, (_, i) => Math.min(first + i, prompts - 1));
      unet.write(new Map([["timestep", timestep], ["embedding", rows(embedding, chosen)]]));
      for (let place = 0; place < size; place++) {
        sampler.copy("next", unet, "latent", place * each);
      }
      unet.submit();
      unet.copy(output, sampler, "answer", first * each);
    }
    const following = k + 1 < count ? schedule.rows[k + 1].inputScale : 1;
    sampler.write(new Map([factors(weighed(k, row, following, scale, prompts === 2))]));
    if (row.noise) sampler.write(new Map([["noise", tensor(latent.shape, noise(k))]]));
    sampler.submit();
    yield [k, /** @type {Float32Array} */ ((await sampler.read("latent")).data)];
  }
}

/**
 * The first latent comes in as noise, into slot 0.
 *
 * @param {number} inputScale
 */
function beginning(inputScale) {
  return Float32Array.from([...new Array(2 * HISTORY).fill(0), 1, inputScale, 0, HISTORY - 1, 0, 0]);
}

/**
 * Row k as the kernel wants it: x_k and e_k lie in slot k % HISTORY.
 *
 * @param {number} k
 * @param {Row} row
 * @param {number} following
 * @param {number} scale
 * @param {boolean} paired
 */
function weighed(k, row, following, scale, paired) {
  const packed = new Float32Array(FACTORS);
  const slot = (/** @type {number} */ back) => (k - back + HISTORY) % HISTORY;
  row.latents.forEach((weight, back) => (packed[slot(back)] = weight));
  row.outputs.forEach((weight, back) => (packed[HISTORY + slot(back)] = weight));
  const tail = [row.noise, following, scale, k % HISTORY, (k + 1) % HISTORY, paired ? 1 : 0];
  packed.set(tail, 2 * HISTORY);
  return packed;
}

/**
 * @param {Float32Array} values
 * @returns {[string, Floats]}
 */
const factors = (values) => ["factors", tensor([FACTORS], values)];

/**
 * @param {Executor} executor
 * @param {string} name
 */
function input(executor, name) {
  const port = executor.plan.inputs.get(name);
  if (!port) throw new TypeError(`${executor.plan.component} has no input ${name}`);
  return port;
}
