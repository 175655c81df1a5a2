"""The questions of the course, and whether an answer is right.

The right answers are computed from the library, so that no solution can become outdated.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regraft.config import read_toml, resolve
from regraft.errors import ConfigError, DataError
from regraft.runtime import Plain

_LAB_VOCABULARY = 50_001
_NUM_TEST = 2_000


@dataclass(frozen=True)
class Question:
    """A question with a number as its answer; `tolerance` is absolute."""

    name: str
    chapter: str
    text: str
    hint: str
    solution: Callable[[], float]
    tolerance: float = 0.0


@dataclass(frozen=True)
class Checked(Plain):
    """What became of one question; `given` is None if it was not answered."""

    name: str
    chapter: str
    given: float | None
    is_right: bool
    hint: str


def check_answers(answers: Mapping[str, float]) -> list[Checked]:
    """Every question of the course with what was answered; a hint where that is wrong."""
    checked = []
    for question in QUESTIONS:
        given = answers.get(question.name)
        is_right = given is not None and math.isclose(
            given, question.solution(), rel_tol=1e-9, abs_tol=question.tolerance
        )
        hint = "" if is_right or given is None else question.hint
        checked.append(Checked(question.name, question.chapter, given, is_right, hint))
    return checked


def load_answers(path: str | Path) -> dict[str, float]:
    """Answers from a TOML file, `name = number`, each checked to belong to a question."""
    try:
        values = read_toml(Path(path))
    except ConfigError as error:
        raise DataError(
            error.problem,
            "Answers are lines of a name, = and a number, such as mask-cells = 21.",
            remedy="`regraft course notebooks DIR` writes an empty sheet, answers.toml.",
        ) from error
    known = {question.name for question in QUESTIONS}
    strange = [name for name in values if name not in known]
    if strange:
        raise DataError(
            f"{path} answers {', '.join(map(repr, strange))}, which the course does not ask.",
            remedy="`regraft course list` shows the names of all questions.",
        )
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(
                f"{path}: {name} is {value!r}.",
                "An answer is a number.",
                remedy="Write it without quotes, with a point for decimals.",
            )
    return {name: float(value) for name, value in values.items()}


def answer_sheet() -> str:
    """All questions as comments of a TOML file, with room for the answers."""
    lines = [
        "# Answers to the course. Take the # away before a name and write a number behind =.",
        "",
    ]
    for question in QUESTIONS:
        lines += [f"# {question.chapter}: {question.text}", f"# {question.name} = ", ""]
    return "\n".join(lines)


def _uniform_loss() -> float:
    return math.log(resolve("pretrain", preset="modern").tokenizer.size)


def _mask_cells() -> float:
    from regraft.models import square_mask

    return float(square_mask(6).sum())


def _unchanged_rows() -> float:
    """Asked of a model: which scores stay when token 4 of 10 is exchanged?"""
    import torch

    from regraft.models import build_language_model

    settings = resolve("pretrain", preset="lab", overrides={"model.width": 8})
    model = build_language_model(settings.model, vocab_size=32).eval()
    ids_BT = torch.arange(10).unsqueeze(0)
    other_BT = ids_BT.clone()
    other_BT[0, 4] = 31
    with torch.no_grad():
        changes_T = (model(ids_BT) - model(other_BT)).abs().amax(dim=2)[0]
    return float((changes_T == 0).sum())


def _position_length() -> float:
    from regraft.models import sinusoidal_positions

    width = resolve("pretrain", preset="lab").model.width
    return float(sinusoidal_positions(8, width=width)[7].square().sum())


def _unigram_entropy() -> float:
    import numpy as np

    from regraft.stats import unigram_entropy

    return unigram_entropy(np.array([2, 1, 1]))


def _bits_per_byte() -> float:
    from regraft.stats import bits_per_byte

    return bits_per_byte(5.0, num_tokens=1_000, num_bytes=4_000)


def _sharp_probability() -> float:
    scores, temperature = (2.0, 1.0, 0.0), 0.5
    powers = [math.exp(score / temperature) for score in scores]
    return powers[0] / sum(powers)


def _lab_ledger(**overrides: int) -> Any:
    from regraft.models import ledger

    settings = resolve("pretrain", preset="lab", overrides=overrides)
    return ledger(
        settings.model,
        vocab_size=_LAB_VOCABULARY,
        num_classes=2,
        max_length=settings.data.max_length,
        batch_size=settings.train.batch_size,
    )


def _one_layer() -> float:
    return float(_lab_ledger().layers / resolve("pretrain", preset="lab").model.num_layers)


def _counted_twice() -> float:
    from regraft.apps.course.mistakes import wrong_answers

    model = resolve("pretrain", preset="lab").model
    answers = wrong_answers(model, vocab_size=_LAB_VOCABULARY, num_classes=2)
    wide_heads = next(answer for answer in answers if "head" in answer.name)
    return float(wide_heads.language_model - _lab_ledger().language_model)


def _thrown_away() -> float:
    counted = _lab_ledger()
    return float(counted.language_model - counted.base)


def _new_head() -> float:
    counted = _lab_ledger()
    return float(counted.classifier - counted.base)


def _half_width() -> float:
    """In points, at 80 %."""
    return 100 * 1.96 * math.sqrt(0.8 * 0.2 / _NUM_TEST)


def _bag_size() -> float:
    from sklearn.feature_extraction.text import CountVectorizer

    counted = CountVectorizer(ngram_range=(1, 2)).fit(["not good not bad"])
    return float(len(counted.vocabulary_))


def _shown_masks() -> float:
    from regraft.training import MASKED_SHARE

    return 1_000 * resolve("pretrain", preset="modern").objective.mask_rate * MASKED_SHARE


def _zero_weights() -> float:
    from regraft.models import mask_of

    return float((~mask_of(8, is_causal=True).allowed).sum())


def _contrast_chance() -> float:
    return math.log(resolve("pretrain", preset="bag").objective.group_size)


_SOLUTIONS: dict[str, Callable[[], float]] = {
    "uniform-loss": _uniform_loss,
    "mask-cells": _mask_cells,
    "unchanged-rows": _unchanged_rows,
    "position-length": _position_length,
    "unigram-entropy": _unigram_entropy,
    "bits-per-byte": _bits_per_byte,
    "sharp-probability": _sharp_probability,
    "lab-parameters": lambda: float(_lab_ledger().language_model),
    "layer-parameters": _one_layer,
    "four-heads": lambda: float(_lab_ledger(**{"model.num_heads": 4}).language_model),
    "counted-twice": _counted_twice,
    "thrown-away": _thrown_away,
    "new-head": _new_head,
    "half-width": _half_width,
    "bag-size": _bag_size,
    "shown-masks": _shown_masks,
    "zero-weights": _zero_weights,
    "contrast-chance": _contrast_chance,
}
QUESTIONS = tuple(
    Question(name, solution=_SOLUTIONS[name], **values)
    for name, values in read_toml(Path(__file__).parent / "text" / "questions.toml").items()
)
