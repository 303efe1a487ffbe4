// Pictures on their way to and from the network.

import { PocketSDError } from "./errors.js";
import { allFinite, countOf } from "./tensor.js";

/** @typedef {import("./tensor.js").Floats} Floats */
/**
 * 8-bit RGB, [height, width, 3].
 *
 * @typedef {{height: number, width: number, pixels: Uint8Array | Uint8ClampedArray}} Picture
 */

const f32 = Math.fround;

/**
 * [h, w, 3] in 0..255 -> [3, h, w] in -1..1
 *
 * @param {Picture} picture
 */
export function toNetwork({ height, width, pixels }) {
  const area = height * width;
  if (pixels.length !== 3 * area) {
    throw new PocketSDError(`${pixels.length} bytes do not make a picture of ${width}x${height}`);
  }
  return Float32Array.from({ length: 3 * area }, (_, i) =>
    f32(pixels[(i % area) * 3 + Math.floor(i / area)] / 127.5) - 1);
}

/**
 * [b, 3, h, w] around -1..1 -> b pictures in 0..255
 *
 * @param {Floats} decoded
 * @returns {Picture[]}
 */
export function fromNetwork({ shape: [count, channels, height, width], data }) {
  if (channels !== 3 || data.length !== countOf([count, 3, height, width])) {
    throw new PocketSDError("the decoder's answer is no picture");
  }
  if (!allFinite(data)) {
    throw new PocketSDError("the decoder's picture holds NaN or infinity: an overflow in fp16?");
  }
  const area = height * width;
  return Array.from({ length: count }, (_, picture) => {
    const planes = data.subarray(picture * 3 * area, (picture + 1) * 3 * area);
    const pixels = new Uint8ClampedArray(3 * area); // which rounds a half to even, as Python does
    for (let i = 0; i < 3 * area; i++) {
      const value = Math.min(Math.max(planes[(i % 3) * area + Math.floor(i / 3)], -1), 1);
      pixels[i] = f32(f32(value + 1) * 127.5);
    }
    return { height, width, pixels };
  });
}

/**
 * A small picture straight from each latent: RGB = matrix @ (channels, 1).
 *
 * @param {Floats} latents [n, channels, h, w]
 * @param {readonly (readonly number[])[]} matrix [3, channels + 1]
 */
export function preview({ shape, data }, matrix) {
  const [count, channels, height, width] = shape;
  if (matrix.length !== 3 || matrix.some((line) => line.length !== channels + 1)) {
    throw new PocketSDError("the preview's matrix does not fit the latent");
  }
  const area = height * width;
  const rgb = Float32Array.from({ length: count * 3 * area }, (_, i) => {
    const [cell, line, latent] = [i % area, matrix[Math.floor(i / area) % 3], Math.floor(i / area / 3)];
    let sum = line[channels];
    for (let c = 0; c < channels; c++) sum += line[c] * data[(latent * channels + c) * area + cell];
    return Number.isNaN(sum) ? 0 : Math.min(Math.max(sum, -1), 1);
  });
  return fromNetwork({ shape: [count, 3, height, width], data: rgb });
}
