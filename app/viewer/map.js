/** The map of one head, drawn on a canvas: as a heat map, or as lines between two columns. */

import { levels, paint } from "./colour.js";
import { number, percent } from "./text.js";
import { lineOf, maxPool, pruneEdges } from "./views.js";

export const FONT = "12px system-ui, sans-serif";
const MAX_CELL = 44, NUMBERED_CELL = 30, GRID_CELL = 12, LABELLED_CELL = 11, LINE = 20, MAX_LABEL = 92, FOCUSED_LABEL = 170; // CSS pixels
const BLANK = 0.05; // a renormalised row that kept less is hatched

/** Whether a row is hatched. */
export const isBlank = (kept) => kept < BLANK;

/** A place in a map; -1: none. */
export const spot = (row, column) => (row < 0 && column < 0 ? null : { row, column });

/** Sizes a canvas in CSS pixels; its pen (context) is measured in them. */
export function sized(canvas, width, height, ratio = devicePixelRatio) {
	const pen = canvas.getContext("2d");
	[width, height] = [Math.ceil(width), Math.ceil(height)];
	Object.assign(canvas, { width: width * ratio, height: height * ratio });
	Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
	pen.scale(ratio, ratio);
	return pen;
}

/** `show` draws a scene, `focus` marks a place in it. */
export class MapPane {
	constructor({ stage, base, over, tip, onFocus, onPin }) {
		Object.assign(this, { stage, base, over, tip, cells: document.createElement("canvas") });
		stage.addEventListener("pointermove", (event) => onFocus(this.hit(event)));
		stage.addEventListener("pointerleave", () => onFocus(null));
		stage.addEventListener("click", (event) => onPin(this.hit(event)));
	}

	show(scene) {
		this.scene = scene;
		this.edges = scene.shape === "lines" ? pruneEdges(scene.view) : null;
		this.box = this.measure(this.stage.clientWidth);
		this.draw(sized(this.base, this.box.width, this.box.height));
		this.pen = sized(this.over, this.box.width, this.box.height);
		this.pen.font = FONT;
		this.pen.textBaseline = "middle";
	}

	measure(width) {
		const { shape, rowLabels, columnLabels } = this.scene, pen = this.base.getContext("2d");
		pen.font = FONT;
		const room = (labels) => Math.min(MAX_LABEL, width * 0.28, Math.max(0, ...labels.map((label) => pen.measureText(label).width))) + 12;
		if (shape === "lines") {
			const height = Math.max(rowLabels.length, columnLabels.length) * LINE + 8;
			return { width, height, left: room(rowLabels), right: width - room(columnLabels), top: 4, side: LINE, labelled: true };
		}
		const side = (left) => Math.min(MAX_CELL, (width - left - 2) / columnLabels.length);
		const labelled = side(room(rowLabels)) >= LABELLED_CELL, left = labelled ? room(rowLabels) : 12, top = labelled ? room(columnLabels) : 24;
		const right = left + side(left) * columnLabels.length;
		return { width, height: top + side(left) * rowLabels.length + 2, left, right, top, side: side(left), labelled };
	}

	/** Draws all but the focus, on a canvas or as SVG. */
	draw(pen) {
		const { view, shape, rowLabels, columnLabels, ink } = this.scene, { labelled } = this.box;
		pen.font = FONT;
		pen.textBaseline = "middle";
		if (shape === "lines") for (const edge of this.edges.edges) this.stroke(pen, edge);
		else if (view.values.length) this.drawHeat(pen, this.box);
		if (!labelled) return;
		pen.fillStyle = ink.text;
		rowLabels.forEach((_, row) => this.writeRow(pen, row));
		columnLabels.forEach((_, column) => this.writeColumn(pen, column));
	}

	drawHeat(pen, { left, right, top, side }) {
		const { view, scale, special, ink } = this.scene, rows = view.rows.length, columns = view.columns.length;
		const width = right - left, height = side * rows;
		const small = maxPool(view.values, rows, columns, Math.ceil(Math.max(width, height) * devicePixelRatio));
		const shades = levels(small.values, small.columns, scale, view.domain), image = new ImageData(small.columns, small.rows);
		paint(shades, ink.table, new Uint32Array(image.data.buffer));
		Object.assign(this.cells, { width: small.columns, height: small.rows });
		this.cells.getContext("2d").putImageData(image, 0, 0);
		pen.imageSmoothingEnabled = false;
		pen.drawImage(this.cells, left, top, width, height);
		pen.strokeStyle = ink.line;
		pen.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
		pen.fillStyle = ink.surface;
		for (let row = 1; side >= GRID_CELL && row < rows; row++) pen.fillRect(left, top + row * side - 0.5, width, 1);
		for (let column = 1; side >= GRID_CELL && column < columns; column++) pen.fillRect(left + column * side - 0.5, top, 1, height);
		if (special === "renormalize") this.hatch(pen);
		if (side < NUMBERED_CELL) return;
		pen.textAlign = "center";
		view.values.forEach((value, at) => {
			const text = value.toFixed(view.signed ? 3 : 2).replace("0.", ".").replace("-", "−");
			if (!/[1-9]/.test(text)) return;
			pen.fillStyle = Math.abs(shades[at]) >= ink.flips[Number(value > 0)] ? ink.surface : ink.text;
			pen.fillText(text, left + ((at % columns) + 0.5) * side, top + (Math.floor(at / columns) + 0.5) * side);
		});
	}

	hatch(pen) {
		const { left, right, top, side } = this.box;
		pen.fillStyle = this.scene.ink.warn;
		this.scene.view.kept.forEach((kept, row) => {
			for (let x = left; isBlank(kept) && x < right; x += 9) pen.fillRect(x, top + row * side, 1, side);
		});
	}

	stroke(pen, { row, column, weight }) {
		const { view, scale, ink } = this.scene, { left, right } = this.box;
		const share = levels([weight], 1, scale === "rowmax" ? "linear" : scale, view.domain)[0] / 255;
		const from = this.y(row), to = this.y(column), bend = (right - left) * 0.45;
		pen.globalAlpha = 0.06 + 0.9 * Math.abs(share);
		pen.lineWidth = 0.6 + 2.6 * Math.abs(share);
		pen.strokeStyle = weight < 0 ? ink.warn : ink.accent;
		pen.beginPath();
		pen.moveTo(left, from);
		pen.bezierCurveTo(left + bend, from, right - bend, to, right, to);
		pen.stroke();
		pen.globalAlpha = 1;
	}

	y(index) {
		return this.box.top + (index + 0.5) * this.box.side;
	}

	writeRow(pen, row, ground) {
		const { left } = this.box;
		this.write(pen, this.scene.rowLabels[row], left - 7, this.y(row), "right", ground ? FOCUSED_LABEL : left - 10, ground);
	}

	writeColumn(pen, column, ground) {
		const { left, right, top, side, width, labelled } = this.box, text = this.scene.columnLabels[column], x = left + (column + 0.5) * side;
		if (this.scene.shape === "lines") return this.write(pen, text, right + 7, this.y(column), "left", ground ? FOCUSED_LABEL : width - right - 10, ground);
		if (!labelled) return this.write(pen, text, x, 11, x > (left + right) / 2 ? "right" : "left", FOCUSED_LABEL, ground);
		pen.save();
		pen.translate(x, top - 7);
		pen.rotate(-Math.PI / 2);
		this.write(pen, text, 0, 0, "left", top - 10, ground);
		pen.restore();
	}

	/** Writes a label, shortened to its room; where it is in focus on a `ground`, and not over the edge. */
	write(pen, text, x, y, align, room, ground) {
		const { ink } = this.scene, width = (label) => pen.measureText(label).width;
		let shown = text;
		for (let end = text.length - 1; end > 1 && width(shown) > room; end--) shown = `${text.slice(0, end)}…`;
		pen.textAlign = align;
		if (ground) {
			const wide = width(shown);
			x = align === "right" ? Math.max(x, wide + 6) : Math.min(x, this.box.width - wide - 6);
			pen.fillStyle = ground;
			pen.beginPath();
			pen.roundRect(align === "right" ? x - wide - 5 : x - 5, y - 9, wide + 10, 18, 4);
			pen.fill();
			pen.fillStyle = ground === ink.accent ? ink.contrast : ink.text;
		}
		pen.fillText(shown, x, y);
	}

	hit({ clientX, clientY }) {
		if (!this.scene) return null;
		const { view, shape } = this.scene, { left, right, top, side } = this.box, frame = this.base.getBoundingClientRect();
		const x = clientX - frame.left, y = clientY - frame.top, isLines = shape === "lines", isRight = x > (left + right) / 2;
		const index = (at, count) => (at >= 0 && at < count ? Math.floor(at) : -1);
		const row = isLines && isRight ? -1 : index((y - top) / side, view.rows.length);
		const column = index(isLines ? (isRight ? (y - top) / side : -1) : (x - left) / side, view.columns.length);
		return spot(row, column);
	}

	focus(spot) {
		const { pen, box, tip } = this, { shape, ink } = this.scene, isLines = shape === "lines";
		pen.clearRect(0, 0, box.width, box.height);
		this.base.classList.toggle("dim", Boolean(spot) && isLines);
		tip.hidden = !spot || isLines || spot.row < 0 || spot.column < 0;
		if (!spot) return;
		if (isLines) this.focusLines(spot);
		else this.focusCells(spot);
		if (spot.row >= 0) this.writeRow(pen, spot.row, ink.accent);
		if (spot.column >= 0 && !(isLines && spot.row >= 0)) this.writeColumn(pen, spot.column, ink.accent);
		if (!tip.hidden) this.tell(spot);
	}

	focusCells({ row, column }) {
		const { pen, box: { left, right, top, side, height } } = this, thick = Math.max(side, 1.5), x = left + column * side, y = top + row * side;
		pen.strokeStyle = this.scene.ink.accent;
		pen.lineWidth = 1;
		if (row >= 0) pen.strokeRect(left - 0.5, y - 0.5, right - left + 1, thick + 1);
		if (column >= 0) pen.strokeRect(x - 0.5, top - 0.5, thick + 1, height - top - 1);
		pen.lineWidth = 2.5;
		if (row >= 0 && column >= 0) pen.strokeRect(x - 1, y - 1, thick + 2, thick + 2);
	}

	focusLines({ row, column }) {
		const { pen, scene: { view, ink } } = this;
		lineOf(view, row, column).forEach((weight, at) => {
			if (Math.abs(weight) < view.domain / 200) return;
			this.stroke(pen, row >= 0 ? { row, column: at, weight } : { row: at, column, weight });
			if (Math.abs(weight) < view.domain / 20) return;
			if (row >= 0) this.writeColumn(pen, at, ink.surface);
			else this.writeRow(pen, at, ink.surface);
		});
	}

	tell({ row, column }) {
		const { tip, box: { left, top, side, width } } = this, { view, rowLabels, columnLabels, says } = this.scene;
		const value = view.values[row * view.columns.length + column], x = left + column * side, isRight = x > width * 0.55;
		tip.textContent = `${rowLabels[row]} ${says} ${columnLabels[column]} ${number(value)}` + (view.kept ? ` · row kept ${percent(view.kept[row])}` : "");
		tip.style.transform = `translate(${isRight ? x - 10 : x + side + 10}px, ${top + (row + 1) * side + 10}px) translateX(${isRight ? -100 : 0}%)`;
	}
}
