"""The classifier that `regraft fit` leaves behind: members, and how much each has to say.

Comes in: a folder, or the parts themselves. Goes out: labels and probabilities for texts. Only JSON
and safetensors lie in the folder. How the members were made is fit.py's business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regraft.baselines import LatentModel, LinearModel
from regraft.blend import blended
from regraft.config import DataSettings, Settings
from regraft.errors import DataError, RunFolderError
from regraft.evaluate import Evaluation, evaluation
from regraft.evidence import PairedTest, with_holm
from regraft.features import document_vectors
from regraft.metrics import Interval
from regraft.regression import VectorModel
from regraft.runfolder import (
    LoadedRun,
    RunFolder,
    RunInfo,
    load_run,
    read_info,
    read_settings,
)
from regraft.runtime import SILENT, Progress
from regraft.seen import find_seen
from regraft.statistics import difference_interval, mcnemar_test, paired_permutation_test
from regraft.text import (
    Example,
    Labels,
    check_labels_known,
    load_examples,
    read_documents,
)
from regraft.tokenizer import Tokenizer, load_tokenizer

Member = LinearModel | LatentModel | VectorModel
MEMBERS: dict[str, type[Member]] = {
    "linear": LinearModel,
    "latent": LatentModel,
    "features": VectorModel,
}
# What pre-training must beat: members that know the labels, and the words of all text.
RIVALS = ("linear", "latent")


@dataclass(frozen=True)
class FittedClassifier:
    """Members and their weights; `bases` make the vectors that the member `features` reads."""

    info: RunInfo
    settings: Settings
    tokenizer: Tokenizer
    bases: Sequence[LoadedRun]
    members: Mapping[str, Member]

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the columns of `predict_proba`."""
        return self.info.labels

    @property
    def weights(self) -> Mapping[str, float]:
        """How much each member has to say, of 1 in all."""
        weights: Mapping[str, float] = self.info.result["weights"]
        return weights

    @property
    def temperature(self) -> float:
        """Above 1 the blend is made less sure than its members are together."""
        return float(self.info.result["temperature"])

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels as an array."""
        return np.array(self.labels)

    def predict_proba(
        self, texts: Sequence[str], *, progress: Progress = SILENT
    ) -> NDArray[np.float64]:
        """N x C calibrated probabilities."""
        if not texts:
            return np.zeros((0, len(self.labels)))
        chances = self.member_probabilities(texts, names=self.speakers, progress=progress)
        return self.blended(chances)

    @property
    def speakers(self) -> list[str]:
        """The members whose word counts at all."""
        return [name for name in self.members if self.weights[name] > 0]

    def member_probabilities(
        self,
        texts: Sequence[str],
        *,
        names: Sequence[str] | None = None,
        progress: Progress = SILENT,
    ) -> dict[str, NDArray[np.float64]]:
        """What each member, or each of these, says by itself."""
        chances = {}
        for name in self.members if names is None else names:
            member = self.members[name]
            if isinstance(member, VectorModel):
                vectors_ND = document_vectors(self.bases, texts, progress=progress)
                chances[name] = member.vector_probabilities(vectors_ND)
            else:
                chances[name] = member.probabilities(texts)
        return chances

    def blended(self, chances: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """What all members say together, given what each says."""
        weights_M = np.array([self.weights[name] for name in self.speakers])
        chances_MNC = np.stack([chances[name] for name in self.speakers])
        mixed_NC: NDArray[np.float64] = blended(
            chances_MNC, weights_M, temperature=self.temperature
        )
        return mixed_NC

    def predict(self, texts: Sequence[str]) -> NDArray[Any]:
        """The most probable label of every text."""
        predicted: NDArray[Any] = self.classes_[self.predict_proba(texts).argmax(axis=1)]
        return predicted


def load_fitted(run_dir: Path) -> FittedClassifier:
    """The classifier in a folder of `regraft fit`."""
    info = read_info(run_dir)
    if info.kind != "blend" or info.status != "complete":
        raise RunFolderError(
            f"{run_dir} holds no classifier of `regraft fit` that is complete.",
            remedy="Repeat the command that began it with --resume, or name another folder.",
        )
    result: dict[str, Any] = info.result
    return FittedClassifier(
        info=info,
        settings=read_settings(run_dir),
        tokenizer=load_tokenizer(run_dir / "tokenizer.json"),
        bases=[
            load_recipe_base(base_dir(run_dir, number)) for number in range(result["num_bases"])
        ],
        members={
            name: MEMBERS[name].load(run_dir / "members" / name) for name in result["weights"]
        },
    )


def load_recipe_base(run_dir: Path) -> LoadedRun:
    """A base of the recipe, in memory as it lies on disk: sums are of single precision anyway."""
    base = load_run(run_dir)
    if base.settings.model.family == "bag":
        base.model.half()
    return base


def save_fitted(fitted: FittedClassifier, run_dir: Path, *, labels: Sequence[str]) -> None:
    """Write a folder as `regraft fit` writes it, its classes under other names perhaps."""
    info = replace(fitted.info, labels=tuple(labels), status="training", result={})
    folder = RunFolder(run_dir)
    folder.start(info, settings=fitted.settings, tokenizer=fitted.tokenizer, resume=False)
    for number, base in enumerate(fitted.bases):
        base_folder = RunFolder(base_dir(run_dir, number))
        base_folder.start(base.info, settings=base.settings, tokenizer=base.tokenizer, resume=False)
        base_folder.finish(base.info, model=base.model)
        base_folder.keep_half_precision()
    for name, member in fitted.members.items():
        member.save(run_dir / "members" / name)
    folder.finish_blend({**fitted.info.result, "run_dir": str(run_dir), "labels": list(labels)})


def base_dir(run_dir: Path, number: int) -> Path:
    """The run folder of a base, in the order they were made in."""
    return run_dir / "bases" / str(number)


@dataclass(frozen=True)
class FinalScore:
    """The blend and each member on a test file, what leaked, and whom the blend beat.

    `scores` are of all test examples; `clean_scores` and `tests` of those that decide, by the rule
    of `Seen.clean_N`. `num_leaks` are also among the labelled ones and `num_in_text` in the text,
    exactly or nearly; `num_repeats` stand earlier in the file. `num_read_deciding` decide although
    they were in the text.
    """

    num_test: int
    num_leaks: int
    num_in_text: int
    scores: dict[str, Evaluation]
    clean_scores: dict[str, Evaluation]
    tests: tuple[PairedTest, ...]
    num_repeats: int = 0
    num_read_deciding: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    @property
    def verdict(self) -> str:
        """Whom the blend beats, by the rule of `PairedTest.is_significant`, on what decides."""
        parts = [f"The blend reaches {self.clean_scores['blend'].accuracy.mean:.1%}"]
        for test in self.tests:
            gap = test.difference
            points = f"{100 * gap.mean:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
            if not test.is_significant:
                told = "cannot be told apart from"
                if gap.low > 0 or gap.high < 0:  # the interval alone would say otherwise
                    points += f", but p = {test.p_holm:.3f} corrected for both rivals"
            else:
                told = "beats" if gap.mean > 0 else "loses to"
            theirs = self.clean_scores[test.second].accuracy.mean
            parts.append(f"it {told} {test.second} ({theirs:.1%}, {points})")
        return "; ".join(parts) + "."

    @property
    def notes(self) -> list[str]:
        """What was seen before the test or repeats, and what that does to the scores."""
        notes = []
        if self.num_leaks:
            notes.append(
                f"{self.num_leaks:,} of {self.num_test:,} test examples are also among the "
                "labelled ones, exactly or nearly: they decide nothing."
            )
        if self.num_in_text:
            what = "they decide nothing."
            if self.num_read_deciding:
                what = (
                    f"too few others are left to decide by, so {self.num_read_deciding:,} of them "
                    "decide, too, and what learned from that text may be flattered."
                )
            notes.append(
                f"Of the test examples, {self.num_in_text:,} were read, exactly or nearly, without "
                f"their labels, as part of the text: {what}"
            )
        if self.num_repeats:
            notes.append(
                f"{self.num_repeats:,} of the test examples repeat the text of an earlier one: "
                "each text decides once."
            )
        decides, whole = self.clean_scores["blend"], self.scores["blend"]
        if decides.num_examples < self.num_test:
            notes.append(
                f"Decided by {decides.num_examples:,} of {self.num_test:,} test examples: on these "
                f"the blend has {_told(decides.accuracy)}, on all {_told(whole.accuracy)}, as in "
                "the table."
            )
        return notes


def _told(score: Interval) -> str:
    return f"{score.mean:.1%} ({100 * score.low:.1f} to {100 * score.high:.1f})"


def final_score(
    run_dir: Path,
    path: str | Path,
    *,
    labelled: Sequence[str | Path],
    texts: Sequence[str | Path],
    data: DataSettings,
    progress: Progress = SILENT,
) -> FinalScore:
    """Open the test file, once everything is chosen, and compare the blend with its rivals.

    `labelled` and `texts` are the files that the classifier learned from.
    """
    asked = _ask(run_dir, path, data=data, progress=progress)
    learned = [example for file in labelled for example in load_examples(file, data=data)]
    seen = find_seen(
        asked.examples,
        train=learned,
        valid=[],
        documents=read_documents(texts, data=data) if texts else None,
        progress=progress,
    )
    if seen.labelled_N.all():
        raise DataError(
            f"Every example of {path} is also among the labelled ones, exactly or nearly.",
            "A test on what was learned by heart shows nothing.",
            remedy="Give another --test; with --resume nothing is learned again.",
        )
    clean_N = seen.clean_N
    return FinalScore(
        num_test=len(asked.examples),
        num_leaks=int(seen.labelled_N.sum()),
        num_in_text=0 if seen.text_N is None else int(seen.text_N.sum()),
        scores=asked.scores(np.ones_like(clean_N)),
        clean_scores=asked.scores(clean_N),
        tests=_tests({name: asked.is_correct(name)[clean_N] for name in asked.chances}),
        num_repeats=int(seen.repeat_N.sum()),
        num_read_deciding=seen.num_read_deciding,
    )


def _tests(correct_N: Mapping[str, NDArray[np.bool_]]) -> tuple[PairedTest, ...]:
    """The blend against each rival, on the same examples."""
    correct = {name: right_N[None] for name, right_N in correct_N.items()}
    return with_holm(
        [
            PairedTest(
                first="blend",
                second=rival,
                difference=difference_interval(correct["blend"], correct[rival]),
                p_permutation=paired_permutation_test(correct["blend"], correct[rival]),
                p_mcnemar=mcnemar_test(correct_N["blend"], correct_N[rival]),
            )
            for rival in RIVALS
        ]
    )


def evaluate_fitted(
    run_dir: Path,
    path: str | Path,
    *,
    data: DataSettings | None = None,
    progress: Progress = SILENT,
) -> dict[str, Evaluation]:
    """The blend on a labelled file, and each member beside it."""
    asked = _ask(run_dir, path, data=data or read_settings(run_dir).data, progress=progress)
    return asked.scores(np.ones(len(asked.examples), dtype=bool))


@dataclass(frozen=True)
class _Asked:
    """Labelled examples, and what the blend and every member say to them."""

    examples: Sequence[Example]
    labels: Labels
    chances: Mapping[str, NDArray[np.float64]]

    @property
    def targets(self) -> NDArray[np.int64]:
        return self.labels.targets(self.examples)

    def is_correct(self, name: str) -> NDArray[np.bool_]:
        right_N: NDArray[np.bool_] = self.chances[name].argmax(axis=1) == self.targets
        return right_N

    def scores(self, kept_N: NDArray[np.bool_]) -> dict[str, Evaluation]:
        targets_N = self.targets[kept_N]
        # Nothing is cut: words are counted, and bases read long texts in windows.
        return {
            name: evaluation(
                chances_NC[kept_N], targets_N=targets_N, labels=self.labels, cut_share=0.0
            )
            for name, chances_NC in self.chances.items()
        }


def _ask(run_dir: Path, path: str | Path, *, data: DataSettings, progress: Progress) -> _Asked:
    fitted = load_fitted(run_dir)
    labels = Labels(fitted.labels)
    examples = load_examples(path, data=data)
    check_labels_known(examples, labels)
    chances = fitted.member_probabilities([e.text for e in examples], progress=progress)
    return _Asked(examples, labels, {"blend": fitted.blended(chances), **chances})
