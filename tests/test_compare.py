"""The comparison: fair by construction, repeatable, honest in its verdict."""

import csv
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, Recorder, make_examples, write_examples
from numpy.typing import NDArray

import regraft
from regraft.batches import Batch, ExampleRows
from regraft.compare import (
    ARMS,
    ArmSummary,
    Comparison,
    PairedTest,
    SeedRun,
    VerdictKind,
    _mistakes,
    _warnings,
    compare,
    judge,
)
from regraft.config import resolve
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.metrics import Interval
from regraft.report import comparison_to_dict, write_report
from regraft.text import Example, Labels

NEURAL = ("pretrained", "scratch", "frozen")
SETTINGS = resolve("finetune", overrides={**TINY, "train.epochs": 2})
NUM_LEAKS = 2


class BatchRecorder(Recorder):
    """Remembers, for every task, the rows that were asked for while it was open."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[str, tuple[int, ...]]] = []

    def note_batch(self, numbers: NDArray[np.int64]) -> None:
        self.batches.append((self.tasks[-1] if self.tasks else "", tuple(numbers.tolist())))

    def of(self, arm: str, *, seed: int) -> list[tuple[int, ...]]:
        return [rows for task, rows in self.batches if task.startswith(f"{arm}, seed {seed} ")]


@dataclass(frozen=True)
class Compared:
    """A comparison with all that was told while it ran."""

    comparison: Comparison
    progress: BatchRecorder
    inputs: dict[str, Any]


@pytest.fixture(scope="module")
def compared(shared_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """All arms, two seeds; two rows of test are also in train."""
    folder = tmp_path_factory.mktemp("compare")
    sizes = {"train": 32, "valid": 16, "test": 16}
    inputs: dict[str, Any] = {
        name: write_examples(folder / f"{name}.csv", size, seed=seed)
        for seed, (name, size) in enumerate(sizes.items(), start=3)
    }
    with inputs["test"].open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(make_examples(NUM_LEAKS, seed=3))
    inputs |= {"base": shared_base, "seeds": 2, "settings": SETTINGS}
    progress = BatchRecorder()
    plain_batch = ExampleRows.batch

    def batch(rows: ExampleRows, numbers: NDArray[np.int64]) -> Batch:
        progress.note_batch(numbers)
        return plain_batch(rows, numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExampleRows, "batch", batch)
        comparison = compare(**inputs, progress=progress, command="regraft compare")
    return Compared(comparison, progress, inputs)


def test_arms_see_the_same_batches(compared: Compared) -> None:
    for seed in (0, 1):
        first, *others = (compared.progress.of(arm, seed=seed) for arm in NEURAL)
        # 2 epochs of 8 batches of train, and valid once before and after each of them.
        assert len(first) == 2 * 8 + 3
        assert others == [first, first]
    assert compared.progress.of("scratch", seed=0) != compared.progress.of("scratch", seed=1)


def test_curves_begin_before_the_first_epoch(compared: Compared) -> None:
    curves = {arm.name: arm.valid_curves for arm in compared.comparison.arms}
    assert {name: len(curve) for name, curve in curves.items()} == {
        "pretrained": 2,
        "scratch": 2,
        "frozen": 2,
        "linear": 1,
    }
    assert all(len(curve) == 3 for name in NEURAL for curve in curves[name])
    # Same base, same head, no training yet.
    assert [c[0] for c in curves["pretrained"]] == [c[0] for c in curves["frozen"]]


def test_test_file_comes_after_the_last_training(compared: Compared) -> None:
    runs = [f"{arm}, seed {seed}" for seed in (0, 1) for arm in NEURAL]
    assert compared.progress.tasks == [
        "linear arm",
        *(f"{run} ({number} of 6)" for number, run in enumerate(runs, start=1)),
        "test",
        "near duplicates",
    ]


def test_test_file_is_not_read_before_training_ends(compared: Compared, tmp_path: Path) -> None:
    test = tmp_path / "test.csv"
    test.write_text("sealed")

    class Sealed(Recorder):
        """Puts the content into the test file when the arm is trained."""

        def finish(self) -> None:
            if self.tasks[-1].startswith("scratch"):
                test.write_bytes(compared.inputs["test"].read_bytes())

    inputs = {**compared.inputs, "test": test, "arms": ["scratch"], "seeds": 1}
    comparison = compare(**inputs, progress=Sealed())
    assert comparison.num_test == 16 + NUM_LEAKS
    assert comparison.verdict_kind == "no-base"
    assert comparison.warnings[0].startswith("One seed: ")


def test_missing_test_file_is_refused_at_once(compared: Compared, tmp_path: Path) -> None:
    progress = Recorder()
    inputs = {**compared.inputs, "test": tmp_path / "tset.csv"}
    with pytest.raises(DataError, match="There is no file or folder"):
        compare(**inputs, progress=progress)
    assert progress.tasks == []


def test_label_only_in_test_is_refused(compared: Compared, tmp_path: Path) -> None:
    test = tmp_path / "test.csv"
    test.write_text("text,label\nfine,positive\nso so,neutal\n")
    with pytest.raises(DataError, match=r"'neutal' occurs only in .*test\.csv \(row 3\)"):
        compare(**{**compared.inputs, "test": test, "arms": ["linear"]})


def test_equal_seeds_give_an_equal_comparison(compared: Compared) -> None:
    again = compare(**compared.inputs, command="regraft compare")
    assert without_times(again) == without_times(compared.comparison)


def without_times(comparison: Comparison) -> dict[str, Any]:
    plain = comparison_to_dict(comparison)
    del plain["created"]
    for arm in plain["arms"]:
        del arm["seconds"]
    return plain


def test_first_seed_comes_from_the_settings(compared: Compared) -> None:
    settings = resolve("finetune", overrides={**TINY, "train.epochs": 1, "train.seed": 7})
    progress = Recorder()
    inputs = {**compared.inputs, "settings": settings, "arms": ["frozen"], "seeds": 2}
    compare(**inputs, progress=progress)
    assert progress.tasks[:2] == ["frozen, seed 7 (1 of 2)", "frozen, seed 8 (2 of 2)"]


def test_leaks_are_counted_and_scored_apart(compared: Compared) -> None:
    comparison = compared.comparison
    assert comparison.num_test == 16 + NUM_LEAKS
    assert comparison.num_test_leaks == NUM_LEAKS
    assert (
        "2 test examples are also, exactly or nearly, in train or valid; "
        "scores are given with and without them."
    ) in comparison.warnings
    for arm in comparison.arms:
        assert arm.test_accuracy_without_leaks is not None
        # The right answers among the 18, less those among the leaks, are those among the 16.
        num_runs = arm.num_seeds
        right = round(arm.test_accuracy.mean * 18 * num_runs)
        right_clean = round(arm.test_accuracy_without_leaks.mean * 16 * num_runs)
        assert 0 <= right - right_clean <= NUM_LEAKS * num_runs
        assert sum(map(sum, arm.confusion)) == 18 * num_runs


def test_comparison_tells_where_it_comes_from(compared: Compared) -> None:
    comparison = compared.comparison
    assert [arm.name for arm in comparison.arms] == list(ARMS)
    assert [test.second for test in comparison.tests] == ["scratch", "frozen", "linear"]
    assert comparison.labels == ("negative", "positive")
    assert (comparison.num_train, comparison.num_valid) == (32, 16)
    assert comparison.base["run_dir"] == str(compared.inputs["base"])
    assert comparison.base["num_steps"] == 20
    assert comparison.fingerprints.keys() == {"train", "valid", "test", "base"}
    assert 0 < comparison.truncated_share <= 1


def test_report_is_written_from_a_real_comparison(compared: Compared, tmp_path: Path) -> None:
    written = write_report(compared.comparison, tmp_path / "report")
    names = {"report.html", "report.md", "report.json", "accuracy.png", "accuracy.svg"}
    assert {path.name for path in (tmp_path / "report").iterdir()} == names == set(written)
    assert compared.comparison.verdict in written["report.md"].read_text(encoding="utf-8")
    assert "<html" in written["report.html"].read_text(encoding="utf-8")
    report = json.loads(written["report.json"].read_text(encoding="utf-8"))
    assert report["verdict_kind"] == compared.comparison.verdict_kind
    assert written["accuracy.png"].read_bytes().startswith(b"\x89PNG")


def test_compare_is_public() -> None:
    assert regraft.compare is compare


def test_base_must_be_a_language_model(compared: Compared, shared_classifier: Path) -> None:
    with pytest.raises(RunFolderError, match="holds a classifier, not a language-model"):
        compare(**{**compared.inputs, "base": shared_classifier})


@pytest.mark.parametrize(
    ("arms", "problem"),
    [
        (["pretraind", "linear"], "Cannot compare the arms 'pretraind', 'linear'."),
        (["linear", "linear"], "Cannot compare the arms 'linear', 'linear'."),
        ([], "Cannot compare the arms none."),
    ],
)
def test_wrong_arms_are_refused(compared: Compared, arms: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compare(**{**compared.inputs, "arms": arms})
    assert caught.value.problem == problem
    assert caught.value.expected == (
        "Arms are pretrained, scratch, frozen, linear, each at most once."
    )


def test_no_seed_is_refused(compared: Compared) -> None:
    with pytest.raises(ConfigError, match=r"--seeds is 0\. It must be 1 or more\."):
        compare(**{**compared.inputs, "seeds": 0})


def arm(name: str, mean: float, *, num_collapsed: int = 0) -> ArmSummary:
    score = Interval(mean, mean - 0.02, mean + 0.02)
    return ArmSummary(
        name=name,
        description=ARMS[name],
        num_seeds=3,
        valid_accuracy=score,
        test_accuracy=score,
        test_accuracy_without_leaks=None,
        macro_f1=mean,
        calibration_error=0.1,
        seconds=1.0,
        num_collapsed=num_collapsed,
        valid_curves=((mean,),),
        confusion=[[1, 0], [0, 1]],
    )


def paired(second: str, mean: float, *, p: float = 0.001) -> PairedTest:
    difference = Interval(mean, mean - 0.02, mean + 0.02)
    return PairedTest("pretrained", second, difference, p_permutation=p, p_mcnemar=p)


HELPED = "Pre-training helped: 82.0% against 77.0% from scratch, +5.0 points [+3.0, +7.0]"


@pytest.mark.parametrize(
    ("scratch", "linear", "kind", "verdict"),
    [
        (
            0.77,
            0.79,
            "pays",
            f"{HELPED}; it beats TF-IDF + logistic regression (79.0%, +3.0 points [+1.0, +5.0]).",
        ),
        (
            0.77,
            0.81,
            "ties-with-linear",
            f"{HELPED}; it cannot be told apart from TF-IDF + logistic regression "
            "(81.0%, +1.0 points [-1.0, +3.0]).",
        ),
        (
            0.77,
            0.85,
            "loses-to-linear",
            f"{HELPED}; it loses to TF-IDF + logistic regression "
            "(85.0%, -3.0 points [-5.0, -1.0]).",
        ),
        (
            0.81,
            0.85,
            "no-gain",
            "No gain from pre-training was found: 82.0% against 81.0% from scratch, "
            "+1.0 points [-1.0, +3.0]; it loses to TF-IDF + logistic regression "
            "(85.0%, -3.0 points [-5.0, -1.0]).",
        ),
        (
            0.86,
            0.79,
            "hurts",
            "Pre-training hurt: 82.0% against 86.0% from scratch, -4.0 points [-6.0, -2.0]; "
            "it beats TF-IDF + logistic regression (79.0%, +3.0 points [+1.0, +5.0]).",
        ),
        (
            0.86,
            0.81,
            "hurts",
            "Pre-training hurt: 82.0% against 86.0% from scratch, -4.0 points [-6.0, -2.0]; "
            "it cannot be told apart from TF-IDF + logistic regression "
            "(81.0%, +1.0 points [-1.0, +3.0]).",
        ),
    ],
)
def test_verdict_follows_from_the_paired_tests(
    scratch: float, linear: float, kind: VerdictKind, verdict: str
) -> None:
    arms = [arm("pretrained", 0.82), arm("scratch", scratch), arm("linear", linear)]
    tests = [paired("scratch", 0.82 - scratch), paired("linear", 0.82 - linear)]
    assert judge(arms, tests) == (kind, verdict)


def test_verdict_without_scratch_or_linear() -> None:
    ours = arm("pretrained", 0.82)
    assert judge([ours, arm("scratch", 0.77)], [paired("scratch", 0.05)]) == (
        "pays",
        f"{HELPED}.",
    )
    assert judge([ours, arm("linear", 0.85)], [paired("linear", -0.03)]) == (
        "loses-to-linear",
        "The pre-trained model reaches 82.0%; it loses to TF-IDF + logistic regression "
        "(85.0%, -3.0 points [-5.0, -1.0]).",
    )


@pytest.mark.parametrize("others", [[], ["frozen"]])
def test_verdict_needs_something_to_beat(others: list[str]) -> None:
    arms = [arm(name, 0.8) for name in ("pretrained", *others)]
    assert judge(arms, [paired(name, 0.0) for name in others]) == (
        "no-base",
        "The base was compared neither with scratch nor with a linear model, "
        "so there is no verdict.",
    )


@pytest.mark.parametrize(
    ("low", "high", "p", "is_significant"),
    [
        (0.01, 0.05, 0.04, True),
        (-0.05, -0.01, 0.04, True),
        (0.01, 0.05, 0.06, False),
        (-0.01, 0.05, 0.04, False),
    ],
)
def test_gap_counts_when_test_and_interval_agree(
    low: float, high: float, p: float, is_significant: bool
) -> None:
    difference = Interval((low + high) / 2, low, high)
    test = PairedTest("pretrained", "scratch", difference, p_permutation=p, p_mcnemar=1.0)
    assert test.is_significant == is_significant


def test_warnings_name_what_weakens_a_result() -> None:
    fine, collapsed = arm("linear", 0.8), arm("scratch", 0.5, num_collapsed=2)
    assert _warnings([fine, collapsed], seeds=3, num_test_leaks=0) == (
        "2 of 3 runs of the scratch arm collapsed: they predict one class almost always.",
    )
    assert _warnings([fine], seeds=1, num_test_leaks=0) == (
        "One seed: intervals cover the test examples only, not the luck of a training run.",
    )
    assert _warnings([fine], seeds=2, num_test_leaks=0) == ()


def test_mistakes_are_the_most_confident_ones() -> None:
    examples = [Example(text, "bad", "test.csv", row) for row, text in enumerate("abcd", start=2)]
    chances = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.3, 0.7]])
    runs = [SeedRun(0, (0.5,), chances, 1.0), SeedRun(1, (0.5,), chances, 1.0)]
    labels = Labels(("bad", "good"))
    found = _mistakes({"pretrained": runs}, test_examples=examples, labels=labels)
    assert [dataclasses.astuple(mistake) for mistake in found] == [
        ("c", "bad", "good", 0.8),
        ("d", "bad", "good", 0.7),
        ("b", "bad", "good", 0.6),
    ]
