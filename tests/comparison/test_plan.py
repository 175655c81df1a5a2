"""Label curves, several bases, and a comparison that is repeated from its report."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from comparisons import without_times
from conftest import TINY, make_examples, write_examples
from typer.testing import CliRunner

from regraft.apps.cli import app
from regraft.comparison.plan import load_comparison, read_request, relocated
from regraft.comparison.procedure import compare, run_request
from regraft.comparison.results import Comparison
from regraft.config.resolution import resolve
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.report.writer import write_report
from regraft.training.bases import read_base_settings

ARMS = ("pretrained", "pretrained:other", "scratch", "linear", "latent", "embedding:other")


@dataclasses.dataclass(frozen=True)
class Curve:
    """A comparison with a label curve, and what was asked."""

    comparison: Comparison
    inputs: dict[str, Any]
    out: Path


@pytest.fixture(scope="module")
def curve(shared_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Curve:
    folder = tmp_path_factory.mktemp("curve")
    sizes = {"train": 32, "valid": 16, "test": 20}
    inputs: dict[str, Any] = {
        name: write_examples(folder / f"{name}.csv", size, seed=seed)
        for seed, (name, size) in enumerate(sizes.items(), start=3)
    }
    text = folder / "text.txt"
    leaked = [text for text, _ in make_examples(3, seed=5)]
    texts = [text for text, _ in make_examples(40, seed=1)]
    text.write_text("".join(f"{text}\n" for text in (*texts, *leaked)), encoding="utf-8")
    settings = resolve(
        "finetune",
        base=read_base_settings(shared_base),
        overrides={**TINY, "train.epochs": 1},
    )
    inputs |= {"base": shared_base, "more_bases": {"other": shared_base}, "settings": settings}
    inputs |= {"arms": ARMS, "seeds": 2, "labels": (8, None), "texts": [text], "grid": "none"}
    comparison = compare(**inputs, out=folder / "runs" / "one", command="regraft compare")
    write_report(comparison, folder / "runs" / "one")
    return Curve(comparison, inputs, folder / "runs" / "one")


def test_curve_has_a_point_for_every_arm_and_number_of_labels(curve: Curve) -> None:
    points = curve.comparison.curve
    assert [(point.arm, point.num_labels) for point in points] == [
        (name, size) for name in ARMS for size in (8, 32)
    ]
    seeds = {(point.arm, point.num_labels): point.num_seeds for point in points}
    assert seeds["linear", 8] == 2
    assert seeds["linear", 32] == 1
    assert seeds["scratch", 32] == 2
    assert all(point.seconds > 0 for point in points)
    assert [arm.name for arm in curve.comparison.arms] == list(ARMS)
    by_name = {arm.name: arm for arm in curve.comparison.arms}
    for point in points:
        if point.num_labels == 32:
            assert point.accuracy == by_name[point.arm].test_accuracy


def test_curve_says_what_the_base_is_worth(curve: Curve) -> None:
    worth = curve.comparison.worth
    assert worth is not None
    assert (worth.arm, worth.num_labels) == ("pretrained", 8)
    assert worth.sentence.endswith(".")
    # Every other use of a base has a worth of its own; equal bases have an equal one.
    others = {one.arm: one for one in curve.comparison.more_worths}
    assert list(others) == ["pretrained:other", "embedding:other"]
    assert others["pretrained:other"].extra == worth.extra


def test_equal_bases_give_equal_arms(curve: Curve) -> None:
    one, other = curve.comparison.arms[:2]
    assert one.test_accuracy == other.test_accuracy
    assert other.description.endswith("; the base is other")
    assert "base:other" in curve.comparison.fingerprints


def test_leaks_from_the_text_are_counted_and_scored_apart(curve: Curve) -> None:
    comparison = curve.comparison
    assert (comparison.num_text_leaks, comparison.num_test_leaks) == (3, 0)
    assert any("3 of the test examples" in caveat for caveat in comparison.warnings)
    for arm in comparison.arms:
        assert arm.test_accuracy_without_leaks is not None
        right = round(arm.test_accuracy.mean * 20 * arm.num_seeds)
        clean = round(arm.test_accuracy_without_leaks.mean * 17 * arm.num_seeds)
        assert 0 <= right - clean <= 3 * arm.num_seeds


def test_few_of_a_class_in_the_smallest_subset_are_told(curve: Curve) -> None:
    assert any("The smallest subset, 8 labels" in told for told in curve.comparison.warnings)


def test_opening_is_in_the_ledger_and_in_the_report(curve: Curve) -> None:
    ledger = json.loads((curve.out.parent / "openings.json").read_text())
    (opening,) = curve.comparison.openings
    assert ledger[0]["when"] == opening.when
    assert opening.fingerprint == curve.comparison.fingerprints["test"]
    assert opening.test == str(curve.inputs["test"])


def test_splits_are_told(curve: Curve) -> None:
    assert [(part.name, part.num_examples) for part in curve.comparison.splits] == [
        ("train", 32),
        ("valid", 16),
        ("test", 20),
    ]


def test_comparison_is_repeated_from_its_report(curve: Curve, tmp_path: Path) -> None:
    like = load_comparison(curve.out / "report.json")
    assert like == curve.comparison
    request = read_request(like, source=curve.out / "report.json")
    again = run_request(request, out=curve.out.parent / "two", like=like, command=like.command)
    assert len(again.openings) == 2
    assert again.warnings[-1].startswith("The test file has been opened 2 times.")
    plain, repeated = without_times(like), without_times(again)
    for told in (plain, repeated):
        del told["openings"], told["warnings"]
    assert repeated == plain


def test_other_data_are_not_taken_for_the_same(curve: Curve, tmp_path: Path) -> None:
    like = curve.comparison
    request = read_request(like, source=curve.out / "report.json")
    other = write_examples(tmp_path / "other.csv", 20, seed=77)
    for changes, told in (
        ({"test": other}, "test_file"),
        ({"valid": other}, "valid"),
        ({"texts": (other,)}, "unlabelled"),
    ):
        changed = dataclasses.replace(request, **changes)
        with pytest.raises(DataError, match=f"differ from the report's: {told}"):
            run_request(changed, out=None, like=like)


def test_report_that_says_too_little_is_refused(curve: Curve) -> None:
    path = curve.out / "report.json"
    for request, told in ((None, "it stores no request"), ({"bases": {}}, "'settings'")):
        with pytest.raises(RunFolderError, match=f"cannot be repeated: {told}"):
            read_request(dataclasses.replace(curve.comparison, request=request), source=path)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_command_repeats_a_comparison(
    curve: Curve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = (curve.out / "report.json").resolve()
    monkeypatch.chdir(tmp_path)
    result = run("compare", "--from", report, "--jobs", 1, "-q")
    assert result.exit_code == 0, result.output
    again = load_comparison(tmp_path / "runs" / "again" / "report.json")
    assert [arm.test_accuracy for arm in again.arms] == [
        arm.test_accuracy for arm in curve.comparison.arms
    ]
    result = run("compare", "--from", report, "--out", tmp_path / "other", "--seeds", 5)
    assert result.exit_code == 2
    assert "--seeds cannot change a comparison that is repeated." in result.stderr


def test_files_of_a_report_are_found_where_they_lie_now(curve: Curve, tmp_path: Path) -> None:
    request = read_request(curve.comparison, source=curve.out / "report.json")
    gone = dataclasses.replace(
        request,
        bases={"": Path("runs/base"), "other": Path("gone/other")},
        train=Path("gone/train.csv"),
        valid=None,
        test=Path("data/test.csv"),
    )
    (tmp_path / "data").mkdir()
    for place in (tmp_path / "train.csv", tmp_path / "data" / "test.csv"):
        place.touch()
    moved = relocated(
        gone, bases={"other": tmp_path}, texts=[], files={"valid": tmp_path}, report_dir=tmp_path
    )
    assert moved.bases == {"": Path("runs/base"), "other": tmp_path}
    assert moved.train == tmp_path / "train.csv"
    assert moved.test == tmp_path / "data" / "test.csv"
    assert (moved.valid, moved.texts) == (tmp_path, request.texts)
    with pytest.raises(ConfigError, match="The report has no base called 'wide'"):
        relocated(gone, bases={"wide": tmp_path}, texts=[], files={}, report_dir=tmp_path)


def test_command_repeats_a_comparison_whose_files_were_moved(curve: Curve, tmp_path: Path) -> None:
    told = json.loads((curve.out / "report.json").read_text())
    for name in ("train", "valid", "test"):
        told["request"][name] = f"gone/{name}.csv"
        shutil.copy(curve.inputs[name], tmp_path / f"{name}.csv")
    told["request"]["bases"] = {"": "gone", "other": "gone"}
    (tmp_path / "report.json").write_text(json.dumps(told))
    base = curve.inputs["base"]
    words = ["compare", "--from", tmp_path / "report.json", "--out", tmp_path / "again", "-q"]
    moved = ["--base", base, "--base", f"other={base}", "--jobs", 1]
    result = run(*words, *moved)
    assert result.exit_code == 0, result.output
    result = run(*words, *moved, "--train", curve.inputs["valid"])
    assert result.exit_code == 2
    assert "--base, --train" in result.stderr
    result = run("compare", "--from", tmp_path / "nowhere.json")
    assert "Check the path of --from." in result.stderr


@pytest.mark.parametrize("flag", ["--base", "--train", "--valid", "--test"])
def test_command_asks_for_what_is_missing(curve: Curve, tmp_path: Path, flag: str) -> None:
    files = {f"--{name}": curve.inputs[name] for name in ("base", "train", "valid", "test")}
    given = {**files, "--out": tmp_path / "out"}
    words = [word for name, value in given.items() if name != flag for word in (name, value)]
    result = run("compare", *words)
    assert result.exit_code == 2
    assert f"error: {flag} is missing." in result.stderr


def test_bases_are_named_by_the_command(curve: Curve, tmp_path: Path) -> None:
    base = curve.inputs["base"]
    files = [f"--{name}={curve.inputs[name]}" for name in ("train", "valid", "test")]
    words = ["compare", *files, "--out", tmp_path / "runs" / "out", "--seeds", 1, "--jobs", 1]
    few = ["--epochs", 1, "--set", "data.max_length=24", "--set", "train.batch_size=4", "-q"]
    result = run(*words, "--base", base, "--base", f"mini={base}", *few, "--labels", "8,all")
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "runs" / "out" / "report.json").read_text())
    assert [arm["name"] for arm in told["arms"]] == [
        *("pretrained", "pretrained:mini", "scratch", "frozen", "linear")
    ]
    assert told["request"]["bases"] == {"": str(base), "mini": str(base)}
    result = run(*words, "--base", base, "--base", base, "--base", base, *few)
    assert result.exit_code == 2
    assert f"Two bases are called '{base.name}'." in result.stderr


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"labels": (8, 64)}, "--labels asks for 64 of 32 training examples."),
        ({"labels": (1, None)}, "--labels asks for 1 examples of 2 classes."),
        (
            {"arms": ["pretrained:nobody"]},
            "The arm 'pretrained:nobody' names",
        ),
    ],
)
def test_wrong_requests_are_refused(curve: Curve, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compare(**{**curve.inputs, **changes})
    assert caught.value.problem.startswith(problem)
