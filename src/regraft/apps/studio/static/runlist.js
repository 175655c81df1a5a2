// The list of runs. A row is made once and then changed in place: no click falls between two of them.
import { find, make } from "./dom.js";

const lines = new Map(); // run id -> its row, and how to change it
const unfolded = new Set(); // ids of blends whose bases are shown

function ago(seconds) {
  const gone = Math.max(Date.now() / 1000 - seconds, 0);
  if (gone < 60) return `${Math.floor(gone)} s ago`;
  if (gone < 3600) return `${Math.floor(gone / 60)} min ago`;
  if (gone < 86400) return `${Math.floor(gone / 3600)} h ago`;
  return new Date(seconds * 1000).toLocaleDateString();
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
  element.hidden = text === "";
}

function describe(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** What the button says that unfolds the bases of a blend. */
function foldedText(parts) {
  const num = parts.filter((part) => part.status === "training").length;
  const bases = parts.length === 1 ? "1 base" : `${parts.length} bases`;
  return parts.length === 0 ? "" : num ? `${bases}, ${num} training` : bases;
}

function newLine(id, { onChoose, onReport, onFold }) {
  let run;
  const box = make("input", { type: "checkbox", on: { change: () => onChoose(run, box.checked) } });
  const fold = make("button", { type: "button", class: "fold", on: { click: () => onFold(id) } });
  const open = make("button", { type: "button", on: { click: () => onReport(run, open) } }, "Open");
  const name = make("span"), note = make("small"), kind = make("td"), changed = make("td");
  const status = make("span"), score = make("span"), scoreName = make("small");
  const element = make("tr", { "data-run": id }, make("td", {}, box), make("th", { scope: "row" }, name, note),
    kind, make("td", {}, status), make("td", {}, score, scoreName), changed, make("td", {}, open));
  const update = (now, { isChosen, parts }) => {
    run = now;
    box.checked = isChosen;
    box.hidden = !canCompare(run);
    open.hidden = !run.has_report;
    // What is ticked stays in sight.
    element.hidden = run.part_of !== "" && !isChosen && !unfolded.has(run.part_of);
    describe(element, "class", run.part_of ? "part" : "");
    describe(box, "aria-label", `Compare ${run.name}`);
    describe(open, "aria-label", `Report of ${run.name}`);
    describe(fold, "aria-expanded", String(unfolded.has(id)));
    describe(status, "class", `status ${run.status}`);
    say(name, run.name);
    say(note, run.note);
    say(fold, foldedText(parts));
    if (parts.length === 0) fold.remove();
    else if (!fold.isConnected) note.after(fold);
    kind.textContent = run.kind === "language-model" ? "base" : run.kind;
    say(status, run.status);
    say(score, run.score?.text ?? "");
    say(scoreName, run.score?.name ?? "");
    if (changed.textContent !== ago(run.updated)) changed.textContent = ago(run.updated);
  };
  return { element, update };
}

/** Can it be ticked? A comparison has a report of its own, and what is damaged has nothing to say. */
export function canCompare(run) {
  return run.status !== "damaged" && run.kind !== "comparison" && (run.has_curve || run.score !== null);
}

/** Bring the list up to date. `onChoose(run, isOn)` and `onReport(run, button)` handle clicks. */
export function showList(rows, { isChosen, onChoose, onReport }) {
  const place = find("runs-rows");
  const focused = document.activeElement;
  const again = () => showList(rows, { isChosen, onChoose, onReport });
  const onFold = (id) => {
    if (!unfolded.delete(id)) unfolded.add(id);
    again();
  };
  const present = new Set(rows.map((run) => run.id));
  for (const [id, line] of lines) {
    if (present.has(id)) continue;
    line.element.remove();
    lines.delete(id);
  }
  const parts = new Map(rows.map((run) => [run.id, []]));
  for (const run of rows) parts.get(run.part_of)?.push(run);
  rows.forEach((run, index) => {
    if (!lines.has(run.id)) lines.set(run.id, newLine(run.id, { onChoose, onReport, onFold }));
    const line = lines.get(run.id);
    line.update(run, { isChosen: isChosen(run), parts: parts.get(run.id) });
    if (place.children[index] !== line.element) place.insertBefore(line.element, place.children[index] ?? null);
  });
  // A row that changed its place took the focus with it, and lost it on the way.
  if (focused !== document.activeElement && place.contains(focused)) focused.focus({ preventScroll: true });
  find("runs-none").hidden = rows.length > 0;
}
