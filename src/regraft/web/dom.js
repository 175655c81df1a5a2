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

/** A labelled slider with its value beside it; `onInput` is told every new value. */
export function slider(name, { id, min, max, step = 1, value, shown = String, onInput }) {
  const output = make("output", { for: id });
  const input = make("input", { type: "range", id, min, max, step, value });
  const show = () => {
    output.textContent = shown(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => {
    show();
    onInput(Number(input.value));
  });
  show();
  const set = (number) => {
    input.value = number;
    show();
  };
  return { element: make("div", { class: "slider" }, make("label", { for: id }, name), output, input), input, set };
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
