/** From the maps of a layer to what is drawn. */

/** Averages the maps of `heads` heads, each n x n. */
export function meanHeads(maps, heads, n) {
	const size = n * n, out = new Float32Array(size);
	for (let at = 0; at < heads * size; at++) out[at % size] += maps[at] / heads;
	return out;
}

/**
 * What is drawn of a map (n x n, row = query): { rows, columns (units), values, kept (of each row), ... }.
 * Special tokens leave first, and "renormalize" divides each row by what it kept; then keys of a word are summed and
 * its queries averaged, so that rows keep their sums; then the filter ("ab": from the first text to the second).
 */
export function buildView(map, n, units, special, filter) {
	const wanted = (letter) => [...units.keys()].filter((unit) => filter === "all" || units[unit].segment === "ab".indexOf(letter));
	const rows = wanted(filter[0]), columns = wanted(filter[1]), width = columns.length;
	const columnOf = new Int32Array(n).fill(-1), isKept = new Uint8Array(n);
	for (const unit of units) for (const token of unit.tokens) isKept[token] = 1;
	columns.forEach((unit, column) => units[unit].tokens.forEach((token) => { columnOf[token] = column; }));
	const values = new Float32Array(rows.length * width), kept = special === "keep" ? null : new Float32Array(rows.length);
	rows.forEach((unit, row) => {
		const queries = units[unit].tokens, base = row * width;
		for (const query of queries) {
			const from = query * n;
			let mass = 0;
			for (let key = 0; key < n; key++) if (isKept[key]) mass += map[from + key];
			if (kept) kept[row] += mass / queries.length;
			const scale = (special === "renormalize" ? (mass > 0 ? 1 / mass : 0) : 1) / queries.length;
			for (let key = 0; key < n; key++) if (columnOf[key] >= 0) values[base + columnOf[key]] += map[from + key] * scale;
		}
	});
	return { rows, columns, values, kept, signed: false, domain: 1 };
}

/** The matrix of a comparison, token pairs of two units summed. */
export function buildComparison(cells, rowOf, columnOf) {
	const rows = [...new Set(rowOf)], columns = [...new Set(columnOf)];
	const values = new Float32Array(rows.length * columns.length);
	cells.forEach((line, i) => line.forEach((value, j) => {
		values[rows.indexOf(rowOf[i]) * columns.length + columns.indexOf(columnOf[j])] += value;
	}));
	const domain = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
	return { rows, columns, values, kept: null, signed: true, domain };
}

/** Shrinks a matrix to `size` a side at most, each cell the strongest of its block. */
export function maxPool(values, rows, columns, size) {
	const height = Math.min(rows, size), width = Math.min(columns, size);
	if (height === rows && width === columns) return { values, rows, columns };
	const out = new Float32Array(height * width);
	for (let row = 0, at = 0; row < rows; row++) {
		const base = Math.floor((row * height) / rows) * width;
		for (let column = 0; column < columns; column++, at++) {
			const target = base + Math.floor((column * width) / columns);
			if (Math.abs(values[at]) > Math.abs(out[target])) out[target] = values[at];
		}
	}
	return { values: out, rows: height, columns: width };
}

/** The lines to draw, weak to strong: of each row the strongest, up to `mass` of it, and `limit` in all. */
export function pruneEdges(view, mass = 0.9, limit = 2000) {
	const width = view.columns.length, edges = [];
	view.rows.forEach((_, row) => {
		const line = view.values.subarray(row * width, (row + 1) * width), sizes = line.map(Math.abs).sort();
		const total = sizes.reduce((sum, size) => sum + size, 0);
		let least = Infinity;
		for (let at = width - 1, kept = 0; at >= 0 && kept < mass * total; at--) kept += least = sizes[at];
		line.forEach((weight, column) => { if (weight && Math.abs(weight) >= least) edges.push({ row, column, weight }); });
	});
	edges.sort((one, other) => Math.abs(one.weight) - Math.abs(other.weight));
	const shown = edges.slice(-limit);
	return { edges: shown, hidden: view.values.length - shown.length };
}

/** The cells of a row, or of a column where `row` is -1. */
export function lineOf({ rows, columns, values }, row, column) {
	const width = columns.length;
	return row >= 0 ? values.subarray(row * width, (row + 1) * width) : Float32Array.from(rows, (_, at) => values[at * width + column]);
}

/** What each unit of a comparison adds altogether: a Map. */
export function totals({ rows, columns, values }) {
	const sums = new Map();
	const add = (unit, value) => sums.set(unit, (sums.get(unit) ?? 0) + value);
	values.forEach((value, at) => [rows[Math.floor(at / columns.length)], columns[at % columns.length]].forEach((unit) => add(unit, value)));
	return sums;
}

export function strongest(line, limit) {
	return Array.from(line, (value, at) => ({ at, value }))
		.sort((one, other) => Math.abs(other.value) - Math.abs(one.value)).slice(0, limit);
}
