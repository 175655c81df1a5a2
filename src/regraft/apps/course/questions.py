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


QUESTIONS = (
    Question(
        "uniform-loss",
        "01-model",
        "A model that knows nothing gives each of 8,192 tokens the same probability. What is its "
        "loss, in nats a token (two decimals)?",
        "The loss is minus the logarithm of the probability of the right token, here 1 / 8,192.",
        _uniform_loss,
        tolerance=0.01,
    ),
    Question(
        "mask-cells",
        "02-mask",
        "Six tokens under the square mask: how many pairs (who reads, who is read) are allowed?",
        "Row 1 has one, row 2 has two. A token reads itself.",
        _mask_cells,
    ),
    Question(
        "unchanged-rows",
        "02-mask",
        "Ten tokens, numbered from 0, in a causal model. Token 4 is exchanged for another. At how "
        "many of the ten positions do the scores stay exactly the same?",
        "Those before it cannot see it. It sees itself.",
        _unchanged_rows,
    ),
    Question(
        "position-length",
        "03-positions",
        "What is the sum of the squares of a sinusoidal position vector of width 200?",
        "Columns come in pairs: sine and cosine of one angle. What is sin² + cos²?",
        _position_length,
        tolerance=0.01,
    ),
    Question(
        "unigram-entropy",
        "04-tokens",
        "A text has four tokens: one occurs twice, two others once each. What is its unigram "
        "entropy in nats (two decimals)?",
        "The mean of minus log(share): half of the tokens have the share 1/2, half 1/4.",
        _unigram_entropy,
        tolerance=0.01,
    ),
    Question(
        "bits-per-byte",
        "05-pretrain",
        "A model's loss is 5.0 nats a token on 1,000 tokens that are 4,000 bytes of text. How many "
        "bits per byte are that (two decimals)?",
        "Nats in all, divided by the bytes; a nat is 1 / ln 2 bits.",
        _bits_per_byte,
        tolerance=0.01,
    ),
    Question(
        "sharp-probability",
        "06-generate",
        "Three tokens have the scores 2, 1 and 0. What is the probability of the first at "
        "temperature 0.5 (two decimals)?",
        "Divide the scores by the temperature first, then take the softmax.",
        _sharp_probability,
        tolerance=0.01,
    ),
    Question(
        "lab-parameters",
        "07-count",
        "How many parameters has the lab's language model: V 50,001, d 200, 4 layers, 2 heads?",
        "V d + L (6 d² + 10 d) + C (d + 1) with C = V. Which term did you lose?",
        lambda: float(_lab_ledger().language_model),
    ),
    Question(
        "layer-parameters",
        "07-count",
        "How many of them are in one layer?",
        "6 d² + 10 d. Biases and norms count, too.",
        _one_layer,
    ),
    Question(
        "four-heads",
        "07-count",
        "How many has the same language model with 4 heads instead of 2?",
        "A head is d / H wide, and there are H of them.",
        lambda: float(_lab_ledger(**{"model.num_heads": 4}).language_model),
    ),
    Question(
        "counted-twice",
        "07-count",
        "A student gives every head matrices as wide as the model, and forgets biases and norms of "
        "the layers. By how much is the total for the language model too large?",
        "`regraft params --preset lab --explain` prints this student's total.",
        _counted_twice,
    ),
    Question(
        "thrown-away",
        "08-graft",
        "How many parameters of the lab's language model does a graft throw away?",
        "The head: one linear layer from d to V, with its bias.",
        _thrown_away,
    ),
    Question(
        "new-head",
        "08-graft",
        "How many new ones does it put in their place, for two classes?",
        "One linear layer from d to 2, with its bias.",
        _new_head,
    ),
    Question(
        "half-width",
        "09-evidence",
        "A classifier is right on 80 % of 2,000 test texts. How many points is it from the middle "
        "to the end of the 95 % interval, from chance in the test texts alone (one decimal)?",
        "1.96 times the square root of p (1 - p) / n, times 100 for points.",
        _half_width,
        tolerance=0.1,
    ),
    Question(
        "bag-size",
        "10-linear",
        "How many different words and pairs of neighbours does 'not good not bad' have?",
        "Three words. Four words in a row make three pairs; is one of them there twice?",
        _bag_size,
    ),
    Question(
        "shown-masks",
        "11-masked",
        "Of 1,000 tokens, how many does a masked model with the default rate read as <mask>?",
        "15 % are to be predicted; of these not all are replaced by <mask>.",
        _shown_masks,
        tolerance=0.5,
    ),
    Question(
        "zero-weights",
        "12-attention",
        "A causal model reads eight tokens. How many weights of one attention map are exactly 0 by "
        "the mask alone?",
        "64 cells, less those on and below the diagonal.",
        _zero_weights,
    ),
    Question(
        "contrast-chance",
        "13-next",
        "Contrast finds the right half among those of 32 documents. What is its loss if all "
        "vectors are equal (two decimals)?",
        "All 32 are equally likely.",
        _contrast_chance,
        tolerance=0.01,
    ),
)
