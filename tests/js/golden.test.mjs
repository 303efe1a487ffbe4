// The web runtime against what the Python implementations answer (tools/golden.py).

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { crc32 } from "node:zlib";

import { gaussian, philox, rowStream } from "../../mobile_assets/web/js/noise.js";
import { Package } from "../../mobile_assets/web/js/package.js";
import { fromNetwork, preview, toNetwork } from "../../mobile_assets/web/js/pictures.js";
import { generate } from "../../mobile_assets/web/js/pipeline.js";
import { SamplerTable, begin, guided, play } from "../../mobile_assets/web/js/sampler.js";
import { sha256 } from "../../mobile_assets/web/js/sha256.js";
import { tensor } from "../../mobile_assets/web/js/tensor.js";
import { Tokenizer, normalise, words } from "../../mobile_assets/web/js/tokenizer.js";
import { FakeEngine, asset, bytesOf, close, fakeFiles, golden, refused, served } from "./support.mjs";

test("noise", () => {
  const { philox: blocks, gaussian: draws } = golden("noise");
  for (const { counter, key, words: expected } of blocks) {
    assert.deepEqual(philox(counter, key), expected);
  }
  for (const { seed, stream, values } of draws) {
    close(gaussian(BigInt(seed), BigInt(stream), values.length), values, 1e-6);
  }
  for (const seed of [-1n, 2n ** 64n]) assert.throws(() => gaussian(seed, 0n, 1), refused(/2\^64/));
});

test("samplers", async () => {
  const { tables, cases, guided: guidance } = golden("sampler");
  for (const { table: index, strength, latents, timesteps } of cases) {
    const table = SamplerTable.from(tables[index]);
    const schedule = strength === null ? table.fromNoise() : table.fromStrength(strength);
    const known = strength === null ? null : gaussian(8n, 0n, 6);
    const asked = [];
    const model = async (x, timestep) => {
      asked.push(timestep);
      return x.map((value) => (0.5 * value + 0.25) / (1 + Math.abs(value)) - timestep / 2048);
    };
    const first = begin(schedule, gaussian(7n, 0n, 6), known);
    const fresh = (k) => gaussian(7n, rowStream(k), 6);
    for await (const [k, x] of play(schedule, first, model, fresh)) close(x, latents[k], 1e-5);
    assert.deepEqual(asked, timesteps);
  }
  const { conditional, unconditional, scale, answer } = guidance;
  const [given, not] = [conditional, unconditional].map((values) => Float32Array.from(values));
  close(guided(given, not, scale), answer, 1e-6);
});

test("tables that would be misread are refused", () => {
  const [whole] = golden("sampler").tables;
  const damaged = (change) => {
    const copy = structuredClone(whole);
    change(copy);
    return () => SamplerTable.from(copy);
  };
  assert.throws(damaged((t) => (t.rows[0][2] = [1, 1])), refused(/looks back 2/));
  assert.throws(damaged((t) => t.starts.pop()), refused(/do not make 4 steps/));
  assert.throws(damaged((t) => (t.starts[1][0] = 9)), refused(/outside the 4 rows/));
  assert.throws(damaged((t) => (t.rows[1][0] = "7")), refused(/expected a number at \$\.rows\[1\]/));
  assert.throws(damaged((t) => delete t.steps), refused(/steps, got nothing/));
  const table = SamplerTable.from(whole);
  for (const strength of [0, 1.1, NaN, 0.2]) {
    assert.throws(() => table.fromStrength(strength), refused(/strength/));
  }
});

test("tokenizer", () => {
  const { cases, learned, length, characters } = golden("tokenizer");
  const files = {
    "tiny-sd": {
      vocab: asset("tiny-sd/tokenizer/vocab.json"),
      merges: asset("tiny-sd/tokenizer/merges.txt"),
    },
    learned: { vocab: bytesOf(learned.vocab), merges: bytesOf(learned.merges) },
  };
  for (const { tokenizer, added, prompt, ids, cut } of cases) {
    const read = Tokenizer.read(files[tokenizer], length, new Map(Object.entries(added)));
    const found = read.tokens(prompt);
    assert.deepEqual([[...found.ids], found.cut], [ids, cut], prompt);
  }
  for (const [given, expected] of characters.composed) assert.equal(given.normalize("NFC"), expected);
  const pages = new Map();
  for (const [first, last] of characters.ranges) {
    for (let code = first; code <= last; code++) {
      const c = String.fromCodePoint(code);
      const text = normalise(`${c}a${c}\u0301'${c}7${c}`);
      const page = pages.get(code >> 12) ?? [];
      page.push([text, ...words(text)].join("\0"), "\x01");
      pages.set(code >> 12, page);
    }
  }
  const sums = new Map([...pages].map(([page, parts]) => [page, crc32(parts.join(""))]));
  const expected = new Map(characters.crc32);
  assert.deepEqual(sums, expected);
});

test("pictures", () => {
  const { to_network, from_network, preview: small } = golden("pictures");
  close(toNetwork({ height: 2, width: 3, pixels: to_network.pixels }), to_network.values, 1e-6);
  const decoded = tensor([1, 3, 2, 2], Float32Array.from(from_network.values));
  assert.deepEqual([...fromNetwork(decoded)[0].pixels], from_network.pixels);
  const latents = tensor([2, 4, 2, 3], Float32Array.from(small.latents));
  const seen = preview(latents, small.matrix).flatMap(({ pixels }) => [...pixels]);
  close(seen, small.pixels, 1);
  decoded.data[3] = NaN;
  assert.throws(() => fromNetwork(decoded), refused(/NaN/));
});

test("hashes, also of files that go by in pieces", async () => {
  const bytes = Uint8Array.from({ length: 300 }, (_, i) => (i * i) % 251);
  const { crypto } = globalThis;
  try {
    for (const own of [true, false]) {
      if (!own) Object.defineProperty(globalThis, "crypto", { value: undefined });
      for (const size of [0, 3, 55, 56, 63, 64, 65, 119, 120, 300]) {
        const part = bytes.subarray(0, size);
        assert.equal(await sha256(new Blob([part])), createHash("sha256").update(part).digest("hex"));
      }
    }
  } finally {
    Object.defineProperty(globalThis, "crypto", { value: crypto });
  }
  const large = new Uint8Array(2 ** 25 + 70).map((_, i) => i >> 3);
  let seen = 0;
  const found = await sha256(new Blob([large]), (count) => (seen += count));
  assert.equal(found, createHash("sha256").update(large).digest("hex"));
  assert.equal(seen, large.length);
});

test("packages are read", async () => {
  for (const batch of ["any", "1", "2"]) {
    const { manifest } = await Package.open(served(fakeFiles(batch)));
    assert.equal(manifest.model, 'fake "model" \\ é 日本 🐈 \0\x1f\x7f\u2028/\n\t');
    assert.deepEqual(manifest.tokenizer.added, new Map([["<cat>", [900, 901]]]));
  }
});

test("every flipped byte of a manifest is noticed", async () => {
  const files = fakeFiles();
  const whole = files.get("manifest.json");
  const opened = (bytes) => Package.open(served(files.set("manifest.json", bytes)));
  for (let at = 0; at < whole.length; at += 3) {
    const copy = whole.slice();
    copy[at] ^= 1 << at % 7;
    await assert.rejects(opened(copy), refused(/./), `byte ${at}`);
  }
  const spaced = new Uint8Array([...whole, 0x20]);
  for (const bytes of [spaced, whole.slice(0, -1), whole.slice(0, 100), new Uint8Array()]) {
    await assert.rejects(opened(bytes), refused(/./));
  }
});

test("packages that are not whole are refused", async () => {
  const opened = (change, options) => {
    const files = fakeFiles();
    change(files);
    return Package.open(served(files), options);
  };
  const flip = (files) => (files.get("unet.bin")[3] ^= 1);
  await assert.rejects(opened(flip), refused(/unet.bin does not match its sha256/));
  await opened(flip, { check: false });
  const cut = (files) => files.set("unet.bin", files.get("unet.bin").slice(1));
  await assert.rejects(opened(cut, { check: false }), refused(/instead of/));
  await assert.rejects(opened((files) => files.delete("unet.bin")), refused(/is missing/));
  await assert.rejects(opened((files) => files.delete("manifest.json")), refused(/not a package/));
  const source = await Package.open(served(fakeFiles()));
  for (const name of ["", "../up", "/etc/passwd", "a/../b", ".hidden", "a\\b", "é", "a\n"]) {
    await assert.rejects(source.file(name), refused(/unsafe file name/));
  }
  await assert.rejects(source.table("lcm", 7), refused(/no table for lcm in 7 steps/));
});

test("whole pictures", async () => {
  const { prompt, image, cases } = golden("generation");
  const given = { height: 16, width: 24, pixels: Uint8Array.from(Buffer.from(image, "base64")) };
  for (const each of cases) {
    const source = await Package.open(served(fakeFiles(each.package)));
    const engine = new FakeEngine(source);
    const request = {
      prompt,
      negativePrompt: each.negative_prompt,
      seeds: each.seeds.map(BigInt),
      guidanceScale: each.guidance_scale,
      image: each.from_image ? given : null,
      strength: each.strength,
      lowMemory: each.low_memory,
    };
    const events = [];
    const table = await source.table(each.sampler, each.steps);
    for await (const event of generate(engine, source, table, request)) events.push(event);
    const done = events.at(-1);
    close(done.latents.data, each.latents, 1e-5);
    each.pictures.forEach((encoded, index) =>
      close(done.pictures[index].pixels, [...Buffer.from(encoded, "base64")], 1));
    assert.equal(done.pictures.length, each.pictures.length);
    assert.equal(done.cut, each.cut);
    assert.deepEqual(engine.calls, each.calls);
  }
});

test("what is no number makes no picture", async () => {
  const source = await Package.open(served(fakeFiles()));
  const engine = new FakeEngine(source);
  const run = engine.run.bind(engine);
  engine.run = async (component, inputs) => {
    const answer = await run(component, inputs);
    if (component === "unet") [...answer.values()][0].data[5] = NaN;
    return answer;
  };
  const table = await source.table("lcm", 4);
  await assert.rejects(async () => {
    for await (const event of generate(engine, source, table, { prompt: "x" })) void event;
  }, refused(/unet gave values that are no numbers/));
});
