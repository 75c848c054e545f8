/** Where the page's numbers come from: the server, or a file that holds what it said. No document needed. */

import { readSafetensors } from "./tensors.js";
import { withUtf16 } from "./text.js";

/** Keeps what was used last, up to `limit` bytes. */
export class Recent {
  constructor(limit) {
    this.limit = limit;
    this.bytes = 0;
    this.items = new Map();
  }

  get(key) {
    const item = this.items.get(key);
    if (item) this.set(key, item);
    return item;
  }

  set(key, item) {
    this.delete(key);
    this.items.set(key, item);
    this.bytes += item.byteLength;
    for (const oldest of this.items.keys()) {
      if (this.bytes <= this.limit || oldest === key) break;
      this.delete(oldest);
    }
  }

  delete(key) {
    this.bytes -= this.items.get(key)?.byteLength ?? 0;
    this.items.delete(key);
  }
}

const keyOf = (path, { headers, body = "" }) => `${path} ${headers.Accept} ${body}`;

/** Wraps fetch so that what succeeded is kept: JSON in the Map `answers`, arrays in the Recent `arrays`. */
export function recording(fetch, answers, arrays) {
  return async (path, request) => {
    const response = await fetch(path, request);
    if (!response.ok) return response;
    const bytes = new Uint8Array(await response.arrayBuffer()), headers = [...response.headers];
    const store = request.headers.Accept.includes("json") ? answers : arrays;
    store.set(keyOf(path, request), Object.assign(bytes, { headers }));
    return new Response(bytes, { headers });
  };
}

/** Turns what was recorded into JSON: { key: [headers, base64] }. */
export function pack(answers, arrays) {
  return Object.fromEntries([...answers, ...arrays.items].map(([key, bytes]) => {
    let text = "";
    for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
    return [key, [bytes.headers, btoa(text)]];
  }));
}

/** A fetch that answers from what `pack` made. */
export function replay(packed) {
  return async (path, request) => {
    const [headers, text] = packed[keyOf(path, request)] ?? [];
    if (text === undefined) return Response.json({ detail: "This file does not hold that: open the server's page.", code: "not_in_file" }, { status: 404 });
    return new Response(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)), { headers });
  };
}

/** An answer that is no success; `code` is the server's stable name for it. */
export class Refusal extends Error {
  constructor({ detail, code }) {
    super(detail);
    this.code = code;
  }
}

const LAYER_BYTES = 160e6; // a layer of 12 heads and 512 tokens takes 12.6 MB
const ROLLOUT = { residual: 0.5, heads: "mean", from_layer: 0 };
const SPECIALS = { keep: "keep", hide: "mask", renormalise: "renormalize" };

/** Asks a server; `fetch` is the browser's, a recording of it, or a test's. */
export class Server {
  constructor(fetch) {
    this.fetch = fetch;
    this.begin();
  }

  /** Gives up what is under way, and forgets the last text. */
  begin() {
    this.controller?.abort();
    this.controller = new AbortController();
    this.layers = new Recent(LAYER_BYTES);
    this.kept = {};
    this.pending = new Map();
  }

  /** Reads a text, or a pair: { texts, tokens, words, numTokens, numTokensTotal, truncated, milliseconds }. */
  async read({ texts, model, prompt }) {
    this.begin();
    this.body = {
      texts: [texts.length === 2 ? texts : texts[0]], model: model || null, prompt_name: prompt || null, dimensions: 1,
    };
    const response = await this.encode({ layers: "all", maps: false, stats: true }), body = await response.json();
    const { tokens, words, stats } = body.attention[0];
    this.kept["stats keep"] = stats;
    return {
      texts, tokens: withUtf16(tokens, texts), words: withUtf16(words, texts),
      numTokens: body.num_tokens[0], numTokensTotal: body.num_tokens_total[0], truncated: body.truncated[0],
      milliseconds: Number(/total;dur=([\d.]+)/.exec(response.headers.get("Server-Timing"))?.[1] ?? NaN),
    };
  }

  /** Statistics of every head, over all tokens ("keep") or over those that are not special. */
  stats(special) {
    const wire = special === "keep" ? "keep" : "renormalize";
    return this.once(`stats ${wire}`, async () =>
      (await (await this.encode({ layers: "all", maps: false, stats: true, special: wire })).json()).attention[0].stats);
  }

  /** The maps of a layer over tokens, special tokens included: Float32Array, heads x n x n. The page merges and hides. */
  layer(number) {
    return this.layers.get(number) ?? this.once(`layer ${number}`, async () => {
      const maps = (await this.tensors({ layers: [number], dtype: "float16" }))["attention.0.maps"].data;
      this.layers.set(number, maps);
      return maps;
    }, false);
  }

  /** Rollout over all layers and heads, on tokens: Float32Array, n x n. */
  rollout() {
    return this.once("rollout", async () =>
      (await this.tensors({ maps: false, rollout: ROLLOUT, dtype: "float32" }))["attention.0.rollout"].data);
  }

  /** Which heads do the same: { heads, order, ... }. */
  likeness() {
    const { texts, model, prompt_name } = this.body;
    return this.once("likeness", async () =>
      (await this.answer("attention/heads", { texts: texts.flat(), model, prompt_name })).json());
  }

  /** The similarity of two texts, and where it comes from: a number for each pair of tokens, or the reason why not. */
  async compare({ texts, model, prompt }) {
    this.begin();
    const body = { pairs: [texts], model: model || null, prompt_name: prompt || null };
    let reason = null;
    const response = await this.answer("similarity", { ...body, explain: true }).catch((error) => {
      if (error.code !== "explanation_not_supported") throw error;
      reason = error.message;
      return this.answer("similarity", body);
    });
    const { explanations, similarities, num_tokens, truncated } = await response.json(), found = explanations?.[0];
    const side = (name, text) => found && {
      texts: [text], tokens: withUtf16(found[name].tokens, [text]), words: withUtf16(found[name].words, [text]),
    };
    return {
      texts, reason, found, a: side("a", texts[0]), b: side("b", texts[1]), similarity: similarities[0], numTokens: num_tokens[0],
      truncated: truncated[0].some(Boolean),
    };
  }

  /** What is in view, as the server writes it for NumPy. */
  async npz({ show, layer, head, unit, special }) {
    const what = {
      head: { layers: [layer], heads: [head] }, mean: { layers: [layer], reduce_heads: "mean" }, rollout: { maps: false, rollout: ROLLOUT },
    }[show];
    return (await this.encode({ ...what, unit, special: SPECIALS[special], dtype: "float32" }, "application/x-npz")).blob();
  }

  /** One request for one thing, however many ask for it. */
  once(key, ask, isKept = true) {
    const { pending, kept } = this;
    if (key in kept) return kept[key];
    if (!pending.has(key)) {
      const answer = ask().then((item) => (isKept ? (kept[key] = item) : item));
      pending.set(key, answer.finally(() => pending.delete(key)));
    }
    return pending.get(key);
  }

  encode(attention, accept) {
    return this.answer("encode", { ...this.body, attention }, accept);
  }

  async tensors(attention) {
    return readSafetensors(await (await this.encode(attention, "application/vnd.safetensors")).arrayBuffer());
  }

  /** Asks for a path, with a body by POST; throws a Refusal where the answer is no success. */
  async answer(path, body, accept = "application/json") {
    const request = { headers: { Accept: accept }, signal: this.controller.signal };
    if (body) {
      Object.assign(request, { method: "POST", body: JSON.stringify(body) });
      request.headers["Content-Type"] = "application/json";
    }
    const response = await this.fetch(path, request);
    if (response.ok) return response;
    throw new Refusal(await response.json().catch(() => ({ detail: `The server answered ${response.status}.` })));
  }
}
