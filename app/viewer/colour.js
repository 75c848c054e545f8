/** Numbers to colours. */

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** The colour of a ramp of "#rrggbb" stops at 0 <= t <= 1, as [red, green, blue]. */
export function rampColour(stops, t) {
	const at = Math.min(Math.max(t, 0), 1) * (stops.length - 1), index = Math.min(Math.floor(at), stops.length - 2);
	const from = channels(stops[index]), to = channels(stops[index + 1]);
	return from.map((value, channel) => Math.round(value + (to[channel] - value) * (at - index)));
}

/** Pixels for the levels -255 to 255, as ImageData holds them. */
export function colourTable(plus, minus) {
	return Uint32Array.from({ length: 511 }, (_, at) => {
		const [red, green, blue] = rampColour(at < 255 ? minus : plus, Math.abs(at - 255) / 255);
		return (255 << 24) | (blue << 16) | (green << 8) | red;
	});
}

/** The level (-255 to 255) of each cell, of the domain or ("rowmax") of the largest in its row. */
export function levels(values, columns, scale, domain) {
	const out = new Int16Array(values.length);
	for (let base = 0; base < values.length; base += columns) {
		let top = domain;
		if (scale === "rowmax") {
			top = 0;
			for (let at = base; at < base + columns; at++) top = Math.max(top, Math.abs(values[at]));
		}
		const factor = 1 / top, isRoot = scale === "sqrt";
		for (let at = base; at < base + columns; at++) {
			const share = Math.min(Math.abs(values[at]) * factor, 1), level = (isRoot ? Math.sqrt(share) : share) * 255 + 0.5;
			out[at] = values[at] < 0 ? -level : level; // in a row of zeros no number, which is stored as 0
		}
	}
	return out;
}

export function paint(cellLevels, table, pixels) {
	for (let at = 0; at < cellLevels.length; at++) pixels[at] = table[cellLevels[at] + 255];
}

/** The marks of a legend: where on the ramp (-1 to 1), and the number there, if it is fixed. */
export function legendTicks(scale, domain, signed) {
	const shares = signed ? [-1, -0.25, 0, 0.25, 1] : scale === "sqrt" ? [0, 0.01, 0.1, 0.25, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
	if (scale === "rowmax") return shares.filter(Number.isInteger).map((at) => ({ at, value: at && null }));
	return shares.map((share) => ({ at: scale === "sqrt" ? Math.sign(share) * Math.sqrt(Math.abs(share)) : share, value: share * domain }));
}
