/** Everything that can be chosen, and its place in the URL's fragment (which browsers do not send). No document needed. */

const STATISTICS = ["entropy", "effective_tokens", "confidence", "mean_distance",
  "to_cls", "to_sep", "to_self", "to_prev", "to_next"];

/** Each flag: its default first, then what else it may be; "text" and "index" (a number or null) are open. */
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
  special: ["keep", "hide", "renormalise"],
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

/** The state of a page that nobody has touched. */
export function defaults() {
  return Object.fromEntries(Object.entries(FLAGS).map(([name, kind]) => [name, initial(kind)]));
}

/**
 * Writes a state as a fragment, without "#"; what is at its default is left out.
 * A fragment over `limit` characters loses its texts: { fragment, complete: false }.
 */
export function writeFragment(state, limit = 4000) {
  const write = (names) => {
    const pairs = names.filter((name) => state[name] !== initial(FLAGS[name]));
    return new URLSearchParams(pairs.map((name) => [name, String(state[name])])).toString();
  };
  const fragment = write(Object.keys(FLAGS));
  if (fragment.length <= limit) return { fragment, complete: true };
  return { fragment: write(Object.keys(FLAGS).filter((name) => name !== "a" && name !== "b")), complete: false };
}

/** Reads a fragment; what is unknown, missing or wrong is at its default. */
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
