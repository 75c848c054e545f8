/** Texts, tokens and words: where they stand, and what they are called. */

/** A token or word table with offsets in UTF-16, not in code points. */
export function withUtf16(table, texts) {
	const positions = texts.map((text) => {
		const starts = [0];
		for (const character of text) starts.push(starts.at(-1) + character.length);
		return starts;
	});
	const convert = (offsets) => offsets.map((offset, row) => positions[table.segment[row]]?.[offset] ?? offset);
	return { ...table, start: convert(table.start), end: convert(table.end) };
}

/**
 * What rows and columns stand for: [{ tokens, label, segment (null: special or prompt), start, end }].
 * A label is a piece of the text, since vocabularies may spell in bytes, and not a long one; "##" continues a word.
 */
export function listUnits({ tokens, words, texts }, unit, special) {
	const units = [], ofWord = new Map();
	tokens.text.forEach((piece, token) => {
		const word = tokens.word[token], segment = tokens.segment[token];
		if (tokens.special[token] && special !== "keep") return;
		const one = { tokens: [token], label: piece, segment, start: tokens.start[token], end: tokens.end[token] };
		if (word !== null && unit === "word") {
			if (ofWord.has(word)) return void ofWord.get(word).tokens.push(token);
			ofWord.set(word, Object.assign(one, { label: words.text[word], start: words.start[word], end: words.end[word] }));
		} else if (segment !== null) {
			const shown = texts[segment].slice(one.start, one.end), isPart = word === tokens.word[token - 1] && one.start < tokens.end[token - 1];
			one.label = (piece.startsWith("##") || isPart ? "##" : "") + (shown.trim() ? shown : "␣");
		}
		one.label = one.label.replace(/^(.{49}).{2,}$/su, "$1…"); // 100,000 letters take minutes to measure
		units.push(one);
	});
	return units;
}

/**
 * Cuts texts into paragraphs of pieces { text, unit, kind: "text", "chip" (special, prompt), "gap" or "unread" (cut off) }.
 * A unit may name its paragraph (`part`); otherwise each text is one, special tokens after it.
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

/** A weight, to about three significant digits. */
export function number(value) {
	if (typeof value !== "number" || Number.isNaN(value)) return "–";
	const size = Math.abs(value), digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
	return (size !== 0 && size < 0.0005 ? value.toExponential(0) : value.toFixed(digits)).replaceAll("-", "−");
}

export function percent(value) {
	const share = value * 100;
	return `${share >= 10 || share === 0 ? share.toFixed(0) : share >= 0.1 ? share.toFixed(1) : "< 0.1"} %`;
}

const codeOf = (character) => character.charCodeAt(0);

/** Text for XML; what XML cannot hold becomes U+FFFD. */
export function escapeXml(text) {
	return text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd").replace(/[&<>"']/g, (character) => `&#${codeOf(character)};`);
}

/** JSON that cannot end a script element. */
export function scriptJson(value) {
	return JSON.stringify(value).replace(/[<>&\u2028\u2029]/g, (character) => `\\u${codeOf(character).toString(16).padStart(4, "0")}`);
}
