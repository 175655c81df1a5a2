// Inside the model: the parameter ledger with its sliders, the mask, the positions.
import { attempt, get } from "./api.js";
import { bar, calmly, fillSelect, find, make, slider } from "./dom.js";
import { terms, total } from "./ledger.js";
import { drawHeat } from "./plots.js";

const number = (value) => value.toLocaleString("en");
const SLIDERS = {
  V: { name: "V, vocabulary", min: 100, max: 100_001, step: 1 },
  d: { name: "d, width", min: 8, max: 1024, step: 8 },
  L: { name: "L, layers", min: 0, max: 24, step: 1 },
  H: { name: "H, heads", min: 1, max: 16, step: 1 },
  C: { name: "C, classes", min: 2, max: 100, step: 1 },
};
const MOST_WRITTEN = 16;

let presets = [];
let preset = null;
const shape = {};
const sliders = {};
const mask = { length: 10, padding: 0, documents: 1 };
const positions = { length: 64, width: 64 };

function takePreset() {
  preset = presets.find((one) => one.name === find("ledger-preset").value);
  find("ledger-help").textContent = preset.help;
  for (const letter of Object.keys(SLIDERS)) {
    shape[letter] = preset[letter];
    sliders[letter].set(preset[letter]);
  }
  for (const letter of ["L", "H"]) sliders[letter].input.disabled = preset.family === "bag";
  count();
}

function count() {
  const what = find("ledger-what").value;
  const found = terms(preset, shape, what);
  const sum = total(found);
  find("ledger-total").textContent = number(sum);
  find("ledger-terms").replaceChildren(...found.map((one) =>
    make("tr", {}, make("th", { scope: "row" }, one.name), make("td", {}, one.formula),
      make("td", { class: "number" }, number(one.count)), make("td", {}, bar(one.count / sum)))));
  find("ledger-check").textContent = " ";
  check(sum, what);
}

const check = calmly((sum, what) => attempt(async () => {
  const asked = new URLSearchParams({ preset: preset.name, V: shape.V, d: shape.d, L: shape.L, H: shape.H });
  if (what === "classifier") asked.set("C", shape.C);
  const counted = await get(`/api/inside/ledger?${asked}`);
  const isWhole = shape.d % shape.H === 0;
  const heads = preset.family === "bag" ? "" : isWhole
    ? ` Each head is ${shape.d / shape.H} wide; how many there are changes no count.`
    : ` But no such model can be built: ${shape.H} heads do not divide a width of ${shape.d}.`;
  find("ledger-check").textContent = counted.total === sum
    ? `ledger.py counts the same.${heads}` : `ledger.py counts ${number(counted.total)}: please report this.`;
}), 300);

const showMask = calmly(() => attempt(async () => {
  const asked = new URLSearchParams({ causal: find("mask-causal").value, ...mask });
  const found = await get(`/api/inside/mask?${asked}`);
  find("mask-told").textContent = `${found.title}. In colour, 0 is added to the score; in grey, −∞.`;
  const text = found.allowed.length <= MOST_WRITTEN ? found.allowed.map((row) => row.map((cell) => (cell ? "0" : "−∞"))) : null;
  const ticks = found.places.map((place, column) => (found.real[column] ? `${place}` : "pad"));
  await drawHeat(find("mask-plot"), found.allowed, { x: "position that is read", y: "position that reads", kind: "cells", text, ticks });
}), 120);

const showPositions = calmly(() => attempt(async () => {
  const kind = find("positions-kind").value;
  const found = await get(`/api/inside/positions?${new URLSearchParams({ kind, ...positions })}`);
  find("positions-told").textContent = found.told;
  const x = kind === "rotary" ? "pair of columns" : "dimension";
  await drawHeat(find("positions-plot"), found.table, { x, y: "position", kind: kind === "rotary" ? "turns" : "numbers" });
}), 120);

function addSliders(form, values, made, onChange) {
  for (const [key, { name, min, max, step = 1 }] of Object.entries(made)) {
    const one = slider(name, {
      id: `${form.id}-${key}`, min, max, step, value: values[key], shown: number,
      onInput: (value) => {
        values[key] = value;
        onChange();
      },
    });
    form.append(one.element);
  }
}

export async function start() {
  for (const [letter, { name, min, max, step }] of Object.entries(SLIDERS)) {
    sliders[letter] = slider(name, {
      id: `ledger-${letter}`, min, max, step, value: min, shown: number,
      onInput: (value) => {
        shape[letter] = value;
        count();
      },
    });
    find("ledger-sliders").append(sliders[letter].element);
  }
  addSliders(find("mask-form"), mask, {
    length: { name: "Positions", min: 2, max: 48 },
    padding: { name: "Padding at the end", min: 0, max: 12 },
    documents: { name: "Documents in the row", min: 1, max: 4 },
  }, showMask);
  addSliders(find("positions-form"), positions, {
    length: { name: "Positions", min: 8, max: 256, step: 8 },
    width: { name: "Width", min: 8, max: 256, step: 8 },
  }, showPositions);
  find("ledger-preset").addEventListener("change", takePreset);
  find("ledger-what").addEventListener("change", count);
  find("mask-causal").addEventListener("change", showMask);
  find("positions-kind").addEventListener("change", showPositions);
  await attempt(async () => {
    presets = await get("/api/inside/shapes");
    fillSelect(find("ledger-preset"), presets.map((one) => [one.name, one.name]));
    takePreset();
  });
}

export function show() {
  showMask();
  showPositions();
}
export function hide() {}
