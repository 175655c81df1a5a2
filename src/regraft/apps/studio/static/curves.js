// The chosen runs: their curves as they grow, and in what they differ.
import { get } from "./api.js";
import { fillSelect, find, make } from "./dom.js";
import { drawLines } from "./plots.js";

const curves = new Map(); // run id -> {cursor, records}
let wanted = "loss";
let lastShown = "";
let lastCompared = "";

const readable = (metric) => metric.replaceAll("_", " ");

/** Which metric is drawn, if the chosen runs have it. */
export function chooseMetric(name) {
  wanted = name;
}

/** Draw again whatever was drawn before: the view was hidden, and may have changed its size. */
export function forgetDrawn() {
  lastShown = "";
}

async function readCurve(run) {
  const curve = curves.get(run.id) ?? { cursor: "", records: [] };
  curves.set(run.id, curve);
  let hasChanged = false;
  for (let isAll = false; !isAll;) {
    const asked = curve.cursor;
    const found = await get(`/api/runs/${run.id}/curve?cursor=${encodeURIComponent(asked)}`);
    if (curve.cursor !== asked) break; // somebody else asked the same and was quicker
    if (found.is_new) curve.records = [];
    curve.records.push(...found.records);
    curve.cursor = found.cursor;
    isAll = found.is_all;
    hasChanged ||= found.is_new || found.records.length > 0;
  }
  return hasChanged;
}

/** Bring curves and table of the chosen runs up to date. */
export async function showChosen(chosen) {
  find("curves-panel").hidden = chosen.length === 0;
  const drawn = chosen.filter((run) => run.has_curve);
  let hasChanged = false;
  for (const run of drawn) if (await readCurve(run)) hasChanged = true;
  showCurves(drawn, hasChanged);
  await showDifferences(chosen);
}

function showCurves(drawn, hasChanged) {
  const names = new Set();
  for (const run of drawn) {
    for (const record of curves.get(run.id).records) for (const name of Object.keys(record)) names.add(name);
  }
  for (const name of ["step", "epoch"]) names.delete(name);
  const select = find("curve-metric");
  fillSelect(select, [...names].map((name) => [name, readable(name)]));
  if (names.has(wanted)) select.value = wanted;
  for (const element of [select.parentElement, find("curve-plot")]) element.hidden = drawn.length === 0;
  const metric = select.value;
  const shown = `${metric} ${drawn.map((run) => run.id).join(" ")}`;
  if (!hasChanged && shown === lastShown) return;
  lastShown = shown;
  const lines = drawn.map((run) => {
    const records = curves.get(run.id).records.filter((record) => typeof record[metric] === "number");
    return { name: run.name, x: records.map((record) => record.step), y: records.map((record) => record[metric]) };
  });
  if (lines.length) drawLines(find("curve-plot"), lines, { x: "step", y: readable(metric) });
  find("curve-status").replaceChildren(...lines.map((line) => make("li", {}, line.x.length
    ? `${line.name}: step ${line.x.at(-1).toLocaleString("en")}, ${readable(metric)} ${Number(line.y.at(-1).toPrecision(4))}`
    : `${line.name}: nothing of this yet`)));
}

async function showDifferences(chosen) {
  const compared = chosen.map((run) => `${run.id} ${run.status}`).join(" ");
  if (compared === lastCompared) return;
  const isTable = chosen.length > 1;
  const asked = chosen.map((run) => `run=${run.id}`).join("&");
  const found = isTable ? await get(`/api/differences?${asked}`) : { scores: [], settings: [], note: "" };
  lastCompared = compared;
  find("differences").hidden = !isTable;
  find("differences-status").textContent = isTable ? found.note : "Tick another run to see in what they differ.";
  find("differences-status").hidden = isTable && found.note === "";
  const num = found.settings.length;
  find("differences-caption").textContent = num === 0 ? "Scores; all settings are the same"
    : num === 1 ? "Scores, and the setting that differs" : `Scores, and the ${num} settings that differ`;
  find("differences-runs").replaceChildren(make("td"), ...chosen.map((run) => make("th", { scope: "col" }, run.name)));
  find("differences-lines").replaceChildren(...[...found.scores, ...found.settings].map((line) =>
    make("tr", {}, make("th", { scope: "row" }, line.name), ...line.values.map((value) => make("td", {}, value)))));
}
