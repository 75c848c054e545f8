/** Tokens and words stand where they are in a JavaScript string, and are called what the user wrote. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { escapeXml, layOut, listUnits, number, percent, scriptJson, withUtf16 } from "../../app/viewer/text.js";

const TEXT = "👩‍🚀 Unbelievable café!";

/** A reading of TEXT as the server gives it: [CLS], the emoji, un ##bel ##ie ##va ##ble, café, !, [SEP]; code points. */
const answer = {
  tokens: {
    text: ["[CLS]", "[UNK]", "un", "##bel", "##ie", "##va", "##ble", "cafe", "!", "[SEP]"],
    start: [0, 0, 4, 6, 9, 11, 13, 17, 21, 0],
    end: [0, 3, 6, 9, 11, 13, 16, 21, 22, 0],
    special: [true, ...Array(8).fill(false), true],
    segment: [null, ...Array(8).fill(0), null],
    word: [null, 0, 1, 1, 1, 1, 1, 2, 2, null],
  },
  words: { text: ["👩‍🚀", "Unbelievable", "café!"], start: [0, 4, 17], end: [3, 16, 22], segment: [0, 0, 0] },
};
const reading = { texts: [TEXT], tokens: withUtf16(answer.tokens, [TEXT]), words: withUtf16(answer.words, [TEXT]) };
const labels = (units) => units.map((unit) => unit.label);
const whole = (paragraph) => paragraph.filter(({ kind }) => kind !== "chip").map(({ text }) => text).join("");

test("offsets become UTF-16: what stands after an emoji is where JavaScript finds it", () => {
  assert.deepEqual([reading.tokens.start[2], reading.tokens.end[2]], [6, 8]);
  assert.equal(TEXT.slice(reading.tokens.start[7], reading.tokens.end[7]), "café");
  assert.deepEqual(reading.words.start.map((start, word) => TEXT.slice(start, reading.words.end[word])), ["👩‍🚀", "Unbelievable", "café!"]);
});

test("offsets of a pair count in each text by itself", () => {
  const table = { start: [0, 0, 1], end: [0, 1, 2], segment: [null, 0, 1] };
  const { start, end } = withUtf16(table, ["😀", "😀b"]);
  assert.deepEqual([start, end], [[0, 0, 2], [0, 2, 3]]);
  assert.deepEqual(table.end, [0, 1, 2], "the server's own table stays as it was");
});

test("tokens are called what was written, with ## before what continues a word", () => {
  assert.deepEqual(labels(listUnits(reading, "token", "keep")), ["[CLS]", "👩‍🚀", "Un", "##bel", "##ie", "##va", "##ble", "café", "!", "[SEP]"]);
});

test("words gather their tokens; special tokens stay by themselves, or leave", () => {
  const units = listUnits(reading, "word", "keep");
  assert.deepEqual(labels(units), ["[CLS]", "👩‍🚀", "Unbelievable", "café!", "[SEP]"]);
  assert.deepEqual(units.map((unit) => unit.tokens), [[0], [1], [2, 3, 4, 5, 6], [7, 8], [9]]);
  assert.deepEqual(labels(listUnits(reading, "word", "mask")), ["👩‍🚀", "Unbelievable", "café!"]);
  assert.deepEqual(labels(listUnits(reading, "token", "renormalize")).length, 8);
});

test("a [SEP] that a user typed is a token like any other", () => {
  const texts = ["[SEP]"], tokens = { text: ["[CLS]", "[SEP]", "[SEP]"], start: [0, 0, 0], end: [0, 5, 0], special: [true, false, true], segment: [null, 0, null], word: [null, 0, null] };
  const units = listUnits({ texts, tokens, words: { text: texts, start: [0], end: [5] } }, "token", "mask");
  assert.deepEqual(units.map(({ label, tokens: of }) => [label, of]), [["[SEP]", [1]]]);
});

test("bytes of one character show the character, and mark what continues it", () => {
  const texts = ["a👍b"];
  const tokens = { text: ["a", "ðŁ", "ĳ", "į", "b", "Ġ"], start: [0, 1, 1, 1, 3, 4], end: [1, 3, 3, 3, 4, 4], special: Array(6).fill(false), segment: Array(6).fill(0), word: [0, 0, 0, 0, 0, 0] };
  const units = listUnits({ texts, tokens, words: { text: texts, start: [0], end: [4] } }, "token", "keep");
  assert.deepEqual(labels(units), ["a", "👍", "##👍", "##👍", "b", "␣"]);
  const [pieces] = layOut(units, texts);
  assert.deepEqual(pieces.map(({ text }) => text), ["a", "👍", "▪", "▪", "b", "▪"]);
});

test("a prompt's tokens are no special tokens: they stay, spelled as the vocabulary spells them", () => {
  const texts = ["hi"], tokens = { text: ["[CLS]", "query", ":", "hi", "[SEP]"], start: [0, 0, 0, 0, 0], end: [0, 0, 0, 2, 0], special: [true, false, false, false, true], segment: [null, null, null, 0, null], word: [null, null, null, 0, null] };
  const units = listUnits({ texts, tokens, words: { text: ["hi"], start: [0], end: [2] } }, "word", "mask");
  assert.deepEqual(labels(units), ["query", ":", "hi"]);
  assert.deepEqual(layOut(units, texts)[0].map(({ kind }) => kind), ["chip", "chip", "text"]);
});

test("the sentence pane shows the whole text, letter for letter, whatever the unit", () => {
  for (const unit of ["token", "word"]) {
    for (const special of ["keep", "mask"]) {
      const paragraphs = layOut(listUnits(reading, unit, special), [TEXT]);
      assert.equal(paragraphs.length, 1);
      assert.equal(whole(paragraphs[0]), TEXT);
    }
  }
});

test("two texts are two paragraphs, their separators after them", () => {
  const unit = (label, segment, start = 0) => ({ tokens: [0], label, segment, start, end: start + label.length });
  const units = [unit("[CLS]", null), unit("one", 0), unit("[SEP]", null), unit("two", 1), unit("2", 1, 4), unit("[SEP]", null)];
  const shown = layOut(units, ["one ", "two 2"]);
  assert.deepEqual(shown.map((pieces) => pieces.map(({ text }) => text)), [["[CLS]", "one", " ", "[SEP]"], ["two", " ", "2", "[SEP]"]]);
  assert.deepEqual(shown.flat().filter(({ unit: of }) => of >= 0).map(({ unit: of }) => of), [0, 1, 2, 3, 4, 5]);
});

test("where units name their paragraph, each text keeps its own special tokens", () => {
  const unit = (label, segment, part) => ({ tokens: [0], label, segment, part, start: 0, end: label.length });
  const units = [unit("[CLS]", null, 0), unit("one", 0, 0), unit("[SEP]", null, 0), unit("[CLS]", null, 1), unit("two", 1, 1), unit("[SEP]", null, 1)];
  assert.deepEqual(layOut(units, ["one", "two"]).map((pieces) => pieces.map(({ text }) => text)), [["[CLS]", "one", "[SEP]"], ["[CLS]", "two", "[SEP]"]]);
});

test("what was cut off is shown as not read", () => {
  const [pieces] = layOut([{ tokens: [0], label: "one", segment: 0, start: 0, end: 3 }], ["one two three"]);
  assert.deepEqual(pieces.map(({ text, kind }) => [text, kind]), [["one", "text"], [" two three", "unread"]]);
});

test("numbers keep what matters of them", () => {
  const written = [0, 1, 0.31249, 12.345, 4.0961, 123.4, 0.00012, -0.0213, null, NaN].map(number);
  assert.deepEqual(written, ["0.000", "1.00", "0.312", "12.3", "4.10", "123", "1e−4", "−0.021", "–", "–"]);
  assert.deepEqual([0, 1, 0.312, 0.0312, 5e-9].map(percent), ["0 %", "100 %", "31 %", "3.1 %", "< 0.1 %"]);
});

test("markup in a text stays text, in XML and in a script element", () => {
  const hostile = `</script><img src=x onerror=alert(1)>&"'\u0000`;
  assert.equal(/[<>"'\u0000]/.test(escapeXml(hostile)), false);
  assert.equal(escapeXml("a<b"), "a&#60;b");
  const written = scriptJson({ text: `${hostile}<!--\u2028` });
  assert.equal(/[<>&\u2028]/.test(written), false);
  assert.deepEqual(JSON.parse(written), { text: `${hostile}<!--\u2028` });
});

test("a label has fifty characters at most, and no half of one; the text it stands for stays whole", () => {
  const text = "👩".repeat(100_000), table = { special: [false], segment: [0], word: [0], start: [0], end: [text.length] };
  const units = listUnits({ texts: [text], tokens: { text: ["[UNK]"], ...table }, words: { text: [text], ...table } }, "word", "keep");
  assert.equal(units[0].label, `${"👩".repeat(49)}…`);
  assert.equal(layOut(units, [text])[0][0].text, text);
  const short = listUnits({ texts: ["x".repeat(50)], tokens: { text: ["x"], ...table, end: [50] }, words: {} }, "token", "keep");
  assert.equal(short[0].label, "x".repeat(50));
});
