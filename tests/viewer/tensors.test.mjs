/** What the server sends is read to the bit, and what is no safetensors file is refused. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeHalves, readSafetensors } from "../../app/viewer/tensors.js";

/** Writes a safetensors file by hand. */
function file(header, data, length = null) {
  const text = new TextEncoder().encode(JSON.stringify(header));
  const out = new Uint8Array(8 + text.length + data.length);
  new DataView(out.buffer).setBigUint64(0, BigInt(length ?? text.length), true);
  out.set(text, 8);
  out.set(data, 8 + text.length);
  return out.buffer;
}

const bytes = (array) => new Uint8Array(array.buffer);

test("halves: zero, one, the largest, the smallest, a third, both signs, infinity and no number", () => {
  const patterns = [0x0000, 0x3c00, 0x7bff, 0x0001, 0x0400, 0x3555, 0xc000, 0x7c00, 0xfc00, 0x7e00];
  const numbers = [0, 1, 65504, 2 ** -24, 2 ** -14, 0.333251953125, -2, Infinity, -Infinity, NaN];
  assert.deepEqual([...decodeHalves(Uint16Array.from(patterns))], numbers);
  assert.ok(Object.is(decodeHalves(Uint16Array.of(0x8000))[0], -0));
});

test("halves: each finite pattern is the number that the format defines", () => {
  const all = decodeHalves(Uint16Array.from({ length: 65536 }, (_, at) => at));
  for (let exponent = 1; exponent < 31; exponent++) {
    for (const fraction of [0, 1, 511, 1023]) {
      assert.equal(all[(exponent << 10) | fraction], Number(`${1 + fraction / 1024}`) * 2 ** (exponent - 15));
    }
  }
  for (let at = 1; at < 0x7c00; at++) assert.ok(all[at] > all[at - 1], "larger patterns are larger numbers");
});

test("a file with two arrays is read, at whatever byte they begin", () => {
  const header = {
    __metadata__: { response: "{}" },
    odd: { dtype: "F16", shape: [3], data_offsets: [0, 6] },
    "attention.0.maps": { dtype: "F32", shape: [1, 2, 1], data_offsets: [6, 14] },
  };
  const data = new Uint8Array(14);
  data.set(bytes(Uint16Array.of(0x3c00, 0x4000, 0)), 0);
  data.set(bytes(Float32Array.of(0.25, 0.75)), 6);
  const { odd, ...rest } = readSafetensors(file(header, data));
  assert.deepEqual([...odd.data], [1, 2, 0]);
  assert.deepEqual(Object.keys(rest), ["attention.0.maps"]);
  assert.deepEqual(rest["attention.0.maps"].shape, [1, 2, 1]);
  assert.deepEqual([...rest["attention.0.maps"].data], [0.25, 0.75]);
});

test("a file that contradicts itself is refused, by the array's name", () => {
  const one = (entry) => file({ x: { dtype: "F32", shape: [2], data_offsets: [0, 8], ...entry } }, new Uint8Array(8));
  assert.deepEqual([...readSafetensors(one({})).x.data], [0, 0]);
  assert.throws(() => readSafetensors(new ArrayBuffer(4)), /short/);
  assert.throws(() => readSafetensors(file({}, new Uint8Array(0), 1e6)), /header/);
  assert.throws(() => readSafetensors(one({ shape: [3] })), /x does not fit/);
  assert.throws(() => readSafetensors(one({ data_offsets: [4, 12] })), /x does not fit/);
  assert.throws(() => readSafetensors(one({ data_offsets: [-8, 0] })), /x does not fit/);
  assert.throws(() => readSafetensors(one({ dtype: "I64" })), /x has the unknown type I64/);
});
