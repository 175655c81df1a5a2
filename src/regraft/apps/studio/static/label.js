// Label by keyboard: a text, a key for each class. The server has it on disk before the next text.
import { Refusal, attempt, get, obey, post } from "./api.js";
import { fillSelect, find, make } from "./dom.js";
import { drawBand } from "./plots.js";

const PAUSE = 1500;

let state = null;
let text = null;
let isBusy = false;
const missed = { num: 0, at: 0 };
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
  const named = JSON.stringify(state.classes);
  if (group.dataset.classes !== named) {
    group.dataset.classes = named;
    group.replaceChildren(...state.classes.map(classButton));
  }
  find("label-undo").disabled = !state.can_undo;
  const counts = Object.entries(state.counts).map(([name, num]) => `${name} ${num}`).join(", ");
  const waits = state.is_ready || state.training?.runs.length ? "" : " The texts are being read; until then they are shown at random.";
  const twins = state.num_duplicates ? ` Duplicates left out: ${state.num_duplicates.toLocaleString("en")}.` : "";
  find("label-status").textContent = state.trouble
    || `${state.num_labelled.toLocaleString("en")} of ${state.num_texts.toLocaleString("en")} texts are labelled (${counts}), all saved in ${state.file}.${twins}${waits}`;
  find("label-last").replaceChildren(...state.last.map((one) =>
    make("li", {}, make("strong", {}, make("bdi", {}, one.label)), one.use === "evaluation" ? " (evaluation)" : "", " ", make("bdi", {}, one.text))));
  find("label-before").hidden = state.last.length === 0;
  showCurve();
  showTraining();
}

const TRAINED = {
  "": "", running: "Training", stopping: "Stopping.", stopped: "Stopped. The next training begins again.",
  failed: "The training failed.", interrupted: "The last training was interrupted. The next one begins again.",
};

/** Said only when it changes, or a screen reader would repeat it. */
function say(place, words) {
  if (find(place).textContent !== words) find(place).textContent = words;
}

function showTraining() {
  const training = state.training;
  find("training").hidden = training === null;
  if (training === null) return;
  const isOn = training.status === "running" || training.status === "stopping";
  find("training-start").hidden = isOn;
  find("training-start").disabled = !state.can_train;
  find("training-stop").hidden = !isOn;
  find("training-stop").disabled = training.status === "stopping";
  say("training-command", training.command);
  const missing = state.can_train || isOn ? "" : `It needs ${state.num_needed} labels, of two classes.`;
  say("training-status", [TRAINED[training.status], missing].filter(Boolean).join(" "));
  const seconds = isOn ? ` (${training.seconds.toFixed(0)} s)` : "";
  say("training-line", training.status === "" || training.status === "interrupted" ? "" : `${training.line}${seconds}`);
  find("training-runs").hidden = training.runs.length === 0;
  const shown = JSON.stringify(training.runs);
  if (find("training-rows").dataset.shown !== shown) {
    find("training-rows").dataset.shown = shown;
    find("training-rows").replaceChildren(...training.runs.map((run) => make("tr", {},
      make("th", { scope: "row" }, run.name), make("td", { class: "number" }, run.num_labels.toLocaleString("en")), make("td", {}, run.score))));
    find("training-notes").replaceChildren(...training.notes.map((note) => make("li", {}, note)));
  }
}

/** It gives the class that it names, whatever the server has named since. */
function classButton(name, place) {
  return make("button", { type: "button", disabled: !isOffered(), on: { click: () => give(name) } },
    make("kbd", {}, String(place + 1)), " ", make("bdi", {}, name));
}

function showCurve() {
  const curve = state.curve;
  find("label-plot").hidden = curve.length === 0;
  const drawn = JSON.stringify(curve);
  if (drawn === lastCurve) return;
  lastCurve = drawn;
  const column = (name) => curve.map((point) => point[name]);
  if (curve.length) drawBand(find("label-plot"), { x: column("num"), y: column("accuracy"), low: column("low"), high: column("high") },
    { xTitle: "labels learned from", yTitle: "accuracy" });
  const newest = curve.at(-1);
  const percent = (share) => (100 * share).toFixed(0);
  find("label-score").textContent = newest
    ? `With ${newest.num} labels: ${percent(newest.accuracy)} % (${percent(newest.low)} to ${percent(newest.high)}) on ${state.num_evaluation} text${state.num_evaluation === 1 ? "" : "s"} drawn at random.`
    : "The curve begins when two classes have a label to learn from, and a text for evaluation has one.";
}

/** Why this text: the query that is chosen needs something to go by, and says so while it has nothing. */
function why() {
  if (text.use === "evaluation") return "Drawn at random for evaluation: nothing is learned from it.";
  if (text.query === "uncertainty") return "Of all texts, the model is least sure of this one.";
  if (text.query === "random") return state.query === "random" ? "Drawn at random." : "Drawn at random, while the texts are being read.";
  if (state.num_labelled === 0) return "The first text is the one most like all others.";
  return state.query === "diversity" ? "This text is least like those labelled so far."
    : "Nothing is learned yet. Until then texts are to differ: this one is least like those labelled so far.";
}

function showText() {
  const isThere = isOffered();
  state.classes.forEach((name, place) => {
    const button = find("label-buttons").children[place];
    button.disabled = !isThere;
    button.classList.toggle("guess", isThere && text.guess?.label === name);
  });
  find("label-skip").disabled = !isThere;
  const guess = isThere && text.guess ? ` The model guesses ${text.guess.label} (${(100 * text.guess.probability).toFixed(0)} %); Enter agrees.` : "";
  find("label-why").textContent = isThere ? `${why()}${guess} ${text.place}.` : "";
  showReading(isThere ? text.text : "All texts are labelled or skipped.");
}

/** A new element for each text: it begins at its beginning, and a screen reader announces it when focus moves there. */
function showReading(words) {
  const before = find("label-text");
  const height = before.offsetHeight;
  const typed = document.activeElement?.closest("input, textarea, select");
  const place = make("div", {
    id: "label-text", class: "reading", dir: "auto", tabindex: 0, role: "article", "aria-label": "Text to label", "aria-describedby": "label-text",
  }, words);
  // As high as the highest so far: buttons that move with every text are missed.
  place.style.setProperty("--height", `${height}px`);
  before.replaceWith(place);
  if (isVisible && !typed?.offsetParent) place.focus();
}

async function next() {
  text = await get("/api/label/next");
  showState();
  showText();
}

const isOverdue = () => Date.now() - missed.at > 2 * PAUSE;

/** One write at a time: a key that is pressed meanwhile was not meant for a text that nobody has seen. */
async function write(action, body) {
  if (isBusy) {
    missed.num = isOverdue() ? 1 : missed.num + 1;
    missed.at = Date.now();
    return;
  }
  isBusy = true;
  await obey(async () => {
    try {
      state = await post(`/api/label/${action}`, body);
    } catch (error) {
      if (error instanceof Refusal && error.status === 409 && state?.classes.length) await next();
      throw error;
    }
    if (state.classes.length > 0) await next();
    else showState();
  });
  isBusy = false;
  find("label-missed").textContent = isOverdue() ? ""
    : `${missed.num} ${missed.num === 1 ? "press" : "presses"} came before the next text was shown, and did nothing.`;
}

const isOffered = () => (text?.number ?? null) !== null;

const give = (name) => isOffered() && write("give", { number: text.number, label: name });

function onKey(event) {
  if (!isVisible || !state?.classes.length || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.target.closest("input, textarea, select")) return;
  if (/^[1-9]$/.test(event.key)) find("label-buttons").children[Number(event.key) - 1]?.click();
  else if (event.key === "u" || event.key === "Backspace") write("undo", {});
  else if (event.key === "s" && isOffered()) write("skip", { number: text.number });
  else if (event.key === "t" && !find("training-start").disabled && !find("training-start").hidden) write("train", {});
  else if (event.key === "Enter" && text?.guess && !event.target.closest("button, a, summary")) give(text.guess.label);
  else return;
  event.preventDefault();
}

async function look() {
  try {
    const found = await get("/api/label");
    if (isBusy) return;
    // The text that is shown stays, with the guess of the new run.
    const isTrained = state !== null && state.training?.runs.length !== found.training?.runs.length;
    state = found;
    find("label-none").hidden = true;
    showState();
    if (state.classes.length === 0 || (isOffered() && !isTrained)) return;
    // Where all was labelled, another window may have taken something back.
    const offered = await get("/api/label/next");
    if (isBusy || (text && offered.number === null)) return;
    text = offered;
    showText();
  } catch (error) {
    if (!(error instanceof Refusal && error.status === 404)) throw error;
    find("label-none").textContent = error.message;
    find("label-none").hidden = false;
  }
}

export function start() {
  find("classes-form").addEventListener("submit", (event) => {
    event.preventDefault();
    write("classes", { classes: find("classes-names").value.split(",").map((name) => name.trim()).filter(Boolean) });
  });
  find("label-undo").addEventListener("click", () => write("undo", {}));
  find("training-start").addEventListener("click", () => write("train", {}));
  find("training-stop").addEventListener("click", () => write("stop", {}));
  find("label-skip").addEventListener("click", () => write("skip", { number: text.number }));
  find("label-query").addEventListener("change", (event) => {
    write("query", { query: event.target.value });
    event.target.blur(); // else the next key would choose another query
  });
  document.addEventListener("keydown", onKey);
  const turn = async () => {
    if (isVisible && !document.hidden && !isBusy) await attempt(look);
    setTimeout(turn, PAUSE);
  };
  turn();
}

export async function show() {
  isVisible = true;
  lastCurve = "";
  await attempt(look);
}

export function hide() {
  isVisible = false;
}
