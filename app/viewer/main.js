/** The page: what is chosen, read and shown. */

import { colourTable, legendTicks, levels } from "./colour.js";
import { collectModules, standalone, SvgContext } from "./files.js";
import { FONT, isBlank, MapPane, sized, spot } from "./map.js";
import { Overview } from "./overview.js";
import { SentencePane } from "./sentence.js";
import { pack, Recent, recording, replay, Server } from "./source.js";
import { FLAGS, readFragment, writeFragment } from "./state.js";
import { listUnits, number, percent } from "./text.js";
import { buildComparison, buildView, lineOf, meanHeads, strongest, totals } from "./views.js";

const $ = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const named = (name) => document.querySelector(`[name=${name}]`);
const first = named("a"), second = named("b");
const range = (count) => [...Array(count).keys()];

const PREFETCHED_VALUES = 8e6; // above, layers load when looked at
const HEADROOM = 30; // for a picture's caption
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -1e9], End: [0, 1e9] };

const held = $("snapshot") && JSON.parse($("snapshot").textContent);
const answers = new Map(), arrays = new Recent(16e6); // bytes, for the page as one file
const source = new Server(held ? replay(held.answers) : recording((...request) => fetch(...request), answers, arrays));
const state = readFragment(location.hash || held?.fragment || "");
let info, asking, layers, heads, reading, scene, ink, turns = 0, hovered = null, isWaiting = false, timer;

const map = new MapPane({ stage: $("stage"), base: $("base"), over: $("over"), tip: $("tip"), onFocus: hover, onPin: pin });
const sentence = new SentencePane({ root: $("sentence"), canvas: $("shade"), onFocus: (unit) => hover(spotOf(unit)), onPin: (unit) => pin(spotOf(unit)) });
const overview = new Overview($("overview"), (layer, head) => update({ layer, head, show: state.show === "mean" ? "mean" : "head" }));

// chosen

function update(patch) {
	Object.assign(state, patch);
	const { fragment, complete } = writeFragment(state);
	clearTimeout(timer); // browsers limit writes
	timer = setTimeout(() => history.replaceState(null, "", `#${fragment}`), 100);
	$("cut").hidden = complete;
	return refresh();
}

function fill(name, options) {
	// a link to what is not here can be left
	if (state[name]?.big && options.every(([value]) => value !== state[name])) options.push([state[name]]);
	named(name).replaceChildren(...options.map(([value, text = value]) => new Option(text, value)));
	named(name).parentElement.hidden = options.length < 2;
}

function chooseModel() {
	const model = info.models.find(({ name }) => name === state.model) ?? info.models[0];
	[layers, heads] = [model.num_hidden_layers, model.num_attention_heads];
	fill("layer", range(layers).map((at) => [at]));
	fill("head", range(heads).map((at) => [at]));
	fill("model", info.models.map(({ name }, at) => [at ? name : "", name]));
	fill("prompt", [["", "Default"], ...model.prompts.map((name) => [name])]);
	Object.assign(state, { layer: Math.min(state.layer ?? Infinity, layers - 1), head: Math.min(state.head ?? 0, heads - 1) });
}

// read

async function run() {
	const { a, b, mode } = state, request = { ...state, texts: b || mode === "compare" ? [a, b] : [a] };
	reading = scene = overview.key = null;
	for (const key of answers.keys()) if (!key.startsWith("info")) answers.delete(key);
	arrays.clear();
	$("welcome").hidden = Boolean(a || b);
	$("work").hidden = $("problem").hidden = true;
	if (!info) {
		asking ??= source.answer("info").then((response) => response.json()).finally(() => (asking = null));
		info = await asking;
		chooseModel();
	}
	refresh();
	if (a || b) {
		document.body.classList.add("busy");
		try {
			reading = await (mode === "compare" ? source.compare(request) : source.read(request));
		} finally {
			document.body.classList.remove("busy");
		}
		$("work").hidden = false;
	}
	await update({});
	if (reading?.tokens) prefetch(reading);
}

function report(error) {
	if (error.name === "AbortError") return;
	$("unlock").hidden = error.code !== "unauthorized";
	$("problem").textContent = error.message;
	$("problem").hidden = false;
}

async function prefetch(from) {
	if (layers * heads * from.count ** 2 > PREFETCHED_VALUES) return;
	for (const layer of range(layers)) {
		await source.layer(layer).catch(() => {}); // said when it is looked at
		await new Promise((resolve) => setTimeout(resolve)); // the pointer first
		if (reading !== from) return;
		thumbnails();
	}
}

const unitsOf = (from, special) => ((from.units ??= {})[state.unit + special] ??= listUnits(from, state.unit, special));

async function attentionScene() {
	const { show, layer, head, special } = state, { count, texts } = reading;
	const [maps] = await Promise.all([
		show === "rollout" ? source.rollout() : source.layer(layer),
		Promise.all([source.stats(special), state.order === "likeness" && source.likeness()]).then(drawHeads),
	]);
	const cells = { head: () => maps.subarray(head * count ** 2), mean: () => meanHeads(maps, heads, count), rollout: () => maps }[show]();
	const title = { head: `Layer ${layer} · head ${head}`, mean: `Layer ${layer} · mean of its heads`, rollout: "Rollout over all layers" }[show];
	const units = unitsOf(reading, special), filter = texts.length > 1 ? state.filter : "all";
	return { view: buildView(cells, count, units, special, filter), units, filter, says: "looks at", title };
}

function comparisonScene() {
	const { a, b, found } = reading;
	if (!found) return null;
	const units = ((reading.pairs ??= {})[state.unit] ??= [a, b].flatMap((side, part) =>
		unitsOf(side, "keep").map((unit) => ({ ...unit, part, segment: unit.segment === null ? null : part }))));
	const find = ({ token }, part) => token.map((at) => units.findIndex((unit) => unit.part === part && unit.tokens.includes(at)));
	return { view: buildComparison(found.values, find(found.rows, 0), find(found.columns, 1)), units, says: "with", title: state.unit === "word" ? "Word pairs" : "Token pairs" };
}

// shown

async function refresh() {
	const turn = ++turns;
	document.documentElement.dataset.theme = state.theme;
	Object.assign(document.body.dataset, { mode: state.mode, show: state.show });
	document.body.classList.toggle("pair", Boolean(reading?.tokens && state.b));
	for (const control of all("[name]")) {
		if (control.type === "radio") control.checked = control.value === state[control.name];
		else if (control.options) control.value = state[control.name];
	}
	readInk();
	if (!reading) return;
	try {
		const next = reading.tokens ? await attentionScene() : comparisonScene();
		if (turn !== turns) return;
		if (scene?.units !== next?.units || scene?.filter !== next?.filter) hovered = null; // else it is the same place of another map
		scene = next;
		$("problem").hidden = true;
		draw();
	} catch (error) {
		if (turn === turns) report(error);
	}
}

function readInk() {
	const css = getComputedStyle(document.documentElement), colour = (name) => css.getPropertyValue(`--${name}`).trim();
	if (ink?.text === colour("text")) return;
	const plus = colour("plus").split(", ");
	ink = { plus, table: colourTable(plus, colour("minus").split(", ")), flips: ["minus-flip", "plus-flip"].map(colour) };
	for (const name of ["text", "line", "accent", "contrast", "warn", "surface"]) ink[name] = colour(name);
}

function draw() {
	const { count, total, truncated, milliseconds, similarity, reason } = reading;
	$("text-note").textContent = `${[count].flat().join(" + ")}${truncated ? ` of ${total ?? "more"}` : ""} tokens`
		+ (milliseconds ? ` · ${Math.ceil(milliseconds)} ms` : "");
	$("text-note").classList.toggle("alarm", truncated);
	$("score").textContent = number(similarity);
	$("score-note").textContent = reason ? `No map: ${reason}.` : "";
	for (const pane of all("#panes > .mapped")) pane.hidden = !scene;
	if (!scene) return;
	const { view, units, title } = scene, labels = (list) => list.map((unit) => units[unit].label);
	const { unit, special, scale, view: shape } = state, key = String([unit, special, scale, scene.filter, ink.text]);
	Object.assign(scene, { special, scale, shape, key, ink, rowLabels: labels(view.rows), columnLabels: labels(view.columns) });
	$("map-title").textContent = title;
	Object.assign($("stage"), { ariaRowCount: view.rows.length, ariaColCount: view.columns.length });
	map.show(scene);
	sentence.show(units, reading.texts);
	drawLegend();
	thumbnails();
	const [row, column] = shape === "lines" ? ["Left", "right"] : ["Rows", "columns"];
	$("map-axes").textContent = scene.filter ? `${row} look, ${column} are looked at.` : `${row}: first text, ${column}: second text.`;
	const { edges: { length } = [], hidden } = map.edges ?? {}, notes = [];
	if (!view.values.length) notes.push("No token is left.");
	if (hidden) notes.push(`Drawn: the ${length} strongest, up to 90 % of each row. Not drawn: ${hidden}.`);
	if (special === "renormalize" && view.kept?.some(isBlank)) notes.push("A striped row kept under 5 % before it was scaled to 1: no finding.");
	$("map-note").textContent = notes.join(" ");
	drawFocus();
}

function drawLegend() {
	const { view: { signed, domain } } = scene;
	$("ramp").classList.toggle("signed", signed);
	$("ticks").replaceChildren(...legendTicks(state.scale, domain, signed).map(({ at, value }) => {
		const tick = document.createElement("span");
		tick.textContent = value === null ? "largest of its row" : String(Number(value.toPrecision(2))).replace("-", "−");
		tick.style.left = `${signed ? 50 + 50 * at : 100 * at}%`;
		return tick;
	}));
}

function drawHeads([stats, likeness]) {
	const { layer, head, show, colour, order } = state;
	const isPattern = colour === "pattern", statistic = isPattern ? "entropy" : colour, values = stats[statistic];
	const { dataset, text } = named("colour").namedItem(statistic), value = ([of, at]) => values[of][at] ?? 0;
	let places = range(layers * heads).map((at) => [Math.floor(at / heads), at % heads]);
	if (order === "value") places.sort((one, other) => value(other) - value(one));
	if (likeness) places = likeness.order.map((at) => likeness.heads[at]);
	const most = Number(dataset.most) || Math.max(...values.flat(), 1e-9);
	const name = text.toLowerCase(), says = isPattern ? [] : [`Tinted from 0 to ${number(most)}.`];
	if (order === "value") says.push(`Largest ${name} first.`);
	if (likeness) says.push("Neighbours look alike.");
	$("heads-note").textContent = says.join(" ");
	overview.show({ heads, values, most, name, isPattern, places, isPlain: order === "layer", layer, head, show, ink });
	for (const cell of all("[data-stat]")) {
		const shown = show === "head" ? stats[cell.dataset.stat]?.[layer][head] ?? null : null;
		cell.parentElement.hidden = shown === null;
		cell.textContent = "share" in cell.dataset ? percent(shown) : number(shown);
	}
}

function thumbnails() {
	if (!scene?.filter || state.colour !== "pattern") return;
	for (const [layer, maps] of source.layers) overview.thumbnails(layer, maps, reading.count, scene);
}

// in focus

function spotOf(unit) {
	const { rows = [], columns = [] } = scene?.view ?? {}, row = rows.indexOf(unit);
	return spot(row, row < 0 ? columns.indexOf(unit) : -1);
}

function pinnedSpot() {
	const find = (list, token) => list.findIndex((unit) => scene.units[unit].tokens.includes(token));
	return spot(find(scene.view.rows, state.q), find(scene.view.columns, state.k));
}

function hover(place) {
	hovered = place;
	if (isWaiting || !scene) return;
	isWaiting = true;
	requestAnimationFrame(() => {
		isWaiting = false;
		drawFocus();
	});
}

function pin(place) {
	if (!place) return;
	const token = (list, at) => scene.units[list[at]]?.tokens[0] ?? null;
	const q = token(scene.view.rows, place.row), k = token(scene.view.columns, place.column);
	update(q === state.q && k === state.k ? { q: null, k: null } : { q, k });
}

function drawFocus() {
	if (!scene) return;
	const { view, units, rowLabels, columnLabels, says } = scene, place = hovered ?? pinnedSpot(), shares = new Map();
	const sums = !place && view.signed && totals(view);
	map.focus(place);
	$("hint").hidden = Boolean(place) && !view.signed;
	$("table").hidden = !place && !sums;
	if (!place && !sums) return sentence.shade(shares, [], ink);
	const { row, column } = place ?? {}, isRow = row >= 0, line = sums ? [...sums.values()] : lineOf(view, row, column);
	const list = sums ? [...sums.keys()] : isRow ? view.columns : view.rows, most = sums ? Math.max(...line.map(Math.abs)) || 1 : view.domain;
	levels(line, line.length, state.scale, most).forEach((level, at) => shares.set(list[at], level / 255));
	sentence.shade(shares, [view.rows[row], view.columns[column]], ink);
	$("caption").textContent = sums ? `What each ${state.unit} adds in all` : isRow ? `${rowLabels[row]} ${says}` : `${columnLabels[column]} ${says === "with" ? says : "is looked at by"}`;
	const items = strongest(line, state.rows === "few" ? 6 : 20);
	all("#table tbody tr").forEach((entry, index) => {
		const { at, value } = items[index] ?? {}, [name, weight, bar] = entry.cells;
		entry.hidden = index >= items.length;
		const { label, part } = units[list[at]] ?? {};
		name.textContent = sums ? `${label} (${"AB"[part]})` : label;
		weight.textContent = number(value);
		bar.firstChild.style.transform = `scaleX(${Math.min(Math.abs(value ?? 0) / most, 1)})`;
		bar.firstChild.className = value < 0 ? "minus" : "";
	});
}

// keys

function moveFocus(event) {
	if (!scene?.view.values.length) return;
	const { view, rowLabels, columnLabels, says } = scene, from = hovered ?? pinnedSpot(), step = ARROWS[event.key];
	if (["Enter", " "].includes(event.key)) pin(from);
	else if (step) {
		const move = (at, by, count) => (from ? Math.min(Math.max(at + by, 0), count - 1) : 0);
		const row = move(from?.row, step[0], view.rows.length), column = move(from?.column, step[1], view.columns.length);
		hovered = { row, column };
		drawFocus();
		const text = `${rowLabels[row]} ${says} ${columnLabels[column]}: ${number(lineOf(view, row)[column])}`;
		$("announce").textContent = text;
		Object.assign($("cell"), { ariaRowIndex: row + 1, ariaColIndex: column + 1, textContent: text });
	} else return;
	event.preventDefault();
}

/** A key in aria-keyshortcuts moves its control on; of two keys, the first moves back. */
function pressKey(event) {
	const { key, target } = event;
	if (event.ctrlKey || event.metaKey || event.altKey || target.closest("textarea, select, dialog, #key")) return;
	if (key === "Escape" && $("files").open) {
		$("files").open = false;
		$("files").firstElementChild.focus();
	} else if (key === "Escape" && scene) update({ q: null, k: null });
	const control = state.keys === "on" && all("[aria-keyshortcuts]").find((one) => one.ariaKeyShortcuts.split(" ").includes(key));
	if (!control || !control.checkVisibility()) return;
	event.preventDefault();
	const choices = [...control.querySelectorAll("input, option")], at = choices.findIndex((one) => one.checked || one.selected);
	const next = choices.at((at + (control.ariaKeyShortcuts.indexOf(key) || control.ariaKeyShortcuts === key ? 1 : -1)) % choices.length);
	if (control.options) {
		control.value = next.value;
		control.dispatchEvent(new Event("change", { bubbles: true }));
	} else (next ?? control).click();
	if (!next) return;
	const label = control.labels?.[0].firstChild.data ?? control.firstElementChild.textContent; // "Head", or a legend
	$("announce").textContent = `${label.trim()}: ${next.text ?? next.parentElement.textContent}`;
}

// files

/** Draws the map with a caption, on what `make` gives. */
function picture(make) {
	const { width, height } = map.box, pen = make(width, height + HEADROOM), { unit, special, scale, filter } = state;
	const about = [scene.title, unit, ...(scene.filter ? [special, filter] : []), scale];
	pen.fillStyle = ink.surface;
	pen.fillRect(0, 0, width, height + HEADROOM);
	pen.fillStyle = ink.text;
	pen.font = FONT;
	pen.fillText(about.join(" · "), 8, 20);
	pen.translate(0, HEADROOM);
	map.draw(pen);
	return pen;
}

const SAVERS = {
	png: () => new Promise((resolve) => picture((...size) => sized(document.createElement("canvas"), ...size, 2)).canvas.toBlob(resolve)),
	svg: () => new Blob([picture((...size) => new SvgContext(...size, $("base").getContext("2d"))).end()], { type: "image/svg+xml" }),
	json() {
		const { view, units } = scene, { units: _, pairs, ...read } = reading;
		const axis = (list) => list.map((unit) => units[unit]), values = view.rows.map((_, row) => [...lineOf(view, row)]);
		const body = { state, reading: read, rows: axis(view.rows), columns: axis(view.columns), values, kept_mass: view.kept && [...view.kept] };
		return new Blob([JSON.stringify(body)], { type: "application/json" });
	},
	npz: () => source.npz(state),
	async html() {
		// for what may be chosen there
		if (reading.tokens) await Promise.allSettled([source.stats("mask"), source.rollout(), source.likeness()]);
		const load = async (name) => (await fetch(`viewer/${name}`)).text();
		const [html, css, modules] = await Promise.all([load("index.html"), load("style.css"), collectModules("main.js", load)]);
		const { fragment } = writeFragment(state, Infinity);
		return new Blob([standalone(html, css, modules, { fragment, answers: pack(answers, arrays) })], { type: "text/html" });
	},
};

async function save(kind) {
	const link = document.createElement("a");
	link.href = URL.createObjectURL(await SAVERS[kind]());
	link.download = `eyeline ${scene.title.toLowerCase()}.${kind}`.replace(/[^a-z0-9.]+/g, "-");
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// start

function submit(patch) {
	Object.assign(state, { q: null, k: null, a: first.value, b: second.value }, patch);
	[first.value, second.value] = [state.a, state.b];
	run().catch(report);
}

async function start() {
	[first.value, second.value] = [state.a, state.b];
	if (info) chooseModel();
	await run();
}

document.addEventListener("change", ({ target: { name, value, type } }) => {
	if (type === "textarea" || !name) return;
	state[name] = FLAGS[name] === "index" ? Number(value) : value;
	if (name === "model") {
		state.prompt = "";
		chooseModel();
	}
	if (/^mode|^prompt/.test(name)) submit();
	else update({});
});
$("composer").addEventListener("submit", (event) => {
	event.preventDefault();
	submit();
});
$("unlock").addEventListener("submit", (event) => {
	event.preventDefault();
	source.key = $("key").value.trim();
	$("key").value = ""; // not for whoever comes to the screen next
	$("unlock").hidden = true;
	run().catch(report);
});
document.addEventListener("click", ({ target }) => {
	const { dataset = {}, id } = target.closest("button") ?? {};
	if (dataset.a) submit({ b: "", ...dataset });
	if (id === "help-open") $("help").showModal();
	if (!target.closest("#files")) $("files").open = false;
	if (!dataset.save) return;
	$("files").open = false;
	save(dataset.save).catch(report);
});
document.addEventListener("keydown", (event) => {
	if (event.target.type !== "textarea") return pressKey(event);
	if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
	event.preventDefault();
	submit();
});
$("stage").addEventListener("keydown", moveFocus);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
new ResizeObserver(() => scene && draw()).observe($("panes"));
addEventListener("hashchange", () => {
	clearTimeout(timer); // the address is newer
	Object.assign(state, readFragment(location.hash));
	start().catch(report);
});
document.body.classList.toggle("held", Boolean(held));
start().catch(report);
