// The view of the runs: what is asked of the server and when, which runs are chosen, and reports.
import { attempt, get } from "./api.js";
import { chooseMetric, forgetDrawn, showChosen } from "./curves.js";
import { find } from "./dom.js";
import { canCompare, showList } from "./runlist.js";

const PAUSE = 1500;
const chosen = new Set(); // names of runs
let rows = [];
let hasChosen = false;
let isVisible = false;
let reportOpener = null;
let onRows = () => {};

/** Call back with the runs whenever they are read. */
export function watchRows(listener) {
  onRows = listener;
}

function choose(run, isOn) {
  hasChosen = true;
  if (isOn) chosen.add(run.name);
  else chosen.delete(run.name);
  keepChoice();
  attempt(readChosen);
}

/** The choice stands in the address, so that it outlives a reload and can be kept as a bookmark. */
function keepChoice() {
  if (!hasChosen) return;
  const words = new URLSearchParams([...chosen].map((name) => ["run", name]));
  if (chosen.size === 0) words.set("run", "");
  if (find("curve-metric").value) words.set("show", find("curve-metric").value);
  history.replaceState(null, "", `#runs?${words}`);
}

function takeChoice() {
  const words = new URLSearchParams(location.hash.split("?")[1] ?? "");
  if (words.has("show")) chooseMetric(words.get("show"));
  if (!words.has("run")) {
    keepChoice();
    return;
  }
  hasChosen = true;
  chosen.clear();
  for (const name of words.getAll("run")) if (name) chosen.add(name);
}

/** Until somebody chooses: what trains, else the newest, but no part of a blend that is folded away. */
function chooseFirst() {
  const drawn = rows.filter((run) => run.has_curve && canCompare(run));
  const first = drawn.find((run) => run.status === "training") ?? drawn.find((run) => !run.part_of);
  chosen.clear();
  if (first) chosen.add(first.name);
}

async function readRows() {
  rows = (await get("/api/runs")).runs;
  onRows(rows);
  if (!hasChosen) chooseFirst();
  showList(rows, { isChosen: (run) => chosen.has(run.name), onChoose: choose, onReport: showReport });
}

function readChosen() {
  // In the order in which they were ticked: a line keeps its colour when another comes in.
  const found = [...chosen].map((name) => rows.find((run) => run.name === name && canCompare(run)));
  return showChosen(found.filter(Boolean));
}

function showReport(run, opener) {
  reportOpener = opener;
  find("report-title").textContent = `Report of ${run.name}`;
  const frame = find("report-frame");
  frame.title = `Report of ${run.name}`;
  frame.src = `/api/runs/${run.id}/report`;
  find("report-panel").hidden = false;
  find("report-panel").scrollIntoView({ block: "start" });
  find("report-close").focus({ preventScroll: true });
}

function closeReport() {
  find("report-panel").hidden = true;
  find("report-frame").removeAttribute("src");
  reportOpener?.focus();
  reportOpener = null;
}

export function start() {
  find("curve-metric").addEventListener("change", (event) => {
    chooseMetric(event.target.value);
    keepChoice();
    attempt(readChosen);
  });
  find("report-close").addEventListener("click", closeReport);
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isVisible && !find("report-panel").hidden) closeReport();
  });
  const turn = async () => {
    if (!document.hidden) {
      await attempt(async () => {
        await readRows();
        if (isVisible) await readChosen();
      });
    }
    setTimeout(turn, isVisible ? PAUSE : 4 * PAUSE);
  };
  return turn();
}

export async function show() {
  isVisible = true;
  await attempt(async () => {
    takeChoice();
    await readRows();
    forgetDrawn();
    await readChosen();
  });
}

export function hide() {
  isVisible = false;
}
