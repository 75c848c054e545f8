/** Files to take away: the map as SVG, and the page itself with its data inside. No document needed. */

import { escapeXml, scriptJson } from "./text.js";

/**
 * The part of a canvas context that the map draws with, writing SVG: the file is the picture on the screen.
 * `measure` is a real context, for the widths of texts.
 */
export class SvgContext {
  constructor(width, height, measure) {
    Object.assign(this, { width, height, measure, out: [], stack: [], path: "" });
    Object.assign(this, { globalAlpha: 1, lineWidth: 1, textAlign: "left", transform: "" });
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, textAlign, font, transform } = this;
    this.stack.push({ fillStyle, strokeStyle, lineWidth, globalAlpha, textAlign, font, transform });
  }

  restore() { Object.assign(this, this.stack.pop()); }
  translate(x, y) { this.transform += `translate(${round(x)} ${round(y)})`; }
  rotate(angle) { this.transform += `rotate(${round((angle * 180) / Math.PI)})`; }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${round(x)} ${round(y)}`; }
  lineTo(x, y) { this.path += `L${round(x)} ${round(y)}`; }
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

  /** The whole file. */
  end() {
    const size = `width="${round(this.width)}" height="${round(this.height)}"`, box = `viewBox="0 0 ${round(this.width)} ${round(this.height)}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${box} font-family="system-ui, sans-serif">${this.out.join("\n")}</svg>\n`;
  }
}

const round = (value) => Math.round(value * 100) / 100;
const place = ([x, y, width, height]) => `x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}"`;

/**
 * Collects a module and everything it imports, each after what it needs: [[name, source]].
 * `load` fetches the source of a name.
 */
export async function collectModules(entry, load, found = new Map(), open = []) {
  if (found.has(entry)) return found;
  if (open.includes(entry)) throw new Error(`modules import one another: ${entry}`);
  const source = await load(entry);
  for (const [, name] of source.matchAll(/^import [^;]* from "\.\/([a-z]+\.js)";$/gm)) {
    await collectModules(name, load, found, [...open, entry]);
  }
  return found.set(entry, source);
}

/** Joins modules into one script: their imports and the word export fall away, since all names are unlike. */
export function joinModules(modules) {
  return [...modules.values()].join("\n")
    .replace(/^import [^;]*;$/gm, "").replace(/^export /gm, "")
    .replace(/<\/(script)/gi, "<\\/$1").replace(/<!--/g, "<\\!--");
}

const OFFLINE_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:";

/** Makes the page a file that needs no server: style, scripts and data inside, and a policy that lets no request out. */
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
