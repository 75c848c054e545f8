/** Reads what the server sends: safetensors and half-precision floats. */

let halves;

/** Half-precision bit patterns as a Float32Array. */
export function decodeHalves(bits) {
	halves ??= Float32Array.from({ length: 65536 }, (_, pattern) => {
		const sign = pattern >> 15 ? -1 : 1, exponent = (pattern >> 10) & 31, fraction = pattern & 1023;
		if (exponent === 31) return fraction ? NaN : sign * Infinity;
		return sign * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
	});
	const out = new Float32Array(bits.length);
	for (let at = 0; at < bits.length; at++) out[at] = halves[bits[at]];
	return out;
}

const TYPES = {
	F16: [2, (bytes) => decodeHalves(new Uint16Array(bytes))],
	F32: [4, (bytes) => new Float32Array(bytes)],
};

/** The arrays of a safetensors file: { name: { shape, data } }; throws where the header contradicts the file. */
export function readSafetensors(buffer) {
	const fail = (why) => { throw new Error(`not safetensors: ${why}`); };
	if (buffer.byteLength < 8) fail("too short");
	const begin = 8 + Number(new DataView(buffer).getBigUint64(0, true));
	if (begin > buffer.byteLength) fail("its header ends after the file");
	const { __metadata__, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, begin - 8)));
	return Object.fromEntries(Object.entries(entries).map(([name, { dtype, shape, data_offsets: [start, end] }]) => {
		const [size, read] = TYPES[dtype] ?? fail(`${name} has the unknown type ${dtype}`);
		const bytes = shape.reduce((product, side) => product * side, size);
		if (start < 0 || end - start !== bytes || begin + end > buffer.byteLength) fail(`${name} does not fit its shape`);
		// slice, not a view: an array may begin at any byte
		return [name, { shape, data: read(buffer.slice(begin + start, begin + end)) }];
	}));
}
