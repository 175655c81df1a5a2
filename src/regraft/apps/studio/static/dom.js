// Elements made from values. Text is always a text node: whatever a review holds, it is only read.

/** An element with attributes and children; strings become text nodes, null is left out. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    } else if (value !== null && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

export const find = (id) => document.getElementById(id);

/** A labelled slider, with a field to type its value; `onInput` receives every new value. `grain` is the step of typed ones. */
export function slider(name, { id, min, max, step = 1, grain = step, value, shown = String, onInput }) {
  const input = make("input", { type: "range", id, min, max, step });
  const typed = make("input", { type: "number", id: `${id}-typed`, "aria-label": `${name}, typed`, min, max, step: grain, inputmode: "decimal" });
  const set = (number) => {
    input.value = number;
    typed.value = number;
    input.setAttribute("aria-valuetext", shown(number));
  };
  const bound = (least, most) => {
    for (const one of [input, typed]) Object.assign(one, { min: least, max: most });
    typed.title = `${least} to ${most}`;
  };
  input.addEventListener("input", () => {
    set(Number(input.value));
    onInput(Number(input.value));
  });
  typed.addEventListener("change", () => {
    const wanted = typed.value === "" ? Number(input.value) : Number(typed.value);
    const kept = Math.min(Math.max(Number((Math.round(wanted / grain) * grain).toFixed(6)), Number(input.min)), Number(input.max));
    set(kept);
    onInput(kept);
  });
  bound(min, max);
  set(value);
  return { element: make("div", { class: "slider" }, make("label", { for: id }, name), typed, input), input, typed, set, bound };
}

/** Fill a <select>, keeping the choice if it is still there. */
export function fillSelect(select, options) {
  const before = select.value;
  const same = select.options.length === options.length
    && options.every(([value, text], place) => select.options[place].value === value && select.options[place].text === text);
  if (same) return;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  if (options.some(([value]) => value === before)) select.value = before;
}

/** The share of a bar, for the style sheet. */
export function bar(share) {
  const element = make("span", { class: "share", "aria-hidden": "true" });
  element.style.setProperty("--part", `${(100 * share).toFixed(1)}%`);
  return element;
}

/** Runs `work` when calls have ceased for a moment. */
export function calmly(work, milliseconds = 250) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), milliseconds);
  };
}
