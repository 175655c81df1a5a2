// What the page asks of the server. A refusal comes in three parts and is shown as one sentence.
import { find } from "./dom.js";

export class Refusal extends Error {
  constructor(status, parts) {
    super([parts.problem, parts.expected, parts.remedy].filter(Boolean).join(" "));
    this.status = status;
  }
}

async function answer(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Refusal(0, { problem: "The studio does not answer.", remedy: "Is `regraft studio` still running?" });
  }
  const values = await response.json().catch(() => ({ problem: `The answer ${response.status} is not readable.` }));
  if (!response.ok) throw new Refusal(response.status, values);
  return values;
}

export const get = (path) => answer(path);
export const post = (path, body) =>
  answer(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

/** Show a problem at the top of the page until something works again. */
export function showProblem(error) {
  const place = find("problem");
  const text = error instanceof Refusal ? error.message : `The page failed: ${error.message}`;
  if (place.textContent !== text) place.textContent = text;
  place.hidden = false;
}

export function clearProblem() {
  find("problem").hidden = true;
  find("problem").textContent = "";
}

/** Do something that may be refused; true if it worked. */
export async function attempt(work) {
  try {
    await work();
    clearProblem();
    return true;
  } catch (error) {
    showProblem(error);
    return false;
  }
}
