// The package: files by name with everything one model needs, and a manifest that says so.

import { PocketSDError } from "./errors.js";
import { MANIFEST, readManifest } from "./manifest.js";
import { SamplerTable } from "./sampler.js";
import { sha256 } from "./sha256.js";
import { Tokenizer } from "./tokenizer.js";

/** @typedef {import("./manifest.js").Manifest} Manifest */
/**
 * Where files come from: a folder of the browser's, a server, a test's memory. Null: not there.
 *
 * @typedef {(name: string) => Promise<Blob | null>} Files
 */

const SAFE_NAME = /^[A-Za-z0-9_+][A-Za-z0-9_.+-]*(\/[A-Za-z0-9_+][A-Za-z0-9_.+-]*)*$/;
const LONGEST_MANIFEST = 1 << 24;

export class Package {
  /**
   * `Package.open` reads one.
   *
   * @param {Files} files
   * @param {Manifest} manifest
   */
  constructor(files, manifest) {
    this.files = files;
    this.manifest = manifest;
  }

  /**
   * Refuses what is not whole. `check: false` leaves the hashes for later.
   *
   * @param {Files} files
   * @param {{check?: boolean, advance?: (bytes: number) => void}} [options]
   */
  static async open(files, { check = true, advance } = {}) {
    const file = await files(MANIFEST);
    if (!file || file.size > LONGEST_MANIFEST) {
      throw new PocketSDError(`not a package, it has no ${MANIFEST}`, {
        mend: "`pocketsd convert --target webgpu` makes one",
      });
    }
    const opened = new Package(files, await readManifest(await file.arrayBuffer()));
    await opened.#checkFiles();
    if (check) await opened.checkHashes(advance);
    return opened;
  }

  /** @param {string} name */
  async file(name) {
    if (name.length > 255 || !SAFE_NAME.test(name)) {
      throw new PocketSDError(`unsafe file name '${name.slice(0, 80)}'`);
    }
    const file = await this.files(name);
    if (!file) throw new PocketSDError(`incomplete package, ${name} is missing`);
    return file;
  }

  /** @param {string} name */
  async bytes(name) {
    return (await this.file(name)).arrayBuffer();
  }

  /** @param {string} name */
  component(name) {
    const found = this.manifest.components.find((each) => each.name === name);
    if (found) return found;
    const have = this.manifest.components.map((each) => each.name).join(", ");
    throw new PocketSDError(`the package has no ${name} (it has ${have})`);
  }

  /** The picture sizes built into it, as WIDTHxHEIGHT; none: any. */
  get sizes() {
    const { height, width } = this.manifest.picture;
    return this.component("unet").inputs[0].shape[2] === null ? [] : [`${width}x${height}`];
  }

  async tokenizer() {
    const { vocab, merges, length, added } = this.manifest.tokenizer;
    const [first, second] = await Promise.all([this.bytes(vocab), this.bytes(merges)]);
    return Tokenizer.read({ vocab: first, merges: second }, length, added);
  }

  /**
   * The sampler table stored for this scheduler and step count.
   *
   * @param {string} sampler
   * @param {number} steps
   */
  async table(sampler, steps) {
    const name = this.manifest.samplers.get(`${sampler}/${steps}`);
    if (name !== undefined) return SamplerTable.read(await this.bytes(name), name);
    const have = [...this.manifest.samplers.keys()].sort().join(", ");
    throw new PocketSDError(`no table for ${sampler} in ${steps} steps (there are ${have})`, {
      mend: "convert again with --scheduler and --steps",
    });
  }

  /**
   * Read every file once.
   *
   * @param {(bytes: number) => void} [advance] is told the bytes as they go by
   */
  async checkHashes(advance) {
    for (const [name, entry] of this.manifest.files) {
      if ((await sha256(await this.file(name), advance)) !== entry.sha256) {
        throw new PocketSDError(`damaged package, ${name} does not match its sha256`);
      }
    }
  }

  async #checkFiles() {
    const { files, tokenizer, samplers, components } = this.manifest;
    for (const [name, { bytes }] of files) {
      const { size } = await this.file(name);
      if (size !== bytes) {
        throw new PocketSDError(`damaged package, ${name} has ${size} bytes instead of ${bytes}`);
      }
    }
    const parts = components.flatMap((each) => each.files);
    for (const name of [tokenizer.vocab, tokenizer.merges, ...samplers.values(), ...parts]) {
      if (files.has(name)) continue;
      throw new PocketSDError(`incomplete package, ${name} is not listed in it`);
    }
  }
}
