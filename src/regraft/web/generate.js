// Text from a base: a beginning, and what the model makes follow it.
import { attempt, post } from "./api.js";
import { fillSelect, find, make, slider } from "./dom.js";

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
  const button = find("generate-form").querySelector("button");
  button.disabled = true;
  await attempt(async () => {
    const { text } = await post(`/api/runs/${find("generate-run").value}/generate`, { prompt, ...settings });
    const place = find("generate-result");
    const parts = text.startsWith(prompt) ? [make("span", { class: "prompt" }, prompt), text.slice(prompt.length)] : [text];
    place.replaceChildren(...parts);
    place.hidden = false;
  });
  button.disabled = false;
}

export function start() {
  const made = [
    ["temperature", "Temperature", 0, 2, 0.1, (value) => (value === 0 ? "0, the likeliest" : value.toFixed(1))],
    ["max_tokens", "New tokens", 5, 300, 5, String],
    ["seed", "Seed", 0, 50, 1, String],
  ];
  for (const [key, name, min, max, step, shown] of made) {
    find("generate-sliders").append(slider(name, {
      id: `generate-${key}`, min, max, step, value: settings[key], shown,
      onInput: (value) => {
        settings[key] = value;
      },
    }).element);
  }
  find("generate-form").addEventListener("submit", generate);
}

export function show() {}
export function hide() {}
