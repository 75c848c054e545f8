/** Texts, tokens and words: where they stand in a JavaScript string, and what they are called. No document needed. */

/** Turns code point offsets into UTF-16 offsets of `text`: an emoji is one of the first and two of the second. */
export function utf16Offsets(text, offsets) {
  const positions = [0];
  for (const character of text) positions.push(positions.at(-1) + character.length);
  return offsets.map((offset) => positions[Math.min(offset, positions.length - 1)]);
}

/** Gives a table with `start`, `end`, `segment` UTF-16 offsets into `texts`, in place of code points. */
export function withUtf16(table, texts) {
  const converted = { ...table, start: table.start.slice(), end: table.end.slice() };
  texts.forEach((text, segment) => {
    const rows = table.segment.flatMap((of, row) => (of === segment ? [row] : []));
    for (const column of ["start", "end"]) {
      utf16Offsets(text, rows.map((row) => table[column][row])).forEach((offset, at) => { converted[column][rows[at]] = offset; });
    }
  });
  return converted;
}

/**
 * Lists the rows and columns of a map: tokens or words, without the special tokens unless `special` is "keep".
 *
 * Each unit has `tokens` (indices), `label`, `special`, `segment` (null for special tokens and prompts), `start`, `end`.
 * A token is called by what it stands for in the text as it was written, with "##" before what continues a word: the
 * vocabulary's spelling is lower case in some models and unreadable bytes in others.
 */
export function listUnits({ tokens, words, texts }, unit, special) {
  const units = [], ofWord = new Map();
  tokens.text.forEach((piece, token) => {
    const isSpecial = tokens.special[token], word = tokens.word[token], segment = tokens.segment[token];
    if (isSpecial && special !== "keep") return;
    const one = { tokens: [token], label: piece, special: isSpecial, segment, start: tokens.start[token], end: tokens.end[token] };
    if (word !== null && unit === "word") {
      if (ofWord.has(word)) return void ofWord.get(word).tokens.push(token);
      ofWord.set(word, Object.assign(one, { label: words.text[word], start: words.start[word], end: words.end[word] }));
    } else if (segment !== null) {
      const shown = texts[segment].slice(one.start, one.end), isPart = word === tokens.word[token - 1] && one.start < tokens.end[token - 1];
      one.label = (piece.startsWith("##") || isPart ? "##" : "") + (shown.trim() ? shown : "␣");
    }
    units.push(one);
  });
  return units;
}

/**
 * Cuts texts into what the sentence pane shows, in the order of the units: paragraphs of pieces { text, unit, kind }.
 * `kind` is "text" (part of the input), "chip" (a special token or a prompt's), "gap" (between units) or "unread" (after
 * the last token). A unit may name its paragraph (`part`); otherwise each text is one, special tokens after it.
 */
export function layOut(units, texts) {
  const paragraphs = [], last = texts.map((_, index) => units.findLastIndex((unit) => unit.segment === index));
  let segment = null, cursor = 0;
  units.forEach((unit, index) => {
    const isNew = unit.segment !== null && unit.segment !== segment;
    if (!paragraphs.length || unit.part >= paragraphs.length || (isNew && segment !== null && unit.part === undefined)) paragraphs.push([]);
    const put = (text, kind, of = -1) => paragraphs.at(-1).push({ text, unit: of, kind });
    if (unit.segment === null) return put(unit.label, "chip", index);
    if (isNew) [segment, cursor] = [unit.segment, 0];
    const text = texts[segment], from = Math.max(cursor, unit.start);
    if (from > cursor) put(text.slice(cursor, from), "gap");
    // several tokens may stand for one character: the first shows it, the others a mark
    put(unit.end > from ? text.slice(from, unit.end) : "▪", "text", index);
    cursor = Math.max(cursor, unit.end);
    if (last[segment] === index && cursor < text.length) put(text.slice(cursor), text.slice(cursor).trim() ? "unread" : "gap");
  });
  return paragraphs;
}

/** Writes a weight with about three significant digits. */
export function number(value) {
  if (typeof value !== "number" || Number.isNaN(value)) return "–";
  const size = Math.abs(value), digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return (size !== 0 && size < 0.0005 ? value.toExponential(0) : value.toFixed(digits)).replaceAll("-", "−");
}

/** Writes a share as a percentage. */
export function percent(value) {
  const share = value * 100;
  return `${share >= 10 || share === 0 ? share.toFixed(0) : share >= 0.1 ? share.toFixed(1) : "< 0.1"} %`;
}

const codeOf = (character) => character.charCodeAt(0);

/** Escapes text for XML; what XML cannot hold becomes U+FFFD. */
export function escapeXml(text) {
  return text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd").replace(/[&<>"']/g, (character) => `&#${codeOf(character)};`);
}

/** Writes JSON that may stand inside a script element: nothing in it can end the element. */
export function scriptJson(value) {
  return JSON.stringify(value).replace(/[<>&\u2028\u2029]/g, (character) => `\\u${codeOf(character).toString(16).padStart(4, "0")}`);
}
