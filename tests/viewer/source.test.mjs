/** What is asked of the server, once; what is kept; what a file answers in its place. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { pack, Recent, recording, replay, Server } from "../../app/viewer/source.js";

const TABLE = { text: ["[CLS]", "a"], start: [0, 0], end: [0, 1], special: [true, false], segment: [null, 0], word: [null, 0] };
const WORDS = { text: ["a"], start: [0], end: [1], segment: [0] };

function safetensors(name, values) {
  const header = new TextEncoder().encode(JSON.stringify({ [name]: { dtype: "F32", shape: [values.length], data_offsets: [0, values.length * 4] } }));
  const out = new Uint8Array(8 + header.length + values.length * 4);
  new DataView(out.buffer).setBigUint64(0, BigInt(header.length), true);
  out.set(header, 8);
  out.set(new Uint8Array(Float32Array.from(values).buffer), 8 + header.length);
  return out;
}

/** A fake server, and what it was asked. */
function fakeServer() {
  const asked = [];
  const fetch = async (path, { body, headers, signal }) => {
    const request = { path, accept: headers.Accept, ...(body && JSON.parse(body)), signal };
    asked.push(request);
    await new Promise((resolve) => setImmediate(resolve));
    if (signal.aborted) throw signal.reason;
    const { attention } = request;
    if (path === "similarity" && request.explain && request.pairs[0][0] === "refuse") {
      return Response.json({ detail: "cls pooling", code: "explanation_not_supported" }, { status: 501 });
    }
    if (path === "similarity") {
      const side = { tokens: TABLE, words: WORDS };
      const explanations = request.explain ? [{ a: side, b: side, rows: { token: [0, 1] }, columns: { token: [0, 1] }, values: [[0.1, 0.2], [0.3, 0.1]] }] : undefined;
      return Response.json({ similarities: [0.7], num_tokens: [[2, 2]], truncated: [[false, true]], explanations });
    }
    if (path === "attention/heads") return Response.json({ heads: [[0, 0]], order: [0] });
    if (request.texts[0] === "too long") return Response.json({ detail: "at most 3", code: "text_too_long" }, { status: 413 });
    if (request.texts[0] === "broken") return new Response("<html>", { status: 502 });
    if (headers.Accept.includes("safetensors")) {
      const name = attention.rollout ? "attention.0.rollout" : "attention.0.maps";
      return new Response(safetensors(name, [attention.layers?.[0] ?? 9]), { headers: { "Content-Type": "application/vnd.safetensors" } });
    }
    const stats = { special: attention.special ?? "keep" };
    const body_ = { attention: [{ tokens: TABLE, words: WORDS, stats }], num_tokens: [2], num_tokens_total: [2], truncated: [false] };
    return Response.json(body_, { headers: { "Server-Timing": "tokenize;dur=0.1, total;dur=12.5" } });
  };
  return { asked, fetch };
}

test("a reading asks for statistics alone, and has the server's time", async () => {
  const { asked, fetch } = fakeServer(), source = new Server(fetch);
  const reading = await source.read({ texts: ["a"], model: "", prompt: "" });
  assert.deepEqual(asked[0].texts, ["a"]);
  assert.deepEqual(asked[0].attention, { layers: "all", maps: false, stats: true });
  assert.deepEqual([asked[0].model, asked[0].prompt_name], [null, null]);
  assert.deepEqual([reading.count, reading.total, reading.truncated, reading.milliseconds], [2, 2, false, 12.5]);
  assert.deepEqual(await source.stats("keep"), { special: "keep" });
  assert.equal(asked.length, 1, "the statistics came with the reading");
});

test("a key is sent with every request, and is in nothing that is kept", async () => {
  const shown = [], { fetch } = fakeServer(), answers = new Map(), arrays = new Recent(1e6);
  const watching = async (path, request) => (shown.push(request.headers.Authorization), fetch(path, request));
  const source = new Server(recording(watching, answers, arrays));
  await source.read({ texts: ["a"] });
  source.key = "key77";
  await source.read({ texts: ["a"] });
  await source.layer(1);
  assert.deepEqual(shown, [undefined, "Bearer key77", "Bearer key77"]);
  assert.ok(answers.size && arrays.size);
  assert.ok(!JSON.stringify(pack(answers, arrays)).includes("key77"));
});

test("two texts are one pair; model and prompt are passed on", async () => {
  const { asked, fetch } = fakeServer();
  await new Server(fetch).read({ texts: ["a", "b"], model: "m", prompt: "query" });
  assert.deepEqual([asked[0].texts, asked[0].model, asked[0].prompt_name], [[["a", "b"]], "m", "query"]);
});

test("a layer is asked for once, however many want it at once or later", async () => {
  const { asked, fetch } = fakeServer(), source = new Server(fetch);
  await source.read({ texts: ["a"] });
  const [one, other] = await Promise.all([source.layer(3), source.layer(3)]);
  assert.equal(one, other);
  assert.deepEqual([...(await source.layer(3))], [3]);
  assert.equal(asked.length, 2);
  assert.deepEqual(asked[1].attention, { layers: [3], dtype: "float16" });
  assert.deepEqual([...(await source.rollout())], [9]);
  assert.equal(asked[2].attention.rollout.residual, 0.5);
});

test("another text gives up what is under way, and keeps nothing of the last", async () => {
  const { asked, fetch } = fakeServer(), source = new Server(fetch);
  await source.read({ texts: ["a"] });
  await source.layer(1);
  const late = source.layer(2), second = source.read({ texts: ["b"] });
  await assert.rejects(late, { name: "AbortError" });
  await second;
  assert.equal(asked[2].signal.aborted, true);
  assert.equal(source.layers.size, 0);
  await source.layer(1);
  assert.deepEqual(asked.at(-1).texts, ["b"]);
});

test("a refusal carries the server's sentence and code, whatever else comes back", async () => {
  const { fetch } = fakeServer(), source = new Server(fetch);
  await assert.rejects(source.read({ texts: ["too long"] }), { message: "at most 3", code: "text_too_long" });
  await assert.rejects(source.read({ texts: ["broken"] }), { message: "The server answered 502." });
});

test("a request that failed is made again", async () => {
  let isDown = true;
  const { fetch } = fakeServer(), source = new Server(async (...request) => (isDown ? new Response("", { status: 503 }) : fetch(...request)));
  source.body = { texts: ["a"] };
  await assert.rejects(source.layer(0));
  isDown = false;
  assert.deepEqual([...(await source.layer(0))], [0]);
});

test("a comparison has its map, or the reason why there is none", async () => {
  const { asked, fetch } = fakeServer(), source = new Server(fetch);
  const whole = await source.compare({ texts: ["a", "b"] });
  assert.deepEqual([whole.similarity, whole.reason, whole.truncated, whole.a.texts, whole.b.texts], [0.7, null, true, ["a"], ["b"]]);
  assert.equal(whole.found.values[1][0], 0.3);
  const bare = await source.compare({ texts: ["refuse", "b"] });
  assert.deepEqual([bare.similarity, bare.reason, bare.found], [0.7, "cls pooling", undefined]);
  assert.equal(asked.at(-1).explain, undefined);
});

test("npz asks for what is in view, in the server's words", async () => {
  const { asked, fetch } = fakeServer(), source = new Server(fetch);
  await source.read({ texts: ["a"] });
  const state = { layer: 2, head: 5, unit: "word", special: "mask" };
  const wants = { head: { layers: [2], heads: [5] }, mean: { layers: [2], reduce_heads: "mean" }, rollout: { maps: false, rollout: { residual: 0.5, heads: "mean", from_layer: 0 } } };
  for (const [show, want] of Object.entries(wants)) {
    await source.npz({ ...state, show });
    assert.equal(asked.at(-1).accept, "application/x-npz");
    assert.deepEqual(asked.at(-1).attention, { ...want, unit: "word", special: "mask", dtype: "float32" });
  }
});

test("what was used last stays within the bytes, and one that is too large stays alone", () => {
  const recent = new Recent(10), item = (byteLength) => ({ byteLength });
  recent.set("a", item(4)).set("b", item(4));
  recent.get("a");
  recent.set("c", item(4));
  assert.deepEqual([...recent.keys()], ["a", "c"]);
  recent.set("huge", item(100));
  assert.deepEqual([...recent.keys()], ["huge"]);
  recent.set("huge", item(2)).set("d", item(8));
  assert.deepEqual([...recent.keys()], ["huge", "d"]);
  assert.equal(recent.get("nothing"), undefined);
});

test("a file answers what was recorded, to the byte, and says what it does not hold", async () => {
  const { asked, fetch } = fakeServer(), answers = new Map(), arrays = new Recent(1e6);
  const source = new Server(recording(fetch, answers, arrays)), request = { texts: ["a"], model: "", prompt: "" };
  const reading = await source.read(request), layer = await source.layer(1);
  await source.layer(0);
  const packed = JSON.parse(JSON.stringify(pack(answers, arrays))), count = asked.length;
  const held = new Server(replay(packed));
  assert.deepEqual(await held.read(request), reading);
  assert.deepEqual(await held.layer(1), layer);
  await assert.rejects(held.layer(2), { code: "not_in_file" });
  assert.equal(asked.length, count);
});

test("failures are not recorded", async () => {
  const { fetch } = fakeServer(), answers = new Map(), arrays = new Recent(1e6), source = new Server(recording(fetch, answers, arrays));
  await assert.rejects(source.read({ texts: ["too long"] }));
  assert.deepEqual([answers.size, arrays.size], [0, 0]);
});

test("a server that is away is told in one sentence, whatever the browser calls it", async () => {
  const source = new Server(() => Promise.reject(new TypeError("NetworkError when attempting to fetch resource.")));
  await assert.rejects(source.read({ texts: ["a"] }), { message: "The server does not answer." });
});

test("statistics without special tokens are asked for once, however those are hidden", async () => {
  const { asked, fetch } = fakeServer(), source = new Server(fetch);
  await source.read({ texts: ["a"] });
  assert.deepEqual(await source.stats("mask"), { special: "renormalize" });
  assert.deepEqual(await source.stats("renormalize"), { special: "renormalize" });
  assert.equal(asked.length, 2);
});

test("likeness is of the pair as it was read, not of its two texts", async () => {
  const { asked, fetch } = fakeServer(), source = new Server(fetch);
  await source.read({ texts: ["a", "b"] });
  await source.likeness();
  assert.deepEqual(asked.at(-1).texts, [["a", "b"]]);
});
