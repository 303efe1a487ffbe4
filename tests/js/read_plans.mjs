// Reads the plans that it is given; prints of each null, or why it was refused.

import { readFileSync } from "node:fs";

import { PocketSDError } from "../../mobile_assets/web/js/errors.js";
import { readPlan } from "../../mobile_assets/web/js/plan.js";

const complaints = process.argv.slice(2).map((path) => {
  try {
    readPlan(readFileSync(path), path);
    return null;
  } catch (error) {
    if (!(error instanceof PocketSDError)) throw error;
    return error.what;
  }
});
console.log(JSON.stringify(complaints));
