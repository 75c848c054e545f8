/** Files to take away: SVG, and the page with its data. */

import { escapeXml, scriptJson } from "./text.js";

/** As much of a canvas context as the map needs, writing SVG; `measure` is a real one, for widths. */
export class SvgContext {
	constructor(width, height, measure) {
		Object.assign(this, { width, height, measure, out: [], stack: [], globalAlpha: 1, lineWidth: 1, textAlign: "left", transform: "" });
	}

	save() {
		const { out, stack, ...rest } = this;
		stack.push(rest);
	}

	restore() { Object.assign(this, this.stack.pop()); }
	translate(x, y) { this.transform += `translate(${round(x)} ${round(y)})`; }
	rotate(angle) { this.transform += `rotate(${round((angle * 180) / Math.PI)})`; }
	beginPath() { this.path = ""; }
	moveTo(x, y) { this.path += `M${round(x)} ${round(y)}`; }
	bezierCurveTo(...points) { this.path += `C${points.map(round).join(" ")}`; }
	stroke() { this.put(`<path d="${this.path}" fill="none" ${this.line}`); }
	fillRect(...box) { this.put(`<rect ${place(box)} fill="${this.fillStyle}"`); }
	strokeRect(...box) { this.put(`<rect ${place(box)} fill="none" ${this.line}`); }

	drawImage(canvas, ...box) {
		this.put(`<image ${place(box)} preserveAspectRatio="none" style="image-rendering:pixelated" href="${canvas.toDataURL()}"`);
	}

	fillText(text, x, y) {
		const anchor = { left: "start", center: "middle", right: "end" }[this.textAlign], size = parseFloat(this.font);
		this.put(`<text x="${round(x)}" y="${round(y + size * 0.35)}" font-size="${size}" text-anchor="${anchor}" fill="${this.fillStyle}"`, escapeXml(text));
	}

	measureText(text) {
		this.measure.font = this.font;
		return this.measure.measureText(text);
	}

	get line() { return `stroke="${this.strokeStyle}" stroke-width="${round(this.lineWidth)}" stroke-opacity="${round(this.globalAlpha)}"`; }

	put(element, text) {
		this.out.push(`${element}${this.transform && ` transform="${this.transform}"`}${text === undefined ? "/>" : `>${text}</text>`}`);
	}

	end() {
		const { width, height } = this, size = `${place([0, 0, width, height])} viewBox="0 0 ${width} ${height}"`;
		return `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="system-ui, sans-serif">${this.out.join("\n")}</svg>\n`;
	}
}

const round = (value) => Math.round(value * 100) / 100;
const place = ([x, y, width, height]) => `x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"`;

/** A module and all it imports, each after what it needs: Map of names to sources. */
export async function collectModules(entry, load, found = new Map()) {
	if (found.has(entry)) return found;
	const source = await load(entry);
	for (const [, name] of source.matchAll(/^import [^;]* from "\.\/([a-z]+\.js)";$/gm)) await collectModules(name, load, found);
	return found.set(entry, source);
}

/** Modules as one script: all names differ. */
export function joinModules(modules) {
	return [...modules.values()].join("\n")
		.replace(/^import [^;]*;$/gm, "").replace(/^export /gm, "")
		.replace(/<\/script/g, "<\\/script");
}

const OFFLINE_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:";

/** The page as a file, with a policy that lets no request out. */
export function standalone(html, css, modules, data) {
	const swap = (text, pattern, by) => {
		if (!pattern.test(text)) throw new Error(`the page lacks ${pattern}`);
		return text.replace(pattern, () => by); // a function: "$&" in a text means nothing
	};
	let page = swap(html, /<link rel="stylesheet"[^>]*>/, `<style>\n${css}</style>`);
	page = swap(page, /<link rel="icon"[^>]*>/, `<meta http-equiv="Content-Security-Policy" content="${OFFLINE_POLICY}">`);
	page = swap(page, /<script type="module"[^>]*><\/script>/, "");
	const scripts = `<script type="application/json" id="snapshot">${scriptJson(data)}</script>\n`
		+ `<script type="module">\n${joinModules(modules)}</script>\n`;
	return swap(page, /<\/body>/, `${scripts}</body>`);
}
