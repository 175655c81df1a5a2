// Inside the model: the parameter count with its sliders, the mask, the positions.
import { attempt, get, obey } from "./api.js";
import { bar, calmly, fillSelect, find, make, slider } from "./dom.js";
import { drawMask, drawTable } from "./plots.js";

const number = (value) => value.toLocaleString("en");
const SLIDERS = {
  V: { name: "V, vocabulary", min: 100, max: 100_001, step: 1 },
  d: { name: "d, width", min: 8, max: 1024, step: 8, grain: 1 },
  L: { name: "L, layers", min: 1, max: 24, step: 1 },
  H: { name: "H, heads", min: 1, max: 16, step: 1 },
  C: { name: "C, classes", min: 2, max: 100, step: 1 },
};
const KINDS = [["sinusoidal", "sinusoidal"], ["rotary", "rotary"], ["learned", "learned, before training"]];
const MOST_WRITTEN = 16;
const MOST_PADDING = 12;
const MOST_DOCUMENTS = 4;

let presets = [];
let preset = null;
let isVisible = false;
const shape = {};
const sliders = {};
const ofPositions = {};
const mask = { length: 10, padding: 0, documents: 1 };
const positions = { length: 64, width: 64 };

function takePreset() {
  preset = presets.find((one) => one.name === find("parameters-preset").value);
  find("parameters-help").textContent = preset.help;
  const isBag = preset.L === 0;
  for (const [letter, { min, max }] of Object.entries(SLIDERS)) {
    shape[letter] = preset[letter];
    sliders[letter].bound(isBag && letter === "L" ? 0 : min, max);
    sliders[letter].set(preset[letter]);
  }
  // A bag has no layers, and a model of another family has one or more.
  for (const letter of ["L", "H"]) for (const part of ["input", "typed"]) sliders[letter][part].disabled = isBag;
  if (isVisible) count();
}

function headsNote({ d, H }) {
  if (preset.L === 0) return "";
  if (d % H) return `No such model can be built: ${H} heads do not divide a width of ${d}.`;
  return `Each head is ${d / H} wide; the number of heads does not change the count.`;
}

let numAsked = 0;

/** The server counts; while a slider moves, only the answer to the latest question is shown. */
const count = calmly(() => obey(async () => {
  const { C, ...asked } = { preset: preset.name, ...shape };
  if (find("parameters-what").value === "classifier") asked.C = C;
  numAsked += 1;
  const question = numAsked;
  const counted = await get(`/api/inside/parameters?${new URLSearchParams(asked)}`);
  if (question !== numAsked) return;
  find("parameters-total").textContent = number(counted.total);
  find("parameters-terms").replaceChildren(...counted.terms.map((term) =>
    make("tr", {}, make("th", { scope: "row" }, term.name), make("td", {}, term.formula),
      make("td", { class: "number" }, number(term.count)), make("td", {}, bar(term.count / counted.total)))));
  find("parameters-letters").textContent = counted.letters
    .map(({ letter, value, name }) => `${letter} = ${number(value)}, ${name}`).join("; ");
  find("parameters-note").textContent = headsNote(asked);
}), 40);

const showMask = calmly(() => obey(async () => {
  const asked = new URLSearchParams({ causal: find("mask-causal").value, ...mask });
  const found = await get(`/api/inside/mask?${asked}`);
  find("mask-status").textContent = `${found.title}.`;
  const isPadding = (row, column) => !(found.real[row] && found.real[column]);
  const cells = found.allowed.map((line, row) => line.map((cell, column) => (isPadding(row, column) ? 2 : cell)));
  const names = ["−∞", "0", "padding"];
  const text = cells.length <= MOST_WRITTEN ? cells.map((line) => line.map((cell) => (cell === 2 ? "" : names[cell]))) : null;
  const ticks = found.places.map((place, column) => (found.real[column] ? `${place}` : "pad"));
  await drawMask(find("mask-plot"), cells, { x: "position that is read", y: "position that reads", names, text, ticks });
}), 120);

/** No row of fewer positions than its documents and its padding need. */
function tieMask(sliders) {
  mask.documents = Math.min(mask.documents, mask.length);
  mask.padding = Math.min(mask.padding, mask.length - mask.documents);
  sliders.documents.bound(1, Math.min(MOST_DOCUMENTS, mask.length - mask.padding));
  sliders.padding.bound(0, Math.min(MOST_PADDING, mask.length - mask.documents));
  for (const key of ["documents", "padding"]) sliders[key].set(mask[key]);
}

const showPositions = calmly(() => obey(async () => {
  const kind = find("positions-kind").value;
  const isOfRun = !KINDS.some(([name]) => name === kind);
  for (const one of Object.values(ofPositions)) for (const part of ["input", "typed"]) one[part].disabled = isOfRun;
  const found = await get(isOfRun ? `/api/runs/${kind}/positions` : `/api/inside/positions?${new URLSearchParams({ kind, ...positions })}`);
  // A slow answer must not replace a choice made since.
  if (find("positions-kind").value !== kind) return;
  find("positions-status").textContent = found.caption;
  const x = kind === "rotary" ? "pair of columns" : "dimension";
  await drawTable(find("positions-plot"), found.table, { x, y: "position", isTurns: kind === "rotary" });
}), 120);

/** Runs that have learned positions of their own are choices, too. */
export function setRuns(all) {
  const learned = all.filter((run) => run.learns_positions && run.status === "complete");
  const before = find("positions-kind").value;
  fillSelect(find("positions-kind"), [...KINDS, ...learned.map((run) => [run.id, `learned by ${run.name}`])]);
  if (isVisible && find("positions-kind").value !== before) showPositions();
}

/** A slider for each value; `onChange` receives the one that moved. */
function addSliders(form, prefix, values, made, onChange) {
  const added = {};
  for (const [key, { name, min, max, step, grain }] of Object.entries(made)) {
    added[key] = slider(name, {
      id: `${prefix}-${key}`, min, max, step, grain, value: values[key] ?? min, shown: number,
      onInput: (value) => {
        values[key] = value;
        onChange(key);
      },
    });
    form.append(added[key].element);
  }
  return added;
}

export async function start() {
  Object.assign(sliders, addSliders(find("parameters-sliders"), "parameters", shape, SLIDERS, (letter) => {
    // Only a classifier has classes: who moves them wants to see one.
    if (letter === "C") find("parameters-what").value = "classifier";
    count();
  }));
  const ofMask = addSliders(find("mask-form"), "mask-form", mask, {
    length: { name: "Positions", min: 2, max: 48 },
    padding: { name: "Padding at the end", min: 0, max: MOST_PADDING },
    documents: { name: "Documents in the row", min: 1, max: MOST_DOCUMENTS },
  }, () => {
    tieMask(ofMask);
    showMask();
  });
  tieMask(ofMask);
  Object.assign(ofPositions, addSliders(find("positions-form"), "positions-form", positions, {
    length: { name: "Positions", min: 8, max: 256, step: 8 },
    width: { name: "Width", min: 8, max: 256, step: 8 },
  }, showPositions));
  setRuns([]);
  find("parameters-preset").addEventListener("change", takePreset);
  find("parameters-what").addEventListener("change", count);
  find("mask-causal").addEventListener("change", showMask);
  find("positions-kind").addEventListener("change", showPositions);
  await attempt(async () => {
    presets = await get("/api/inside/shapes");
    fillSelect(find("parameters-preset"), presets.map((one) => [one.name, one.name]));
    takePreset();
  });
}

export function show() {
  isVisible = true;
  if (preset) count();
  showMask();
  showPositions();
}

export function hide() {
  isVisible = false;
}
