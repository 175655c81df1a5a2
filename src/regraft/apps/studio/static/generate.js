// Text from a base: a beginning, and what the model makes follow it.
import { obey, post } from "./api.js";
import { fillSelect, find, make, slider } from "./dom.js";

const NUM_SEEDS = 1000;
const sliders = {};
const settings = { temperature: 0.8, max_tokens: 60, seed: 0 };

export function setRuns(all) {
  const runs = all.filter((run) => run.can_continue);
  fillSelect(find("generate-run"), runs.map((run) => [run.id, run.name]));
  find("generate-none").hidden = runs.length > 0;
  find("generate-form").hidden = runs.length === 0;
}

async function generate(event) {
  event.preventDefault();
  const prompt = find("generate-prompt").value;
  const run = find("generate-run");
  const { seed, temperature } = settings;
  const button = find("generate-form").querySelector("button");
  button.disabled = true;
  find("generate-status").textContent = "Word after word …";
  const place = find("generate-result");
  const isDone = await obey(async () => {
    const { text } = await post(`/api/runs/${run.value}/generate`, { prompt, ...settings });
    const parts = text.startsWith(prompt) ? [make("span", { class: "prompt" }, prompt), text.slice(prompt.length)] : [text];
    place.replaceChildren(...parts);
    // The next click draws another text; the same seed gives this one again.
    if (temperature > 0 && settings.seed === seed) setSeed((seed + 1) % NUM_SEEDS);
  });
  place.hidden = !isDone;
  find("generate-status").textContent = !isDone ? "" : temperature > 0
    ? `This is seed ${seed}; the next one will be another text.` : "At temperature 0 it is always the same text.";
  button.disabled = false;
}

function setSeed(seed) {
  settings.seed = seed;
  sliders.seed.set(seed);
}

export function start() {
  const made = [
    ["temperature", "Temperature", 0, 2, 0.1, (value) => (value === 0 ? "0, the likeliest" : String(value))],
    ["max_tokens", "New tokens", 5, 300, 5],
    ["seed", "Seed", 0, NUM_SEEDS - 1, 1],
  ];
  for (const [key, name, min, max, step, shown] of made) {
    sliders[key] = slider(name, {
      id: `generate-${key}`, min, max, step, value: settings[key], shown,
      onInput: (value) => {
        settings[key] = value;
      },
    });
    find("generate-sliders").append(sliders[key].element);
  }
  find("generate-form").addEventListener("submit", generate);
  find("generate-prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("generate-form").requestSubmit();
  });
}

export function show() {}
export function hide() {}
