/** Every choice is in the fragment, and comes back from it. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { defaults, FLAGS, readFragment, writeFragment } from "../../app/viewer/state.js";

const HTML = readFileSync(new URL("../../app/viewer/index.html", import.meta.url), "utf8");
const TEXTS = ["", "plain", "a&b=c#d+e%20f", "två\nrader\t👩‍🚀", "</script>\"'", "null"];
const values = (kind) => (kind === "text" ? TEXTS : kind === "index" ? [null, 0, 1, 511] : kind);

test("every flag, at every value, makes the round trip", () => {
  for (const [name, kind] of Object.entries(FLAGS)) {
    for (const value of values(kind)) {
      const state = { ...defaults(), [name]: value }, { fragment, complete } = writeFragment(state);
      assert.ok(complete);
      assert.deepEqual(readFragment(`#${fragment}`), state, `${name}=${value}`);
    }
  }
});

test("the flags are those of the documents: an address that was shared stays good", () => {
  const names = "mode a b model prompt layer head show unit special scale view filter colour order q k rows theme keys";
  assert.deepEqual(Object.keys(FLAGS), names.split(" "));
});

test("all flags away from their defaults at once make the round trip", () => {
  const state = Object.fromEntries(Object.entries(FLAGS).map(([name, kind]) => [name, values(kind).at(-1)]));
  assert.deepEqual(readFragment(writeFragment(state).fragment), state);
});

test("what nobody has touched is an empty fragment", () => {
  assert.equal(writeFragment(defaults()).fragment, "");
  assert.deepEqual(readFragment(""), defaults());
});

test("nonsense changes nothing", () => {
  assert.deepEqual(readFragment("#view=pie&layer=-1&head=x&q=1.5&unknown=1&__proto__=1&constructor=2&unit"), defaults());
});

test("texts that are too long for an address stay out of it, and that is said", () => {
  const state = { ...defaults(), a: "word ".repeat(2000), unit: "word", layer: 3 }, { fragment, complete } = writeFragment(state);
  assert.equal(complete, false);
  assert.deepEqual(readFragment(fragment), { ...state, a: "" });
  assert.equal(writeFragment(state, Infinity).complete, true);
});

test("the controls offer exactly the values that the flags know", () => {
  const radios = {};
  for (const [, name, value] of HTML.matchAll(/type="radio" name="(\w+)" value="(\w+)"/g)) (radios[name] ??= []).push(value);
  for (const [, name, body] of HTML.matchAll(/<select name="(\w+)"[^>]*>(.*?)<\/select>/gs)) {
    const options = [...body.matchAll(/<option[^>]*value="(\w+)"/g)].map((match) => match[1]);
    if (options.length) radios[name] = options;
  }
  const chosen = Object.entries(FLAGS).filter(([, kind]) => Array.isArray(kind)).map(([name]) => name);
  assert.deepEqual(Object.keys(radios).sort(), chosen.sort());
  for (const name of chosen) assert.deepEqual([...radios[name]].sort(), [...FLAGS[name]].sort(), name);
});
