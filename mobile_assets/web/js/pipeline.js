// A prompt in, events out, pictures at the end: the loop of runtime_py/pipeline.py.
//
// It knows engines and packages only by their named inputs. To cancel is to stop iterating.

import { PocketSDError } from "./errors.js";
import { INITIAL, gaussian, rowStream } from "./noise.js";
import { fromNetwork, toNetwork } from "./pictures.js";
import { begin, guided, play } from "./sampler.js";
import { allFinite, joined, rows, tensor } from "./tensor.js";

/** @typedef {import("./engine.js").Engine} Engine */
/** @typedef {import("./package.js").Package} Package */
/** @typedef {import("./pictures.js").Picture} Picture */
/** @typedef {import("./sampler.js").SamplerTable} SamplerTable */
/** @typedef {import("./tensor.js").Floats} Floats */
/** @typedef {import("./tensor.js").Tensor} Tensor */
/**
 * What to draw. An `image` of the picture's size makes it img2img.
 *
 * @typedef {object} Request
 * @property {string} prompt
 * @property {string} [negativePrompt]
 * @property {readonly bigint[]} [seeds]
 * @property {number} [guidanceScale]
 * @property {Picture | null} [image]
 * @property {number} [strength]
 * @property {boolean} [lowMemory] hold one component at a time
 */
/**
 * A component other than the denoiser has run; a row of the sampler table has been played
 * (`latents` is live: copy before keeping); the pictures, one per seed, and what of the prompt was
 * too long for the text encoder.
 *
 * @typedef {{kind: "stage", name: string, seconds: number}
 *   | {kind: "step", index: number, total: number, timestep: number, latents: Floats,
 *      seconds: number}
 *   | {kind: "done", pictures: Picture[], latents: Floats, cut: string}} Event
 */

const USUAL = {
  negativePrompt: "", seeds: /** @type {readonly bigint[]} */ ([0n]), guidanceScale: 7.5,
  image: null, strength: 0.75, lowMemory: false,
};

/**
 * @param {Engine} engine
 * @param {Package} source
 * @param {SamplerTable} table
 * @param {Request} request
 * @returns {AsyncGenerator<Event>}
 */
export async function* generate(engine, source, table, request) {
  const asked = { ...USUAL, ...request };
  const { seeds, image, guidanceScale, lowMemory } = asked;
  const shape = latentShape(source, asked);
  const count = shape.slice(1).reduce((product, n) => product * n);
  const schedule = image ? table.fromStrength(asked.strength) : table.fromNoise();
  const draw = (/** @type {bigint} */ stream) =>
    joined(seeds.map((seed) => tensor([1, count], gaussian(seed, stream, count)))).data;
  const freshNoise = (/** @type {number} */ k) => draw(rowStream(k));

  let lap = stopwatch();
  /** @type {(name: string) => Event} */
  const finish = (name) => {
    if (lowMemory) engine.unload(name);
    return { kind: "stage", name, seconds: lap() };
  };

  // At scale 1 guidance returns the conditional answer, so the other one need not be asked.
  const prompts = [asked.negativePrompt, asked.prompt].slice(guidanceScale === 1 ? 1 : 0);
  const tokenizer = await source.tokenizer();
  const tokens = prompts.map((prompt) => tokenizer.tokens(prompt));
  const ids = tensor([prompts.length, tokenizer.length], Int32Array.from(
    tokens.flatMap((each) => [...each.ids]),
  ));
  const embedding = await answer(engine, source, "text_encoder", { tokens: ids });
  yield finish("text_encoder");

  let known = null;
  if (image) {
    lap = stopwatch();
    const picture = tensor([1, 3, image.height, image.width], toNetwork(image));
    const encoded = await answer(engine, source, "vae_encoder", { picture });
    known = rows(encoded, seeds.map(() => 0)).data;
    yield finish("vae_encoder");
  }

  /** @type {Floats} */
  let latents = tensor(shape, begin(schedule, draw(INITIAL), known));
  lap = stopwatch();
  const own = await engine.play?.(schedule, latents, embedding, guidanceScale, freshNoise);
  const evaluate = denoiser(engine, source, embedding, guidanceScale, shape);
  for await (const [index, x] of own ?? play(schedule, latents.data, evaluate, freshNoise)) {
    latents = tensor(shape, finite("unet", x));
    const { timestep } = schedule.rows[index];
    yield { kind: "step", index, total: schedule.rows.length, timestep, latents, seconds: lap() };
    lap = stopwatch();
  }
  if (lowMemory) engine.unload("unet");

  lap = stopwatch();
  const decoded = await answer(engine, source, "vae_decoder", { latent: latents });
  const pictures = fromNetwork(decoded);
  yield finish("vae_decoder");
  yield { kind: "done", pictures, latents, cut: tokens[tokens.length - 1].cut };
}

/**
 * The UNet's answer for all seeds, guidance done.
 *
 * @param {Engine} engine
 * @param {Package} source
 * @param {Floats} embedding [1 or 2, tokens, width]: unconditional first
 * @param {number} scale
 * @param {readonly number[]} shape [seeds, channels, h, w]
 */
function denoiser(engine, source, embedding, scale, shape) {
  const [seeds, prompts] = [shape[0], embedding.shape[0]];
  const repeated = Array.from({ length: seeds * prompts }, (_, i) => Math.floor(i / seeds));
  const embeddings = rows(embedding, repeated);
  return async (/** @type {Float32Array} */ scaled, /** @type {number} */ timestep) => {
    const one = tensor(shape, scaled);
    const { data } = await answer(engine, source, "unet", {
      latent: prompts === 1 ? one : joined([one, one]),
      timestep: tensor([seeds * prompts], new Float32Array(seeds * prompts).fill(timestep)),
      embedding: embeddings,
    });
    if (prompts === 1) return data;
    return guided(data.subarray(scaled.length), data.subarray(0, scaled.length), scale);
  };
}

/**
 * Run a component that has one output, in slices of the batch that it was built for; a last slice
 * that is not full repeats its end.
 *
 * @param {Engine} engine
 * @param {Package} source
 * @param {string} component
 * @param {Record<string, Tensor>} inputs
 * @returns {Promise<Floats>}
 */
async function answer(engine, source, component, inputs) {
  const { inputs: [first], outputs: [output] } = source.component(component);
  const given = Object.entries(inputs);
  const count = given[0][1].shape[0];
  const size = first.shape[0] ?? count;
  /** @type {Floats[]} */
  const parts = [];
  for (let at = 0; at < count; at += size) {
    const indices = Array.from({ length: size }, (_, i) => Math.min(at + i, count - 1));
    const slice = new Map(given.map(([name, all]) => [name, rows(all, indices)]));
    const found = (await engine.run(component, slice)).get(output.name);
    if (!found) throw new PocketSDError(`${component} gave no ${output.name}`);
    const kept = rows(found, indices.slice(0, count - at).map((_, i) => i));
    parts.push({ shape: kept.shape, data: Float32Array.from(kept.data) });
  }
  const all = joined(parts);
  finite(component, all.data);
  return all;
}

/**
 * No picture is made of what no longer are numbers.
 *
 * @param {string} component
 * @param {Float32Array} values
 */
function finite(component, values) {
  if (allFinite(values)) return values;
  throw new PocketSDError(`${component} gave values that are no numbers (NaN or infinite)`, {
    mend: "convert with --precision fp32; if it is that already, the GPU or its driver fails",
  });
}

/**
 * [seeds, channels, h, w], checked against what the package can draw.
 *
 * @param {Package} source
 * @param {{seeds: readonly bigint[], image: Picture | null}} asked
 */
function latentShape(source, { seeds, image }) {
  const { height, width, shrink, latent_channels } = source.manifest.picture;
  if (!seeds.length) throw new PocketSDError("no seed given");
  if (image && (image.height !== height || image.width !== width)) {
    throw new PocketSDError(
      `the image is ${image.width}x${image.height}, the package draws ${width}x${height}`,
    );
  }
  return [seeds.length, latent_channels, height / shrink, width / shrink];
}

/** Seconds since it was made. */
function stopwatch() {
  const started = performance.now();
  return () => (performance.now() - started) / 1000;
}
