"""Which words moved a classifier: leave-one-out, and the Explainer.

Exact contributions are in contributions.py, gradients of a network in gradients.py. Letters: W
words.
"""

import dataclasses
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regraft.classifiers.base import Classifier, load_classifier
from regraft.classifiers.explanation import Attribution, Explanation, Method, Word
from regraft.config import SINGLE_TEXTS, check_task
from regraft.data import Span, without_surrogates, without_words, word_spans
from regraft.errors import ConfigError, DataError

# A longer text is refused: nobody could read its explanation, and leave-one-out would take long.
MAX_CHARACTERS = 1_000_000
# The most variants of a text that leave-one-out reads, the most characters in all of them, and the
# fewest variants: in a longer text several neighbouring words are left out together.
MOST_LEFT_OUT = 512
FEWEST_LEFT_OUT = 8
MOST_CHARACTERS_READ = 2_000_000
# A smaller probability counts as this one, so that log-odds stay finite.
_LEAST_CHANCE = 1e-12


class Explainer:
    """Explains the decisions of one classifier; loaded once, used by one thread at a time."""

    def __init__(self, classifier: Classifier) -> None:
        check_task(classifier.data, supported=SINGLE_TEXTS, by="An explanation")
        self.classifier = classifier
        self.labels = classifier.labels

    @classmethod
    def load(cls, run_dir: str | Path) -> "Explainer":
        """For the classifier in a folder."""
        return cls(load_classifier(run_dir))

    def explain(
        self, text: str, label: str | None = None, *, method: Method | Literal["auto"] = "auto"
    ) -> Explanation:
        """What every word adds to the log-odds of a label, by default of the predicted one.

        `auto` is the best method that fits: exact contributions for a blend, integrated gradients
        for a network, leave-one-out where neither applies. DataError for a text without words or of
        more than MAX_CHARACTERS, ConfigError for an unknown label or a method that does not fit.
        """
        text, spans = _checked_text(text)
        methods = self.classifier.attribution_methods(text)
        if method != "auto" and method not in methods:
            raise ConfigError(
                f"The method {method} does not fit this classifier and text.",
                "Contributions need a classifier that adds up words; integrated gradients need a "
                "network that reads the text in one window (data.windows).",
                remedy=f"Use {' or '.join(methods)}, or auto.",
            )
        chosen = methods[0] if method == "auto" else method
        probabilities_C = self.classifier.predict_proba([text])[0]
        predicted = int(probabilities_C.argmax())
        target = predicted if label is None else self._target(label)
        found = self.classifier.attributions(text, spans, target=target, method=chosen)
        scored = zip(spans, found.scores_W.tolist(), strict=True)
        return Explanation(
            text=text,
            label=self.labels[target],
            predicted=self.labels[predicted],
            probabilities=dict(zip(self.labels, probabilities_C.tolist(), strict=True)),
            method=chosen,
            words=tuple(Word(text[a:b], a, b, score) for (a, b), score in scored),
            output=float(_log_odds_by(self.classifier, probabilities_C[None], target=target)[0]),
            baseline=found.baseline,
            baseline_name=found.baseline_name,
            elsewhere=found.elsewhere,
            num_unread=len(spans) - self.classifier.num_words_read(text, spans),
            num_together=found.num_together,
            num_steps=found.num_steps,
        )

    def checked(self, explanation: Explanation) -> Explanation:
        """The same with its `agreement`: the rank correlation of its scores with leave-one-out."""
        again = self.explain(explanation.text, explanation.label, method="leave-one-out")
        num_read = explanation.num_read
        agreement = rank_correlation(
            np.array([word.score for word in explanation.words[:num_read]]),
            np.array([word.score for word in again.words[:num_read]]),
        )
        return dataclasses.replace(explanation, agreement=agreement)

    def _target(self, label: str) -> int:
        if label in self.labels:
            return self.labels.index(label)
        near = get_close_matches(label, self.labels, n=1)
        raise ConfigError(
            f"The label {label!r:.60} is unknown.",
            f"This classifier knows {', '.join(self.labels[:20])}.",
            remedy=f"Did you mean {near[0]}?" if near else "Use one of them.",
        )


def leave_one_out(
    classifier: Classifier, text: str, spans: Sequence[Span], *, target: int
) -> Attribution:
    """How much the log-odds fall when a word, or a group of neighbours, is left out."""
    num_read = classifier.num_words_read(text, spans)
    if num_read < len(spans):
        # Words beyond the cut move up when one is left out, but never from far away.
        text = text[: spans[min(2 * num_read, len(spans)) - 1][1]]
    num_texts = max(MOST_CHARACTERS_READ // len(text), FEWEST_LEFT_OUT)
    num_groups = min(num_read, MOST_LEFT_OUT, num_texts)
    groups = np.array_split(np.arange(num_read), num_groups)
    variants = [without_words(text, [spans[number] for number in group]) for group in groups]
    chances_NC = classifier.predict_proba([text, without_words(text, spans), *variants])
    output, baseline, *reduced = _log_odds_by(classifier, chances_NC, target=target).tolist()
    scores_W = np.zeros(len(spans))
    for group, odds in zip(groups, reduced, strict=True):
        scores_W[group] = (output - odds) / len(group)
    return Attribution(
        scores_W,
        baseline=baseline,
        baseline_name="the text without its words",
        num_together=len(groups[0]),
    )


def log_odds(chances_NC: NDArray[np.float64], *, target: int) -> NDArray[np.float64]:
    """log p - log(1 - p) of one class; 1 - p is the sum of the others, which loses no digits."""
    chosen_N = np.maximum(chances_NC[:, target], _LEAST_CHANCE)
    others_N = np.maximum(np.delete(chances_NC, target, axis=1).sum(axis=1), _LEAST_CHANCE)
    odds_N: NDArray[np.float64] = np.log(chosen_N) - np.log(others_N)
    return odds_N


def _log_odds_by(
    classifier: Classifier, chances_NC: NDArray[np.float64], *, target: int
) -> NDArray[np.float64]:
    """The log-odds of one class; with label sets they do not depend on the others."""
    if classifier.task.has_label_sets:
        chances_N = chances_NC[:, target]
        return log_odds(np.stack([1 - chances_N, chances_N], axis=1), target=1)
    return log_odds(chances_NC, target=target)


def rank_correlation(a_W: NDArray[np.float64], b_W: NDArray[np.float64]) -> float | None:
    """Spearman's; None for fewer than three words, or if all scores are equal."""
    from scipy.stats import rankdata

    if len(a_W) < 3 or np.ptp(a_W) == 0 or np.ptp(b_W) == 0:
        return None
    return float(np.corrcoef(rankdata(a_W), rankdata(b_W))[0, 1])


def _checked_text(text: str) -> tuple[str, list[Span]]:
    if len(text) > MAX_CHARACTERS:
        raise DataError(
            f"The text has {len(text):,} characters.",
            f"At most {MAX_CHARACTERS:,} are explained.",
            remedy="Pass a part of it.",
        )
    text = without_surrogates(text)
    spans = word_spans(text)
    if not spans:
        what = "has no word in it" if text else "is empty"
        raise DataError(
            f"The text {what}.", "An explanation scores words.", remedy="Give some text."
        )
    return text, spans
