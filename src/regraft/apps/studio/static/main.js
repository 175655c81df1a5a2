// The views of the page: which one is shown, and which modules receive the runs.
import * as api from "./api.js";
import * as attempts from "./attempt.js";
import * as generates from "./generate.js";
import * as insides from "./inside.js";
import * as labels from "./label.js";
import * as runs from "./runs.js";

const views = { runs, try: attempts, inside: insides, label: labels, generate: generates };
let current = null;

function named() {
  const name = location.hash.slice(1).split("?")[0];
  return name in views ? name : "runs";
}

function change(isFirst) {
  const name = named();
  if (location.hash === "#main" && current) return; // the skip link
  if (current) views[current].hide();
  api.forgetProblem();
  current = name;
  for (const each of Object.keys(views)) document.getElementById(`view-${each}`).hidden = each !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const title = document.querySelector(`#view-${name} h1`).textContent;
  document.title = `${title} · regraft studio`;
  views[name].show();
  if (!isFirst) {
    document.getElementById("main").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

runs.watchRows((rows) => {
  attempts.setRuns(rows);
  generates.setRuns(rows);
  insides.setRuns(rows);
});
api.start();
for (const view of [attempts, insides, labels, generates]) view.start();
addEventListener("hashchange", () => change(false));
change(true);
runs.start();
