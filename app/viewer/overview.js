/** All heads at a glance: buttons, tinted, then each with its map in small. */

import { levels, paint, rampColour } from "./colour.js";
import { number } from "./text.js";
import { buildView, maxPool } from "./views.js";

const THUMBNAIL = 64; // pixels a side

function element(tag, role, text = "") {
	const made = document.createElement(tag);
	made.setAttribute("role", role);
	made.textContent = text;
	return made;
}

/** `show` builds the grid and tints it, `thumbnails` draws the maps of one layer. */
export class Overview {
	constructor(root, onChoose) {
		Object.assign(this, { root, onChoose, tiles: [], drawn: new Map() });
		root.addEventListener("click", ({ target }) => {
			const tile = target.closest("button");
			if (tile) onChoose(Number(tile.dataset.layer), Number(tile.dataset.head));
		});
		root.addEventListener("keydown", (event) => this.move(event));
	}

	/** `most` is what the fullest colour stands for, `places` has [layer, head] of each tile. */
	show(scene) {
		this.scene = scene;
		const key = String(scene.places) + scene.isPlain;
		if (key !== this.key) this.build(key);
		for (const tile of this.tiles) this.tint(tile);
	}

	build(key) {
		const { heads, places, isPlain } = this.scene;
		this.key = key;
		this.drawn.clear();
		this.tiles = places.map(([layer, head]) => {
			const cell = element("span", "gridcell"), button = document.createElement("button"), canvas = document.createElement("canvas");
			Object.assign(button.dataset, { layer, head });
			button.append(canvas);
			cell.append(button);
			return { layer, head, cell, button, canvas };
		});
		const mark = (text, role) => Object.assign(element("span", role, text), { className: "mark" });
		const rows = [];
		for (let at = 0; at < places.length; at += heads) {
			const row = element("div", "row");
			if (isPlain) row.append(mark(places[at][0], "rowheader"));
			row.append(...this.tiles.slice(at, at + heads).map((tile) => tile.cell));
			rows.push(row);
		}
		if (isPlain) {
			rows.unshift(element("div", "row"));
			rows[0].append(...["", ...Array(heads).keys()].map((text) => mark(text, "columnheader")));
		}
		this.root.style.setProperty("--heads", heads);
		this.root.classList.toggle("marked", isPlain);
		this.root.replaceChildren(...rows);
	}

	tint(tile) {
		const { values, most, name, isPattern, layer, head, show, ink } = this.scene, { button, canvas } = tile;
		const value = values?.[tile.layer][tile.head] ?? null, isDrawn = isPattern && this.drawn.has(tile);
		const isCurrent = tile.layer === layer && tile.head === head;
		const isChosen = show === "mean" ? tile.layer === layer : show === "head" && isCurrent;
		canvas.hidden = !isDrawn;
		button.style.backgroundColor = isDrawn ? "" : `rgb(${rampColour(ink.plus, (0.85 * (value ?? 0)) / most)})`;
		button.classList.toggle("chosen", isChosen);
		button.tabIndex = isCurrent ? 0 : -1;
		tile.cell.setAttribute("aria-selected", isChosen);
		button.title = `Layer ${tile.layer}, head ${tile.head}${value === null ? "" : `: ${name} ${number(value)}`}`;
	}

	/** Draws a layer in small, once. */
	thumbnails(layer, maps, n, { units, special, filter, scale, ink, key }) {
		for (const tile of this.tiles) {
			if (tile.layer !== layer || this.drawn.get(tile) === key) continue;
			const view = buildView(maps.subarray(tile.head * n * n, (tile.head + 1) * n * n), n, units, special, filter);
			if (!view.values.length) continue;
			const small = maxPool(view.values, view.rows.length, view.columns.length, THUMBNAIL), image = new ImageData(small.columns, small.rows);
			Object.assign(tile.canvas, { width: small.columns, height: small.rows });
			paint(levels(small.values, small.columns, scale, view.domain), ink.table, new Uint32Array(image.data.buffer));
			tile.canvas.getContext("2d").putImageData(image, 0, 0);
			this.drawn.set(tile, key);
			this.tint(tile);
		}
	}

	move(event) {
		const { heads } = this.scene, last = this.tiles.length - 1, at = this.tiles.findIndex(({ button }) => button === document.activeElement);
		const target = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - heads, ArrowDown: at + heads, Home: 0, End: last }[event.key];
		if (at < 0 || target === undefined) return;
		event.preventDefault();
		const tile = this.tiles[target];
		if (!tile) return;
		this.onChoose(tile.layer, tile.head);
		tile.button.focus();
	}
}
