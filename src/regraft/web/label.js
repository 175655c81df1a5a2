// Label by keyboard: a text, a key for each class. The server has it on disk before the next text.
import { Refusal, attempt, clearProblem, get, post, showProblem } from "./api.js";
import { fillSelect, find, make } from "./dom.js";
import { drawBand } from "./plots.js";

const PAUSE = 1500;
const WHY = {
  uncertainty: "Of all texts, the model is least sure of this one.",
  diversity: "This text is least like those labelled so far.",
  random: "Drawn at random.",
};

let state = null;
let text = null;
let isBusy = false;
let isVisible = false;
let lastCurve = "";

function showState() {
  const hasClasses = state.classes.length > 0;
  find("classes-form").hidden = hasClasses;
  find("label-work").hidden = !hasClasses;
  if (!hasClasses) return;
  fillSelect(find("label-query"), Object.entries(state.queries));
  find("label-query").value = state.query;
  const group = find("label-buttons");
  if (group.childElementCount !== state.classes.length) {
    group.replaceChildren(...state.classes.map((name, place) =>
      make("button", { type: "button", on: { click: () => give(place) } }, make("kbd", {}, String(place + 1)), " ", make("bdi", {}, name))));
  }
  find("label-undo").disabled = state.num_labelled === 0;
  const counts = Object.entries(state.counts).map(([name, num]) => `${name} ${num}`).join(", ");
  const waits = state.is_ready ? "" : " The texts are being read; until then they are shown at random.";
  find("label-told").textContent = state.trouble
    || `${state.num_labelled.toLocaleString("en")} of ${state.num_texts.toLocaleString("en")} texts are labelled (${counts}), all saved in ${state.file}.${waits}`;
  find("label-last").replaceChildren(...state.last.map((one) =>
    make("li", {}, make("strong", {}, make("bdi", {}, one.label)), one.use === "evaluation" ? " (to judge by)" : "", " ", make("bdi", {}, one.text))));
  showCurve();
}

function showCurve() {
  const curve = state.curve;
  const told = JSON.stringify(curve);
  if (told === lastCurve) return;
  lastCurve = told;
  const column = (name) => curve.map((point) => point[name]);
  drawBand(find("label-plot"), { x: column("num"), y: column("accuracy"), low: column("low"), high: column("high") },
    { xTitle: "labels learned from", yTitle: "accuracy" });
  const newest = curve.at(-1);
  const percent = (share) => `${(100 * share).toFixed(0)} %`;
  find("label-score").textContent = newest
    ? `With ${newest.num} labels: ${percent(newest.accuracy)} [${percent(newest.low)}, ${percent(newest.high)}] on ${state.num_evaluation} text${state.num_evaluation === 1 ? "" : "s"} drawn at random.`
    : "The curve begins when two classes have a label to learn from and one text was drawn to judge by.";
}

function showText() {
  const isThere = text.number !== null;
  find("label-text").textContent = isThere ? text.text : "All texts are labelled or skipped.";
  for (const button of find("label-buttons").children) button.disabled = !isThere;
  find("label-skip").disabled = !isThere;
  const guess = isThere && text.guess ? ` The model guesses ${text.guess.label} (${(100 * text.guess.probability).toFixed(0)} %).` : "";
  find("label-why").textContent = !isThere ? ""
    : text.use === "evaluation" ? `Drawn at random, to judge by: nothing is learned from it. Row ${text.row}.`
      : `${WHY[text.query]}${guess} Row ${text.row}.`;
}

/** One write at a time: keys that are pressed meanwhile are not lost texts but no keys. */
async function write(action, body) {
  if (isBusy) return;
  isBusy = true;
  await attempt(async () => {
    state = await post(`/api/label/${action}`, body);
    if (state.classes.length > 0) text = await get("/api/label/next");
    showState();
    if (text) showText();
  });
  isBusy = false;
}

const give = (place) => text?.number != null && place < state.classes.length
  && write("give", { number: text.number, label: state.classes[place] });

function onKey(event) {
  if (!isVisible || !state?.classes.length || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.target.closest("input, textarea, select")) return;
  if (/^[1-9]$/.test(event.key)) give(Number(event.key) - 1);
  else if (event.key === "u" || event.key === "Backspace") write("undo", {});
  else if (event.key === "s" && text?.number != null) write("skip", { number: text.number });
  else return;
  event.preventDefault();
}

async function look() {
  try {
    const found = await get("/api/label");
    if (isBusy) return;
    state = found;
    if (state.classes.length > 0 && !text) {
      text = await get("/api/label/next");
      showState();
      showText();
    } else {
      showState();
    }
    find("label-none").hidden = true;
    clearProblem();
  } catch (error) {
    if (error instanceof Refusal && error.status === 404) {
      find("label-none").textContent = error.message;
      find("label-none").hidden = false;
    } else {
      showProblem(error);
    }
  }
}

export function start() {
  find("classes-form").addEventListener("submit", (event) => {
    event.preventDefault();
    write("classes", { classes: find("classes-names").value.split(",").map((name) => name.trim()).filter(Boolean) });
  });
  find("label-undo").addEventListener("click", () => write("undo", {}));
  find("label-skip").addEventListener("click", () => write("skip", { number: text.number }));
  find("label-query").addEventListener("change", (event) => {
    write("query", { query: event.target.value });
    event.target.blur(); // else the next key would choose another query
  });
  document.addEventListener("keydown", onKey);
  const turn = async () => {
    if (isVisible && !document.hidden && !isBusy) await look();
    setTimeout(turn, PAUSE);
  };
  turn();
}

export async function show() {
  isVisible = true;
  lastCurve = "";
  await look();
}

export function hide() {
  isVisible = false;
}
