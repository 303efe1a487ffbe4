// A safetensors file, read in pieces: no tensor is ever held whole beside its buffer.

import { PocketSDError, located } from "./errors.js";
import { anything, dictionary, integer, list, parsed, record, text, tuple } from "./schema.js";

/** Bytes read at once; a multiple of four, as GPU buffers are written. */
export const PIECE = 1 << 22;
/** The format's own bound on its header. */
const LONGEST_HEADER = 100_000_000;
const METADATA = "__metadata__";

const entry = record({
  dtype: text,
  shape: list(integer),
  data_offsets: tuple(integer, integer),
});

/** @typedef {{dtype: string, shape: number[], begin: number, end: number}} Entry */

export class SafeTensors {
  /**
   * @param {Blob} file
   * @param {Map<string, Entry>} entries
   */
  constructor(file, entries) {
    this.file = file;
    this.entries = entries;
  }

  /**
   * @param {Blob} file
   * @param {string} where
   */
  static async open(file, where) {
    const first = new DataView(await file.slice(0, 8).arrayBuffer());
    const length = first.byteLength === 8 ? Number(first.getBigUint64(0, true)) : 0;
    if (length < 2 || length > LONGEST_HEADER || 8 + length > file.size) {
      throw new PocketSDError("damaged weights, the header does not fit", { where });
    }
    const header = await file.slice(8, 8 + length).arrayBuffer();
    return located(where, "damaged weights, ", () => {
      const described = dictionary(anything)(parsed(header), "$");
      described.delete(METADATA);
      const entries = [...described].map(([name, value]) => {
        const { dtype, shape, data_offsets } = entry(value, `$.${name}`);
        const [begin, end] = data_offsets.map((offset) => 8 + length + offset);
        if (data_offsets[0] < 0 || begin > end || end > file.size) {
          throw new PocketSDError(`${name} lies outside of the file`);
        }
        return /** @type {[string, Entry]} */ ([name, { dtype, shape, begin, end }]);
      });
      return new SafeTensors(file, new Map(entries));
    });
  }

  /**
   * The bytes of a tensor, from its beginning, in pieces; the last may be shorter.
   *
   * @param {Entry} described
   */
  async *pieces({ begin, end }) {
    for (let at = begin; at < end; at += PIECE) {
      const piece = await this.file.slice(at, Math.min(at + PIECE, end)).arrayBuffer();
      yield { at: at - begin, bytes: new Uint8Array(piece) };
    }
  }
}
