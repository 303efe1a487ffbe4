// Our own kernels on the browser's GPU, as a component's plan lists them.

import { PocketSDError } from "./errors.js";
import { Executor } from "./executor.js";
import { Gpu } from "./gpu.js";
import * as loop from "./loop.js";
import { readPlan } from "./plan.js";

/** @typedef {import("./package.js").Package} Package */
/** @typedef {import("./sampler.js").Schedule} Schedule */
/** @typedef {import("./tensor.js").Floats} Floats */
/** @typedef {import("./tensor.js").Tensor} Tensor */
/**
 * What the pipeline wants of an engine. `play` is the denoising loop on the engine's own terms, or
 * null where it has none.
 *
 * @typedef {object} Engine
 * @property {(component: string, inputs: Map<string, Tensor>) => Promise<Map<string, Tensor>>} run
 * @property {(component: string) => void} unload
 * @property {(schedule: Schedule, latent: Floats, embedding: Floats, scale: number,
 *   noise: (k: number) => Float32Array
 * ) => Promise<AsyncIterable<[number, Float32Array]> | null>} [play]
 */

/** The sampler's step comes with the UNet, as the third and fourth of its files. */
const SAMPLER = "sampler";

/** @implements {Engine} */
export class WebGPUEngine {
  /** @type {Map<string, Promise<Executor>>} */
  #executors = new Map();

  /**
   * @param {Package} source
   * @param {Gpu} gpu
   */
  constructor(source, gpu) {
    const { target } = source.manifest;
    if (target !== "webgpu") {
      throw new PocketSDError(`this package is for ${target}, not for a browser`, {
        mend: "convert with --target webgpu",
      });
    }
    this.source = source;
    this.gpu = gpu;
  }

  /**
   * @param {Package} source
   * @param {GPU} [entry]
   */
  static async open(source, entry) {
    return new WebGPUEngine(source, await Gpu.open(entry));
  }

  /** @param {string} component */
  async load(component) {
    await this.#executor(component, ...this.#files(component));
  }

  /**
   * @param {string} component
   * @param {Map<string, Tensor>} inputs
   */
  async run(component, inputs) {
    const executor = await this.#executor(component, ...this.#files(component));
    const [wanted, given] = [executor.plan.inputs, inputs].map((all) => [...all.keys()].sort());
    if (wanted.join() !== given.join()) {
      throw new PocketSDError(`${component} takes ${wanted}, got ${given}`);
    }
    return executor.run(inputs);
  }

  /**
   * The denoising loop of one picture with its latents on the GPU; null if the package has no plan
   * for that.
   *
   * @type {NonNullable<Engine["play"]>}
   */
  async play(schedule, latent, embedding, scale, noise) {
    const { files } = this.source.component("unet");
    if (files.length < 4 || latent.shape[0] !== 1) return null;
    const unet = await this.#executor("unet", files[0], files[1]);
    const sampler = await this.#executor(SAMPLER, files[2], files[3]);
    return loop.play(unet, sampler, schedule, latent, embedding, scale, noise);
  }

  /** @param {string} component */
  unload(component) {
    for (const name of component === "unet" ? [component, SAMPLER] : [component]) {
      this.#executors.get(name)?.then((executor) => executor.close(), () => {});
      this.#executors.delete(name);
    }
  }

  close() {
    for (const component of [...this.#executors.keys()]) this.unload(component);
    this.gpu.close();
  }

  /**
   * @param {string} component
   * @returns {[string, string]} its plan and its weights
   */
  #files(component) {
    const { files } = this.source.component(component);
    if (files.length === 2 || files.length === 4) return [files[0], files[1]];
    throw new PocketSDError(
      `${component} has ${files.length} files, a plan and its weights are two`,
    );
  }

  /**
   * @param {string} name
   * @param {string} planFile
   * @param {string} weightsFile
   */
  #executor(name, planFile, weightsFile) {
    const there = this.#executors.get(name);
    if (there) return there;
    const loading = this.#load(planFile, weightsFile);
    this.#executors.set(name, loading);
    loading.catch(() => this.#executors.delete(name)); // the next call may try again
    return loading;
  }

  /**
   * @param {string} planFile
   * @param {string} weightsFile
   */
  async #load(planFile, weightsFile) {
    const plan = readPlan(await this.source.bytes(planFile), planFile);
    this.gpu.check(plan);
    const weights = await this.source.file(weightsFile);
    return Executor.load(this.gpu, plan, weights, { where: weightsFile });
  }
}
