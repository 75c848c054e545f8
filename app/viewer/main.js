/** The page: what is chosen, what is read, and the three panes that show it. */

import { colourTable, legendTicks, levels } from "./colour.js";
import { collectModules, standalone, SvgContext } from "./files.js";
import { FONT, MapPane } from "./map.js";
import { Overview } from "./overview.js";
import { SentencePane } from "./sentence.js";
import { pack, Recent, recording, replay, Server } from "./source.js";
import { FLAGS, readFragment, writeFragment } from "./state.js";
import { listUnits, number, percent } from "./text.js";
import { buildComparison, buildView, lineOf, meanHeads, strongest } from "./views.js";

const $ = (id) => document.getElementById(id);
const all = (selector) => document.querySelectorAll(selector);
const named = (name) => document.querySelector(`[name=${name}]`);
const range = (count) => Array.from({ length: count }, (_, at) => at);

const PREFETCHED_VALUES = 8e6; // of a text with more weights, a layer is loaded when it is looked at
const FILE_BYTES = 16e6; // of arrays that the page as one file takes along
const HEADROOM = 30; // pixels above a picture, for its caption
const CYCLES = { w: "unit", s: "special", r: "show", c: "scale", v: "view", f: "filter", t: "rows", d: "theme" };
const STEPS = { "[": ["layer", -1], "]": ["layer", 1], ",": ["head", -1], ".": ["head", 1] };
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -1e9], End: [0, 1e9] };

const held = $("snapshot") && JSON.parse($("snapshot").textContent);
const answers = new Map(), arrays = new Recent(FILE_BYTES);
const source = new Server(held ? replay(held.answers) : recording((...request) => fetch(...request), answers, arrays));
const state = readFragment(location.hash || (held ? held.fragment : ""));
let info, model, reading, scene, ink, turns = 0, hovered = null, isWaiting = false;

const map = new MapPane({ stage: $("stage"), base: $("base"), over: $("over"), tip: $("tip"), onFocus: hover, onPin: pin });
const sentence = new SentencePane({
  root: $("sentence"), canvas: $("shade"), onFocus: (unit) => hover(spotOf(unit)), onPin: (unit) => pin(spotOf(unit)),
});
const overview = new Overview({
  root: $("overview"), onChoose: (layer, head) => update({ layer, head, show: state.show === "mean" ? "mean" : "head" }),
});

// ---- what is chosen

function update(patch) {
  Object.assign(state, patch);
  const { fragment, complete } = writeFragment(state);
  history.replaceState(null, "", `#${fragment}`);
  $("cut").hidden = complete;
  return refresh();
}

function fill(name, options) {
  named(name).replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  named(name).parentElement.hidden = options.length < 2;
}

function chooseModel() {
  model = info.models.find(({ name }) => name === state.model) ?? info.models[0];
  const { num_hidden_layers: layers, num_attention_heads: heads, prompts } = model;
  fill("layer", range(layers).map((at) => [at, at]));
  fill("head", range(heads).map((at) => [at, at]));
  fill("model", info.models.map(({ name }, at) => [at ? name : "", name]));
  fill("prompt", [["", "Default"], ...prompts.map((name) => [name, name])]);
  Object.assign(state, { layer: Math.min(state.layer ?? Infinity, layers - 1), head: Math.min(state.head ?? 0, heads - 1) });
}

// ---- what is read

async function run() {
  const { a, b, mode, model: name, prompt } = state, request = { texts: b || mode === "compare" ? [a, b] : [a], model: name, prompt };
  reading = scene = null;
  for (const key of answers.keys()) if (!key.startsWith("info")) answers.delete(key);
  $("welcome").hidden = Boolean(a || b);
  $("work").hidden = $("problem").hidden = true;
  if (a || b) {
    document.body.classList.add("busy");
    try {
      reading = await (mode === "compare" ? source.compare(request) : source.read(request));
    } catch (error) {
      return report(error);
    } finally {
      document.body.classList.remove("busy");
    }
    overview.key = null;
    $("work").hidden = false;
  }
  await update({});
  if (reading?.tokens) prefetch(reading);
}

function report(error) {
  if (error.name === "AbortError") return;
  $("problem").textContent = error.message;
  $("problem").hidden = false;
}

/** Loads the layers one by one, for the overview and for switching without a wait. */
async function prefetch(from) {
  const layers = range(model.num_hidden_layers);
  if (layers.length * model.num_attention_heads * from.numTokens ** 2 > PREFETCHED_VALUES) return;
  for (const layer of layers) {
    await Promise.resolve(source.layer(layer)).catch(() => {}); // it says so itself when it is looked at
    await new Promise((resolve) => setTimeout(resolve)); // the pointer first
    if (reading !== from) return;
    thumbnails();
  }
}

const unitsOf = (from, unit, special) => ((from.units ??= {})[unit + special] ??= listUnits(from, unit, special));

async function attentionMap() {
  if (state.show === "rollout") return source.rollout();
  const maps = await source.layer(state.layer), size = reading.numTokens ** 2;
  return state.show === "mean" ? meanHeads(maps, model.num_attention_heads, reading.numTokens) : maps.subarray(state.head * size, (state.head + 1) * size);
}

async function attentionScene() {
  const [cells, stats, likeness] = await Promise.all([attentionMap(), source.stats(state.special), state.order === "likeness" && source.likeness()]);
  const units = unitsOf(reading, state.unit, state.special), filter = reading.texts.length > 1 ? state.filter : "all";
  const view = buildView(cells, reading.numTokens, units, state.special, filter);
  return { view, units, stats, likeness, filter, phrase: "→", says: "looks at", title: titles()[state.show] };
}

function comparisonScene() {
  const { a, b, found, pairs = (reading.pairs = {}) } = reading;
  if (!found) return null;
  // kept, so that the sentence pane knows them again
  const units = (pairs[state.unit] ??= [a, b].flatMap((side, part) =>
    unitsOf(side, state.unit, "keep").map((unit) => ({ ...unit, part, segment: unit.segment === null ? null : part }))));
  const find = (tokens, part) => tokens.map((token) => units.findIndex((unit) => unit.part === part && unit.tokens.includes(token)));
  const view = buildComparison(found.values, find(found.rows.token, 0), find(found.columns.token, 1));
  return { view, units, phrase: "with", says: "with", title: "Token pairs" };
}

const titles = () => ({
  head: `Layer ${state.layer} · head ${state.head}`, mean: `Layer ${state.layer} · mean of its heads`, rollout: "Rollout over all layers",
});

// ---- what is shown

async function refresh() {
  const turn = ++turns;
  document.documentElement.dataset.theme = state.theme;
  document.body.dataset.mode = state.mode;
  document.body.classList.toggle("pair", Boolean(reading?.tokens && reading.texts.length > 1));
  for (const control of all("[name]")) {
    if (control.type === "radio") control.checked = control.value === state[control.name];
    else if (control.tagName === "SELECT") control.value = state[control.name];
  }
  readInk();
  if (!reading) return;
  try {
    const next = reading.tokens ? await attentionScene() : comparisonScene();
    if (turn !== turns) return;
    scene = next;
    $("problem").hidden = true;
    draw();
  } catch (error) {
    if (turn === turns) report(error);
  }
}

/** Takes the colours of the theme from the style sheet. */
function readInk() {
  const css = getComputedStyle(document.documentElement), colour = (name) => css.getPropertyValue(`--${name}`).trim();
  if (ink?.text === colour("text")) return;
  const plus = colour("plus").split(", "), minus = colour("minus").split(", ");
  ink = { plus, table: colourTable(plus, minus), background: plus[0], onAccent: colour("on-accent") };
  for (const name of ["text", "line", "accent", "warn"]) ink[name] = colour(name);
}

function draw() {
  const { numTokens, numTokensTotal, truncated, milliseconds, similarity, reason } = reading;
  $("text-note").textContent = (truncated && numTokensTotal ? `${numTokens} of ${numTokensTotal} tokens read` : `${[numTokens].flat().join(" + ")} tokens`)
    + (milliseconds ? ` · ${Math.ceil(milliseconds)} ms` : "") + (truncated && !numTokensTotal ? " · cut" : "");
  $("text-note").classList.toggle("alarm", truncated);
  $("score").textContent = similarity?.toFixed(3).replace("-", "−") ?? "";
  $("score-note").textContent = reason ? `No map: ${reason}.` : "";
  for (const pane of all("#panes > .main, #panes > .main ~ *")) pane.hidden = !scene;
  if (!scene) return;
  const { view, units, title } = scene, labels = (list) => list.map((unit) => units[unit].label), places = (list) => new Map(list.map((unit, at) => [unit, at]));
  Object.assign(scene, {
    shape: state.view, scale: state.scale, special: view.kept ? state.special : "keep", ink,
    rowLabels: labels(view.rows), columnLabels: labels(view.columns), rowAt: places(view.rows), columnAt: places(view.columns),
  });
  $("map-title").textContent = title;
  $("stage").ariaRowCount = view.rows.length;
  $("stage").ariaColCount = view.columns.length;
  map.show(scene);
  sentence.show(units, reading.texts);
  drawLegend();
  if (scene.stats) drawHeads();
  $("map-note").textContent = map.edges?.hidden ? `The strongest lines of each row, up to 90 % of it: ${map.edges.edges.length}. Not drawn: ${map.edges.hidden}.` : "";
  hovered = null;
  drawFocus();
}

function drawLegend() {
  const { view: { signed, domain } } = scene;
  $("ramp").classList.toggle("signed", signed);
  $("ticks").replaceChildren(...legendTicks(state.scale, domain, signed).map(({ at, value }) => {
    const tick = document.createElement("span");
    tick.textContent = value === null ? "largest of its row" : number(Number(value.toPrecision(3))).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
    tick.style.left = `${signed ? 50 + 50 * at : 100 * at}%`;
    return tick;
  }));
}

function drawHeads() {
  const { stats, likeness } = scene, { num_hidden_layers: layers, num_attention_heads: heads } = model, { layer, head, show, colour, order } = state;
  const isPattern = colour === "pattern", statistic = isPattern ? "entropy" : colour, values = stats[statistic];
  const option = [...named("colour").options].find(({ value }) => value === statistic);
  let places = range(layers * heads).map((at) => [Math.floor(at / heads), at % heads]);
  if (order === "value") places.sort(([l, h], [m, i]) => (values?.[m][i] ?? -1) - (values?.[l][h] ?? -1));
  if (likeness) places = likeness.order.map((at) => likeness.heads[at]);
  const most = Number(option.dataset.most) || Math.max(...(values?.flat() ?? [1]), 1e-9);
  overview.show({
    numLayers: layers, numHeads: heads, values, most, name: option.text.toLowerCase(), isPattern, places, isPlain: order === "layer", layer, head, show, ink,
  });
  thumbnails();
  for (const cell of all("[data-stat]")) {
    const value = show === "head" ? stats[cell.dataset.stat]?.[layer][head] ?? null : null;
    cell.parentElement.hidden = value === null;
    cell.textContent = "share" in cell.dataset && value !== null ? percent(value) : number(value);
  }
}

function thumbnails() {
  if (!scene?.stats || state.colour !== "pattern") return;
  const { unit, special, scale } = state, { units, filter } = scene;
  for (const [layer, maps] of source.layers.items) {
    overview.thumbnails(layer, maps, reading.numTokens, { units, special, filter, scale }, [unit, special, filter, scale, ink.text].join());
  }
}

// ---- what is in focus

function spotOf(unit) {
  const row = scene?.rowAt.get(unit) ?? -1, column = scene?.columnAt.get(unit) ?? -1;
  return row >= 0 ? { row, column: -1 } : column >= 0 ? { row, column } : null;
}

function pinnedSpot() {
  const find = (list, token) => (token === null ? -1 : list.findIndex((unit) => scene.units[unit].tokens.includes(token)));
  const row = find(scene.view.rows, state.q), column = find(scene.view.columns, state.k);
  return row < 0 && column < 0 ? null : { row, column };
}

function hover(spot) {
  hovered = spot;
  if (isWaiting || !scene) return;
  isWaiting = true;
  requestAnimationFrame(() => {
    isWaiting = false;
    drawFocus();
  });
}

function pin(spot) {
  if (!spot || !scene) return;
  const token = (list, at) => (at < 0 ? null : scene.units[list[at]].tokens[0]);
  const q = token(scene.view.rows, spot.row), k = token(scene.view.columns, spot.column);
  update(q === state.q && k === state.k ? { q: null, k: null } : { q, k });
}

function drawFocus() {
  if (!scene) return;
  const { view, units, rowLabels, columnLabels, says } = scene, spot = hovered ?? pinnedSpot(), shares = new Map();
  map.focus(spot);
  $("hint").hidden = Boolean(spot);
  $("table").hidden = !spot;
  if (!spot) return sentence.shade(shares, [], ink);
  const { row, column } = spot, isRow = row >= 0, line = lineOf(view, row, column), list = isRow ? view.columns : view.rows;
  levels(line, line.length, state.scale, view.domain).forEach((level, at) => shares.set(list[at], level / 255));
  sentence.shade(shares, [view.rows[row], view.columns[column]], ink);
  $("caption").textContent = isRow ? `${rowLabels[row]} ${says}` : `${columnLabels[column]} ${says === "with" ? says : "is looked at by"}`;
  const items = strongest(line, state.rows === "few" ? 6 : 20), body = $("table").tBodies[0];
  while (body.rows.length > items.length) body.deleteRow(-1);
  items.forEach(({ at, value }, index) => {
    const [name, weight, bar] = (body.rows[index] ?? newRow(body)).cells;
    name.textContent = units[list[at]].label;
    weight.textContent = number(value);
    bar.firstChild.style.transform = `scaleX(${Math.min(Math.abs(value) / view.domain, 1)})`;
    bar.firstChild.className = value < 0 ? "minus" : "";
  });
}

function newRow(body) {
  const row = body.insertRow();
  for (const _ of "123") row.insertCell();
  row.cells[2].append(document.createElement("i"));
  return row;
}

// ---- keys

function moveFocus(event) {
  if (!scene?.view.values.length) return;
  const { view, rowLabels, columnLabels, says } = scene, from = hovered ?? pinnedSpot(), step = ARROWS[event.key];
  if (event.key === "Enter" || event.key === " ") pin(from);
  else if (step) {
    const clamp = (value, count) => Math.min(Math.max(value, 0), count - 1);
    const row = clamp((from?.row ?? 0) + step[0] * Boolean(from), view.rows.length), column = clamp((from?.column ?? 0) + step[1] * Boolean(from), view.columns.length);
    hovered = { row, column };
    drawFocus();
    say(`${rowLabels[row]} ${says} ${columnLabels[column]}: ${number(view.values[row * view.columns.length + column])}`);
    Object.assign($("cell"), { ariaRowIndex: row + 1, ariaColIndex: column + 1, textContent: $("announce").textContent });
  } else return;
  event.preventDefault();
}

function say(text) {
  $("announce").textContent = text;
}

function pressKey(event) {
  const { key, target } = event, cycle = CYCLES[key], step = STEPS[key];
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("textarea, select, dialog")) return;
  if (key === "Escape" && scene) update({ q: null, k: null });
  if (state.keys === "off") return;
  if (cycle) update({ [cycle]: FLAGS[cycle][(FLAGS[cycle].indexOf(state[cycle]) + 1) % FLAGS[cycle].length] });
  else if (step && reading?.tokens) {
    const [what, by] = step, count = named(what).length;
    update({ [what]: (state[what] + by + count) % count });
  } else if (key === "h" || key === "?") $("help").showModal();
  else return;
  say(cycle ? `${cycle}: ${state[cycle]}` : titles()[state.show]);
  event.preventDefault();
}

// ---- files

function drawPicture(context) {
  const { unit, special, scale, filter } = state, { width, height } = map.box;
  context.fillStyle = ink.background;
  context.fillRect(0, 0, width, height + HEADROOM);
  context.fillStyle = ink.text;
  context.font = FONT;
  context.fillText([scene.title, `${unit}s`, ...(reading.tokens ? [`special tokens: ${special}`, filter] : []), `scale: ${scale}`].join(" · "), 8, 20);
  context.translate(0, HEADROOM);
  map.draw(context);
}

const SAVERS = {
  png() {
    const canvas = document.createElement("canvas"), context = canvas.getContext("2d"), { width, height } = map.box;
    Object.assign(canvas, { width: width * 2, height: (height + HEADROOM) * 2 });
    context.scale(2, 2);
    drawPicture(context);
    return new Promise((resolve) => canvas.toBlob(resolve));
  },
  svg() {
    const context = new SvgContext(map.box.width, map.box.height + HEADROOM, $("base").getContext("2d"));
    drawPicture(context);
    return new Blob([context.end()], { type: "image/svg+xml" });
  },
  json() {
    const { view, units, rowLabels, columnLabels } = scene, { units: _, pairs, ...read } = reading;
    const axis = (list, label) => ({ label, tokens: list.map((unit) => units[unit].tokens) });
    const values = view.rows.map((_, row) => Array.from(lineOf(view, row), (value) => Number(value.toPrecision(6))));
    const body = { state, reading: read, rows: axis(view.rows, rowLabels), columns: axis(view.columns, columnLabels), values, kept_mass: view.kept && [...view.kept] };
    return new Blob([JSON.stringify(body)], { type: "application/json" });
  },
  npz: () => source.npz(state),
  async html() {
    const load = async (name) => (await fetch(`viewer/${name}`)).text();
    const [html, css, modules] = await Promise.all([load("index.html"), load("style.css"), collectModules("main.js", load)]);
    const data = { fragment: writeFragment(state, Infinity).fragment, answers: pack(answers, arrays) };
    return new Blob([standalone(html, css, modules, data)], { type: "text/html" });
  },
};

async function save(kind) {
  if (kind === "link") return navigator.clipboard.writeText(location.href);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await SAVERS[kind]());
  link.download = `eyeline ${scene.title.toLowerCase()}.${kind}`.replace(/[^a-z0-9.]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ---- start

function submit(patch) {
  const a = named("a"), b = named("b");
  Object.assign(state, { q: null, k: null, a: a.value, b: b.value }, patch);
  [a.value, b.value] = [state.a, state.b];
  return run();
}

function listen() {
  document.addEventListener("change", ({ target: { name, value } }) => {
    if (!(name in FLAGS) || FLAGS[name] === "text" && name.length === 1) return;
    state[name] = FLAGS[name] === "index" ? Number(value) : value;
    if (name === "model") state.prompt = "";
    if (name === "model") chooseModel();
    if (["mode", "model", "prompt"].includes(name)) submit();
    else update({});
  });
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  $("composer").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target.type !== "textarea") return;
    event.preventDefault();
    submit();
  });
  $("welcome").addEventListener("click", ({ target }) => {
    const example = target.closest("button");
    if (example) submit({ b: "", ...example.dataset });
  });
  $("files").addEventListener("click", ({ target: { dataset } }) => {
    if (!dataset.save) return;
    $("files").open = false;
    save(dataset.save).catch(report);
  });
  $("help-open").addEventListener("click", () => $("help").showModal());
  $("stage").addEventListener("keydown", moveFocus);
  document.addEventListener("keydown", pressKey);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
  new ResizeObserver(() => scene && draw()).observe($("panes"));
  addEventListener("hashchange", () => {
    Object.assign(state, readFragment(location.hash));
    start().catch(report);
  });
}

async function start() {
  [named("a").value, named("b").value] = [state.a, state.b];
  info = await (await source.answer("info")).json();
  chooseModel();
  await run();
}

document.body.classList.toggle("held", Boolean(held));
listen();
start().catch(report);
