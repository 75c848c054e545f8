/** All that can be chosen, and its place in the fragment of the address. */

const STATISTICS = ["entropy", "effective_tokens", "confidence", "mean_distance",
	"to_cls", "to_sep", "to_self", "to_prev", "to_next"];

/** What each flag may be, its default first. */
export const FLAGS = {
	mode: ["attention", "compare"],
	a: "text",
	b: "text",
	model: "text",
	prompt: "text",
	layer: "index",
	head: "index",
	show: ["head", "mean", "rollout"],
	unit: ["token", "word"],
	special: ["keep", "mask", "renormalize"],
	scale: ["sqrt", "linear", "rowmax"],
	view: ["heat", "lines"],
	filter: ["all", "aa", "ab", "ba", "bb"],
	colour: ["pattern", ...STATISTICS],
	order: ["layer", "value", "likeness"],
	q: "index",
	k: "index",
	rows: ["few", "many"],
	theme: ["auto", "light", "dark"],
	keys: ["on", "off"],
};

const initial = (kind) => (kind === "text" ? "" : kind === "index" ? null : kind[0]);

export const defaults = () => Object.fromEntries(Object.entries(FLAGS).map(([name, kind]) => [name, initial(kind)]));

/** A state as a fragment, without defaults; over `limit` characters it loses its texts. */
export function writeFragment(state, limit = 4000) {
	const write = (names) => {
		const pairs = names.filter((name) => state[name] !== initial(FLAGS[name]));
		return new URLSearchParams(pairs.map((name) => [name, String(state[name])])).toString();
	};
	const names = Object.keys(FLAGS), fragment = write(names);
	if (fragment.length <= limit) return { fragment, complete: true };
	return { fragment: write(names.filter((name) => name !== "a" && name !== "b")), complete: false };
}

/** The state of a fragment; what is unknown or wrong is ignored. */
export function readFragment(fragment) {
	const state = defaults();
	for (const [name, text] of new URLSearchParams(fragment.replace(/^#/, ""))) {
		if (!Object.hasOwn(FLAGS, name)) continue;
		const kind = FLAGS[name];
		if (kind === "text") state[name] = text;
		else if (kind === "index") state[name] = /^\d{1,6}$/.test(text) ? Number(text) : null;
		else if (kind.includes(text)) state[name] = text;
	}
	return state;
}
