"""`fit --test` is a comparison: the blend, its members and the baselines on one test file."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY, write_examples

from regraft.classifiers.base import load_classifier
from regraft.classifiers.blend import Blend
from regraft.classifiers.fitting import fit
from regraft.classifiers.scoring import score_classifier
from regraft.comparison import Comparison, compare, compare_fitted
from regraft.config.resolution import resolve
from regraft.data.synthetic import synthetic_reviews
from regraft.data.text.readers import load_examples
from regraft.errors import DataError
from regraft.report import comparison_to_dict

SMALL = {
    "model.width": 16,
    "model.num_pairs": 200,
    "tokenizer.size": 400,
    "data.max_length": 64,
    "train.batch_size": 2,
}


def write_lines(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def reviews(num: int, *, seed: int) -> list[dict[str, str]]:
    """Reviews with so many words of their own that none is nearly another."""
    drawn = np.random.default_rng(seed)
    rows = []
    for review in synthetic_reviews(num_documents=num, seed=seed):
        own = " ".join(f"w{number}" for number in drawn.integers(10_000, size=100))
        rows.append({"text": f"{' '.join(review.text.split())} {own}", "label": review.label})
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reviews")
    text = folder / "text.txt"
    text.write_text("".join(row["text"] + "\n" for row in reviews(200, seed=1)), encoding="utf-8")
    return {"text": text, "train": write_lines(folder / "train.jsonl", reviews(40, seed=2))}


@pytest.fixture(scope="module")
def run_dir(files: dict[str, Path]) -> Path:
    folder = files["text"].parent / "run"
    settings = resolve("pretrain", preset="bag", overrides=SMALL)
    fit(
        [files["text"]],
        train=files["train"],
        out=folder,
        settings=settings,
        bases=2,
        keep_baselines=True,
    )
    return folder


def test_blend_is_compared_with_its_members(
    run_dir: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    test = write_lines(tmp_path / "test.jsonl", reviews(30, seed=4))
    found = compare_fitted(run_dir, test=test, texts=[files["text"]])
    assert [arm.name for arm in found.arms] == ["blend", "linear", "latent", "features"]
    assert [arm.role for arm in found.arms] == ["base", "rival", "rival", "base"]
    blend = load_classifier(run_dir)
    examples = load_examples(test, data=resolve("finetune").data)
    latent = load_classifier(run_dir / "baselines" / "latent")
    classifiers = {"blend": blend, "latent": latent, **blend.members}
    scores = {name: score_classifier(one, examples) for name, one in classifiers.items()}
    for arm in found.arms:
        assert arm.test_accuracy.mean == pytest.approx(scores[arm.name].accuracy.mean)
        assert arm.confusion == scores[arm.name].confusion
    pairs = [(test.first, test.second) for test in found.tests if test.p_holm is not None]
    assert pairs == [(use, r) for use in ("blend", "features") for r in ("linear", "latent")]
    assert not any(test.is_of_runs for test in found.tests)
    assert found.verdict.startswith("The blend ")
    assert (found.tuned_on, found.request, found.num_valid) == ("cross-validation", None, 0)
    assert Comparison.from_dict(comparison_to_dict(found)) == found


def test_linear_of_weight_0_is_compared_though_nothing_kept_it(
    run_dir: Path, tmp_path: Path
) -> None:
    test = write_lines(tmp_path / "test.jsonl", reviews(30, seed=4))
    before = compare_fitted(run_dir, test=test)
    blend = Blend.load(run_dir)
    result = {**blend.info.result, "weights": {"linear": 0.0, "latent": 0.0, "features": 1.0}}
    features = {"features": blend.members["features"]}
    replace(blend, info=replace(blend.info, result=result), by_name=features).save(tmp_path / "run")
    shutil.copy(run_dir / "examples.jsonl", tmp_path / "run")
    found = compare_fitted(tmp_path / "run", test=test)
    assert [arm.name for arm in found.arms] == ["blend", "linear", "features"]
    assert found.arms[1].test_accuracy == before.arms[1].test_accuracy
    assert found.arms[0].test_accuracy == found.arms[2].test_accuracy


def test_reading_the_labels_again_is_one_opening(run_dir: Path, tmp_path: Path) -> None:
    test = write_lines(tmp_path / "test.jsonl", reviews(30, seed=5))
    for _ in range(2):
        assert len(compare_fitted(run_dir, test=test, texts=[]).openings) == 1
    ledger = run_dir.parent / "openings.json"
    before = ledger.read_text()
    ledger.write_text("{")  # damaged: the score is not lost for it
    assert len(compare_fitted(run_dir, test=test, texts=[]).openings) == 1
    ledger.write_text(before)


def test_leaks_and_repeats_decide_nothing(
    run_dir: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    learned = [json.loads(line) for line in files["train"].read_text().splitlines()]
    new = reviews(40, seed=9)
    text = tmp_path / "text.txt"
    text.write_text(new[0]["text"] + " nearly\n", encoding="utf-8")
    test = write_lines(tmp_path / "test.jsonl", [*new, *learned[:20], *new[5:15]])
    found = compare_fitted(run_dir, test=test, texts=[text])
    assert (found.num_test, found.num_test_leaks, found.num_text_leaks) == (70, 20, 1)
    assert found.num_deciding == 39
    alone = compare_fitted(run_dir, test=write_lines(tmp_path / "unseen.jsonl", new[1:]), texts=[])
    assert alone.warnings == ()
    for arm, clean in zip(found.arms, alone.arms, strict=True):
        assert arm.deciding == clean.test_accuracy
    assert found.tests == alone.tests
    assert found.verdict.startswith(alone.verdict)
    for fact in ("20 of the test examples", "1 of the test examples", "10 of the test examples"):
        assert any(fact in caveat for caveat in found.warnings)


def test_test_file_that_was_trained_on_is_refused(run_dir: Path, files: dict[str, Path]) -> None:
    with pytest.raises(DataError, match=r"train\.jsonl also occurs"):
        compare_fitted(run_dir, test=files["train"], texts=[])


def test_fit_is_an_arm_like_any_other(
    shared_base: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    examples = {
        name: write_examples(tmp_path / f"{name}.csv", size, seed=seed)
        for seed, (name, size) in enumerate({"train": 24, "valid": 16, "test": 16}.items(), 3)
    }
    found = compare(
        base=shared_base,
        **examples,
        settings=resolve("finetune", overrides={**TINY, "train.epochs": 1}),
        arms=["fit", "pretrained", "scratch", "linear"],
        texts=[files["text"]],
        fit_minutes=0.05,
        seeds=1,
        grid="none",
        out=tmp_path / "out",
    )
    assert [arm.name for arm in found.arms] == ["fit", "pretrained", "scratch", "linear"]
    assert ("fit", "linear") in [(test.first, test.second) for test in found.tests]
    blend = found.arms[0]
    assert blend.role == "base"
    assert "weight of linear" in blend.chosen[0]
    assert any("0.05 minutes per run" in caveat for caveat in found.warnings)
