"""Where do the parameters come from? Every term in closed form, checked against the built model.

Comes in: the shape of a model. Goes out: a `Ledger` of terms, each with its formula and number;
what a token costs in arithmetic and a step in memory; the published wrong answers, term by term.
torch is imported only to build the model the count is checked against.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from regraft.config import SIZES, ModelSettings, Settings, with_size

SYMBOLS = {
    "V": "vocabulary",
    "d": "width",
    "L": "layers",
    "H": "heads",
    "F": "feed-forward width",
    "C": "classes",
    "T": "tokens a row",
    "B": "rows a step",
    "P": "parameters",
}


@dataclass(frozen=True)
class Term:
    """One summand: `formula` in the letters of `SYMBOLS`, `count` its value.

    `per_layer` is the share of one layer; None for a term outside the layers.
    """

    name: str
    formula: str
    count: int
    per_layer: int | None = None


@dataclass(frozen=True)
class Ledger:
    """The parameters of one model, and what it takes to train it with Adam in 32 bits.

    `terms` belong to the classifier when a number of classes was given, else to the language model.
    """

    symbols: dict[str, int]
    terms: tuple[Term, ...]
    base: int
    language_model: int
    classifier: int | None
    flops_per_token: tuple[Term, ...]
    training_memory_bytes: tuple[Term, ...]
    whole_scores_bytes: Term

    @property
    def total(self) -> int:
        """Parameters of the model the terms belong to."""
        return _sum(self.terms)

    @property
    def flops_forward(self) -> int:
        """Floating-point operations a token on the way forward."""
        return _sum(self.flops_per_token)

    @property
    def flops_forward_backward(self) -> int:
        """The way back computes two products for every one forward: three times as many in all."""
        return 3 * self.flops_forward

    @property
    def memory_bytes(self) -> int:
        """Estimate of what a training step holds, its scores in chunks."""
        return _sum(self.training_memory_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        counts: dict[str, Any] = {"base": self.base, "language_model": self.language_model}
        if self.classifier is not None:
            counts["classifier"] = self.classifier
        return {
            **counts,
            "symbols": self.symbols,
            "terms": [asdict(term) for term in self.terms],
            "flops_per_token": {
                "forward": self.flops_forward,
                "forward_backward": self.flops_forward_backward,
                "terms": [asdict(term) for term in self.flops_per_token],
            },
            "training_memory_bytes": {
                "total": self.memory_bytes,
                "terms": [asdict(term) for term in self.training_memory_bytes],
                "scores_if_held_whole": asdict(self.whole_scores_bytes),
            },
        }


# A size is worth its budget when every weight of its blocks is trained on at least so many tokens;
# a model with fewer has not left its random start. See docs/log.md for what was measured.
TOKENS_PER_WEIGHT = 5
# Share of the arithmetic of a large matrix product that training reaches.
REACHED_SHARE = 0.5


def size_for_budget(settings: Settings, *, flops_per_second: float) -> str:
    """The largest of SIZES that the minutes of the settings can train; at least the smallest."""
    assert settings.train.minutes is not None
    fitting = [next(iter(SIZES))]
    for size in SIZES:
        model = with_size(settings, size).model
        vocab_size = settings.tokenizer.size
        counted = ledger(
            model,
            vocab_size=vocab_size,
            max_length=settings.data.max_length,
            batch_size=settings.train.batch_size,
        )
        per_second = REACHED_SHARE * flops_per_second / counted.flops_forward_backward
        num_tokens = settings.train.minutes * 60 * per_second
        block_weights = counted.base - vocab_size * model.width
        if num_tokens >= TOKENS_PER_WEIGHT * block_weights:
            fitting.append(size)
    return fitting[-1]


@dataclass(frozen=True)
class Change:
    """A term as a wrong answer counts it; `difference` is wrong minus right."""

    term: str
    right: str
    wrong: str
    difference: int


@dataclass(frozen=True)
class WrongAnswer:
    """A common answer, recomputed for this shape from the formula that produces it."""

    name: str
    mistake: str
    published: str
    formula: str
    changes: tuple[Change, ...]
    base: int
    language_model: int
    classifier: int | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def ledger(
    model: ModelSettings,
    *,
    vocab_size: int,
    num_classes: int | None = None,
    max_length: int,
    batch_size: int,
) -> Ledger:
    """Count a language model, and a classifier on the same base when `num_classes` is given."""
    shape = _shape(model, vocab_size=vocab_size, num_classes=num_classes)
    shape |= {"T": max_length, "B": batch_size}
    base = _base_terms(shape)
    language_head = _head_terms(shape, num_outputs=vocab_size, letter="V")
    head = language_head
    classifier = None
    if num_classes is not None:
        head = _head_terms(shape, num_outputs=num_classes, letter="C")
        classifier = _sum(base) + _sum(head)
    shape["P"] = _sum(base) + _sum(head)
    return Ledger(
        symbols=shape,
        terms=(*base, *head),
        base=_sum(base),
        language_model=_sum(base) + _sum(language_head),
        classifier=classifier,
        flops_per_token=_flops(shape, num_classes=num_classes),
        training_memory_bytes=_memory(shape),
        whole_scores_bytes=_whole_scores(shape, num_classes=num_classes),
    )


def _shape(model: ModelSettings, *, vocab_size: int, num_classes: int | None) -> dict[str, int]:
    d = model.width
    width = d if model.feedforward_width == "auto" else model.feedforward_width
    shape = {"V": vocab_size, "d": d, "L": model.num_layers, "H": model.num_heads, "F": width}
    return shape if num_classes is None else {**shape, "C": num_classes}


def _sum(terms: Iterable[Term]) -> int:
    return sum(term.count for term in terms)


def _base_terms(shape: dict[str, int]) -> tuple[Term, ...]:
    V, d, L, F = (shape[letter] for letter in "VdLF")

    def layered(name: str, formula: str, count: int) -> Term:
        return Term(name, f"L · {formula}", L * count, per_layer=count)

    return (
        Term("token embedding", "V d", V * d),
        # Sinusoids are computed, not learned: a term of zero, so that nobody looks for it.
        Term("sinusoidal positions", "0", 0),
        layered("query, key, value weights", "3 d²", 3 * d * d),
        layered("query, key, value biases", "3 d", 3 * d),
        layered("output projection weight", "d²", d * d),
        layered("output projection bias", "d", d),
        layered("feed-forward weights", "2 d F", 2 * d * F),
        layered("feed-forward biases", "(F + d)", F + d),
        layered("norms: 2 gains, 2 offsets", "4 d", 4 * d),
    )


def _head_terms(shape: dict[str, int], *, num_outputs: int, letter: str) -> tuple[Term, ...]:
    return (
        Term("head weight", f"{letter} d", num_outputs * shape["d"]),
        Term("head bias", letter, num_outputs),
    )


def _flops(shape: dict[str, int], *, num_classes: int | None) -> tuple[Term, ...]:
    """Matrix products only, a multiplication and an addition counted as two."""
    V, d, L, F, T = (shape[letter] for letter in "VdLFT")
    if num_classes is None:
        head = Term("head, at every token", "2 V d", 2 * V * d)
    else:
        # One vector a row is classified; its cost is shared by the T tokens of the row.
        head = Term("head, once a row", "2 C d / T", round(2 * num_classes * d / T))
    return (
        Term("attention projections", "L · 8 d²", L * 8 * d * d, per_layer=8 * d * d),
        Term("attention scores and mixing", "L · 4 T d", L * 4 * T * d, per_layer=4 * T * d),
        Term("feed-forward", "L · 4 d F", L * 4 * d * F, per_layer=4 * d * F),
        head,
    )


def _memory(shape: dict[str, int]) -> tuple[Term, ...]:
    """Four bytes a number. Activations, kept for the way back, are an estimate.

    A layer keeps about twelve vectors of width d a token (inputs of both sub-layers and both norms,
    queries, keys, values, what dropout left), two of width F, and its attention weights once.
    """
    d, L, H, F, T, B, P = (shape[letter] for letter in "dLHFTBP")
    layer = 4 * B * T * (12 * d + 2 * F + H * T)
    return (
        Term("weights", "4 P", 4 * P),
        Term("gradients", "4 P", 4 * P),
        Term("Adam's two moments", "8 P", 8 * P),
        Term("activations", "L · 4 B T (12 d + 2 F + H T)", L * layer, per_layer=layer),
    )


def _whole_scores(shape: dict[str, int], *, num_classes: int | None) -> Term:
    """What the scores and their gradient add when all are held at once, as the plain lab does."""
    if num_classes is None:
        return Term("scores, if held whole", "8 B T V", 8 * shape["B"] * shape["T"] * shape["V"])
    return Term("scores, if held whole", "8 B C", 8 * shape["B"] * num_classes)


def check_ledger(
    ledger: Ledger, model: ModelSettings, vocab_size: int, num_classes: int | None
) -> int:
    """Build the model itself (without memory for its weights), compare, return its parameters."""
    import torch

    from regraft.heads import Model, build_classifier, build_language_model

    def num_parameters(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    def check(what: str, counted: int | None, built: int) -> None:
        if counted != built:
            raise AssertionError(
                f"the ledger counts {counted} for the {what}, the model has {built}"
            )

    built: Model
    with torch.device("meta"):
        language_model = build_language_model(model, vocab_size=vocab_size)
        built = language_model
        if num_classes is not None:
            built = build_classifier(
                model, vocab_size=vocab_size, num_classes=num_classes, pooling="last"
            )
            check("classifier", ledger.classifier, num_parameters(built))
    check("base", ledger.base, num_parameters(built.backbone))
    check("language model", ledger.language_model, num_parameters(language_model))
    check("sum of the terms", ledger.total, num_parameters(built))
    return num_parameters(built)


def wrong_answers(
    model: ModelSettings, *, vocab_size: int, num_classes: int | None
) -> list[WrongAnswer]:
    """The published wrong answers to the lab's exercise, each as the terms it gets wrong."""
    shape = _shape(model, vocab_size=vocab_size, num_classes=num_classes)
    d, L, H = (shape[letter] for letter in "dLH")
    biases = {
        "query, key, value biases": ("0", 0),
        "output projection bias": ("0", 0),
        "feed-forward biases": ("0", 0),
    }
    norms = {"norms: 2 gains, 2 offsets": ("0", 0)}

    return [
        _wrong_answer(
            shape,
            name="every head as wide as the model",
            mistake="Each head is given its own d x d matrices, so attention is counted H times; a "
            "head has width d / H, and H drops out. Biases and norms of the layers are lost.",
            published="21,650,401 and 11,600,602",
            formula="V d + L (4 H d² + 2 d F) + C (d + 1)",
            counted={
                "query, key, value weights": ("L · 3 H d²", L * 3 * H * d * d),
                "output projection weight": ("L · H d²", L * H * d * d),
                **biases,
                **norms,
            },
        ),
        _wrong_answer(
            shape,
            name="no output projection",
            mistake="Queries, keys, values and the feed-forward layer only: the matrix that mixes "
            "the heads again is lost, with all biases and norms of the layers.",
            published="5 d² a layer (its total was not given; the head is counted rightly here)",
            formula="V d + L (3 d² + 2 d F) + C (d + 1)",
            counted={"output projection weight": ("0", 0), **biases, **norms},
        ),
        _wrong_answer(
            shape,
            name="embedding and head only",
            mistake="Rounded to the two big matrices: all layers are lost, and the head's bias.",
            published="about 20 M and 10 M (no formula was given; this one rounds to it)",
            formula="V d + C d",
            counted={
                term.name: ("0", 0) for term in _base_terms(shape) if term.per_layer is not None
            }
            | {"head bias": ("0", 0)},
        ),
        _wrong_answer(
            shape,
            name="a norm as two numbers",
            mistake="A norm has a gain and an offset for each of the d columns; here it has one "
            "gain and one offset in all.",
            published="10,965,016 for the base",
            formula="V d + L (4 d² + 2 d F + 5 d + F + 4) + C (d + 1)",
            counted={"norms: 2 gains, 2 offsets": ("L · 4", L * 4)},
        ),
        _wrong_answer(
            shape,
            name="no biases",
            mistake="Every matrix is there, every vector is lost: the biases of layers and head, "
            "and the norms.",
            published="named as a cause; no total of its own was given",
            formula="V d + L (4 d² + 2 d F) + C d",
            counted={**biases, **norms, "head bias": ("0", 0)},
        ),
    ]


def _wrong_answer(
    shape: dict[str, int],
    *,
    name: str,
    mistake: str,
    published: str,
    formula: str,
    counted: dict[str, tuple[str, int]],
) -> WrongAnswer:
    """`counted` maps a term's name to how the answer writes and counts it; the rest is right."""

    def total(terms: tuple[Term, ...]) -> int:
        return sum(counted[t.name][1] if t.name in counted else t.count for t in terms)

    base = _base_terms(shape)
    language_head = _head_terms(shape, num_outputs=shape["V"], letter="V")
    head = language_head
    if "C" in shape:
        head = _head_terms(shape, num_outputs=shape["C"], letter="C")
    changes = tuple(
        Change(term.name, term.formula, counted[term.name][0], counted[term.name][1] - term.count)
        for term in (*base, *head)
        if term.name in counted
    )
    return WrongAnswer(
        name=name,
        mistake=mistake,
        published=published,
        formula=formula,
        changes=changes,
        base=total(base),
        language_model=total(base) + total(language_head),
        classifier=total(base) + total(head) if "C" in shape else None,
    )
