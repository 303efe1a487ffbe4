// What a package's manifest.json says; runtime_py/package.py defines the format.

import { PocketSDError, located } from "./errors.js";
import {
  anything, between, dictionary, integer, list, number, optional, orNull, parsed, record, text,
} from "./schema.js";
import { sha256 } from "./sha256.js";

export const MANIFEST = "manifest.json";
export const FORMAT = "pocketsd-package";
export const VERSION = 1;

const tensorSpec = record({
  name: text,
  shape: list(orNull(between(1, 2 ** 20))),
  dtype: text,
  layout: text,
});
const component = record({
  name: text,
  files: list(text),
  inputs: list(tensorSpec),
  outputs: list(tensorSpec),
  config: optional(dictionary(anything), /** @type {Map<string, unknown>} */ (new Map())),
});
const layout = record({
  model: text,
  target: text,
  precision: text,
  // The bounds are far from any real model, and near enough to multiply safely.
  picture: record({
    height: between(1, 4096),
    width: between(1, 4096),
    shrink: between(1, 64),
    unit: between(1, 4096),
    latent_channels: between(1, 64),
    preview: list(list(number)),
  }),
  tokenizer: record({
    vocab: text,
    merges: text,
    length: between(2, 4096),
    added: optional(dictionary(list(integer)), /** @type {Map<string, number[]>} */ (new Map())),
  }),
  components: list(component),
  samplers: dictionary(text),
  default_sampler: text,
  files: dictionary(record({ sha256: text, bytes: between(0, 2 ** 40) })),
  sha256: text,
});

/** @typedef {ReturnType<typeof layout>} Manifest */
/** @typedef {ReturnType<typeof component>} Component */

/**
 * Read and check a manifest: it matches its own digest, down to the last blank.
 *
 * @param {ArrayBuffer} bytes
 * @returns {Promise<Manifest>}
 */
export async function readManifest(bytes) {
  const content = located(MANIFEST, "damaged manifest, ", () => parsed(bytes));
  const { format, version } = located(MANIFEST, "not a PocketSD manifest, ", () =>
    record({ format: text, version: integer })(content, "$"));
  if (format !== FORMAT) throw new PocketSDError("not a PocketSD manifest", { where: MANIFEST });
  if (version > VERSION) {
    throw new PocketSDError(
      `package version ${version} is newer than this PocketSD, which reads ${VERSION}`,
      { mend: "load the page again" },
    );
  }
  if (!(await isSealed(bytes))) {
    const what = "damaged manifest, it does not match its own sha256";
    throw new PocketSDError(what, { where: MANIFEST });
  }
  return located(MANIFEST, "damaged manifest, ", () => layout(content, "$"));
}

const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
/** The digest's own line; no string holds a line's end, so one blank means the outermost level. */
const OWN_LINE = /\n "sha256": "([0-9a-f]{64})",(?=\n)/;

/**
 * The digest is of the text without itself and without blanks. Numbers are compared as they are
 * spelt, which they would lose by being read.
 *
 * @param {ArrayBuffer} bytes
 */
async function isSealed(bytes) {
  const written = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
  const tokens = written.match(TOKENS) ?? [];
  const own = written.match(OWN_LINE);
  if (!own || indented(tokens) !== written) return false;
  const signed = written.replace(OWN_LINE, "").match(TOKENS) ?? [];
  return (await sha256(new Blob([signed.join("")]))) === own[1];
}

/**
 * A line for every value, each level one blank further in.
 *
 * @param {readonly string[]} tokens
 */
function indented(tokens) {
  let depth = 0;
  const line = () => `\n${" ".repeat(depth)}`;
  const parts = tokens.map((token, i) => {
    const [opens, closes] = ["{[".includes(token), "}]".includes(token)];
    const empty = closes && "{[".includes(tokens[i - 1]);
    const follows = opens && "}]".includes(tokens[i + 1]);
    if (closes) depth -= 1;
    const before = closes && !empty ? line() : "";
    if (opens) depth += 1;
    const after = (opens && !follows) || token === "," ? line() : "";
    return `${before}${token === ":" ? ": " : token}${after}`;
  });
  return `${parts.join("")}\n`;
}
