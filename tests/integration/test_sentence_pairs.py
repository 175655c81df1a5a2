"""Pairs of texts, from files to predictions and exports: both are read, in order, or refused."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Stopping, assert_names, refusal, run
from conftest import TINY, make_examples
from random_runs import write_run
from safetensors.torch import load_file
from shapes import unchecked

from regraft.classifiers.estimator import PAIR_COLUMN, TextClassifier
from regraft.classifiers.finetuning import finetune
from regraft.classifiers.scoring import evaluate
from regraft.config.resolution import resolve
from regraft.config.schema import Settings
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.export.huggingface import export_huggingface
from regraft.export.onnx import export_onnx
from regraft.training.inference import class_probabilities
from regraft.training.loaded_run import load_run
from regraft.training.run_folder import read_settings

SET_TINY = [f"--set={key}={value}" for key, value in TINY.items()]


def make_pairs(num_pairs: int, *, seed: int = 0) -> list[tuple[str, str, str]]:
    """(first, second, label): do both texts have the same mood?"""
    examples = make_examples(2 * num_pairs, seed=seed)
    shift = [0, 1, 1, 0]
    found = []
    for row in range(num_pairs):
        (first, mood), (second, other) = examples[2 * row], examples[2 * row + shift[row % 4]]
        found.append((first, f"{second} too", "same" if mood == other else "other"))
    return found


def write_pairs(path: Path, num_pairs: int, *, seed: int = 0) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("text", "answer", "label"), *make_pairs(num_pairs, seed=seed)])
    return path


def pair_settings(**changes: Any) -> Settings:
    return resolve(
        "finetune",
        overrides={**TINY, "train.epochs": 2, "data.pair_column": "answer", **changes},
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pairs")
    sizes = {"train": 24, "valid": 8, "test": 8}
    return {
        name: write_pairs(folder / f"{name}.csv", size, seed=seed)
        for seed, (name, size) in enumerate(sizes.items())
    }


@pytest.fixture(scope="module")
def pair_run(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "pairs"
    finetune(
        base=None,
        train=files["train"],
        valid=files["valid"],
        out=out,
        settings=pair_settings(**{"data.max_length": 64}),
    )
    return out


def test_predictions_tell_both_texts(pair_run: Path, files: dict[str, Path], tmp_path: Path):
    out = tmp_path / "predictions.csv"
    assert run("predict", pair_run, files["test"], "--out", out, "-q").exit_code == 0
    with out.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    added = ["predicted_label", "predicted_probability", "p(other)", "p(same)"]
    assert head == ["text", "answer", "label", *added]
    pairs = make_pairs(8, seed=2)
    assert [tuple(row[:2]) for row in rows] == [pair[:2] for pair in pairs]
    # The same numbers as from Python, and every second text counts.
    classifier = TextClassifier.load(pair_run)
    chances_NC = classifier.predict_proba([pair[:2] for pair in pairs])
    assert [float(row[6]) for row in rows] == pytest.approx(chances_NC[:, 1].tolist(), abs=1e-6)
    changed_NC = classifier.predict_proba([(pair[0], "A bore.") for pair in pairs])
    assert (np.abs(changed_NC - chances_NC).max(axis=1) > 1e-6).all()


def test_evaluation_reads_the_columns_it_is_told(
    pair_run: Path, files: dict[str, Path], tmp_path: Path
):
    renamed = tmp_path / "renamed.csv"
    renamed.write_text(files["test"].read_text().replace("text,answer,label", "q,a,label", 1))
    plain = run("evaluate", pair_run, files["test"], "--json")
    told = run("evaluate", pair_run, renamed, "--text-column", "q", "--pair-column", "a", "--json")
    assert plain.exit_code == told.exit_code == 0
    assert json.loads(plain.stdout) == json.loads(told.stdout)


def test_pairs_come_from_json_lines_too(pair_run: Path, files: dict[str, Path], tmp_path: Path):
    lines = [
        json.dumps(dict(zip(("text", "answer", "label"), p, strict=True)))
        for p in make_pairs(8, seed=2)
    ]
    path = tmp_path / "test.jsonl"
    path.write_text("\n".join(lines) + "\n")
    found, expected = (evaluate(pair_run, file) for file in (path, files["test"]))
    # A csv file has a header, so its rows are numbered from the second line.
    assert [error.row + 1 for error in found.errors] == [error.row for error in expected.errors]
    assert replace(found, errors=()) == replace(expected, errors=())


def test_resumed_run_equals_a_straight_one(files: dict[str, Path], tmp_path: Path):
    settings = pair_settings(**{"train.checkpoint_every": 3})
    runs = []
    for name, stop in (("straight", None), ("stopped", 5)):
        given: dict[str, Any] = {
            "base": None,
            "train": files["train"],
            "valid": files["valid"],
            "out": tmp_path / name,
            "settings": settings,
        }
        if stop is not None:
            with pytest.raises(KeyboardInterrupt):
                finetune(**given, progress=Stopping(stop))
        finetune(**given, resume=stop is not None)
        runs.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


@pytest.mark.parametrize(
    ("preset", "objective", "pooling"),
    [("lab", "causal", "last"), ("bert", "bert", "first"), ("modern", "masked", "mean")],
)
def test_exports_score_pairs_as_regraft(preset, objective, pooling, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    run_dir = write_run(
        tmp_path / "run",
        preset=preset,
        objective=objective,
        pooling=pooling,
        overrides={"data.pair_column": "answer"},
    )
    export_huggingface(run_dir, out=tmp_path / "hf")
    pair = ("Where is the station?", "Behind the church, or " * 20)
    classify = transformers.pipeline(
        "text-classification", model=str(tmp_path / "hf"), truncation=True, top_k=None
    )
    found = {score["label"]: score["score"] for score in classify([pair_of(pair)])[0]}
    classifier = TextClassifier.load(run_dir)
    ours = dict(zip(classifier.classes_.tolist(), classifier.predict_proba([pair])[0], strict=True))
    assert found == pytest.approx(ours, abs=1e-4)
    # The order of the two counts.
    turned = classifier.predict_proba([pair[::-1]])[0]
    assert np.abs(turned - list(ours.values())).max() > 1e-3
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "A classifier of pairs of texts" in card
    assert '"text_pair"' in card


def pair_of(pair: tuple[str, str]) -> dict[str, str]:
    return {"text": pair[0], "text_pair": pair[1]}


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "objective"), [("bert", "bert"), ("modern", "masked")])
def test_graph_scores_pairs_as_regraft(preset, objective, tmp_path: Path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    run_dir = write_run(
        tmp_path / "run",
        preset=preset,
        objective=objective,
        pooling="first",
        overrides={"data.pair_column": "answer"},
    )
    with unchecked():
        result = export_onnx(run_dir, out=tmp_path / "onnx", int8=preset == "bert")
    assert result.largest_difference < 1e-4
    inputs = json.loads((tmp_path / "onnx" / "config.json").read_text())["inputs"]
    assert ("token_type_ids" in inputs) == (preset == "bert")
    # What the card says runs, and says what regraft says.
    code = (tmp_path / "onnx" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path / "onnx")
    exec(code, {})
    classifier = TextClassifier.load(run_dir)
    answer = classifier.predict([("Where is the station?", "Behind the church.")]).tolist()
    assert capsys.readouterr().out == f"{answer}\n"


def test_classifier_learns_and_keeps_pairs(tmp_path: Path):
    pairs = make_pairs(24)
    texts, names = [pair[:2] for pair in pairs], [pair[2] for pair in pairs]
    given = {**TINY, "data.max_length": 64}
    classifier = TextClassifier("scratch", epochs=1, settings=given).fit(texts, names)
    chances_NC = classifier.predict_proba(texts)
    alone_NC = np.concatenate([classifier.predict_proba([pair]) for pair in texts])
    assert chances_NC == pytest.approx(alone_NC, abs=1e-6)
    classifier.save(tmp_path / "run")
    assert read_settings(tmp_path / "run").data.pair_column == PAIR_COLUMN
    loaded = TextClassifier.load(tmp_path / "run")
    assert loaded.predict_proba(texts) == pytest.approx(chances_NC, abs=1e-6)
    with pytest.raises(DataError, match="single texts, and this classifier was trained on pairs"):
        loaded.predict(["A bore."])
    with pytest.raises(DataError, match=r"Pair 2 is \('a',\)"):
        loaded.predict([("a", "b"), ("a",)])
    with pytest.raises(DataError, match="Pair 1 is"):
        loaded.predict([("a", "  ")])


def test_classifier_of_texts_refuses_pairs():
    texts, names = zip(*make_examples(12), strict=True)
    classifier = TextClassifier("scratch", epochs=1, settings=TINY).fit(texts, names)
    with pytest.raises(DataError, match="pairs, and this classifier was trained on single texts"):
        classifier.predict([("a", "b")])
    with pytest.raises(ConfigError, match=r"supports single texts .* not pairs of texts"):
        TextClassifier("scratch", settings={**TINY, "data.pair_column": "b"}).fit(texts, names)
    with pytest.raises(ConfigError, match=r"The recipe supports .* not pairs of texts"):
        TextClassifier().fit(list(zip(texts, texts, strict=True)), names)


def test_padding_changes_no_score_of_a_pair(pair_run: Path):
    from regraft.data.rows import ExampleRows

    loaded = load_run(pair_run)
    pairs = [pair[:2] for pair in make_pairs(9, seed=4)]
    given = {"tokenizer": loaded.tokenizer, "data": loaded.settings.data}
    together = class_probabilities(loaded.model, ExampleRows(pairs, targets=[0] * 9, **given))
    alone = [
        class_probabilities(loaded.model, ExampleRows([pair], targets=[0], **given))[0]
        for pair in pairs
    ]
    assert together == pytest.approx(np.stack(alone), abs=1e-6)


def finetune_args(train: Path, out: Path) -> list[Any]:
    return ["finetune", "--base", "scratch", "--train", train, "--out", out, *SET_TINY, "-q"]


def test_bad_pairs_are_refused(files: dict[str, Path], tmp_path: Path):
    out = tmp_path / "out"
    told = refusal(run(*finetune_args(files["train"], out), "--pair-column", "answr"))
    assert told.startswith(f"{files['train']} has no column 'answr'.")
    assert told.endswith("Did you mean 'answer'? Pass --pair-column NAME.")
    hole = tmp_path / "hole.csv"
    hole.write_text("text,answer,label\na,b,x\nc, ,y\n")
    assert refusal(run(*finetune_args(hole, out), "--pair-column", "answer")) == (
        f"{hole} row 3 has no second text: its 'answer' is empty. A pair has two texts. "
        "Fill it in, or remove the row."
    )
    lines = tmp_path / "lines.txt"
    lines.write_text("__label__x one\n__label__y two\n")
    assert refusal(run(*finetune_args(lines, out), "--pair-column", "answer")) == (
        f"{lines} has no columns, but data.pair_column is 'answer'. Pairs are read from "
        ".csv .tsv .jsonl .parquet .xlsx. Convert the file, or omit --pair-column."
    )
    by_fit = refusal(run("fit", "--train", files["train"], "--pair-column", "answer"))
    assert "`regraft fit` reads single texts, not pairs" in by_fit
    assert "finetune --pair-column" in by_fit
    same = refusal(run(*finetune_args(files["train"], out), "--pair-column", "text"))
    assert "data.pair_column: 'text' is also data.text_column" in same
    long = run(
        *finetune_args(files["train"], out), "--pair-column", "answer", "--set=data.windows=2"
    )
    assert "data.windows: " in refusal(long)
    bag = run(
        *("finetune", "--base", "scratch", "--train", files["train"], "--out", out),
        *("--preset", "bag", "--pair-column", "answer"),
    )
    assert "data.pair_column: the bag family" in refusal(bag)
    pretrain = run("pretrain", files["train"], "--out", out, "--set=data.pair_column=answer")
    assert "pre-training reads single texts" in refusal(pretrain)
    assert not out.exists()


def test_what_reads_single_texts_says_so(
    pair_run: Path, shared_base: Path, shared_classifier: Path, files: dict[str, Path], tmp_path
):
    out = tmp_path / "out"
    train = ["--train", files["train"], "--out", out, "--set=data.max_length=24"]
    pair = "--set=data.pair_column=answer"
    others = ["--valid", files["valid"], "--test", files["test"]]
    compare = run("compare", "--base", shared_base, *train, *others, pair)
    assert_names(refusal(compare), "arm supports", "data.pair_column is 'answer'")
    adapt = run("finetune", "--base", shared_base, *train, "--pair-column", "answer", "--adapt", 1)
    assert_names(refusal(adapt), "--adapt supports", "data.pair_column is 'answer'")
    unlabelled = ["--self-train", 1, "--text", files["test"]]
    told = run("finetune", "--base", shared_base, *train, "--pair-column", "answer", *unlabelled)
    assert_names(refusal(told), "--self-train supports", "data.pair_column is 'answer'")
    fit = run("fit", "--text", files["test"], *train[:4], pair)
    assert "pre-training reads single texts" in refusal(fit)
    explained = run("explain", pair_run, "a bore")
    assert_names(refusal(explained), "An explanation supports", "data.pair_column is 'answer'")
    served = run("serve", pair_run)
    assert_names(refusal(served), "`regraft serve` supports", "data.pair_column is 'answer'")
    learned = run("predict", shared_classifier, files["test"], "--pair-column", "answer")
    assert_names(refusal(learned), shared_classifier, "pairs of texts", "'answer'")
    with pytest.raises(ConfigError, match="supports pairs of texts"):
        evaluate(pair_run, files["test"], data=resolve("finetune").data)
    with pytest.raises(RunFolderError):
        finetune(base=None, train=files["train"], out=pair_run, settings=pair_settings())


def test_leak_is_a_pair_that_occurs_twice(tmp_path: Path):
    head = "text,answer,label\n"
    (tmp_path / "train.csv").write_text(head + "a b c,d e f,x\ng h i,j k l,y\n")
    # The first row shares one text only; the second is there already.
    (tmp_path / "test.csv").write_text(head + "a b c,j k l,x\ng h i,j  k l,y\n")
    paths = [tmp_path / "train.csv", tmp_path / "test.csv"]
    told = json.loads(run("data", "check", *paths, "--pair-column", "answer", "--json").stdout)
    assert [(leak["row"], leak["other_row"]) for leak in told["leaks"]] == [(3, 3)]
    assert told["files"][0]["words"]["max"] == 6
    alone = json.loads(run("data", "check", *paths, "--json").stdout)
    assert [leak["row"] for leak in alone["leaks"]] == [2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["bert", "lab", "modern"])
def test_what_only_both_texts_tell_is_learned(preset):
    """Colours alone say nothing: each stands in as many pairs that match as that do not."""
    colours = ("red", "blue", "green")
    pairs = [(f"it is {one}", f"is it {other}?") for one in colours for other in colours]
    pairs += [pair for pair in pairs if pair[0][6:] == pair[1][6:-1]]
    names = ["yes" if pair[0][6:] == pair[1][6:-1] else "no" for pair in pairs]
    settings = {
        **TINY,
        **{"model.width": 48, "model.dropout": 0, "model.attention_dropout": 0, "train.lr": 0.001},
        **{"train.warmup_steps": 50, "train.batch_size": 8},
    }

    def score(seed: int) -> float:
        classifier = TextClassifier(
            "scratch", preset=preset, epochs=60, settings=settings, seed=seed
        )
        return classifier.fit(pairs * 8, names * 8).score(pairs, names)

    # One text alone is right in half of them. Networks this small start learning it or never do.
    assert any(score(seed) > 0.8 for seed in range(4))
