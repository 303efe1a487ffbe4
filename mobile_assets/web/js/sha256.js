// SHA-256 (FIPS 180-4) of files of any size.
//
// The browser's own wants all bytes at once, and a phone has no memory to hold a model beside the
// model: large files go by in pieces, through the few lines below.

/** Up to here the browser's own, which is faster. */
const AT_ONCE = 1 << 25;
const PIECE = 1 << 22;
const BLOCK = 64;

/**
 * @param {Blob} file
 * @param {(bytes: number) => void} [advance] is told the bytes as they go by
 * @returns {Promise<string>} in hexadecimal
 */
export async function sha256(file, advance = () => {}) {
  if (file.size <= AT_ONCE && globalThis.crypto?.subtle) {
    const digest = await crypto.subtle.digest("SHA-256", await file.arrayBuffer());
    advance(file.size);
    return hexadecimal(new Uint8Array(digest));
  }
  const state = Uint32Array.from(START);
  const whole = file.size - (file.size % BLOCK);
  for (let at = 0; at < whole; at += PIECE) {
    const piece = await file.slice(at, Math.min(at + PIECE, whole)).arrayBuffer();
    absorb(state, new DataView(piece));
    advance(piece.byteLength);
  }
  const rest = new Uint8Array(await file.slice(whole).arrayBuffer());
  absorb(state, padded(rest, file.size));
  advance(rest.length);
  const digest = new DataView(new ArrayBuffer(32));
  state.forEach((word, i) => digest.setUint32(4 * i, word));
  return hexadecimal(new Uint8Array(digest.buffer));
}

/** The first 32 bits of the fractional parts of roots of the first primes. */
const PRIMES = primes(64);
const START = PRIMES.slice(0, 8).map((prime) => fraction(prime, 2n));
const ROUNDS = Uint32Array.from(PRIMES, (prime) => fraction(prime, 3n));

/**
 * @param {Uint32Array} state
 * @param {DataView} blocks
 */
function absorb(state, blocks) {
  const w = new Uint32Array(64);
  for (let at = 0; at < blocks.byteLength; at += BLOCK) {
    for (let i = 0; i < 16; i++) w[i] = blocks.getUint32(at + 4 * i);
    for (let i = 16; i < 64; i++) {
      const [x, y] = [w[i - 15], w[i - 2]];
      w[i] = w[i - 16] + (turn(x, 7) ^ turn(x, 18) ^ (x >>> 3)) +
        w[i - 7] + (turn(y, 17) ^ turn(y, 19) ^ (y >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i++) {
      const one = (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g));
      const t1 = (h + one + ROUNDS[i] + w[i]) | 0;
      const t2 = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((word, i) => (state[i] += word));
  }
}

/**
 * The last bytes, a bit, zeros, and the length in bits.
 *
 * @param {Uint8Array} rest
 * @param {number} size
 */
function padded(rest, size) {
  const bytes = new Uint8Array(Math.ceil((rest.length + 9) / BLOCK) * BLOCK);
  bytes.set(rest);
  bytes[rest.length] = 0x80;
  const view = new DataView(bytes.buffer);
  view.setBigUint64(bytes.length - 8, BigInt(size) * 8n);
  return view;
}

/**
 * @param {number} word
 * @param {number} by
 */
const turn = (word, by) => (word >>> by) | (word << (32 - by));

/** @param {Uint8Array} bytes */
const hexadecimal = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");

/** @param {number} count */
function primes(count) {
  /** @type {bigint[]} */
  const found = [];
  for (let n = 2n; found.length < count; n++) if (found.every((prime) => n % prime)) found.push(n);
  return found;
}

/**
 * The first 32 bits behind the point of a root, by halving: floor(root * 2^32) modulo 2^32.
 *
 * @param {bigint} prime
 * @param {bigint} degree
 */
function fraction(prime, degree) {
  const wanted = prime << (32n * degree);
  let [low, high] = [0n, prime << 32n];
  while (high - low > 1n) {
    const middle = (low + high) >> 1n;
    if (middle ** degree <= wanted) low = middle;
    else high = middle;
  }
  return Number(BigInt.asUintN(32, low));
}
