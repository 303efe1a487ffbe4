// What goes wrong on a GPU, as one line that says what to do.

import { PocketSDError } from "./errors.js";
import { bufferSizes } from "./plan.js";

/** @typedef {import("./gpu.js").Gpu} Gpu */
/** @typedef {import("./plan.js").Plan} Plan */

export const SMALLER =
  "convert at a smaller --height and --width, with --batch-cfg 1, or in fp16";
const KINDS = /** @type {const} */ (["validation", "internal", "out-of-memory"]);
/** Milliseconds in which a device that fails may still say that it is lost. */
const LINGER = 200;

/**
 * `work` on the GPU, and every error of it: thrown, reported, or the loss of the device.
 *
 * @template T
 * @param {Gpu} gpu
 * @param {Plan} plan
 * @param {() => Promise<T>} work
 * @returns {Promise<T>}
 */
export async function watched(gpu, plan, work) {
  if (gpu.gone !== null) throw lost(plan, gpu.gone);
  for (const kind of KINDS) gpu.device.pushErrorScope(kind);
  const vanished = gpu.lost.then(() => {
    throw lost(plan, gpu.gone ?? "");
  });
  /** @type {{done: T} | {thrown: unknown}} */
  const outcome = await Promise.race([work(), vanished]).then(
    (done) => ({ done }),
    (thrown) => ({ thrown }),
  );
  const found = await reported(gpu);
  if ("thrown" in outcome && !(outcome.thrown instanceof PocketSDError) && !found) {
    await Promise.race([gpu.lost, new Promise((resolve) => setTimeout(resolve, LINGER))]);
  }
  if (gpu.gone !== null) throw lost(plan, gpu.gone);
  if (found) throw refused(plan, found);
  if ("done" in outcome) return outcome.done;
  if (outcome.thrown instanceof PocketSDError) throw outcome.thrown;
  throw refused(plan, /** @type {Error} */ (outcome.thrown));
}

/**
 * The first error that the scopes hold, or that no scope caught.
 *
 * @param {Gpu} gpu
 */
async function reported(gpu) {
  const caught = await Promise.all(KINDS.map(() => gpu.device.popErrorScope().catch(() => null)));
  return [...caught, ...gpu.unclaimed.splice(0)].find((error) => error !== null) ?? null;
}

/**
 * @param {Plan} plan
 * @param {string} why
 */
function lost(plan, why) {
  return new PocketSDError(
    `the GPU was lost while it ran ${plan.component}: its driver or its memory gave out. ${why}`,
    { mend: "load the page again, with low memory, or a package in fp16 or int8" },
  );
}

/**
 * @param {Plan} plan
 * @param {GPUError | Error} error
 */
function refused(plan, error) {
  const said = error.message.split(/\s+/).join(" ");
  if (error.constructor.name === "GPUOutOfMemoryError" || /(out of|not enough) memory/i.test(said)) {
    const bytes = [...bufferSizes(plan).values()].reduce((sum, size) => sum + size, 0);
    return new PocketSDError(
      `no memory left on the GPU for the ${(bytes / 2 ** 20).toFixed()} MiB of ${plan.component}`,
      { mend: "low memory, a package in fp16 or int8, or a smaller picture" },
    );
  }
  return new PocketSDError(`the GPU refused ${plan.component}: ${said.slice(0, 400)}`, {
    mend: /limit|maximum/.test(said) ? SMALLER : undefined,
  });
}
