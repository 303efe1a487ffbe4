// A plan made ready on a device, and run: buffers, pipelines, one list of dispatches.

import { PocketSDError } from "./errors.js";
import { watched } from "./failures.js";
import { NUMBERS, bufferSizes, portBytes } from "./plan.js";
import { SafeTensors } from "./safetensors.js";
import { ENABLE, sharesRows } from "./subgroups.js";
import { arrayOf, countOf } from "./tensor.js";

/** @typedef {import("./gpu.js").Gpu} Gpu */
/** @typedef {import("./plan.js").Plan} Plan */
/** @typedef {import("./plan.js").Dispatch} Dispatch */
/** @typedef {import("./tensor.js").Tensor} Tensor */
/** @typedef {{pipeline: GPUComputePipeline, group: GPUBindGroup}} Command */

/** A GPU that is busy for too long with one submission is taken for hung, so they are cut. */
const FLOPS_AT_ONCE = 40e9;
/** Bytes written before waiting for them to arrive: what is under way is memory too. */
const BYTES_AT_ONCE = 2 ** 25;

export class Executor {
  /** @type {Map<string, GPUBuffer>} */
  #buffers = new Map();
  /** @type {Command[]} */
  #commands = [];

  /**
   * `Executor.load` makes one that is ready.
   *
   * @param {Gpu} gpu
   * @param {Plan} plan
   */
  constructor(gpu, plan) {
    this.gpu = gpu;
    this.plan = plan;
  }

  /**
   * @param {Gpu} gpu
   * @param {Plan} plan
   * @param {Blob} weights
   * @param {{where?: string, subgroups?: boolean}} [options]
   */
  static async load(gpu, plan, weights, { where = plan.component, subgroups = true } = {}) {
    const made = new Executor(gpu, plan);
    try {
      await watched(gpu, plan, async () => {
        const faster = subgroups && plan.subgroup_shaders.size > 0 && (await sharesRows(gpu));
        made.#allocate();
        made.#commands = await made.#prepare(faster);
        await made.#upload(await SafeTensors.open(weights, where), where);
      });
    } catch (error) {
      made.close();
      throw error;
    }
    return made;
  }

  /**
   * Once, from inputs to outputs.
   *
   * @param {Map<string, Tensor>} inputs
   * @returns {Promise<Map<string, Tensor>>}
   */
  run(inputs) {
    return watched(this.gpu, this.plan, async () => {
      this.write(inputs);
      this.submit();
      return this.#read([...this.plan.outputs.keys()]);
    });
  }

  // What `run` does in one, in parts: between them tensors can go from one plan to another. Only
  // `read` waits for the GPU, and tells what went wrong in the others.

  /** @param {Map<string, Tensor>} inputs */
  write(inputs) {
    for (const [name, { data }] of inputs) {
      const port = found(this.plan.inputs, name);
      if (!(data instanceof arrayOf(port.dtype)) || data.byteLength !== portBytes(port)) {
        const wanted = `${port.dtype} [${port.shape.join(", ")}]`;
        throw new PocketSDError(`${this.plan.component} takes ${name} as ${wanted}`);
      }
      this.gpu.device.queue.writeBuffer(this.#buffer(port.buffer), 0, /** @type {any} */ (data));
    }
  }

  submit() {
    const { device } = this.gpu;
    for (const [begin, end] of portions(this.plan.dispatches)) {
      const encoder = device.createCommandEncoder();
      const compute = encoder.beginComputePass();
      for (let index = begin; index < end; index++) {
        const { pipeline, group } = this.#commands[index];
        compute.setPipeline(pipeline);
        compute.setBindGroup(0, group);
        compute.dispatchWorkgroups(...this.plan.dispatches[index].groups);
      }
      compute.end();
      device.queue.submit([encoder.finish()]);
    }
  }

  /**
   * An output to byte `to` of an input of another plan on this device.
   *
   * @param {string} output
   * @param {Executor} other
   * @param {string} into
   * @param {number} [to]
   */
  copy(output, other, into, to = 0) {
    const source = found(this.plan.outputs, output);
    const target = found(other.plan.inputs, into);
    const encoder = this.gpu.device.createCommandEncoder();
    encoder.copyBufferToBuffer(
      this.#buffer(source.buffer), 0, other.#buffer(target.buffer), to, portBytes(source),
    );
    this.gpu.device.queue.submit([encoder.finish()]);
  }

  /**
   * @param {string} output
   * @returns {Promise<Tensor>}
   */
  read(output) {
    return watched(this.gpu, this.plan, async () => {
      const [found] = (await this.#read([output])).values();
      return found;
    });
  }

  close() {
    for (const buffer of this.#buffers.values()) buffer.destroy();
    this.#buffers = new Map();
    this.#commands = [];
  }

  #allocate() {
    const { STORAGE, UNIFORM, COPY_SRC, COPY_DST } = GPUBufferUsage;
    for (const [name, size] of bufferSizes(this.plan)) {
      const usage = STORAGE | COPY_SRC | COPY_DST | (name === NUMBERS ? UNIFORM : 0);
      const label = `${this.plan.component}.${name}`;
      const whole = Math.max(4, Math.ceil(size / 4) * 4); // buffers are written in words of four
      this.#buffers.set(name, this.gpu.device.createBuffer({ label, size: whole, usage }));
    }
  }

  /**
   * @param {SafeTensors} file
   * @param {string} where
   */
  async #upload(file, where) {
    const { queue } = this.gpu.device;
    let underWay = 0;
    for (const [name, size] of this.plan.weights) {
      const entry = file.entries.get(name);
      if (!entry) throw new PocketSDError(`incomplete weights, ${name} is missing`, { where });
      const found = entry.end - entry.begin;
      if (found !== size) {
        throw new PocketSDError(
          `damaged weights, ${name} has ${found} bytes instead of ${size}`, { where },
        );
      }
      for await (const { at, bytes } of file.pieces(entry)) {
        queue.writeBuffer(this.#buffer(name), at, inWords(bytes));
        underWay += bytes.length;
        if (underWay < BYTES_AT_ONCE) continue;
        await queue.onSubmittedWorkDone();
        underWay = 0;
      }
    }
    await queue.onSubmittedWorkDone();
  }

  /**
   * For each dispatch its pipeline and its bindings.
   *
   * @param {boolean} faster
   */
  async #prepare(faster) {
    const { device } = this.gpu;
    const { shaders, subgroup_shaders } = this.plan;
    /** @type {Map<string, GPUShaderModule>} */
    const modules = new Map();
    for (const [label, plain] of shaders) {
      const special = faster ? subgroup_shaders.get(label) : undefined;
      const code = special === undefined ? plain : ENABLE + special;
      modules.set(label, device.createShaderModule({ label, code }));
    }
    /** @type {Map<string, GPUBindGroupLayout>} */
    const layouts = new Map();
    /** @type {Map<string, Promise<GPUComputePipeline>>} */
    const pipelines = new Map();
    const commands = this.plan.dispatches.map(async (dispatch) => {
      const kinds = dispatch.bindings.map(({ buffer }) => this.#kind(buffer));
      const layout = kept(layouts, kinds.join(), () => this.#layout(kinds));
      const pipeline = kept(pipelines, `${dispatch.shader} ${kinds}`, () =>
        device.createComputePipelineAsync({
          label: dispatch.shader,
          layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
          compute: { module: found(modules, dispatch.shader), entryPoint: "main" },
        }));
      return { group: this.#bind(dispatch, layout), pipeline: await pipeline };
    });
    return Promise.all(commands);
  }

  /**
   * @param {string} buffer
   * @returns {GPUBufferBindingType}
   */
  #kind(buffer) {
    if (buffer === NUMBERS) return "uniform";
    return this.plan.weights.has(buffer) ? "read-only-storage" : "storage";
  }

  /** @param {GPUBufferBindingType[]} kinds */
  #layout(kinds) {
    const visibility = GPUShaderStage.COMPUTE;
    return this.gpu.device.createBindGroupLayout({
      entries: kinds.map((type, binding) => ({ binding, visibility, buffer: { type } })),
    });
  }

  /**
   * @param {Dispatch} dispatch
   * @param {GPUBindGroupLayout} layout
   */
  #bind(dispatch, layout) {
    return this.gpu.device.createBindGroup({
      layout,
      entries: dispatch.bindings.map(({ buffer, offset, size }, binding) => ({
        binding,
        resource: { buffer: this.#buffer(buffer), offset, size },
      })),
    });
  }

  /** @param {string[]} names */
  async #read(names) {
    const { device } = this.gpu;
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const encoder = device.createCommandEncoder();
    const copies = names.map((name) => {
      const port = found(this.plan.outputs, name);
      const copy = device.createBuffer({ size: Math.max(4, portBytes(port)), usage });
      encoder.copyBufferToBuffer(this.#buffer(port.buffer), 0, copy, 0, portBytes(port));
      return { name, port, copy };
    });
    device.queue.submit([encoder.finish()]);
    try {
      await Promise.all(copies.map(({ copy }) => copy.mapAsync(GPUMapMode.READ)));
      return new Map(copies.map(({ name, port, copy }) => {
        const kind = arrayOf(port.dtype);
        const data = new kind(copy.getMappedRange().slice(0), 0, countOf(port.shape));
        return [name, { shape: port.shape, data }];
      }));
    } finally {
      for (const { copy } of copies) copy.destroy();
    }
  }

  /** @param {string} name */
  #buffer(name) {
    return found(this.#buffers, name);
  }
}

/**
 * @template T
 * @param {Map<string, T>} map
 * @param {string} name
 * @returns {T}
 */
function found(map, name) {
  const value = map.get(name);
  if (value === undefined) throw new PocketSDError(`there is no ${name} (or it was closed)`);
  return value;
}

/**
 * @template T
 * @param {Map<string, T>} map
 * @param {string} key
 * @param {() => T} make
 * @returns {T}
 */
function kept(map, key, make) {
  const value = map.get(key) ?? make();
  map.set(key, value);
  return value;
}

/** @param {Uint8Array<ArrayBuffer>} bytes */
function inWords(bytes) {
  if (bytes.length % 4 === 0) return bytes;
  const whole = new Uint8Array(Math.ceil(bytes.length / 4) * 4);
  whole.set(bytes);
  return whole;
}

/**
 * @param {readonly Dispatch[]} dispatches
 * @returns {Generator<[number, number]>}
 */
function* portions(dispatches) {
  let begin = 0;
  let work = 0;
  for (const [index, { flops }] of dispatches.entries()) {
    work += flops;
    if (work <= FLOPS_AT_ONCE) continue;
    yield [begin, index + 1];
    begin = index + 1;
    work = 0;
  }
  if (begin < dispatches.length) yield [begin, dispatches.length];
}
