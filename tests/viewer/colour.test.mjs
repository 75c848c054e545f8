/** The ramp is monotone in lightness, 0 is the background, and the scales and their legends say the same. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { colourTable, legendTicks, levels, paint, rampColour } from "../../app/viewer/colour.js";

const CSS = readFileSync(new URL("../../app/viewer/style.css", import.meta.url), "utf8");
const find = (name) => [...CSS.matchAll(new RegExp(`--${name}: ([^;]+);`, "g"))].map((match) => match[1]);
const ramps = (name) => find(name).map((stops) => stops.split(", "));

/** Relative luminance, as WCAG defines it. */
function luminance([red, green, blue]) {
  const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
}

const contrast = (one, other) => {
  const [bright, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (bright + 0.05) / (dark + 0.05);
};
const channels = (hex) => rampColour([hex, hex], 0);

test("both themes have both ramps, from the surface's colour, and lightness runs one way", () => {
  for (const name of ["plus", "minus"]) {
    const [light, dark, auto] = ramps(name);
    assert.deepEqual(auto, dark, "the system's dark is the chosen dark");
    for (const [stops, surface, sign] of [[light, find("surface")[0], -1], [dark, find("surface")[1], 1]]) {
      assert.equal(stops[0], surface);
      const lightness = Array.from({ length: 256 }, (_, at) => luminance(rampColour(stops, at / 255)));
      for (let at = 1; at < 256; at++) assert.ok(sign * (lightness[at] - lightness[at - 1]) >= -1e-4, `${name} at ${at}`);
      assert.ok(Math.abs(lightness[255] - lightness[0]) > 0.7);
    }
  }
});

test("text is readable: 4.5 to 1 for text on both grounds, 3 to 1 for the accent", () => {
  for (const theme of [0, 1]) {
    const colour = (name) => channels(find(name)[theme]);
    for (const ground of ["page", "surface"]) {
      for (const text of ["text", "muted", "warn"]) assert.ok(contrast(colour(text), colour(ground)) >= 4.5, `${text} on ${ground}, ${theme}`);
      assert.ok(contrast(colour("accent"), colour(ground)) >= 3);
    }
    assert.ok(contrast(colour("contrast"), colour("accent")) >= 4.5);
    assert.ok(contrast(colour("text"), colour("tint")) >= 4.5);
  }
});

test("text stays readable over the strongest shade that the sentence pane paints", () => {
  for (const theme of [0, 1]) {
    const colour = (name) => channels(find(name)[theme]), alpha = 0.5;
    const shade = colour("accent").map((value, at) => value * alpha + colour("surface")[at] * (1 - alpha));
    assert.ok(contrast(colour("text"), shade) >= 4.5, `theme ${theme}: ${contrast(colour("text"), shade)}`);
  }
});

test("a number in a cell has the better of both colours, and 3.6 to 1 at least, in both themes and on both ramps", () => {
  for (const name of ["plus", "minus"]) assert.equal(find(`${name}-flip`)[2], find(`${name}-flip`)[1]);
  for (const theme of [0, 1]) {
    const [text, surface] = ["text", "surface"].map((name) => channels(find(name)[theme]));
    for (const name of ["plus", "minus"]) {
      const stops = ramps(name)[theme], flip = Number(find(`${name}-flip`)[theme]);
      for (let level = 0; level <= 255; level++) {
        const ground = rampColour(stops, level / 255), both = [contrast(text, ground), contrast(surface, ground)];
        const chosen = both[level >= flip ? 1 : 0];
        assert.ok(chosen >= Math.max(...both) - 0.05, `${name} at ${level}`);
        assert.ok(chosen >= 3.6, `${name} at ${level}: ${chosen}`);
      }
    }
  }
});

test("the table holds the ramps' ends, opaque, as ImageData stores bytes", () => {
  const [plus] = ramps("plus"), [minus] = ramps("minus"), pixels = new Uint32Array(3);
  paint(Int16Array.of(-255, 0, 255), colourTable(plus, minus), pixels);
  const bytes = [...new Uint8Array(pixels.buffer)];
  assert.deepEqual(bytes, [minus.at(-1), plus[0], plus.at(-1)].flatMap((hex) => [...channels(hex), 255]));
});

test("scales: linear, square root, and each row against its own largest", () => {
  const values = Float32Array.of(1, 0.25, 0, 0.5, 0.1, 0.05);
  assert.deepEqual([...levels(values, 3, "linear", 1)], [255, 64, 0, 128, 26, 13]);
  assert.deepEqual([...levels(values, 3, "sqrt", 1)], [255, 128, 0, 180, 81, 57]);
  assert.deepEqual([...levels(values, 3, "rowmax", 1)], [255, 64, 0, 255, 51, 26]);
});

test("a domain sets the full colour, signs are kept, and a row of zeros is no division by zero", () => {
  assert.deepEqual([...levels(Float32Array.of(-0.25, 0.125), 2, "linear", 0.25)], [-255, 128]);
  assert.deepEqual([...levels(Float32Array.of(-0.25, 0.0625), 2, "sqrt", 0.25)], [-255, 128]);
  assert.deepEqual([...levels(Float32Array.of(0, 0), 2, "rowmax", 1)], [0, 0]);
  assert.deepEqual([...levels(Float32Array.of(1.0000001), 1, "linear", 1)], [255]);
});

test("a legend's marks are where the scale puts those numbers", () => {
  for (const scale of ["linear", "sqrt"]) {
    for (const signed of [false, true]) {
      for (const { at, value } of legendTicks(scale, 0.08, signed)) {
        const [level] = levels(Float32Array.of(value), 1, scale, 0.08);
        assert.ok(Math.abs(level / 255 - at) < 0.01, `${scale} ${value}`);
      }
    }
  }
  assert.deepEqual(legendTicks("rowmax", 1, false), [{ at: 0, value: 0 }, { at: 1, value: null }]);
  assert.deepEqual(legendTicks("rowmax", 1, true).map(({ at }) => at), [-1, 0, 1]);
});
