"""Which examples decide: texts that were not seen before, each of them once."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, make_examples, write_examples
from typer.testing import CliRunner

from regraft.apps.cli import app
from regraft.comparison.plan import load_comparison
from regraft.comparison.procedure import compare
from regraft.comparison.results import Comparison
from regraft.config.resolution import resolve
from regraft.report.writer import write_report
from regraft.runtime import in_percent

SETTINGS = resolve("finetune", overrides={**TINY, "train.epochs": 1})
NUM_NEW, NUM_LEAKS, NUM_REPEATS = 14, 6, 4


@pytest.fixture(scope="module")
def inputs(shared_base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of the test, some rows are in train, and some stand there twice."""
    folder = tmp_path_factory.mktemp("findings")
    test = write_examples(folder / "test.csv", NUM_NEW, seed=5)
    with test.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(make_examples(NUM_LEAKS, seed=3))
        csv.writer(file).writerows(make_examples(NUM_REPEATS, seed=5))
    return {
        "base": shared_base,
        "train": write_examples(folder / "train.csv", 32, seed=3),
        "valid": write_examples(folder / "valid.csv", 16, seed=4),
        "test": test,
        "settings": SETTINGS,
        "seeds": 2,
        "arms": ["embedding", "linear", "nbsvm"],
        "labels": (8, None),
    }


@pytest.fixture(scope="module")
def found(inputs: dict[str, Any]) -> Comparison:
    return compare(**inputs)


def rights(comparison: Comparison, arm: str, num_labels: int) -> np.ndarray:
    """S x N, from the outcomes."""
    assert comparison.outcomes is not None
    runs = [r for r in comparison.outcomes.runs if (r.arm, r.num_labels) == (arm, num_labels)]
    return np.array([[int(bit) for bit in run.right] for run in runs])


def test_leaks_and_repeats_decide_nothing(found: Comparison) -> None:
    assert found.outcomes is not None
    assert found.num_test == NUM_NEW + NUM_LEAKS + NUM_REPEATS
    assert found.num_deciding == NUM_NEW
    assert "Decided by 14 of 24 test examples" in found.verdict
    assert any("4 of the test examples repeat" in caveat for caveat in found.warnings)
    clean = slice(0, NUM_NEW)
    by_name = {arm.name: arm for arm in found.arms}
    for test in found.tests:
        ours, theirs = (rights(found, name, 32)[:, clean] for name in (test.first, test.second))
        assert test.difference.mean == pytest.approx(ours.mean() - theirs.mean())
    for name, arm in by_name.items():
        assert arm.test_accuracy.mean == pytest.approx(rights(found, name, 32).mean())
        assert arm.deciding.mean == pytest.approx(rights(found, name, 32)[:, clean].mean())
        assert arm.macro_f1_without_leaks is not None
    for point in found.curve:
        right = rights(found, point.arm, point.num_labels)
        assert point.accuracy.mean == pytest.approx(right.mean())
        assert point.deciding.mean == pytest.approx(right[:, clean].mean())
    assert in_percent(by_name["embedding"].deciding.mean) in found.verdict


def test_texts_that_were_read_decide_where_too_few_others_are_left(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    texts = [row[0] for row in make_examples(NUM_NEW, seed=5)][:-2]
    (tmp_path / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    found = compare(
        **{**inputs, "arms": ["linear", "nbsvm"], "labels": (None,)},
        texts=[tmp_path / "text.txt"],
    )
    assert found.num_deciding == NUM_NEW
    (caveat,) = (caveat for caveat in found.warnings if "unlabelled text; " in caveat)
    assert "the 2 others are too few to decide, so 12 of them are included" in caveat


def test_outcomes_hold_every_run_and_no_text(
    found: Comparison, inputs: dict[str, Any], tmp_path: Path
) -> None:
    path = write_report(found, tmp_path)["outcomes.json"]
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told["decides"] == "1" * NUM_NEW + "0" * (NUM_LEAKS + NUM_REPEATS)
    assert told["in_labelled"] == "0" * NUM_NEW + "1" * NUM_LEAKS + "0" * NUM_REPEATS
    assert told["repeats"] == "0" * (NUM_NEW + NUM_LEAKS) + "1" * NUM_REPEATS
    assert told["in_text"] is None
    assert told["test"] == found.fingerprints["test"]
    # Of all labels there is one run of a shallow arm; of a subset, one for each seed.
    cells = [(run["arm"], run["num_labels"], run["seed"]) for run in told["runs"]]
    assert cells == [(arm, *run) for arm in inputs["arms"] for run in ((8, 0), (8, 1), (32, 0))]
    assert all(len(run["right"]) == told["num_test"] for run in told["runs"])
    assert "note 5-" not in path.read_text(encoding="utf-8")
    again = load_comparison(tmp_path / "report.json")
    assert (again, again.outcomes) == (found, found.outcomes)


def test_example_reports_can_be_read() -> None:
    for path in sorted(Path(__file__).parents[2].glob("docs/examples/*/report.json")):
        assert load_comparison(path).arms


def caveats_of_bases(comparison: Comparison) -> list[str]:
    start = "The pre-training text of the base"
    return [caveat for caveat in comparison.warnings if caveat.startswith(start)]


def test_text_of_a_base_that_was_not_searched_is_told(
    found: Comparison, inputs: dict[str, Any], shared_base: Path
) -> None:
    (caveat,) = caveats_of_bases(found)
    assert "was not searched" in caveat
    few = {**inputs, "labels": (None,), "seeds": 1}
    own, other = shared_base.parent / "documents.txt", inputs["train"]
    wrong = compare(**few, texts=[other])
    (caveat,) = caveats_of_bases(wrong)
    assert "another text" in caveat
    for texts in ([own], [other, own]):
        assert caveats_of_bases(compare(**few, texts=texts)) == []
    without = compare(**{**few, "arms": ["scratch", "linear"]})
    assert caveats_of_bases(without) == []


def test_copies_between_train_and_valid_are_told_when_they_are_near(
    inputs: dict[str, Any], tmp_path: Path
) -> None:
    examples = make_examples(40, seed=3)
    texts = [text for text, _ in examples]
    long = [f"{one} {other}" for one, other in zip(texts[::2], texts[1::2], strict=True)]
    for name, ending in (("train", ""), ("valid", " Indeed.")):
        with (tmp_path / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            rows = [(text + ending, ("positive", "negative")[i % 2]) for i, text in enumerate(long)]
            csv.writer(file).writerows([("text", "label"), *rows])
    files = {name: tmp_path / f"{name}.csv" for name in ("train", "valid")}
    comparison = compare(**{**inputs, **files, "arms": ["linear"], "labels": (None,)})
    assert any("20 of the valid examples also occur" in caveat for caveat in comparison.warnings)


def test_score_of_a_classifier_is_an_opening_beside_its_folder(
    inputs: dict[str, Any], shared_classifier: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(shared_classifier, tmp_path / "runs" / "classifier"))
    for _ in range(2):
        done = CliRunner().invoke(app, ["evaluate", str(run), str(inputs["test"]), "-q"])
        assert done.exit_code == 0, done.output
    out = tmp_path / "runs" / "comparison"
    few = {**inputs, "arms": ["linear"], "labels": (None,)}
    comparison = compare(**few, out=out, command="regraft compare")
    assert len(comparison.openings) == 2
    assert comparison.openings[1].command == "regraft compare"
