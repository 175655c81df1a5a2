// What the page asks of the server. A refusal comes in three parts and is shown as one sentence.
import { find, make } from "./dom.js";

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

// Two kinds of problems: what a person asked for was refused, which stays until they do something else or close it;
// and what the page reads by itself failed, which goes when it works again.
const problems = { asked: "", watched: "" };

function tell(kind, text) {
  if (problems[kind] === text) return;
  problems[kind] = text;
  const texts = [...new Set(Object.values(problems).filter(Boolean))];
  find("problem-status").replaceChildren(...texts.map((one) => make("p", {}, one)));
  find("problem-close").hidden = problems.asked === "";
  find("problem").hidden = texts.length === 0;
}

const words = (error) => (error instanceof Refusal ? error.message : `The page failed: ${error.message}`);

/** What the page does by itself, again and again; true if it worked. */
export async function attempt(work) {
  try {
    await work();
    tell("watched", "");
    return true;
  } catch (error) {
    tell("watched", words(error));
    return false;
  }
}

/** What a person asked for; true if it worked. */
export async function obey(work) {
  forgetProblem();
  try {
    await work();
    return true;
  } catch (error) {
    tell("asked", words(error));
    return false;
  }
}

/** The person went on: what was refused before is no longer of interest. */
export const forgetProblem = () => tell("asked", "");

export function start() {
  find("problem-close").addEventListener("click", () => {
    forgetProblem();
    find("main").focus({ preventScroll: true });
  });
}
