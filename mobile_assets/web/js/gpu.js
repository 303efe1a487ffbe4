// The GPU of this browser, and a device on it that can run a given plan.

import { PocketSDError } from "./errors.js";
import { SMALLER } from "./failures.js";
import { bufferSizes, largestBinding } from "./plan.js";

/** @typedef {import("./plan.js").Plan} Plan */

/** What is asked for where it is there: a plan that needs one of them says so. */
const FEATURES = /** @type {GPUFeatureName[]} */ (["shader-f16", "subgroups"]);
/** Otherwise 128 and 256 MiB, whatever the adapter allows. */
const LIMITS = /** @type {const} */ (["maxStorageBufferBindingSize", "maxBufferSize"]);
const NO_WEBGPU = new PocketSDError("this browser has no WebGPU", {
  mend: "use Chrome or Edge 121 or newer, Safari 26 or Firefox 141, on a page from https or localhost",
});
const NO_ADAPTER = new PocketSDError("no GPU that WebGPU can use", {
  mend: "close other tabs, update the browser or the system; old GPUs have no driver for it",
});

export class Gpu {
  /**
   * @param {GPU} entry kept: were it collected, the device might go with it
   * @param {GPUAdapter} adapter
   * @param {GPUDevice} device
   */
  constructor(entry, adapter, device) {
    this.entry = entry;
    this.adapter = adapter;
    this.device = device;
    /** @type {string | null} why the device is gone */
    this.gone = null;
    /** @type {GPUError[]} errors of no call in particular, since someone asked */
    this.unclaimed = [];
    /** Settled once the device is gone. */
    this.lost = device.lost.then(({ message, reason }) => {
      this.gone = message || reason || "no reason given";
    });
    device.addEventListener("uncapturederror", (event) => {
      event.preventDefault(); // told where the run fails, not on the console
      this.unclaimed.push(event.error);
    });
  }

  get name() {
    const { vendor, architecture, device, description } = this.adapter.info;
    return description || device || [vendor, architecture].filter(Boolean).join(" ") || "this GPU";
  }

  /** @param {GPU | undefined} [entry] */
  static async open(entry = globalThis.navigator?.gpu) {
    if (!entry) throw NO_WEBGPU;
    const adapter = await entry.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) throw NO_ADAPTER;
    try {
      const device = await adapter.requestDevice({
        requiredFeatures: FEATURES.filter((name) => adapter.features.has(name)),
        requiredLimits: Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]])),
      });
      return new Gpu(entry, adapter, device);
    } catch (error) {
      throw new PocketSDError(`the GPU cannot be opened: ${error}`, {
        mend: "close what else uses the GPU, or start the browser again",
      });
    }
  }

  /**
   * Refuse a plan that this device cannot run, and say what would.
   *
   * @param {Plan} plan
   */
  check(plan) {
    for (const feature of plan.features) {
      if (!this.device.features.has(feature)) {
        throw new PocketSDError(
          `${plan.component} needs ${feature}, which ${this.name} does not have`,
          { mend: feature === "shader-f16" ? "convert with --precision fp32" : undefined },
        );
      }
    }
    const largest = Math.max(...bufferSizes(plan).values());
    this.#allow(plan, "maxStorageBufferBindingSize", largestBinding(plan), "one binding");
    this.#allow(plan, "maxBufferSize", largest, "one buffer");
  }

  /**
   * @param {Plan} plan
   * @param {typeof LIMITS[number]} limit
   * @param {number} needed
   * @param {string} what
   */
  #allow(plan, limit, needed, what) {
    const allowed = this.device.limits[limit];
    if (needed <= allowed) return;
    const [need, have] = [needed, allowed].map((bytes) => (bytes / 2 ** 20).toFixed());
    throw new PocketSDError(
      `${plan.component} needs ${need} MiB in ${what}, ${this.name} allows ${have} (${limit})`,
      { mend: SMALLER },
    );
  }

  close() {
    this.device.destroy();
  }
}
