// Try it: a text, its label, its words in colours, and where the heads of the network look.
import { obey, post } from "./api.js";
import { bar, fillSelect, find, make } from "./dom.js";

// The most probable labels; a classifier may have thousands.
const MOST_LABELS = 10;

let runs = [];
let shown = null; // the run that gave the result on the page
let attention = null; // {tokens, weights, darkest, num_layers, num_heads, num_cut}
let head = { layer: 0, number: 0 };
let reader = 0;

export function setRuns(all) {
  runs = all.filter((run) => run.can_classify);
  fillSelect(find("try-run"), runs.map((run) => [run.id, run.name]));
  find("try-none").hidden = runs.length > 0;
  find("try-form").hidden = runs.length === 0;
  hideOthers();
}

/** A result stands for the run that is chosen, or it does not stand there. */
function hideOthers() {
  if (shown !== null && shown !== find("try-run").value) hideResult();
}

function hideResult() {
  shown = null;
  attention = null;
  find("try-result").hidden = true;
  find("try-status").textContent = "";
  showAttention();
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

function word({ text, level, score, is_unread: isUnread }) {
  if (isUnread) return make("span", { class: "rx-unread", title: "not read by the model" }, text);
  if (score === null || level === 0) return score === null ? text : make("span", { title: signed(score) }, text);
  const side = level > 0 ? "for" : "against";
  return make("mark", { class: `rx-${side} rx-${Math.abs(level)}`, title: `${side} the label: ${signed(score)}` }, text);
}

function legend(pieces) {
  const unread = pieces.some((piece) => piece.is_unread) ? " Grey words are not read by the model." : "";
  return `Blue with a solid line speaks for the label, orange with a dashed line against it.${unread}`;
}

const signed = (score, digits = 2) => `${score >= 0 ? "+" : "−"}${Math.abs(score).toFixed(digits)}`;

/** Two digits, or as many as the strongest of these words needs. */
function digitsOf(words) {
  const most = Math.max(...words.map(({ score }) => Math.abs(score)), 1e-6);
  return Math.max(1 - Math.floor(Math.log10(most)), 2);
}

/** The words that count most, in words: colours alone would tell nothing to who does not see them. */
function top(side, words, digits) {
  const counting = words.filter(({ score }) => Math.abs(score) >= 0.5 * 10 ** -digits);
  const rows = counting.map(({ text, score, count }) => make("tr", {},
    make("th", { scope: "row" }, make("bdi", {}, text), count > 1 ? make("small", {}, ` × ${count}`) : null),
    make("td", {}, signed(score, digits))));
  return make("table", { class: `rx-top rx-top-${side}` }, make("caption", {}, `${side} the label`),
    make("tbody", {}, ...(rows.length ? rows : [make("tr", {}, make("td", {}, "no word"))])));
}

function withoutAttention(run) {
  if (run.has_attention) return [];
  const why = run.kind === "blend" ? "a blend asks several models, and none of them decides alone" : "in this model no token reads another";
  return [make("p", { class: "note" }, `No attention is drawn: ${why}.`)];
}

function showResult(run, found) {
  const { for: pro, against } = found.strongest;
  const digits = digitsOf([...pro, ...against]);
  const chances = Object.entries(found.probabilities).sort((a, b) => b[1] - a[1]).slice(0, MOST_LABELS);
  find("try-result").replaceChildren(
    make("h2", { class: "verdict" }, make("bdi", { id: "try-label" }, found.label), make("span", { id: "try-chance" }, percent(found.probability))),
    make("dl", { class: "chances" }, ...chances.flatMap(([label, share]) =>
      [make("dt", {}, make("bdi", {}, label)), make("dd", {}, bar(share)), make("dd", {}, percent(share))])),
    make("div", { class: "rx" },
      make("p", { class: "rx-text", id: "try-words", dir: "auto" }, ...found.pieces.map(word)),
      make("p", { class: "note" }, legend(found.pieces)),
      make("div", { class: "rx-tops", id: "try-tops" }, top("for", pro, digits), top("against", against, digits)),
      make("ul", { class: "rx-facts" }, ...found.facts.map((fact) => make("li", {}, fact)))),
    ...withoutAttention(run),
  );
  find("try-result").hidden = false;
  find("try-status").textContent = `${run.name} says ${found.label}, ${percent(found.probability)}.`;
}

async function classify(event) {
  event.preventDefault();
  const run = runs.find((one) => one.id === find("try-run").value);
  const text = find("try-text").value;
  if (!run || !text) return;
  const button = find("try-form").querySelector("button");
  button.disabled = true;
  find("try-status").textContent = `${run.name} is asked …`;
  const isDone = await obey(async () => {
    const found = await post(`/api/runs/${run.id}/explain`, { text });
    attention = run.has_attention ? await post(`/api/runs/${run.id}/attention`, { text }) : null;
    if (attention) attention.weights = Uint8Array.from(atob(attention.weights), (letter) => letter.charCodeAt(0));
    shown = run.id;
    showResult(run, found);
    showAttention();
    hideOthers();
  });
  if (!isDone) hideResult();
  button.disabled = false;
}

/** What position `row` reads of each token, in one head: bytes, which `weightOf` and `depthOf` read. */
function reads(layer, number, row) {
  const length = attention.tokens.length;
  const start = ((layer * attention.num_heads + number) * length + row) * length;
  return attention.weights.subarray(start, start + length);
}

// A byte is the root of a weight, so that the many small weights of a long text differ, too.
const weightOf = (byte) => (byte / 255) ** 2;
/** From 0 to 1, where the strongest colour stands for the largest weights that are usual in this text. */
const depthOf = (byte) => Math.min(byte / 255 / Math.sqrt(attention.darkest), 1);

/** What in the tokens and colours needs a word, and only that. */
function scaleTold() {
  const all = attention.tokens.join("");
  return [
    attention.darkest < 1 ? `The strongest colour is ${Number((100 * attention.darkest).toPrecision(1))} % and more.` : "",
    all.includes("▁") ? "▁ is a space." : "",
    /<[0-9A-F]{2}>/.test(all) ? "<D9> and the like are bytes of a letter that was split." : "",
  ].filter(Boolean).join(" ");
}

function showAttention() {
  find("attention").hidden = attention === null;
  if (attention === null) return;
  head = { layer: attention.num_layers - 1, number: 0 };
  reader = attention.tokens.length - 1;
  const layers = Array.from({ length: attention.num_layers }, (_, layer) =>
    make("div", {}, ...Array.from({ length: attention.num_heads }, (_, number) => headButton(layer, number))));
  find("attention-heads").replaceChildren(...layers);
  find("attention-tokens").replaceChildren(...attention.tokens.map((token, place) =>
    make("span", { "data-place": place, tabindex: place === reader ? 0 : -1, role: "button" }, token.replaceAll("\n", "⏎"))));
  find("attention-scale").textContent = scaleTold();
  shade();
}

function headButton(layer, number) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const choose = () => {
    head = { layer, number };
    shade();
  };
  paint(canvas, layer, number);
  return make("button", {
    type: "button", "aria-label": `layer ${layer + 1}, head ${number + 1}`, "data-head": `${layer}.${number}`,
    on: { mouseenter: choose, focus: choose, click: choose },
  }, canvas);
}

function paint(canvas, layer, number) {
  const length = attention.tokens.length;
  canvas.width = canvas.height = length;
  const context = canvas.getContext("2d");
  const picture = context.createImageData(length, length);
  const [red, green, blue] = getComputedStyle(document.documentElement).getPropertyValue("--accent-rgb").trim().split(" ").map(Number);
  for (let row = 0; row < length; row += 1) {
    reads(layer, number, row).forEach((byte, column) => {
      picture.data.set([red, green, blue, 255 * depthOf(byte)], 4 * (row * length + column));
    });
  }
  context.putImageData(picture, 0, 0);
}

function shade() {
  const weights = reads(head.layer, head.number, reader);
  const spans = find("attention-tokens").children;
  weights.forEach((byte, place) => {
    spans[place].style.setProperty("--depth", depthOf(byte).toFixed(3));
    spans[place].classList.toggle("reader", place === reader);
  });
  for (const button of find("attention-heads").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", button.dataset.head === `${head.layer}.${head.number}`);
  }
  const best = weights.indexOf(Math.max(...weights));
  const cut = attention.num_cut ? ` Of this text, ${attention.num_cut} tokens at its end are not drawn.` : "";
  find("attention-status").textContent = `Layer ${head.layer + 1}, head ${head.number + 1}: `
    + `“${attention.tokens[reader]}” reads most of “${attention.tokens[best]}” (${percent(weightOf(weights[best]))}).${cut}`;
}

function read(place, isFocused) {
  if (place < 0 || place >= attention.tokens.length) return;
  const spans = find("attention-tokens").children;
  spans[reader].tabIndex = -1;
  reader = place;
  spans[reader].tabIndex = 0;
  if (isFocused) spans[reader].focus();
  shade();
}

export function start() {
  find("try-form").addEventListener("submit", classify);
  find("try-run").addEventListener("change", hideOthers);
  find("try-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("try-form").requestSubmit();
  });
  const tokens = find("attention-tokens");
  const placeOf = (event) => event.target.closest("[data-place]")?.dataset.place;
  for (const name of ["mouseover", "focusin", "click"]) {
    tokens.addEventListener(name, (event) => placeOf(event) !== undefined && read(Number(placeOf(event)), false));
  }
  tokens.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) {
      event.preventDefault();
      read(reader + step, true);
    }
  });
}

export function show() {}
export function hide() {}
