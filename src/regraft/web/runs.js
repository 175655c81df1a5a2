// The list of runs, their curves as they grow, and their reports.
import { attempt, get } from "./api.js";
import { fillSelect, find, make } from "./dom.js";
import { drawLines } from "./plots.js";

const PAUSE = 1500;
const curves = new Map(); // run id -> {cursor, records}
const chosen = new Set();
let rows = [];
let hasChosen = false;
let isVisible = false;
let onRows = () => {};

/** Be told of the runs whenever they are read. */
export function watchRows(listener) {
  onRows = listener;
}

function ago(seconds) {
  const gone = Math.max(Date.now() / 1000 - seconds, 0);
  if (gone < 60) return `${Math.floor(gone)} s ago`;
  if (gone < 3600) return `${Math.floor(gone / 60)} min ago`;
  if (gone < 86400) return `${Math.floor(gone / 3600)} h ago`;
  return new Date(seconds * 1000).toLocaleDateString();
}

function rowOf(run) {
  const box = make("input", {
    type: "checkbox", "aria-label": `Curve of ${run.name}`, "data-run": run.id, checked: chosen.has(run.id),
    on: { change: (event) => choose(run.id, event.target.checked) },
  });
  const silent = run.status === "training" && Date.now() / 1000 - run.updated > 300;
  return make("tr", { "data-run": run.id },
    make("td", {}, run.has_curve ? box : ""),
    make("th", { scope: "row" }, run.name, run.note ? make("small", {}, run.note) : null),
    make("td", {}, run.kind === "language-model" ? "base" : run.kind),
    make("td", {}, make("span", { class: `status ${run.status}` }, run.status),
      silent ? make("small", {}, "no news: stopped?") : null),
    make("td", {}, run.score ? run.score.text : "", run.score ? make("small", {}, run.score.name) : null),
    make("td", {}, ago(run.updated)),
    make("td", {}, run.has_report
      ? make("button", { type: "button", "aria-label": `Report of ${run.name}`, on: { click: () => showReport(run) } }, "Open") : ""),
  );
}

function choose(id, isOn) {
  hasChosen = true;
  if (isOn) chosen.add(id);
  else chosen.delete(id);
  attempt(readCurves);
}

function showRows() {
  const place = find("runs-rows");
  const focused = document.activeElement?.closest?.("#runs-rows [data-run]");
  const key = focused && [focused.dataset.run, document.activeElement.tagName];
  place.replaceChildren(...rows.map(rowOf));
  // The list is made anew every moment: whoever stood in it stands there again.
  if (key) place.querySelector(`tr[data-run="${key[0]}"] ${key[1].toLowerCase()}`)?.focus();
  find("runs-none").hidden = rows.length > 0;
}

async function readRows() {
  const before = JSON.stringify(rows);
  rows = (await get("/api/runs")).runs;
  onRows(rows);
  const first = rows.find((run) => run.has_curve);
  if (!hasChosen && first) {
    chosen.clear();
    chosen.add(first.id);
  }
  if (JSON.stringify(rows) !== before || rows.some((run) => run.status === "training")) showRows();
}

async function readCurves() {
  const there = rows.filter((run) => run.has_curve && chosen.has(run.id));
  let hasChanged = false;
  for (const run of there) {
    const curve = curves.get(run.id) ?? { cursor: "", records: [] };
    curves.set(run.id, curve);
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
  }
  showCurves(there, hasChanged);
}

let lastShown = "";

function showCurves(there, hasChanged) {
  find("curves-panel").hidden = there.length === 0;
  if (there.length === 0) return;
  const names = new Set();
  for (const run of there) {
    for (const record of curves.get(run.id).records) for (const name of Object.keys(record)) names.add(name);
  }
  for (const name of ["step", "epoch"]) names.delete(name);
  const select = find("curve-metric");
  const isNew = !select.value;
  fillSelect(select, [...names].map((name) => [name, name.replaceAll("_", " ")]));
  if (isNew && names.has("loss")) select.value = "loss";
  const metric = select.value;
  const shown = `${metric} ${there.map((run) => run.id).join(" ")}`;
  if (!hasChanged && shown === lastShown) return;
  lastShown = shown;
  const lines = there.map((run) => {
    const records = curves.get(run.id).records.filter((record) => typeof record[metric] === "number");
    return { name: run.name, x: records.map((record) => record.step), y: records.map((record) => record[metric]) };
  });
  drawLines(find("curve-plot"), lines, { x: "step", y: metric.replaceAll("_", " ") });
  find("curve-told").replaceChildren(...lines.map((line) => make("li", {}, line.x.length
    ? `${line.name}: step ${line.x.at(-1).toLocaleString("en")}, ${metric.replaceAll("_", " ")} ${Number(line.y.at(-1).toPrecision(4))}`
    : `${line.name}: nothing of this yet`)));
}

function showReport(run) {
  find("report-title").textContent = `Report of ${run.name}`;
  const frame = find("report-frame");
  frame.title = `Report of ${run.name}`;
  frame.src = `/api/runs/${run.id}/report`;
  find("report-panel").hidden = false;
  find("report-panel").scrollIntoView({ block: "start" });
  find("report-close").focus();
}

export function start() {
  find("curve-metric").addEventListener("change", () => attempt(readCurves));
  find("report-close").addEventListener("click", () => {
    find("report-panel").hidden = true;
    find("report-frame").removeAttribute("src");
  });
  const turn = async () => {
    if (!document.hidden) {
      await attempt(async () => {
        await readRows();
        if (isVisible) await readCurves();
      });
    }
    setTimeout(turn, isVisible ? PAUSE : 4 * PAUSE);
  };
  return turn();
}

export async function show() {
  isVisible = true;
  await attempt(async () => {
    await readRows();
    showRows();
    lastShown = "";
    await readCurves();
  });
}

export function hide() {
  isVisible = false;
}
