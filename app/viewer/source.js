/** Where the numbers come from: the server, or a file that holds what it said. */

import { readSafetensors } from "./tensors.js";
import { withUtf16 } from "./text.js";

/** A Map of what was used last, up to `limit` bytes. */
export class Recent extends Map {
	constructor(limit) {
		super();
		this.limit = limit;
	}

	get(key) {
		const item = super.get(key);
		if (item) this.set(key, item);
		return item;
	}

	set(key, item) {
		this.delete(key);
		super.set(key, item);
		let bytes = 0;
		for (const { byteLength } of this.values()) bytes += byteLength;
		for (const [oldest, { byteLength }] of this) {
			if (bytes <= this.limit || oldest === key) break;
			bytes -= byteLength;
			this.delete(oldest);
		}
		return this;
	}
}

const keyOf = (path, { headers, body = "" }) => `${path} ${headers.Accept} ${body}`;

/** A fetch that keeps what succeeded, JSON in `answers`, the rest in `arrays`. */
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

/** What was recorded, for JSON: { key: [headers, base64] }. */
export function pack(answers, arrays) {
	return Object.fromEntries([...answers, ...arrays].map(([key, bytes]) => {
		let text = "";
		for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
		return [key, [bytes.headers, btoa(text)]];
	}));
}

/** A fetch from what `pack` made. */
export function replay(packed) {
	return async (path, request) => {
		const [headers, text] = packed[keyOf(path, request)] ?? [];
		if (text === undefined) return Response.json({ detail: "This file does not hold that.", code: "not_in_file" }, { status: 404 });
		return new Response(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)), { headers });
	};
}

const LAYER_BYTES = 160e6; // a layer takes up to 13 MB
const ROLLOUT = { residual: 0.5, heads: "mean", from_layer: 0 };

/** Asks a server, through a fetch. */
export class Server {
	constructor(fetch) {
		this.fetch = fetch;
		this.key = ""; // of a server that asks for one: here and nowhere else, so gone with the page
		this.begin();
	}

	/** Another text: gives up what is under way. */
	begin() {
		this.controller?.abort();
		this.controller = new AbortController();
		this.layers = new Recent(LAYER_BYTES);
		this.kept = new Map();
		this.pending = new Map();
	}

	/** Reads a text or a pair. */
	async read({ texts, model, prompt }) {
		this.begin();
		this.body = { texts: [texts.length === 2 ? texts : texts[0]], model: model || null, prompt_name: prompt || null };
		const response = await this.encode({ layers: "all", maps: false, stats: true }), body = await response.json();
		const { tokens, words, stats } = body.attention[0];
		this.kept.set("stats keep", stats);
		return {
			texts, tokens: withUtf16(tokens, texts), words: withUtf16(words, texts),
			count: body.num_tokens[0], total: body.num_tokens_total[0], truncated: body.truncated[0],
			milliseconds: Number(/total;dur=([\d.]+)/.exec(response.headers.get("Server-Timing"))?.[1] ?? NaN),
		};
	}

	stats(special) {
		if (special === "mask") special = "renormalize"; // the same numbers
		return this.once(`stats ${special}`, async () =>
			(await (await this.encode({ layers: "all", maps: false, stats: true, special })).json()).attention[0].stats);
	}

	/** A layer on all tokens (heads x n x n). */
	layer(number) {
		return this.once(number, async () => (await this.tensors({ layers: [number], dtype: "float16" }))["attention.0.maps"].data, this.layers);
	}

	rollout() {
		return this.once("rollout", async () =>
			(await this.tensors({ maps: false, rollout: ROLLOUT, dtype: "float32" }))["attention.0.rollout"].data);
	}

	likeness() {
		const { texts, model, prompt_name } = this.body;
		return this.once("likeness", async () => (await this.answer("attention/heads", { texts, model, prompt_name })).json());
	}

	/** The similarity of two texts, and its map or the reason why there is none. */
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
			texts, reason, found, a: side("a", texts[0]), b: side("b", texts[1]), similarity: similarities[0], count: num_tokens[0],
			truncated: truncated[0].some(Boolean),
		};
	}

	async npz({ show, layer, head, unit, special }) {
		const what = {
			head: { layers: [layer], heads: [head] }, mean: { layers: [layer], reduce_heads: "mean" }, rollout: { maps: false, rollout: ROLLOUT },
		}[show];
		return (await this.encode({ ...what, unit, special, dtype: "float32" }, "application/x-npz")).blob();
	}

	/** One request for one thing, however many ask for it. */
	async once(key, ask, store = this.kept) {
		const { pending } = this;
		if (store.has(key)) return store.get(key);
		if (!pending.has(key)) pending.set(key, ask().then((item) => store.set(key, item) && item).finally(() => pending.delete(key)));
		return pending.get(key);
	}

	encode(attention, accept) {
		return this.answer("encode", { ...this.body, attention }, accept);
	}

	async tensors(attention) {
		return readSafetensors(await (await this.encode(attention, "application/vnd.safetensors")).arrayBuffer());
	}

	async answer(path, body, accept = "application/json") {
		const response = await this.fetch(path, {
			method: body ? "POST" : "GET", body: body && JSON.stringify(body), signal: this.controller.signal,
			headers: { Accept: accept, "Content-Type": "application/json", ...(this.key && { Authorization: `Bearer ${this.key}` }) },
		}).catch((error) => {
			throw error.name === "TypeError" ? new Error("The server does not answer.") : error;
		});
		if (response.ok) return response;
		const { detail, code } = await response.json().catch(() => ({ detail: `The server answered ${response.status}.` }));
		throw Object.assign(new Error(detail), { code });
	}
}
