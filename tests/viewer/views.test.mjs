/** What is drawn is what the weights say: means, special tokens, words, filters, pooling, edges. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { buildComparison, buildView, lineOf, maxPool, meanHeads, pruneEdges, strongest, totals } from "../../app/viewer/views.js";

const near = (actual, expected, tolerance = 1e-6) => {
  assert.equal(actual.length, expected.length);
  actual.forEach((value, at) => assert.ok(Math.abs(value - expected[at]) <= tolerance, `${at}: ${value} is not ${expected[at]}`));
};
const sums = ({ rows, columns, values }) => rows.map((_, row) => values.slice(row * columns.length, (row + 1) * columns.length).reduce((a, b) => a + b, 0));

/** Numbers that look random and are the same each time. */
function random(seed = 1) {
  return () => (seed = (seed * 48271) % 2147483647) / 2147483647;
}

/** A map of n tokens whose rows sum to 1. */
function randomMap(n, seed) {
  const draw = random(seed), map = Float32Array.from({ length: n * n }, () => draw() ** 4);
  for (let row = 0; row < n; row++) {
    const line = map.subarray(row * n, (row + 1) * n), total = line.reduce((a, b) => a + b, 0);
    line.forEach((value, at) => { line[at] = value / total; });
  }
  return map;
}

const unit = (segment, ...tokens) => ({ tokens, segment, label: String(tokens), start: 0, end: 1 });
// [CLS] 1 2+3+4 5 [SEP] | 7 8 [SEP]
const TOKENS = [null, 0, 0, 0, 0, 0, null, 1, 1, null].map((segment, at) => unit(segment, at));
const WORDS = [unit(null, 0), unit(0, 1), unit(0, 2, 3, 4), unit(0, 5), unit(null, 6), unit(1, 7), unit(1, 8), unit(null, 9)];
const without = (units) => units.filter(({ segment }) => segment !== null);
const N = 10, MAP = randomMap(N, 7);

test("tokens with everything kept are the map itself", () => {
  const view = buildView(MAP, N, TOKENS, "keep", "all");
  assert.deepEqual(view.values, MAP);
  assert.equal(view.kept, null);
});

test("words: keys are summed, queries averaged, rows keep their sums, and one-piece words stay as they were", () => {
  const view = buildView(MAP, N, WORDS, "keep", "all"), width = WORDS.length;
  near(sums(view), Array(width).fill(1));
  const at = (query, key) => MAP[query * N + key];
  let expected = 0;
  for (const query of [2, 3, 4]) for (const key of [2, 3, 4]) expected += at(query, key) / 3;
  near([view.values[2 * width + 2], view.values[width + 3]], [expected, at(1, 5)]);
  near([view.values[width + 2]], [at(1, 2) + at(1, 3) + at(1, 4)]);
  near([view.values[2 * width + 1]], [(at(2, 1) + at(3, 1) + at(4, 1)) / 3]);
});

test("words agree with a slow oracle that multiplies three matrices", () => {
  const slow = WORDS.flatMap((row) => WORDS.map((column) => {
    let sum = 0;
    for (const query of row.tokens) for (const key of column.tokens) sum += MAP[query * N + key] / row.tokens.length;
    return sum;
  }));
  near(buildView(MAP, N, WORDS, "keep", "all").values, slow);
});

test("hidden special tokens leave a row what it kept, and say how much", () => {
  const view = buildView(MAP, N, without(TOKENS), "mask", "all");
  assert.equal(view.rows.length, 7);
  near(sums(view), [...view.kept]);
  near([view.kept[0]], [1 - MAP[N] - MAP[N + 6] - MAP[N + 9]]);
});

test("renormalised rows sum to 1, and still say what they kept", () => {
  for (const units of [TOKENS, WORDS]) {
    const hidden = buildView(MAP, N, without(units), "mask", "all"), view = buildView(MAP, N, without(units), "renormalize", "all");
    near(sums(view), Array(view.rows.length).fill(1), 1e-5);
    near([...view.kept], [...hidden.kept]);
  }
});

test("a word of several pieces kept the mean of what they kept", () => {
  const tokens = buildView(MAP, N, without(TOKENS), "mask", "all"), words = buildView(MAP, N, without(WORDS), "mask", "all");
  near([words.kept[1]], [(tokens.kept[1] + tokens.kept[2] + tokens.kept[3]) / 3]);
});

test("special tokens are hidden before words are made: dividing first and merging first differ", () => {
  const view = buildView(MAP, N, without(WORDS), "renormalize", "all");
  const specials = [0, 6, 9], row = without(WORDS).findIndex((one) => one.tokens.length === 3);
  const expected = without(WORDS).map((column) => [2, 3, 4].reduce((sum, query) => {
    const mass = 1 - specials.reduce((total, key) => total + MAP[query * N + key], 0);
    return sum + column.tokens.reduce((total, key) => total + MAP[query * N + key], 0) / mass / 3;
  }, 0));
  near(lineOf(view, row), expected, 1e-5);
});

test("a row that kept nothing stays 0 instead of no number", () => {
  const map = Float32Array.of(1, 0, 1, 0);
  const view = buildView(map, 2, [unit(0, 1)], "renormalize", "all");
  assert.deepEqual([...view.values, ...view.kept], [0, 0]);
});

test("a row that kept next to nothing is spread out, with the kept mass beside it", () => {
  const map = Float32Array.of(1, 0, 0, 1, 3e-9, 3e-9, 1, 0, 0);
  const view = buildView(map, 3, [unit(0, 1), unit(0, 2)], "renormalize", "all");
  near(lineOf(view, 0), [0.5, 0.5]);
  assert.ok(view.kept[0] < 1e-8);
});

test("a filter takes the queries of one text and the keys of another, and changes no weight", () => {
  const all = buildView(MAP, N, TOKENS, "keep", "all");
  for (const [filter, rows, columns] of [["aa", 5, 5], ["ab", 5, 2], ["ba", 2, 5], ["bb", 2, 2]]) {
    const view = buildView(MAP, N, TOKENS, "keep", filter);
    assert.deepEqual([view.rows.length, view.columns.length], [rows, columns]);
    view.rows.forEach((query, row) => near(lineOf(view, row), view.columns.map((key) => all.values[query * N + key])));
  }
});

test("a filter after renormalising shows shares of the whole row, not of what is left", () => {
  const all = buildView(MAP, N, without(TOKENS), "renormalize", "all"), part = buildView(MAP, N, without(TOKENS), "renormalize", "ab");
  near(lineOf(part, 0), [...lineOf(all, 0)].slice(5));
});

test("a text without tokens of its own makes an empty view", () => {
  const view = buildView(Float32Array.of(0.5, 0.5, 0.5, 0.5), 2, [], "mask", "all");
  assert.deepEqual([view.rows, view.columns, view.values.length], [[], [], 0]);
  assert.deepEqual(pruneEdges(view).edges, []);
});

test("the mean of heads is the mean of each cell", () => {
  near(meanHeads(Float32Array.of(1, 0, 0, 1, 0, 1, 1, 0), 2, 2), [0.5, 0.5, 0.5, 0.5]);
});

test("a comparison's cells sum to the same number, by tokens and by words", () => {
  const cells = [[0.1, -0.05, 0.2], [0.02, 0.3, -0.1]];
  const tokens = buildComparison(cells, [0, 1], [2, 3, 4]), words = buildComparison(cells, [0, 0], [2, 3, 3]);
  const total = (view) => view.values.reduce((a, b) => a + b, 0);
  near([total(tokens), total(words)], [0.47, 0.47]);
  near(words.values, [0.12, 0.35]);
  near([tokens.domain, words.domain], [0.3, 0.35]);
  assert.deepEqual([words.rows, words.columns], [[0], [2, 3]]);
});

test("what each unit of a comparison adds in all are its row's or its column's sum", () => {
  const sums = totals(buildComparison([[0.1, -0.05, 0.2], [0.02, 0.3, -0.1]], [0, 1], [2, 3, 4]));
  assert.deepEqual([...sums.keys()].sort(), [0, 1, 2, 3, 4]);
  near([0, 1, 2, 3, 4].map((unit) => sums.get(unit)), [0.25, 0.22, 0.12, 0.25, 0.1]);
});

test("pooling keeps the strongest cell of each block, of either sign, and never grows", () => {
  const values = new Float32Array(512 * 512);
  values[300 * 512 + 77] = 0.9;
  values[511 * 512 + 511] = -0.5;
  const small = maxPool(values, 512, 512, 64);
  assert.deepEqual([small.rows, small.columns], [64, 64]);
  near([small.values[37 * 64 + 9], small.values[64 * 64 - 1]], [0.9, -0.5]);
  assert.equal(small.values.filter((value) => value !== 0).length, 2);
  assert.equal(maxPool(MAP, N, N, 64).values, MAP);
});

test("lines hold at least 90 % of each row, with no line that is not needed for it", () => {
  const view = buildView(MAP, N, TOKENS, "keep", "all"), { edges, hidden } = pruneEdges(view, 0.9);
  assert.equal(edges.length + hidden, N * N);
  for (let row = 0; row < N; row++) {
    const own = edges.filter((edge) => edge.row === row).map((edge) => edge.weight), total = own.reduce((a, b) => a + b, 0);
    assert.ok(total >= 0.9 - 1e-6);
    assert.ok(total - Math.min(...own) < 0.9);
  }
  const weights = edges.map((edge) => edge.weight);
  assert.deepEqual(weights, [...weights].sort((a, b) => a - b), "the strongest are drawn last, on top");
});

test("no more lines than the limit, and the strongest stay", () => {
  const n = 200, map = randomMap(n, 3), units = Array.from({ length: n }, (_, at) => unit(0, at));
  const view = buildView(map, n, units, "keep", "all"), { edges, hidden } = pruneEdges(view, 0.99, 500);
  assert.deepEqual([edges.length, hidden], [500, n * n - 500]);
  assert.equal(edges.at(-1).weight, Math.max(...map));
});

test("a line is a row, or a column where no row is named; the strongest come first, of either sign", () => {
  const view = { rows: [0, 1], columns: [0, 1, 2], values: Float32Array.of(0.25, -0.75, 0.5, 1, 2, 3) };
  assert.deepEqual([...lineOf(view, 0)], [0.25, -0.75, 0.5]);
  assert.deepEqual([...lineOf(view, -1, 2)], [0.5, 3]);
  assert.deepEqual(strongest(lineOf(view, 0), 2), [{ at: 1, value: -0.75 }, { at: 2, value: 0.5 }]);
});
