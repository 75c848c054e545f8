/** The sentence: text, shaded from behind by what the token in focus looks at. */

import { sized } from "./map.js";
import { layOut } from "./text.js";

/** `show` writes the text, `shade` paints behind it. */
export class SentencePane {
	constructor({ root, canvas, onFocus, onPin }) {
		Object.assign(this, { root, canvas });
		const unitOf = ({ target }) => {
			const span = target.closest?.("[data-unit]");
			return span ? Number(span.dataset.unit) : null;
		};
		root.addEventListener("pointermove", (event) => onFocus(unitOf(event)));
		root.addEventListener("pointerleave", () => onFocus(null));
		root.addEventListener("click", (event) => {
			if (unitOf(event) !== null && !String(getSelection())) onPin(unitOf(event));
		});
		root.addEventListener("scroll", () => (this.boxes = null));
	}

	show(units, texts) {
		this.boxes = null;
		if (this.units === units) return;
		this.units = units;
		this.spans = [];
		this.root.replaceChildren(...layOut(units, texts).map((pieces, index) => {
			const paragraph = document.createElement("p");
			if (texts.length > 1) paragraph.dataset.name = "AB"[index];
			for (const { text, unit, kind } of pieces) {
				const span = document.createElement("span");
				span.className = kind;
				span.textContent = text;
				if (unit >= 0) {
					span.dataset.unit = unit;
					this.spans[unit] = span;
				}
				paragraph.append(span);
			}
			return paragraph;
		}));
	}

	measure() {
		const frame = this.canvas.parentElement.getBoundingClientRect();
		this.pen = sized(this.canvas, frame.width, frame.height);
		this.boxes = this.spans.map((span) => [...span.getClientRects()].map((box) =>
			[box.left - frame.left - 1, box.top - frame.top, box.width + 2, box.height, 4]));
	}

	/** Paints shares (Map: unit to -1..1) behind the words, and a frame around focused units. */
	shade(shares, focused, ink) {
		if (!this.boxes) this.measure();
		const { pen } = this, trace = (unit, act) => {
			for (const box of this.boxes[unit] ?? []) {
				pen.beginPath();
				pen.roundRect(...box);
				pen[act]();
			}
		};
		pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
		for (const [unit, share] of shares) {
			if (Math.abs(share) < 0.02) continue;
			pen.globalAlpha = 0.05 + 0.45 * Math.abs(share);
			pen.fillStyle = share < 0 ? ink.warn : ink.accent;
			trace(unit, "fill");
		}
		pen.globalAlpha = 1;
		pen.strokeStyle = ink.accent;
		pen.lineWidth = 2;
		for (const unit of focused) trace(unit, "stroke");
	}
}
