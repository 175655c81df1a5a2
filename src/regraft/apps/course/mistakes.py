"""The published wrong answers to the lab's exercise, each recomputed for a given shape."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from regraft.config import ModelSettings
from regraft.errors import ConfigError
from regraft.models import Term, formula_value, ledger
from regraft.runtime import Plain


@dataclass(frozen=True)
class Change:
    """A term as a wrong answer counts it; `difference` is wrong minus right."""

    term: str
    right: str
    wrong: str
    difference: int


@dataclass(frozen=True)
class WrongAnswer(Plain):
    """A common answer, recomputed for this shape from the formula that produces it."""

    name: str
    mistake: str
    published: str
    formula: str
    changes: tuple[Change, ...]
    base: int
    language_model: int
    classifier: int | None


def wrong_answers(
    model: ModelSettings, *, vocab_size: int, num_classes: int | None
) -> list[WrongAnswer]:
    """The published wrong answers to the lab's exercise, each as the terms it gets wrong."""
    if model.family != "lab":
        raise ConfigError(
            f"The wrong answers were given for blocks of the lab; these are {model.family}.",
            remedy="Take --preset lab, or leave --explain out.",
        )
    right = _Right(model, vocab_size=vocab_size, num_classes=num_classes)
    biases = dict.fromkeys(
        ["query, key, value biases", "output projection bias", "feed-forward biases"], "0"
    )
    norms = {"norms (2 gains, 2 offsets)": "0"}

    return [
        _wrong_answer(
            right,
            name="every head as wide as the model",
            mistake="Each head is given its own d x d matrices, so attention is counted H times; a "
            "head has width d / H, and H drops out. Biases and norms of the layers are lost.",
            published="21,650,401 and 11,600,602",
            formula="V d + L (4 H d² + 2 d F) + C (d + 1)",
            counted={
                "query, key, value weights": "L · 3 H d²",
                "output projection weight": "L · H d²",
                **biases,
                **norms,
            },
        ),
        _wrong_answer(
            right,
            name="no output projection",
            mistake="Queries, keys, values and the feed-forward layer only: the matrix that mixes "
            "the heads again is lost, with all biases and norms of the layers.",
            published="5 d² a layer (its total was not given; the head is counted rightly here)",
            formula="V d + L (3 d² + 2 d F) + C (d + 1)",
            counted={"output projection weight": "0", **biases, **norms},
        ),
        _wrong_answer(
            right,
            name="embedding and head only",
            mistake="Rounded to the two big matrices: all layers are lost, and the head's bias.",
            published="about 20 M and 10 M (no formula was given; this one rounds to it)",
            formula="V d + C d",
            counted={term.name: "0" for term in right.base if term.per_layer is not None}
            | {"head bias": "0"},
        ),
        _wrong_answer(
            right,
            name="a norm as two numbers",
            mistake="A norm has a gain and an offset for each of the d columns; here it has one "
            "gain and one offset in all.",
            published="10,965,016 for the base",
            formula="V d + L (4 d² + 2 d F + 5 d + F + 4) + C (d + 1)",
            counted={"norms (2 gains, 2 offsets)": "L · 4"},
        ),
        _wrong_answer(
            right,
            name="no biases",
            mistake="Every matrix is there, every vector is lost: the biases of layers and head, "
            "and the norms.",
            published="named as a cause; no total of its own was given",
            formula="V d + L (4 d² + 2 d F) + C d",
            counted={**biases, **norms, "head bias": "0"},
        ),
    ]


class _Right:
    """The right terms, taken apart: of the base, of the language model's head, of the classes.

    `shape` has the numbers in their formulas.
    """

    def __init__(self, model: ModelSettings, *, vocab_size: int, num_classes: int | None) -> None:
        # Rows and their length decide about cost, not about parameters.
        counted = partial(ledger, model, vocab_size=vocab_size, max_length=1, batch_size=1)
        whole = counted()
        self.shape = whole.symbols
        self.base = [term for term in whole.terms if not _is_of_head(term)]
        self.language_head = [term for term in whole.terms if _is_of_head(term)]
        self.classes: list[Term] | None = None
        if num_classes is not None:
            classifier = counted(num_classes=num_classes)
            self.classes = [term for term in classifier.terms if _is_of_head(term)]


def _is_of_head(term: Term) -> bool:
    return term.name.startswith("head ")


def _wrong_answer(
    right: _Right,
    *,
    name: str,
    mistake: str,
    published: str,
    formula: str,
    counted: dict[str, str],
) -> WrongAnswer:
    """`counted` maps a term's name to the formula that the answer has for it; the rest is right."""

    def count(term: Term) -> int:
        wrong = counted.get(term.name)
        return term.count if wrong is None else formula_value(wrong, right.shape)

    def total(terms: Sequence[Term]) -> int:
        return sum(map(count, terms))

    head = right.language_head if right.classes is None else right.classes
    changes = tuple(
        Change(term.name, term.formula, counted[term.name], count(term) - term.count)
        for term in (*right.base, *head)
        if term.name in counted
    )
    base = total(right.base)
    return WrongAnswer(
        name=name,
        mistake=mistake,
        published=published,
        formula=formula,
        changes=changes,
        base=base,
        language_model=base + total(right.language_head),
        classifier=None if right.classes is None else base + total(right.classes),
    )
