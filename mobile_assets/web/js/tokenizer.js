// CLIP's tokenizer: lower-cased words, cut into byte-level BPE pieces, padded to a fixed length.

import { PocketSDError, located } from "./errors.js";
import { dictionary, integer, parsed } from "./schema.js";

/** @typedef {{ids: Int32Array, cut: string}} Tokens the ids, and what of the prompt did not fit */

const START = "<|startoftext|>";
const END = "<|endoftext|>";
const WORD_END = "</w>";
const BLANKS = /\p{White_Space}+/gu;
/** Python, which the ids are held to, also strips four marks that Unicode calls no blanks. */
const EDGES = /^[\p{White_Space}\x1c-\x1f]+|[\p{White_Space}\x1c-\x1f]+$/gu;
const WORDS = /'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\p{White_Space}\p{L}\p{N}]+/gu;

export class Tokenizer {
  /**
   * @param {Map<string, number>} vocabulary
   * @param {Map<string, number>} ranks of pairs, spelt as in the merges' file
   * @param {number} length
   * @param {Map<string, number[]>} added words that stand for token ids of their own
   */
  constructor(vocabulary, ranks, length, added) {
    const [start, end] = [START, END].map((mark) => {
      const id = vocabulary.get(mark);
      if (id === undefined) throw new PocketSDError(`the vocabulary has no ${mark}`);
      return id;
    });
    this.vocabulary = vocabulary;
    this.ranks = ranks;
    this.length = length;
    this.start = start;
    this.end = end;
    this.special = new Map([[START, [start]], [END, [end]], ...added]);
  }

  /**
   * @param {{vocab: BufferSource, merges: BufferSource}} files
   * @param {number} length
   * @param {Map<string, number[]>} [added]
   */
  static read({ vocab, merges }, length, added = new Map()) {
    return located("tokenizer", "cannot read the tokenizer, ", () => {
      const lines = new TextDecoder().decode(merges).split(/\r?\n/);
      const pairs = lines
        .filter((line) => line.trim() && !line.startsWith("#version"))
        .map((line) => line.trim().split(/\s+/));
      if (pairs.some((pair) => pair.length !== 2)) {
        throw new PocketSDError("a merge is not a pair of pieces");
      }
      const ranks = new Map(pairs.map((pair, rank) => [pair.join(" "), rank]));
      return new Tokenizer(dictionary(integer)(parsed(vocab), "$"), ranks, length, added);
    });
  }

  /**
   * @param {string} prompt
   * @returns {Tokens}
   */
  tokens(prompt) {
    const pieces = [...this.#pieces(normalise(prompt))];
    const room = this.length - 2;
    const ids = new Int32Array(this.length).fill(this.end); // SD 1.x pads with the end
    ids.set([this.start, ...pieces.slice(0, room).map(({ id }) => id)]);
    const cut = pieces.slice(room).map(({ word }) => word).join("");
    return { ids, cut: cut.replace(EDGES, "") };
  }

  /**
   * Each token's id with the text it stands for (for the message about what was cut).
   *
   * @param {string} prompt
   */
  *#pieces(prompt) {
    const longestFirst = [...this.special.keys()].sort((a, b) => b.length - a.length);
    const marks = new RegExp(`(${longestFirst.map(literal).join("|")})`, "u");
    for (const part of prompt.split(marks)) {
      const ids = this.special.get(part);
      if (ids) {
        for (const id of ids) yield { id, word: ` ${part}` };
        continue;
      }
      for (const word of words(part)) {
        for (const piece of this.#merge(word)) {
          // Every byte is in a CLIP vocabulary; a trimmed one falls back as CLIP does.
          yield { id: this.vocabulary.get(piece) ?? this.end, word: readable(piece) };
        }
      }
    }
  }

  /**
   * Joins the pair of lowest rank wherever it stands, until no pair has a rank.
   *
   * @param {string} word
   */
  #merge(word) {
    let pieces = [...new TextEncoder().encode(word)].map((byte) => ALPHABET[byte]);
    pieces[pieces.length - 1] += WORD_END;
    for (;;) {
      const pairs = pieces.slice(1).map((second, i) => `${pieces[i]} ${second}`);
      const ranks = pairs.map((pair) => this.ranks.get(pair) ?? Infinity);
      const lowest = ranks.reduce((least, rank) => Math.min(least, rank), Infinity);
      if (lowest === Infinity) return pieces;
      /** @type {string[]} */
      const merged = [];
      for (let i = 0; i < pieces.length; i++) {
        if (ranks[i] === lowest) merged.push(pieces[i] + pieces[++i]);
        else merged.push(pieces[i]);
      }
      pieces = merged;
    }
  }
}

/**
 * Compose accents, make every run of blanks one space, and lower the case.
 *
 * @param {string} prompt
 */
export function normalise(prompt) {
  const composed = prompt.normalize("NFC").replace(BLANKS, " ");
  // One by one: in a whole string a final sigma would get its own form; CLIP gives it none.
  return Array.from(composed, (character) => character.toLowerCase()).join("");
}

/**
 * Contractions, runs of letters, single digits, runs of anything else that is not a blank.
 *
 * @param {string} text
 */
export const words = (text) => text.match(WORDS) ?? [];

/** A printable character for every byte: itself where it prints, else one from 256 upwards. */
const ALPHABET = alphabet();
const BYTES = new Map(ALPHABET.map((character, byte) => [character, byte]));

function alphabet() {
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) => {
    const prints =
      (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    return String.fromCharCode(prints ? byte : 256 + others++);
  });
}

/** @param {string} piece */
function readable(piece) {
  const ends = piece.endsWith(WORD_END);
  const characters = [...(ends ? piece.slice(0, -WORD_END.length) : piece)];
  const bytes = Uint8Array.from(characters, (character) => BYTES.get(character) ?? 0);
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes) + (ends ? " " : "");
}

/** @param {string} text */
const literal = (text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
