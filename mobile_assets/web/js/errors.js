/** The one error people see: a line that says what is wrong, where, and how to mend it. */
export class PocketSDError extends Error {
  /**
   * @param {string} what
   * @param {{where?: string, mend?: string}} [more]
   */
  constructor(what, { where, mend } = {}) {
    const line = where ? `${where}: ${what}` : what;
    super((mend ? `${line} (${mend})` : line).split(/\s+/).join(" ").trim());
    this.name = "PocketSDError";
    this.what = what;
    this.where = where;
    this.mend = mend;
  }
}

/**
 * What `work` gives; its failure is told with the place and `prefix` added.
 *
 * @template T
 * @param {string} where
 * @param {string} prefix
 * @param {() => T} work
 * @returns {T}
 */
export function located(where, prefix, work) {
  try {
    return work();
  } catch (error) {
    if (!(error instanceof PocketSDError) || error.where) throw error;
    throw new PocketSDError(`${prefix}${error.what}`, { where, mend: error.mend });
  }
}
