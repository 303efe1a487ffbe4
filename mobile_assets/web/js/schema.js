// Readers of JSON that nobody vouches for: each takes a value and the path to it, and gives the
// value back checked. Types follow from the readers, so a format is written down once.

import { PocketSDError } from "./errors.js";

/**
 * @template T
 * @typedef {(value: unknown, path: string) => T} Reader
 */

/**
 * @template R
 * @typedef {R extends Reader<infer T> ? T : never} Read
 */

/** @type {Reader<unknown>} */
export const anything = (value) => value;

/** @type {Reader<string>} */
export const text = (value, path) => {
  if (typeof value !== "string") refuse("text", value, path);
  return value;
};

/** @type {Reader<number>} */
export const number = (value, path) => {
  if (typeof value !== "number" || !Number.isFinite(value)) refuse("a number", value, path);
  return value;
};

/** @type {Reader<number>} */
export const integer = (value, path) => {
  if (!Number.isSafeInteger(value)) refuse("an integer", value, path);
  return /** @type {number} */ (value);
};

/**
 * @param {number} least
 * @param {number} most
 * @returns {Reader<number>}
 */
export const between = (least, most) => (value, path) => {
  const found = integer(value, path);
  if (found < least || found > most) refuse(`an integer from ${least} to ${most}`, value, path);
  return found;
};

/**
 * @template T
 * @param {Reader<T>} each
 * @returns {Reader<T[]>}
 */
export const list = (each) => (value, path) => {
  if (!Array.isArray(value)) refuse("a list", value, path);
  return value.map((item, index) => each(item, `${path}[${index}]`));
};

/**
 * A list of so many values, each with a reader of its own.
 *
 * @template {Reader<any>[]} R
 * @param {[...R]} readers
 * @returns {Reader<{[K in keyof R]: Read<R[K]>}>}
 */
export const tuple = (...readers) => (value, path) => {
  if (!Array.isArray(value) || value.length !== readers.length) {
    refuse(`a list of ${readers.length}`, value, path);
  }
  const read = readers.map((reader, index) => reader(value[index], `${path}[${index}]`));
  return /** @type {any} */ (read);
};

/**
 * @template T
 * @param {Reader<T>} each
 * @returns {Reader<Map<string, T>>} no plain object, which would find what it inherits
 */
export const dictionary = (each) => (value, path) =>
  new Map(members(value, path).map(([name, item]) => [name, each(item, `${path}.${name}`)]));

/**
 * An object with these members; others are not looked at.
 *
 * @template {Record<string, Reader<any>>} R
 * @param {R} readers
 * @returns {Reader<{[K in keyof R]: Read<R[K]>}>}
 */
export const record = (readers) => (value, path) => {
  const given = new Map(members(value, path));
  const read = Object.entries(readers).map(([name, reader]) => [
    name,
    reader(given.get(name), `${path}.${name}`),
  ]);
  return Object.fromEntries(read);
};

/**
 * @template T
 * @param {Reader<T>} reader
 * @returns {Reader<T | null>}
 */
export const orNull = (reader) => (value, path) => (value === null ? null : reader(value, path));

/**
 * @template T, U
 * @param {Reader<T>} reader
 * @param {U} missing
 * @returns {Reader<T | U>}
 */
export const optional = (reader, missing) => (value, path) =>
  value === undefined ? missing : reader(value, path);

/**
 * JSON from bytes, or a line that says what is wrong with them.
 *
 * @param {BufferSource} bytes
 * @returns {unknown}
 */
export function parsed(bytes) {
  try {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes));
  } catch (error) {
    throw new PocketSDError(`not JSON, ${/** @type {Error} */ (error).message}`);
  }
}

/**
 * @param {unknown} value
 * @param {string} path
 * @returns {[string, unknown][]}
 */
function members(value, path) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    refuse("an object", value, path);
  }
  return Object.entries(value);
}

/**
 * @param {string} wanted
 * @param {unknown} value
 * @param {string} path
 * @returns {never}
 */
function refuse(wanted, value, path) {
  const got = value === undefined ? "nothing" : (JSON.stringify(value) ?? "nothing").slice(0, 40);
  throw new PocketSDError(`expected ${wanted} at ${path}, got ${got}`);
}
