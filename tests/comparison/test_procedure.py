"""The comparison: fair by construction, repeatable, honest in its verdict."""

import contextlib
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparisons import arm as summary_of
from comparisons import info, told, without_times
from conftest import TINY, Recorder, make_examples, write_examples
from scipy.stats import binom
from shapes import unchecked
from simulated_arms import simulated_arms

import regraft
from regraft.comparison.analysis import paired_tests
from regraft.comparison.procedure import compare
from regraft.comparison.results import Comparison, PairedTest, VerdictKind
from regraft.comparison.verdict import judge
from regraft.config.presets import DEFAULT_ARMS
from regraft.config.resolution import resolve, settings_to_dict
from regraft.errors import ConfigError, DataError, RegraftError, RunFolderError
from regraft.report.sentences import verdict_parts
from regraft.report.tables import comparison_to_dict
from regraft.report.writer import write_report

NEURAL = ("pretrained", "scratch", "frozen")
SETTINGS = resolve("finetune", overrides={**TINY, "train.epochs": 2})
NUM_LEAKS = 2
# Train for the texts of valid and test, and valid for those of test.
SEARCHED = ["near duplicates", "near duplicates"]


class Noting(Recorder):
    """Remembers the notes behind the bar, too."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        super().advance(amount, note=note)
        self.notes.append(note)


@dataclass(frozen=True)
class Compared:
    """A comparison with all that was told while it ran."""

    comparison: Comparison
    progress: Noting
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
    inputs |= {"base": shared_base, "seeds": 2, "settings": SETTINGS, "grid": "none"}
    progress = Noting()
    comparison = compare(**inputs, progress=progress, command="regraft compare")
    return Compared(comparison, progress, inputs)


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
    assert compared.progress.tasks == [*SEARCHED, "7 runs", "test"]
    cells = [f"{arm}, 32 labels, seed {seed}" for seed in (0, 1) for arm in DEFAULT_ARMS]
    trained = [cell for cell in cells if cell != "linear, 32 labels, seed 1"]
    notes = [note.partition(", valid")[0] for note in compared.progress.notes if " of 7: " in note]
    assert notes == [
        *(f"{number} of 7: {cell}" for number, cell in enumerate(trained, start=1)),
        *(f"{number} of 7: {cell}" for number, cell in enumerate(trained, start=1)),
    ]


class Replacing(Recorder):
    """Puts another content into a file when the one run is trained."""

    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__()
        self._path, self._content = path, content

    def finish(self) -> None:
        if self.tasks[-1] == "1 runs":
            self._path.write_bytes(self._content)


def test_what_is_scored_is_read_when_training_has_ended(compared: Compared, tmp_path: Path) -> None:
    test = tmp_path / "test.csv"
    test.write_text("text,label\nfine,positive\n")
    inputs = {**compared.inputs, "test": test, "arms": ["scratch"], "seeds": 1}
    comparison = compare(**inputs, progress=Replacing(test, compared.inputs["test"].read_bytes()))
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


def test_test_file_that_was_trained_on_is_refused(compared: Compared, tmp_path: Path) -> None:
    inputs = {**compared.inputs, "test": compared.inputs["train"], "arms": ["linear"]}
    with pytest.raises(DataError, match="are the same file"):
        compare(**inputs)
    shuffled = tmp_path / "test.csv"
    head, *rows = compared.inputs["train"].read_text().splitlines(keepends=True)
    shuffled.write_text("".join([head, *reversed(rows)]))
    progress, out = Recorder(), tmp_path / "runs" / "out"
    with pytest.raises(DataError, match=r"Every example of .*test\.csv also occurs"):
        compare(**{**inputs, "test": shuffled}, out=out, progress=progress)
    # Nothing was trained for it, and no label was looked at.
    assert progress.tasks == SEARCHED
    assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").iterdir()) == []


def test_equal_seeds_give_an_equal_comparison(compared: Compared) -> None:
    again = compare(**compared.inputs, command="regraft compare")
    assert without_times(again) == without_times(compared.comparison)


def test_runs_side_by_side_give_the_same_comparison(compared: Compared) -> None:
    # One thread a run either way (conftest.py): sums are rounded in the same order.
    again = compare(**compared.inputs, jobs=2, command="regraft compare")
    assert without_times(again) == without_times(compared.comparison)


def test_runs_that_stop_at_different_epochs_have_a_report(
    compared: Compared, tmp_path: Path
) -> None:
    patient = {"train.epochs": 6, "train.patience": 1, "train.lr": 0.003}
    settings = resolve("finetune", overrides={**TINY, **patient})
    inputs = {**compared.inputs, "settings": settings, "arms": ["pretrained"], "seeds": 4}
    comparison = compare(**inputs)
    (arm,) = comparison.arms
    assert len(set(map(len, arm.valid_curves))) > 1
    assert (tmp_path / "accuracy.svg") == write_report(comparison, tmp_path)["accuracy.svg"]


def test_first_seed_comes_from_the_settings(compared: Compared) -> None:
    settings = resolve("finetune", overrides={**TINY, "train.epochs": 1, "train.seed": 7})
    progress = Noting()
    inputs = {**compared.inputs, "settings": settings, "arms": ["frozen"], "seeds": 2}
    compare(**inputs, progress=progress)
    found = [note.partition(", valid")[0] for note in progress.notes if " of 2: " in note]
    assert found[:2] == ["1 of 2: frozen, 32 labels, seed 7", "2 of 2: frozen, 32 labels, seed 8"]


def test_leaks_are_counted_and_scored_apart(compared: Compared) -> None:
    comparison = compared.comparison
    assert comparison.num_test == 16 + NUM_LEAKS
    assert comparison.num_test_leaks == NUM_LEAKS
    assert any("2 of the test examples also occur" in caveat for caveat in comparison.warnings)
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
    assert [arm.name for arm in comparison.arms] == list(DEFAULT_ARMS)
    # The base arm against each other, then what other uses of the base are held against.
    pairs = [("pretrained", name) for name in ("scratch", "frozen", "linear")]
    assert [(t.first, t.second) for t in comparison.tests] == [*pairs, ("frozen", "linear")]
    assert comparison.labels == ("negative", "positive")
    assert (comparison.num_train, comparison.num_valid) == (32, 16)
    assert comparison.base["run_dir"] == str(compared.inputs["base"])
    assert comparison.base["num_steps"] == 20
    names = {"train", "valid", "test", "base", "tokenizer", "text"}
    assert comparison.fingerprints.keys() == names
    assert 0 < comparison.cut_share <= 1
    assert Comparison.from_dict(comparison_to_dict(comparison)) == comparison


def test_report_is_written_from_a_real_comparison(compared: Compared, tmp_path: Path) -> None:
    written = write_report(compared.comparison, tmp_path / "report")
    names = {"report.html", "report.md", "report.json", "accuracy.png", "accuracy.svg"}
    assert names <= {path.name for path in (tmp_path / "report").iterdir()} == set(written)
    for part in verdict_parts(compared.comparison.verdict):
        assert part in written["report.md"].read_text(encoding="utf-8")
    assert "<html" in written["report.html"].read_text(encoding="utf-8")
    report = json.loads(written["report.json"].read_text(encoding="utf-8"))
    assert report["verdict_kind"] == compared.comparison.verdict_kind
    assert written["accuracy.png"].read_bytes().startswith(b"\x89PNG")


class Interrupting(Noting):
    """Presses Ctrl-C when a run of this name is under way."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        super().advance(amount, note=note)
        if note.startswith(self._name):
            self._name = "once is enough"
            os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_comparison_goes_on_to_the_same_report(
    compared: Compared, tmp_path: Path
) -> None:
    out, progress = tmp_path / "out", Noting()
    inputs = {**compared.inputs, "out": out, "command": "regraft compare"}
    with pytest.raises(KeyboardInterrupt):
        compare(**inputs, progress=Interrupting("pretrained, 32 labels, seed 1"))
    assert [path.name for path in out.iterdir()] == ["arms"]
    comparison = compare(**inputs, progress=progress)
    assert progress.messages == ["4 of 7 runs are finished already."]
    assert progress.tasks == [*SEARCHED, "3 runs", "test"]
    assert without_times(comparison) == without_times(compared.comparison)

    write_report(comparison, out)
    assert not (out / "arms").exists()
    progress = Recorder()
    assert compare(**inputs, progress=progress) == comparison
    assert progress.messages == [f"{out} is complete already."]


# Compares in forked children of one process that has torch in memory already. Each is killed some
# milliseconds after it has left so many files, wherever it is then; the last one lives to the end.
KILLER = """
import json, os, pathlib, signal, sys, time
import torch
from regraft.comparison.procedure import compare
from regraft.config import settings_from_dict
from regraft.report import write_report

# The first optimiser of a process imports a compiler: seconds, paid here once for all children.
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
arguments = json.loads(sys.argv[1])
inputs = {**arguments["inputs"], "settings": settings_from_dict(arguments["settings"])}

def begin(out):
    child = os.fork()
    if child == 0:
        write_report(compare(**inputs, out=out, command="regraft compare"), out)
        os._exit(0)
    return child

def num_kept(out):
    kept = pathlib.Path(out, "arms").glob("*/*-*.*")
    return sum(path.suffix in (".json", ".answers") for path in kept)

killed = 0
for num_files, seconds in arguments["moments"]:
    child = begin(arguments["killed"])
    status = None
    while num_kept(arguments["killed"]) < num_files:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.001)
    else:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    killed += os.WIFSIGNALED(status)
for out in (arguments["killed"], arguments["straight"]):
    if not pathlib.Path(out, "report.json").exists():
        _, status = os.waitpid(begin(out), 0)
        assert status == 0, status
print(killed)
"""


@pytest.mark.slow
def test_killed_comparison_ends_in_the_same_report(
    compared: Compared, shared_base: Path, tmp_path: Path
) -> None:
    straight, out = tmp_path / "a" / "out", tmp_path / "b" / "out"
    settings = resolve("finetune", overrides={**TINY, "train.epochs": 2, "train.threads": 1})
    source = random.Random(1)
    inputs = {name: str(compared.inputs[name]) for name in ("train", "valid", "test")}
    arms = ["pretrained", "scratch", "linear", "nbsvm", "latent", "embedding"]
    asked = {"base": str(shared_base), "arms": arms, "seeds": 2, "labels": [8, None]}
    asked["grid"] = "none"
    # 20 cells, each of which leaves a sign and then its answers.
    moments = [(number, source.uniform(0, 0.03)) for number in (1, 3, 6, 9, 13, 17, 20, 23, 30, 40)]
    arguments = {
        "inputs": {**inputs, **asked},
        "settings": settings_to_dict(settings),
        "moments": moments,
        "killed": str(out),
        "straight": str(straight),
    }
    done = subprocess.run(
        [sys.executable, "-c", KILLER, json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 8
    assert told(out) == told(straight)
    assert not (straight / "arms").exists()


def test_bad_test_file_loses_no_finished_run(compared: Compared, tmp_path: Path) -> None:
    out, test = tmp_path / "out", tmp_path / "test.csv"
    test.write_bytes(compared.inputs["test"].read_bytes())
    inputs = {**compared.inputs, "out": out, "test": test, "arms": ["frozen"], "seeds": 1}
    spoiling = Replacing(test, b"text,label\nfine,positive\nso so,neutal\n")
    with pytest.raises(DataError, match="'neutal' occurs only in"):
        compare(**inputs, progress=spoiling)
    test.write_bytes(compared.inputs["test"].read_bytes())
    progress = Recorder()
    compare(**inputs, progress=progress)
    assert progress.tasks == [*SEARCHED, "test"]


def test_interruption_before_any_run_leaves_nothing(compared: Compared, tmp_path: Path) -> None:
    inputs = {**compared.inputs, "arms": ["scratch"]}
    out, mine = tmp_path / "new" / "out", tmp_path / "mine"
    mine.mkdir()
    for folder in (out, mine):
        with pytest.raises(KeyboardInterrupt):
            compare(**inputs, out=folder, progress=Interrupting("scratch"))
    assert not out.exists()
    assert list(mine.iterdir()) == []
    assert not (tmp_path / "openings.json").exists()


@pytest.fixture(scope="module")
def unfinished(compared: Compared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison with one finished run."""
    out = tmp_path_factory.mktemp("unfinished")
    inputs = {**compared.inputs, "out": out, "arms": ["frozen", "scratch"], "seeds": 1}
    with pytest.raises(KeyboardInterrupt):
        compare(**inputs, progress=Interrupting("scratch"))
    return out


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"settings": resolve("finetune", overrides={**TINY, "train.lr": 0.5})},
            "train.epochs was 2 and is 10; train.lr was 0.0005 and is 0.5.",
        ),
        ({"train": "valid"}, "train has changed."),
        ({"valid": "train"}, "valid has changed."),
    ],
)
def test_comparison_is_not_resumed_with_other_settings_or_data(
    compared: Compared, unfinished: Path, changes: dict[str, Any], problem: str
) -> None:
    changes = {
        key: compared.inputs[value] if isinstance(value, str) else value
        for key, value in changes.items()
    }
    with pytest.raises(RunFolderError) as caught:
        compare(**{**compared.inputs, **changes, "out": unfinished})
    settings = sorted(caught.value.problem.partition(": ")[2].rstrip(".").split("; "))
    assert settings == sorted(problem.rstrip(".").split("; "))
    assert caught.value.problem.startswith(f"{unfinished} was started with other settings")


def test_damaged_weights_of_a_finished_run_are_named(
    compared: Compared, tmp_path: Path, unfinished: Path
) -> None:
    out = Path(shutil.copytree(unfinished, tmp_path / "out"))
    weights = out / "arms" / "frozen" / "32-0" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    inputs = {**compared.inputs, "out": out, "arms": ["frozen"], "seeds": 1}
    with pytest.raises(RunFolderError) as caught:
        compare(**inputs)
    assert caught.value.problem.startswith(f"{weights} is damaged: ")
    shutil.rmtree(weights.parent)
    assert compare(**inputs).num_test == 16 + NUM_LEAKS


def test_folder_is_refused_before_any_work(compared: Compared, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder, message in (
        (
            tmp_path / "file",
            f"{tmp_path / 'file'} exists and is not a folder. "
            "A comparison is written into a folder. Choose another --out.",
        ),
        (
            tmp_path / "file" / "out",
            f"Cannot write {tmp_path / 'file' / 'out' / 'arms'}: Not a directory. "
            "Choose a folder you may write to.",
        ),
    ):
        progress = Recorder()
        with pytest.raises(RegraftError) as caught:
            compare(**compared.inputs, out=folder, progress=progress)
        assert str(caught.value) == message
        assert progress.tasks == []
    assert (tmp_path / "file").read_text() == "mine"


def test_repeated_command_is_shown_its_report(compared: Compared, tmp_path: Path) -> None:
    out, progress = tmp_path / "out", Recorder()
    write_report(compared.comparison, out)
    inputs = {**compared.inputs, "out": out, "command": "regraft compare --json --jobs 2"}
    assert compare(**inputs, progress=progress) == compared.comparison
    assert progress.messages == [f"{out} is complete already."]
    with pytest.raises(RunFolderError, match="has a report with other seeds 2"):
        compare(**{**inputs, "seeds": 3})


def test_finished_comparison_is_not_taken_for_another(compared: Compared, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_report(compared.comparison, out)
    write_examples(tmp_path / "test.csv", 16, seed=9)
    inputs = {**compared.inputs, "out": out}
    with pytest.raises(RunFolderError, match=r"report with other arms \['pretrained'"):
        compare(**{**inputs, "arms": ["linear"]})
    with pytest.raises(RunFolderError, match=r"has a report with other seeds 2, labels \['all'\]"):
        compare(**{**inputs, "seeds": 3, "labels": (8, None)})
    with pytest.raises(
        RunFolderError,
        match="grid was 'none' and is 'small'",
    ):
        compare(**{**inputs, "grid": "small"})
    with pytest.raises(RunFolderError, match="test has changed"):
        compare(**{**inputs, "test": tmp_path / "test.csv"})
    (out / "report.json").write_text("{}")
    with pytest.raises(
        RunFolderError, match=r"report\.json cannot be read: verdict: field required"
    ):
        compare(**inputs)


def test_budget_in_minutes_is_refused(compared: Compared) -> None:
    settings = resolve("finetune", overrides={**TINY, "train.minutes": 5})
    with pytest.raises(ConfigError) as caught:
        compare(**{**compared.inputs, "settings": settings})
    assert "train.minutes is 5" in caught.value.problem


def test_compare_is_public() -> None:
    assert regraft.compare is compare


def test_base_must_be_a_language_model(compared: Compared, shared_classifier: Path) -> None:
    with pytest.raises(RunFolderError, match="holds a classifier, not a language-model"):
        compare(**{**compared.inputs, "base": shared_classifier})


def test_no_seed_is_refused(compared: Compared) -> None:
    with pytest.raises(ConfigError, match=r"--seeds is 0\. It must be 1 or more\."):
        compare(**{**compared.inputs, "seeds": 0})


def test_base_that_is_not_fine_tuned_is_judged(compared: Compared) -> None:
    comparison = compare(**{**compared.inputs, "arms": ["linear", "embedding"]})
    assert [(test.first, test.second) for test in comparison.tests] == [("embedding", "linear")]
    assert comparison.verdict.startswith("The base as vectors ")


NUM_VERDICTS = 1_000
# Two uses of a base, a control and two rivals, with their seeds; an arm of one run has no luck.
SIMULATED = {"pretrained": 3, "scratch": 3, "embedding": 1, "linear": 1, "cnn": 3}


def simulated_verdicts(
    number: int, *, luck_points: float, **better: float
) -> Iterator[tuple[VerdictKind, str, list[PairedTest]]]:
    """Verdicts on arms that are all 80 % right in truth, but for those that are named."""
    accuracies = {name: 0.8 + better.get(name, 0.0) for name in SIMULATED}
    for seed in range(number):
        answers = simulated_arms(
            accuracies=tuple(accuracies.values()),
            num_seeds=tuple(SIMULATED.values()),
            num_examples=200,
            luck_points=luck_points,
            seed=seed,
        )
        found = dict(zip(SIMULATED, answers, strict=True))
        by_arm = {info(name): right for name, right in found.items()}
        # The first few with checks of all shapes.
        with contextlib.nullcontext() if seed < 3 else unchecked():
            tests = paired_tests(by_arm, is_whole=True, num_resamples=1)
            arms = [
                summary_of(name, curves=((0.5,),) * len(right), test=float(right.mean()))
                for name, right in found.items()
            ]
            verdict = judge(arms, tests)
        yield *verdict, [test for test in tests if test.p_holm is not None]


@pytest.mark.parametrize("luck_points", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_verdict_claims_nothing_where_there_is_nothing(luck_points: float) -> None:
    false = 0
    for kind, verdict, tests in simulated_verdicts(NUM_VERDICTS, luck_points=luck_points):
        is_claimed = any(word in verdict for word in ("helped", "hurt", "beats", "loses to"))
        shown = [test for test in tests if test.is_significant]
        assert is_claimed <= bool(shown)
        assert kind == "no-gain" or shown
        for test in tests:
            # No sentence contradicts the interval beside it.
            assert test.is_significant == (test.decided_by.low > 0 or test.decided_by.high < 0)
        false += is_claimed
    # 5 % at most for all questions together, and then chance (1 in 1,000).
    assert false <= binom(NUM_VERDICTS, 0.05).ppf(0.999)


@pytest.mark.parametrize(
    ("better", "kinds", "claim"),
    [
        ({"pretrained": 0.16}, {"pays"}, "Pre-training helped, and the fine-tuned base beats"),
        ({"embedding": 0.16}, {"pays-otherwise"}, " the base as vectors beats every rival."),
        ({"linear": 0.16}, {"no-gain", "hurts"}, "the fine-tuned base loses to TF-IDF"),
        # What never was is not found: it is not better than linear, only than the others.
        ({"pretrained": 0.16, "linear": 0.16}, {"ties-with-linear"}, "is not distinguishable"),
    ],
)
def test_verdict_finds_what_there_is(
    better: dict[str, float], kinds: set[VerdictKind], claim: str
) -> None:
    found = list(simulated_verdicts(50, luck_points=1, **better))
    right = sum(
        kind in kinds and claim in verdict.partition(". ")[0] + "." for kind, verdict, _ in found
    )
    assert right >= 38


def test_power_of_a_verdict_is_what_the_smallest_difference_promises() -> None:
    # Of every gap that the report calls the smallest, four in five are to be found: the gap is
    # the one for arms like these, at the level of three questions.
    gaps = [
        test.smallest_difference
        for _, _, tests in simulated_verdicts(60, luck_points=1)
        for test in tests
        if test.second == "scratch"
    ]
    gap = float(np.mean([gap for gap in gaps if gap is not None]))
    found = [
        verdict.startswith("Pre-training helped")
        for _, verdict, _ in simulated_verdicts(200, luck_points=1, scratch=-gap)
    ]
    # Holm gives back what other questions did not need, so it is rather more.
    assert 0.7 <= np.mean(found) <= 0.94
