// Where the parameters come from: the terms of ledger.py, so that a slider answers at once.
// A test compares both over random shapes; the page asks the server whenever a slider rests.

const term = (name, formula, count) => ({ name, formula, count });

const linear = (name, d, outputs = d, letter = "d") => [
  term(`${name} weight`, letter === "d" ? "d²" : `${letter} d`, outputs * d),
  term(`${name} bias`, letter, outputs),
];

function layers(family, { d, F, L }) {
  const layered = (name, formula, count) => term(name, `L · ${formula}`, L * count);
  if (family === "bag") return [];
  if (family === "modern") {
    return [
      layered("query, key, value weights", "3 d²", 3 * d * d),
      layered("output projection weight", "d²", d * d),
      layered("feed-forward weights (values, gates, down)", "3 d F", 3 * d * F),
      term("biases", "0", 0),
      term("norms before attention, from layer 2 on (gain)", "(L - 1) d", (L - 1) * d),
      layered("norms before feed-forward (gain)", "d", d),
    ];
  }
  return [
    layered("query, key, value weights", "3 d²", 3 * d * d),
    layered("query, key, value biases", "3 d", 3 * d),
    layered("output projection weight", "d²", d * d),
    layered("output projection bias", "d", d),
    layered("feed-forward weights", "2 d F", 2 * d * F),
    layered("feed-forward biases", "(F + d)", F + d),
    layered("norms (2 gains, 2 offsets)", "4 d", 4 * d),
  ];
}

function base(family, shape) {
  const { V, d, M, N } = shape;
  const embedding = term("token embedding", "V d", V * d);
  if (family === "lab") return [embedding, term("sinusoidal positions", "0", 0), ...layers(family, shape)];
  if (family === "bert") {
    return [
      embedding,
      term("learned positions", "M d", M * d),
      term("token types", "2 d", 2 * d),
      term("embedding norm (gain, offset)", "2 d", 2 * d),
      ...layers(family, shape),
    ];
  }
  if (family === "bag") return [embedding, term("pairs of neighbours", "N d", N * d)];
  return [
    embedding,
    term("rotary positions", "0", 0),
    term("embedding norm (gain)", "d", d),
    ...layers(family, shape),
    term("final norm (gain)", "d", d),
  ];
}

function transform(family, d) {
  if (family === "modern") return [term("transform weight", "d²", d * d), term("transform norm (gain)", "d", d)];
  return [...linear("transform", d), term("transform norm (gain, offset)", "2 d", 2 * d)];
}

function languageHead(family, objective, { V, d }) {
  if (objective === "contrast") return [];
  if (family === "lab") return linear("head", d, V, "V");
  const scores = [...transform(family, d), term("head weight, tied to the embedding", "0", 0), term("head bias", "V", V)];
  if (objective !== "bert") return scores;
  return [...scores, ...linear("pooler", d), ...linear("pair", d, 2, "2")];
}

function classifierHead(family, pooling, { d, C }) {
  const head = linear("head", d, C, "C");
  if (family === "bert" && pooling === "first") return [...linear("pooler", d), ...head];
  return family === "modern" ? [...transform(family, d), ...head] : head;
}

/** All terms of a preset in the shape V, d, L, C; `what` is "language" or "classifier". */
export function terms(preset, { V, d, L, C }, what) {
  const { family, objective, pooling, M, N, factor } = preset;
  const shape = { V, d, L, C, M, N, F: d * factor };
  const head = what === "classifier" ? classifierHead(family, pooling, shape) : languageHead(family, objective, shape);
  return [...base(family, shape), ...head];
}

export const total = (found) => found.reduce((sum, one) => sum + one.count, 0);
