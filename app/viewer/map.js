/** The map of one head, drawn on a canvas: as a heat map, or as lines between two columns. */

import { levels, paint } from "./colour.js";
import { number, percent } from "./text.js";
import { lineOf, maxPool, pruneEdges } from "./views.js";

export const FONT = "12px system-ui, sans-serif";
const MAX_CELL = 44, NUMBERED_CELL = 30, GRID_CELL = 12, LABELLED_CELL = 11, LINE = 20, MAX_LABEL = 92; // CSS pixels
const BLANK = 0.05; // a renormalised row that kept less is hatched: what became of it is no finding

/** Gives a canvas the size of `width` x `height` CSS pixels, and a context that is measured in them. */
export function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1, context = canvas.getContext("2d");
  Object.assign(canvas, { width: Math.max(1, Math.round(width * ratio)), height: Math.max(1, Math.round(height * ratio)) });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  context.scale(ratio, ratio);
  return context;
}

/** The map pane: `show` draws a scene, `focus` marks a row, a column or a cell; `onFocus`, `onPin` tell where the pointer is. */
export class MapPane {
  constructor({ stage, base, over, tip, onFocus, onPin }) {
    Object.assign(this, { stage, base, over, tip, cells: document.createElement("canvas") });
    stage.addEventListener("pointermove", (event) => onFocus(this.hit(event)));
    stage.addEventListener("pointerleave", () => onFocus(null));
    stage.addEventListener("click", (event) => onPin(this.hit(event)));
  }

  /** Draws `scene`: { view, shape ("heat", "lines"), scale, special, rowLabels, columnLabels, phrase, ink }. */
  show(scene) {
    this.scene = scene;
    this.edges = scene.shape === "lines" ? pruneEdges(scene.view) : null;
    this.box = this.measure(this.stage.clientWidth);
    this.draw(sized(this.base, this.box.width, this.box.height));
    this.context = sized(this.over, this.box.width, this.box.height);
    this.context.font = FONT;
    this.context.textBaseline = "middle";
  }

  /** Where things are: the left and right edges of what is drawn, its top, the sides of a cell. */
  measure(width) {
    const { shape, rowLabels, columnLabels } = this.scene, context = this.base.getContext("2d");
    context.font = FONT;
    const room = (labels) => Math.min(MAX_LABEL, width * 0.28, Math.max(0, ...labels.map((label) => context.measureText(label).width))) + 12;
    if (shape === "lines") {
      const height = Math.max(rowLabels.length, columnLabels.length) * LINE + 8;
      return { width, height, left: room(rowLabels), right: width - room(columnLabels), top: 4, side: LINE, labelled: true };
    }
    const side = (left) => Math.min(MAX_CELL, (width - left - 2) / columnLabels.length);
    const labelled = side(room(rowLabels)) >= LABELLED_CELL, left = labelled ? room(rowLabels) : 12, top = labelled ? room(columnLabels) : 12;
    const right = left + side(left) * columnLabels.length;
    return { width, height: top + side(left) * rowLabels.length + 2, left, right, top, side: side(left), labelled };
  }

  /** Draws everything but the focus on a context, a canvas' or an SVG's. */
  draw(context) {
    const { view, shape, rowLabels, columnLabels, ink } = this.scene, { labelled } = this.box;
    context.font = FONT;
    context.textBaseline = "middle";
    if (shape === "lines") for (const edge of this.edges.edges) this.stroke(context, edge);
    else if (view.values.length) this.drawHeat(context, this.box);
    if (!labelled) return;
    context.fillStyle = ink.text;
    rowLabels.forEach((_, row) => this.writeRow(context, row));
    columnLabels.forEach((_, column) => this.writeColumn(context, column));
  }

  drawHeat(context, { left, right, top, side }) {
    const { view, scale, special, ink } = this.scene, rows = view.rows.length, columns = view.columns.length;
    const width = right - left, height = side * rows;
    const small = maxPool(view.values, rows, columns, Math.ceil(Math.max(width, height) * (window.devicePixelRatio || 1)));
    const shades = levels(small.values, small.columns, scale, view.domain), image = new ImageData(small.columns, small.rows);
    paint(shades, ink.table, new Uint32Array(image.data.buffer));
    Object.assign(this.cells, { width: small.columns, height: small.rows });
    this.cells.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.cells, left, top, width, height);
    context.strokeStyle = ink.line;
    context.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
    context.fillStyle = ink.background;
    for (let row = 1; side >= GRID_CELL && row < rows; row++) context.fillRect(left, top + row * side - 0.5, width, 1);
    for (let column = 1; side >= GRID_CELL && column < columns; column++) context.fillRect(left + column * side - 0.5, top, 1, height);
    if (special === "renormalise") this.hatch(context);
    if (side < NUMBERED_CELL) return;
    context.textAlign = "center";
    view.values.forEach((value, at) => {
      const text = value.toFixed(view.signed ? 3 : 2).replace("0.", ".").replace("-", "−");
      if (!/[1-9]/.test(text)) return;
      context.fillStyle = Math.abs(shades[at]) > 130 ? ink.background : ink.text;
      context.fillText(text, left + ((at % columns) + 0.5) * side, top + (Math.floor(at / columns) + 0.5) * side);
    });
  }

  hatch(context) {
    const { view, ink } = this.scene, { left, right, top, side } = this.box;
    view.kept.forEach((kept, row) => {
      if (kept >= BLANK) return;
      const bottom = top + (row + 1) * side;
      context.beginPath();
      for (let x = left; x <= right - side; x += 7) {
        context.moveTo(x, bottom);
        context.lineTo(x + side, bottom - side);
      }
      context.strokeStyle = ink.warn;
      context.stroke();
    });
  }

  stroke(context, { row, column, weight }) {
    const { view, scale, ink } = this.scene, { left, right } = this.box;
    const share = levels([weight], 1, scale === "rowmax" ? "linear" : scale, view.domain)[0] / 255;
    const from = this.y(row), to = this.y(column), bend = (right - left) * 0.45;
    context.globalAlpha = 0.06 + 0.9 * Math.abs(share);
    context.lineWidth = 0.6 + 2.6 * Math.abs(share);
    context.strokeStyle = weight < 0 ? ink.warn : ink.accent;
    context.beginPath();
    context.moveTo(left, from);
    context.bezierCurveTo(left + bend, from, right - bend, to, right, to);
    context.stroke();
    context.globalAlpha = 1;
  }

  y(index) {
    return this.box.top + (index + 0.5) * this.box.side;
  }

  writeRow(context, row, ground) {
    this.write(context, this.scene.rowLabels[row], this.box.left - 7, this.y(row), "right", ground);
  }

  writeColumn(context, column, ground) {
    const { left, right, top, side } = this.box, text = this.scene.columnLabels[column];
    if (this.scene.shape === "lines") return this.write(context, text, right + 7, this.y(column), "left", ground);
    context.save();
    context.translate(left + (column + 0.5) * side, top - 7);
    context.rotate(-Math.PI / 2);
    this.write(context, text, 0, 0, "left", ground);
    context.restore();
  }

  /** Writes a label, shortened; with a colour for its ground where it is in focus, and then in full. */
  write(context, text, x, y, align, ground) {
    const { ink } = this.scene, width = (label) => context.measureText(label).width, room = ground ? 170 : this.box.left - 10;
    let shown = text;
    for (let end = text.length - 1; end > 1 && width(shown) > Math.min(room, ground ? 170 : MAX_LABEL); end--) shown = `${text.slice(0, end)}…`;
    context.textAlign = align;
    if (ground) {
      const wide = width(shown);
      // near the canvas' left edge a label moves in rather than being cut
      if (align === "right") x = Math.max(x, wide + 6);
      context.fillStyle = ground;
      context.beginPath();
      context.roundRect(align === "right" ? x - wide - 5 : x - 5, y - 9, wide + 10, 18, 4);
      context.fill();
      context.fillStyle = ground === ink.accent ? ink.onAccent : ink.text;
    }
    context.fillText(shown, x, y);
  }

  /** The { row, column } under the pointer, -1 for what it is not over; null outside. */
  hit({ clientX, clientY }) {
    if (!this.scene) return null;
    const { view, shape } = this.scene, { left, right, top, side } = this.box, frame = this.base.getBoundingClientRect();
    const x = clientX - frame.left, y = clientY - frame.top, isLines = shape === "lines", isRight = x > (left + right) / 2;
    const index = (at, count) => (at >= 0 && at < count ? Math.floor(at) : -1);
    const row = isLines && isRight ? -1 : index((y - top) / side, view.rows.length);
    const column = index(isLines ? (isRight ? (y - top) / side : -1) : (x - left) / side, view.columns.length);
    return row < 0 && column < 0 ? null : { row, column };
  }

  /** Marks { row, column } (null: nothing) over what is drawn, with the number of a cell beside it. */
  focus(spot) {
    const { context, box, tip } = this, { shape, ink } = this.scene, isLines = shape === "lines";
    context.clearRect(0, 0, box.width, box.height);
    this.base.classList.toggle("dim", Boolean(spot) && isLines);
    tip.hidden = !spot || isLines || spot.row < 0 || spot.column < 0;
    if (!spot) return;
    if (isLines) this.focusLines(spot);
    else this.focusCells(spot);
    if (spot.row >= 0) this.writeRow(context, spot.row, ink.accent);
    if (spot.column >= 0 && !(isLines && spot.row >= 0)) this.writeColumn(context, spot.column, ink.accent);
    if (!tip.hidden) this.tell(spot);
  }

  focusCells({ row, column }) {
    const { context, box: { left, right, top, side, height } } = this, thick = Math.max(side, 1.5), x = left + column * side, y = top + row * side;
    context.strokeStyle = this.scene.ink.accent;
    context.lineWidth = 1;
    if (row >= 0) context.strokeRect(left - 0.5, y - 0.5, right - left + 1, thick + 1);
    if (column >= 0) context.strokeRect(x - 0.5, top - 0.5, thick + 1, height - top - 1);
    context.lineWidth = 2.5;
    if (row >= 0 && column >= 0) context.strokeRect(x - 1, y - 1, thick + 2, thick + 2);
  }

  focusLines({ row, column }) {
    const { context, scene: { view, ink } } = this;
    lineOf(view, row, column).forEach((weight, at) => {
      if (Math.abs(weight) < view.domain / 200) return;
      this.stroke(context, row >= 0 ? { row, column: at, weight } : { row: at, column, weight });
      if (Math.abs(weight) < view.domain / 20) return;
      if (row >= 0) this.writeColumn(context, at, ink.background);
      else this.writeRow(context, at, ink.background);
    });
  }

  tell({ row, column }) {
    const { tip, box: { left, top, side, width } } = this, { view, rowLabels, columnLabels, phrase } = this.scene;
    const value = view.values[row * view.columns.length + column], x = left + column * side, isRight = x > width * 0.55;
    tip.textContent = `${rowLabels[row]} ${phrase} ${columnLabels[column]} ${number(value)}`
      + (view.signed ? "" : ` (${percent(value)})`) + (view.kept ? ` · row kept ${percent(view.kept[row])}` : "");
    tip.style.transform = `translate(${isRight ? x - 10 : x + side + 10}px, ${top + (row + 1) * side + 10}px) translateX(${isRight ? -100 : 0}%)`;
  }
}
