/** The drawing is well-formed and holds what was drawn; the page as a file runs alone and nothing in it can break out. */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { collectModules, joinModules, standalone, SvgContext } from "../../app/viewer/files.js";

const read = async (name) => readFileSync(new URL(`../../app/viewer/${name}`, import.meta.url), "utf8");
const [HTML, CSS] = await Promise.all([read("index.html"), read("style.css")]);
const MODULES = await collectModules("main.js", read);

const measure = { measureText: (text) => ({ width: 7 * text.length }) };

test("an SVG has what a canvas would show: boxes, lines, texts, in their places", () => {
  const pen = new SvgContext(100, 50, measure);
  Object.assign(pen, { fillStyle: "#ffffff", strokeStyle: "#2f56c4", font: "12px serif" });
  pen.fillRect(0, 0, 100, 50);
  pen.save();
  pen.translate(10, 20);
  pen.rotate(-Math.PI / 2);
  pen.textAlign = "right";
  pen.fillText("a<b & \u0000", 1, 2);
  pen.restore();
  pen.beginPath();
  pen.moveTo(1, 2);
  pen.bezierCurveTo(3, 4, 5, 6, 7, 8.126);
  pen.globalAlpha = 0.5;
  pen.stroke();
  pen.strokeRect(1, 1, 2, 2);
  pen.drawImage({ toDataURL: () => "data:image/png;base64,AA" }, 0, 0, 10, 10);
  assert.equal(pen.measureText("abc").width, 21);
  const svg = pen.end();
  assert.ok(svg.startsWith('<svg xmlns="http://www.w3.org/2000/svg"') && svg.endsWith("</svg>\n"));
  assert.ok(svg.includes('transform="translate(10 20)rotate(-90)"'));
  assert.ok(svg.includes('text-anchor="end" fill="#ffffff"') && svg.includes("a&#60;b &#38; \ufffd</text>"));
  assert.ok(svg.includes('<path d="M1 2C3 4 5 6 7 8.13" fill="none" stroke="#2f56c4" stroke-width="1" stroke-opacity="0.5"/>'));
  assert.ok(svg.includes("image-rendering:pixelated"));
  assert.equal((svg.match(/<(rect|path|text|image)/g) ?? []).length, 5);
  assert.equal(pen.textAlign, "left", "restored");
});

test("every module comes after what it imports, each once", () => {
  const order = [...MODULES.keys()];
  assert.equal(order.at(-1), "main.js");
  assert.equal(new Set(order).size, order.length);
  for (const [name, source] of MODULES) {
    for (const [, needed] of source.matchAll(/from "\.\/([^"]+)"/g)) assert.ok(order.indexOf(needed) < order.indexOf(name), `${needed} before ${name}`);
  }
});

test("the modules join into one script: it parses, and imports and exports nothing", () => {
  const script = joinModules(MODULES);
  const checked = spawnSync(process.execPath, ["--input-type=module", "--check"], { input: script, encoding: "utf8" });
  assert.equal(checked.status, 0, checked.stderr);
  assert.equal(/^(import|export)\b/m.test(script), false);
  assert.equal(script.includes("</script"), false);
});

test("pure modules join and run as one, too", async () => {
  const pure = new Map([...MODULES].filter(([name]) => ["text.js", "tensors.js", "views.js", "colour.js", "state.js", "source.js", "files.js"].includes(name)));
  const script = `${joinModules(pure)}\nexport const results = [number(0.5), defaults().unit, levels([1], 1, "sqrt", 1)[0], typeof Server];`;
  const { results } = await import(`data:text/javascript;base64,${Buffer.from(script).toString("base64")}`);
  assert.deepEqual(results, ["0.500", "token", 255, "function"]);
});

test("the file holds its data whole, and hostile texts end no element and add none", () => {
  const hostile = "</script><script>alert(1)</script><!--$&$1$`$'$$";
  const data = { fragment: "a=1", answers: { [hostile]: [[["x", hostile]], "AAAA"] } };
  const page = standalone(HTML, CSS, MODULES, data);
  const scripts = [...page.matchAll(/<script[^>]*>([\s\S]*?)<\/script>/g)];
  assert.equal(scripts.length, 2);
  assert.deepEqual(JSON.parse(scripts[0][1]), data);
  assert.equal(page.includes("alert(1)</script>"), false);
  assert.equal((page.match(/<\/html>/g) ?? []).length, 1);
});

test("the file needs nothing from anywhere, and its policy lets nothing out", () => {
  const page = standalone(HTML, CSS, MODULES, {});
  assert.equal(/<(script|link|img|iframe)[^>]*\s(src|href)=/.test(page), false);
  assert.match(page, /<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'[^"]*">/);
  assert.equal(/connect-src|https?:\/\/(?!www\.w3\.org\/2000\/svg)/.test(page), false);
  assert.ok(page.includes(CSS));
});

test("a page that lacks what is replaced is refused, not written half", () => {
  assert.throws(() => standalone("<html><body></body></html>", CSS, MODULES, {}), /lacks/);
});
