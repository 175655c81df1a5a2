"""Which words moved a classifier? Scores of words by three methods, each of which can be checked.

Comes in: a classifier of `regraft finetune` or `regraft fit`, and a text. Goes out: an Explanation.
Letters: W words, T tokens, S points on a path. Draws nothing and prints nothing.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from regraft.classifier import TextClassifier, load_classifier
from regraft.config import refuse_label_sets, refuse_pairs
from regraft.contributions import contributions, is_additive
from regraft.errors import ConfigError, DataError
from regraft.evaluate import EVALUATION_TOKENS
from regraft.explanation import (
    Explanation,
    Method,
    Word,
    explanation_css,
    explanation_to_html,
    explanation_to_html_fragment,
)
from regraft.fitted import FittedClassifier
from regraft.runfolder import read_info
from regraft.tokenizer import without_surrogates
from regraft.words import Span, spread_over_words, without_words, word_spans

__all__ = [
    "MAX_CHARACTERS",
    "Explainer",
    "Explanation",
    "Method",
    "Word",
    "explain_text",
    "explanation_css",
    "explanation_to_html",
    "explanation_to_html_fragment",
]

# A longer text is refused: its picture would be of no use, and leaving words out of it takes long.
MAX_CHARACTERS = 1_000_000
# At most so many texts are read to leave words out of one, and so many characters in all of them,
# but at least the fewest: in a longer text several neighbours are left out together.
MOST_LEFT_OUT = 512
FEWEST_LEFT_OUT = 8
MOST_CHARACTERS_READ = 2_000_000
# Points on the path of integrated gradients: doubled until the gap is small enough.
FEWEST_STEPS = 16
MOST_STEPS = 512
# Small enough: this share of what is explained, or so little in log-odds.
SMALL_GAP_SHARE = 0.01
SMALL_GAP = 0.01
# A smaller probability counts as this one, so that log-odds stay finite.
_LEAST_CHANCE = 1e-12


class Explainer:
    """Explains what a classifier decides; loaded once, asked often, by one thread at a time.

    `classifier` is a TextClassifier or a FittedClassifier, as `load_classifier` returns them.
    """

    classifier: TextClassifier | FittedClassifier

    def __init__(self, classifier: TextClassifier | FittedClassifier) -> None:
        # One that was made by the recipe of `fit` is a blend under scikit-learn's contract.
        self.classifier = getattr(classifier, "fitted_", None) or classifier
        if isinstance(self.classifier, TextClassifier):
            refuse_pairs(self.classifier.settings_.data, who="an explanation")
            refuse_label_sets(self.classifier.settings_.data, who="an explanation")
        self.labels = tuple(str(label) for label in classifier.classes_)

    @classmethod
    def load(cls, run_dir: str | Path) -> "Explainer":
        """For the classifier in a run folder; one that holds a base only is refused."""
        info = read_info(Path(run_dir))
        if info.kind in ("language-model", "base"):
            raise ConfigError(
                f"{run_dir} holds a {info.kind}, which knows no labels: there is no decision to "
                "explain.",
                "A classifier of `regraft fit` or `regraft finetune` is needed.",
                remedy=f"Run `regraft finetune --base {run_dir} --train FILE --out RUN`, and give "
                "RUN.",
            )
        return cls(load_classifier(run_dir))

    @property
    def methods(self) -> tuple[Method, ...]:
        """Those that this classifier can be explained by, the best first."""
        if isinstance(self.classifier, TextClassifier):
            return "integrated-gradients", "leave-one-out"
        if is_additive(self.classifier):
            return "contributions", "leave-one-out"
        return ("leave-one-out",)

    def explain(
        self, text: str, label: str | None = None, *, method: Method | Literal["auto"] = "auto"
    ) -> Explanation:
        """What every word adds to the log-odds of a label, by default of the predicted one.

        `auto` is integrated gradients for a network, or leaving words out where it reads a text in
        several windows, and the exact contributions for a blend.
        DataError for a text without words or of more than MAX_CHARACTERS, ConfigError for a label
        or method that is not there.
        """
        text, spans = _checked_text(text)
        chosen = self._checked_method(method, text=text)
        probabilities_C = self.classifier.predict_proba([text])[0]
        target = int(probabilities_C.argmax()) if label is None else self._target(label)
        found: _Found
        if chosen == "leave-one-out":
            found = self._leave_one_out(text, spans, target=target)
        elif isinstance(self.classifier, TextClassifier):
            found = _integrated_gradients(self.classifier, text, spans, target=target)
        else:
            words_W, rest = contributions(self.classifier, text, target=target, spans=spans)
            found = _Found(
                words_W,
                baseline=float(np.log(1 / (len(self.labels) - 1))),
                baseline_name="all labels equally likely",
                elsewhere=rest,
            )
        scored = zip(spans, found.scores_W.tolist(), strict=True)
        return Explanation(
            text=text,
            label=self.labels[target],
            predicted=self.labels[int(probabilities_C.argmax())],
            probabilities=dict(zip(self.labels, probabilities_C.tolist(), strict=True)),
            method=chosen,
            words=tuple(Word(text[a:b], a, b, score) for (a, b), score in scored),
            output=float(log_odds(probabilities_C[None], target=target)[0]),
            baseline=found.baseline,
            baseline_name=found.baseline_name,
            elsewhere=found.elsewhere,
            num_unread=len(spans) - self._num_read(text, spans),
            num_together=found.num_together,
            num_steps=found.num_steps,
        )

    def checked(self, explanation: Explanation) -> Explanation:
        """The same with its `agreement`: do leaving words out and the method rank them alike?"""
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
            remedy=f"Did you mean {near[0]}?" if near else "Take one of them.",
        )

    def _checked_method(self, method: Method | Literal["auto"], *, text: str) -> Method:
        best = self.methods[0]
        if best == "integrated-gradients" and method in ("auto", best) and self._has_windows(text):
            if method == "auto":
                return "leave-one-out"
            raise ConfigError(
                "This classifier reads the text in several windows (data.windows), and gradients "
                "follow one.",
                remedy="Take leave-one-out, or auto.",
            )
        if method == "auto":
            return best
        if method not in self.methods:
            kind = "one network" if isinstance(self.classifier, TextClassifier) else "a blend"
            raise ConfigError(
                f"The method {method} does not fit this classifier, which is {kind}.",
                remedy=f"Take {' or '.join(self.methods)}, or auto.",
            )
        return method

    def _has_windows(self, text: str) -> bool:
        """Does a network read this text in more than one row?"""
        assert isinstance(self.classifier, TextClassifier)
        has_several = (self.classifier.settings_.data.windows or 1) > 1
        return has_several and len(self.classifier.tokenizer_.spans(text)) > self._row_room

    @property
    def _row_room(self) -> int:
        """Tokens of a text that one row of a network holds."""
        assert isinstance(self.classifier, TextClassifier)
        tokenizer = self.classifier.tokenizer_
        return self.classifier.settings_.data.max_length - tokenizer.num_framing

    def _num_read(self, text: str, spans: Sequence[Span]) -> int:
        """Words up to the last token that a network reads; all of them for a blend."""
        if isinstance(self.classifier, FittedClassifier):
            return len(spans)
        tokens = self.classifier.tokenizer_.spans(text)
        room = self._row_room * (self.classifier.settings_.data.windows or 1)
        if len(tokens) <= room:
            return len(spans)
        behind = max((stop for _, stop in tokens[:room]), default=0)
        return sum(start < behind for start, _ in spans)

    def _leave_one_out(self, text: str, spans: Sequence[Span], *, target: int) -> "_Found":
        num_read = self._num_read(text, spans)
        # What is left behind a network's reach moves up when a word goes, but not from afar.
        text = (
            text[: spans[min(2 * num_read, len(spans)) - 1][1]] if num_read < len(spans) else text
        )
        num_texts = max(MOST_CHARACTERS_READ // len(text), FEWEST_LEFT_OUT)
        num_groups = min(num_read, MOST_LEFT_OUT, num_texts)
        groups = np.array_split(np.arange(num_read), num_groups)
        variants = [without_words(text, [spans[number] for number in group]) for group in groups]
        chances_NC = self.classifier.predict_proba([text, without_words(text, spans), *variants])
        output, baseline, *left = log_odds(chances_NC, target=target).tolist()
        scores_W = np.zeros(len(spans))
        for group, without in zip(groups, left, strict=True):
            scores_W[group] = (output - without) / len(group)
        return _Found(
            scores_W,
            baseline=baseline,
            baseline_name="the text without its words",
            num_together=len(groups[0]),
        )


def explain_text(
    classifier: TextClassifier | FittedClassifier | str | Path,
    text: str,
    *,
    label: str | None = None,
    method: Method | Literal["auto"] = "auto",
) -> Explanation:
    """Explain one text by a classifier or its run folder; for many texts, keep an Explainer."""
    if isinstance(classifier, str | Path):
        return Explainer.load(classifier).explain(text, label, method=method)
    return Explainer(classifier).explain(text, label, method=method)


def log_odds(chances_NC: NDArray[np.float64], *, target: int) -> NDArray[np.float64]:
    """log p - log(1 - p) of one class; 1 - p is the sum of the others, which loses no digits."""
    chosen_N = np.maximum(chances_NC[:, target], _LEAST_CHANCE)
    others_N = np.maximum(np.delete(chances_NC, target, axis=1).sum(axis=1), _LEAST_CHANCE)
    odds_N: NDArray[np.float64] = np.log(chosen_N) - np.log(others_N)
    return odds_N


def rank_correlation(a_W: NDArray[np.float64], b_W: NDArray[np.float64]) -> float | None:
    """Spearman's; None where it means nothing: fewer than three words, or all of them alike."""
    from scipy.stats import rankdata

    if len(a_W) < 3 or np.ptp(a_W) == 0 or np.ptp(b_W) == 0:
        return None
    return float(np.corrcoef(rankdata(a_W), rankdata(b_W))[0, 1])


@dataclass(frozen=True)
class _Found:
    """What a method says of the words; the rest is the same for all methods."""

    scores_W: Float[np.ndarray, " W"]
    baseline: float
    baseline_name: str
    elsewhere: float = 0.0
    num_together: int = 1
    num_steps: int | None = None


def _checked_text(text: str) -> tuple[str, list[Span]]:
    if len(text) > MAX_CHARACTERS:
        raise DataError(
            f"The text has {len(text):,} characters.",
            f"At most {MAX_CHARACTERS:,} are explained.",
            remedy="Give a part of it.",
        )
    text = without_surrogates(text)
    spans = word_spans(text)
    if not spans:
        what = "has no word in it" if text else "is empty"
        raise DataError(
            f"The text {what}.", "An explanation scores words.", remedy="Give some text."
        )
    return text, spans


def _integrated_gradients(
    classifier: TextClassifier, text: str, spans: Sequence[Span], *, target: int
) -> _Found:
    """Gradients averaged on the way from average tokens to those of the text (arXiv 1703.01365).

    Not captum's, though a test holds that its scores are the same: its path starts at tokens, not
    at their average, a bag's two tables have to go the way together, and the number of steps is to
    follow from the gap.
    """
    tokenizer, max_length = classifier.tokenizer_, classifier.settings_.data.max_length
    ids, places = tokenizer.encode(text), tokenizer.spans(text)
    row = tokenizer.framed(ids, max_length=max_length)
    num_before, num_kept = len(tokenizer.prefix_ids), max_length - tokenizer.num_framing
    places = places[:num_kept]
    is_text_T = torch.zeros(len(row), dtype=torch.bool)
    is_text_T[num_before : num_before + len(places)] = True
    model = classifier.model_.eval()
    device = next(model.parameters()).device
    path = _Path(model, torch.tensor(row, device=device), is_text_T.to(device), target=target)
    num_steps = FEWEST_STEPS
    while True:
        scores_T, start, end = path.integrated(num_steps)
        gap = abs(scores_T.sum() - (end - start))
        if gap <= max(SMALL_GAP, SMALL_GAP_SHARE * abs(end - start)) or num_steps >= MOST_STEPS:
            break
        num_steps *= 2
    starts_T, stops_T = np.zeros((2, len(row)), dtype=np.int64)
    if places:
        here = slice(num_before, num_before + len(places))
        starts_T[here], stops_T[here] = np.array(places).T
    words_W1, rest_1 = spread_over_words(
        scores_T[:, None], starts_N=starts_T, stops_N=stops_T, spans=spans
    )
    return _Found(
        words_W1[:, 0],
        baseline=start,
        baseline_name="as many average tokens",
        elsewhere=float(rest_1[0]),
        num_steps=num_steps,
    )


class _Path:
    """The straight way from a text of average tokens to one text, in the space of embeddings."""

    def __init__(
        self, model: nn.Module, ids_T: Tensor, is_text_T: Bool[Tensor, " T"], *, target: int
    ) -> None:
        backbone: Any = model.backbone
        self._model, self._ids_T, self._target = model, ids_T, target
        is_text_T1 = is_text_T.unsqueeze(1)
        self._tables: list[tuple[nn.Module, Tensor, Tensor]] = [
            (backbone.embedding, backbone.embedding.weight.detach().mean(dim=0), is_text_T1)
        ]
        if backbone.settings.family == "bag":
            # A pair that is not there adds nothing.
            nothing = torch.zeros_like(backbone.neighbours.weight[0])
            self._tables.append((backbone.neighbours, nothing, torch.ones_like(is_text_T1[1:])))

    def integrated(self, num_steps: int) -> tuple[Float[np.ndarray, " T"], float, float]:
        """The score of every token, and the log-odds at both ends of the path."""
        points_S, weights_S = np.polynomial.legendre.leggauss(num_steps)
        shares_S = torch.tensor(
            [0.0, 1.0, *((points_S + 1) / 2)], dtype=torch.float32, device=self._ids_T.device
        )
        weights_S = np.concatenate([[0.0, 0.0], weights_S / 2])
        scores_T = np.zeros(len(self._ids_T))
        outputs: list[float] = []
        at_once = max(EVALUATION_TOKENS // len(self._ids_T), 1)
        for start in range(0, len(shares_S), at_once):
            here = slice(start, start + at_once)
            odds_S, slopes_ST = self._slopes(shares_S[here])
            outputs += odds_S.tolist()
            scores_T += weights_S[here] @ slopes_ST
        return scores_T, outputs[0], outputs[1]

    def _slopes(
        self, shares_S: Float[Tensor, " S"]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Log-odds at points of the path, and how they grow there with each token's way."""
        ids_ST = self._ids_T.expand(len(shares_S), -1)
        with torch.enable_grad(), self._replaced(shares_S) as ways:
            scores_SC = self._model(ids_ST).double()
            others_SC = torch.cat(
                [scores_SC[:, : self._target], scores_SC[:, self._target + 1 :]], dim=1
            )
            odds_S = scores_SC[:, self._target] - others_SC.logsumexp(dim=1)
            slopes = torch.autograd.grad(odds_S.sum(), [points for points, _ in ways])
        slopes_ST = np.zeros(ids_ST.shape)
        for slope, (_, way) in zip(slopes, ways, strict=True):
            products = (slope * way).sum(dim=2).double().cpu().numpy()
            if products.shape == slopes_ST.shape:
                slopes_ST += products
            else:  # of pairs of neighbours: half of either
                slopes_ST[:, 1:] += products / 2
                slopes_ST[:, :-1] += products / 2
        return odds_S.detach().cpu().numpy(), slopes_ST

    @contextlib.contextmanager
    def _replaced(self, shares_S: Float[Tensor, " S"]) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Inside, the model reads points of the path; yields them, and how far each has to go."""
        ways: list[tuple[Tensor, Tensor]] = []
        shares_S11 = shares_S[:, None, None]

        def hook(average_D: Tensor, is_text_T1: Tensor) -> Any:
            def replaced(module: nn.Module, given: Any, vectors_STD: Tensor) -> Tensor:
                way_STD = (vectors_STD.detach() - average_D) * is_text_T1
                point_STD = vectors_STD.detach() - (1 - shares_S11) * way_STD
                ways.append((point_STD.requires_grad_(), way_STD))
                return point_STD

            return replaced

        hooks = [
            table.register_forward_hook(hook(average_D, is_text_T1))
            for table, average_D, is_text_T1 in self._tables
        ]
        try:
            yield ways
        finally:
            for handle in hooks:
                handle.remove()
