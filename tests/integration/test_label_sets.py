"""Examples with any number of labels, from files to predictions and exports."""

import csv
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Stopping, assert_names, refusal, run
from conftest import TINY, Recorder, make_examples
from random_runs import LABELS, THRESHOLDS, write_run
from safetensors.torch import load_file
from shapes import unchecked
from sklearn.metrics import f1_score
from tampering import change_facts

from regraft.apps.serve.engine import load_engine
from regraft.classifiers.attribution import Explainer
from regraft.classifiers.base import load_classifier
from regraft.classifiers.estimator import TextClassifier
from regraft.classifiers.finetuning import MICRO_F1, calibrate, finetune
from regraft.classifiers.scoring import SetEvaluation, evaluate
from regraft.config.resolution import resolve
from regraft.config.schema import Settings
from regraft.data.rows import example_rows
from regraft.data.text.readers import load_examples
from regraft.data.text.records import Labels
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.export.huggingface import export_huggingface
from regraft.export.onnx import export_onnx
from regraft.stats.calibration import fit_temperature, tempered
from regraft.stats.metrics import f1_thresholds
from regraft.training.inference import label_probabilities
from regraft.training.loaded_run import load_run
from regraft.training.run_folder import read_info, read_metrics

SET_TINY = [f"--set={key}={value}" for key, value in TINY.items()]
WORDS = {"art": "a painting", "food": "a soup", "travel": "a train"}


def make_sets(num_examples: int, *, seed: int = 0) -> list[tuple[str, tuple[str, ...]]]:
    """(text, labels): each label shows as a word; every eighth text has none."""
    choices = list(itertools.product((False, True), repeat=len(WORDS)))
    found = []
    for row in range(num_examples):
        wanted = choices[(row + seed) % len(choices)]
        names = tuple(name for name, is_there in zip(WORDS, wanted, strict=True) if is_there)
        told = " and ".join(WORDS[name] for name in names) or "nothing"
        found.append((f"They told of {told} (note {seed}-{row})", names))
    return found


def write_sets(path: Path, num_examples: int, *, seed: int = 0) -> Path:
    rows = [(text, "|".join(names)) for text, names in make_sets(num_examples, seed=seed)]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def set_settings(**changes: Any) -> Settings:
    learning = {
        **TINY,
        **{"train.epochs": 16, "train.lr": 0.01, "model.dropout": 0, "data.max_length": 48},
    }
    return resolve("finetune", overrides={**learning, "data.label_separator": "|", **changes})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sets")
    sizes = {"train": 64, "valid": 32, "test": 24}
    return {
        name: write_sets(folder / f"{name}.csv", size, seed=seed)
        for seed, (name, size) in enumerate(sizes.items())
    }


@pytest.fixture(scope="module")
def set_run(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "sets"
    result = finetune(
        base=None,
        train=files["train"],
        valid=files["valid"],
        out=out,
        settings=set_settings(),
    )
    assert result.followed == MICRO_F1
    assert result.valid_accuracy[-1] > 0.95 > result.valid_accuracy[0]
    return out


def test_run_says_from_where_each_label_counts(set_run: Path):
    info = read_info(set_run)
    assert info.labels == ("art", "food", "travel")
    assert len(info.thresholds) == 3
    assert all(0 < threshold < 1 for threshold in info.thresholds)
    records = list(read_metrics(set_run))
    assert "valid_micro_f1" in records[-1]
    assert "valid_accuracy" not in records[-1]


def test_one_temperature_serves_all_labels(set_run: Path, files: dict[str, Path]):
    run = load_run(set_run)
    assert run.info.temperature == run.info.result["temperature"] is not None
    examples = load_examples(files["valid"], data=run.settings.data)
    given = {"labels": Labels(run.info.labels), "tokenizer": run.tokenizer}
    rows = example_rows(examples, **given, data=run.settings.data)
    chosen_C = f1_thresholds(label_probabilities(run.model, rows), rows.targets)
    assert tuple(chosen_C.tolist()) == run.info.thresholds

    # Where every fourth text is not what it says, the same model is too sure.
    wrong = [
        dataclasses.replace(e, label="art", labels=("art",)) if row % 4 == 0 else e
        for row, e in enumerate(examples)
    ]
    rows = example_rows(wrong, **given, data=run.settings.data)
    before = label_probabilities(run.model, rows)
    is_new_N = np.ones(len(wrong), dtype=bool)
    found = calibrate(run.model, rows, is_new_N=is_new_N, settings=run.settings)
    answers = np.stack([1 - before.ravel(), before.ravel()], axis=1)
    assert found == fit_temperature(answers, rows.targets.ravel()) > 1.5
    after = label_probabilities(run.model, rows)
    assert after.ravel() == pytest.approx(tempered(answers, found)[:, 1], abs=1e-6)
    # Thresholds move with the probabilities, and the same labels are told.
    told = [p_NC >= f1_thresholds(p_NC, rows.targets) for p_NC in (before, after)]
    assert np.array_equal(*told)


def test_evaluation_tells_what_sklearn_tells(set_run: Path, files: dict[str, Path]):
    found = evaluate(set_run, files["test"])
    assert isinstance(found, SetEvaluation)
    texts, names = zip(*make_sets(24, seed=2), strict=True)
    classifier = TextClassifier.load(set_run)
    truth_NC = np.array([[label in each for label in classifier.classes_] for each in names])
    predicted_NC = classifier.predict(list(texts))
    assert found.micro_f1.mean == pytest.approx(f1_score(truth_NC, predicted_NC, average="micro"))
    assert found.macro_f1.mean == pytest.approx(f1_score(truth_NC, predicted_NC, average="macro"))
    assert found.exact_match.mean == (truth_NC == predicted_NC).all(axis=1).mean()
    assert found.micro_f1.low <= found.micro_f1.mean <= found.micro_f1.high
    assert found.micro_f1.mean > 0.9
    assert classifier.score(list(texts), [set(each) for each in names]) == found.exact_match.mean
    assert classifier.score(list(texts), truth_NC.astype(int)) == found.exact_match.mean
    by_label = {score.label: score for score in found.labels}
    assert by_label["art"].count == truth_NC[:, 0].sum()
    shown = run("evaluate", set_run, files["test"])
    assert shown.exit_code == 0
    assert "all labels right" in shown.stdout
    assert "threshold" in shown.stdout


def test_predictions_can_be_read_again(set_run: Path, files: dict[str, Path], tmp_path: Path):
    out = tmp_path / "predictions.csv"
    assert run("predict", set_run, files["test"], "--out", out, "-q").exit_code == 0
    with out.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["text", "label", "predicted_label", "p(art)", "p(food)", "p(travel)"]
    sets = TextClassifier.load(set_run).predict_sets([row[0] for row in rows])
    assert [row[2] for row in rows] == ["|".join(names) for names in sets]
    data = dataclasses.replace(
        TextClassifier.load(set_run).classifier_.data, label_column="predicted_label"
    )
    again = evaluate(set_run, out, data=data)
    assert isinstance(again, SetEvaluation)
    assert again.exact_match.mean == 1
    lines = run("predict", set_run, files["test"], "--format", "jsonl").stdout.splitlines()
    told = [json.loads(line) for line in lines]
    assert [tuple(record["predicted_label"]) for record in told] == sets


def test_labels_come_as_lists_and_from_fasttext(
    set_run: Path, files: dict[str, Path], tmp_path: Path
):
    examples = make_sets(24, seed=2)
    lists = tmp_path / "test.jsonl"
    lists.write_text(
        "".join(json.dumps({"text": text, "label": names}) + "\n" for text, names in examples)
    )
    expected = evaluate(set_run, files["test"])
    assert evaluate(set_run, lists) == expected
    fasttext = tmp_path / "test.txt"
    labelled = [(text, names) for text, names in examples if names]
    tagged = [(" ".join(f"__label__{name}" for name in names), text) for text, names in labelled]
    fasttext.write_text("".join(f"{labels} {text}\n" for labels, text in tagged))
    read = evaluate(set_run, fasttext)
    assert read.num_examples == len(labelled)
    assert [score.count for score in read.labels] == [score.count for score in expected.labels]


def test_resumed_run_equals_a_straight_one(files: dict[str, Path], tmp_path: Path):
    runs = []
    for name, stop in (("straight", None), ("stopped", 21)):
        given: dict[str, Any] = {
            "base": None,
            "train": files["train"],
            "valid": files["valid"],
            "out": tmp_path / name,
            "settings": set_settings(
                **{"train.epochs": 2, "train.checkpoint_every": 5, "model.dropout": 0.1}
            ),
        }
        if stop is not None:
            with pytest.raises(KeyboardInterrupt):
                finetune(**given, progress=Stopping(stop))
        finetune(**given, resume=stop is not None)
        runs.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert read_info(tmp_path / "straight").thresholds == read_info(tmp_path / "stopped").thresholds


def test_windows_and_company_leave_probabilities_alone(set_run: Path):
    classifier = TextClassifier.load(set_run)
    texts = [text for text, _ in make_sets(9, seed=5)]
    together = classifier.predict_proba(texts)
    alone = np.concatenate([classifier.predict_proba([text]) for text in texts])
    assert together == pytest.approx(alone, abs=1e-6)
    assert not np.allclose(together.sum(axis=1), 1)


def test_one_label_each_is_learned_as_well_as_classes(tmp_path: Path):
    texts, names = zip(*make_examples(40), strict=True)
    learning = {**TINY, "model.dropout": 0, "train.lr": 0.01, "data.max_length": 64}
    single, several = (
        TextClassifier("scratch", epochs=12, settings=learning).fit(texts, y)
        for y in (names, [{name} for name in names])
    )
    one = single.predict(texts)
    best = several.classes_[several.predict_proba(texts).argmax(axis=1)]
    assert np.mean(one == np.array(names)) > 0.9
    assert np.mean(best == np.array(names)) > 0.9


def test_classifier_takes_sets_and_indicators(tmp_path: Path):
    texts, sets = zip(*make_sets(40), strict=True)
    given = {**TINY, "data.max_length": 48}
    by_sets = TextClassifier("scratch", epochs=1, settings=given).fit(texts, sets)
    indicator_NC = np.array([[int(name in each) for name in WORDS] for each in sets])
    by_array = TextClassifier("scratch", epochs=1, settings=given).fit(texts, indicator_NC)
    assert by_sets.predict_proba(texts) == pytest.approx(by_array.predict_proba(texts))
    assert by_sets.classes_.tolist() == list(WORDS)
    assert by_array.classes_.tolist() == [0, 1, 2]
    assert by_sets.predict(texts).shape == (40, 3)
    by_sets.save(tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    assert loaded.settings.data.label_separator == "|"
    again = TextClassifier.load(tmp_path / "run")
    assert (again.predict(texts) == by_sets.predict(texts)).all()
    assert again.predict_sets(texts) == by_sets.predict_sets(texts)
    with pytest.raises(DataError, match="y holds the label 'new'"):
        by_sets.score(texts, [*sets[:-1], {"new"}])


def test_pairs_may_have_several_labels(tmp_path: Path):
    texts, sets = zip(*make_sets(24), strict=True)
    pairs = [(text, "what is it about?") for text in texts]
    classifier = TextClassifier("scratch", epochs=1, settings=TINY).fit(pairs, sets)
    classifier.save(tmp_path / "run")
    loaded = TextClassifier.load(tmp_path / "run")
    assert loaded.predict_proba(pairs) == pytest.approx(classifier.predict_proba(pairs), abs=1e-6)
    assert loaded.predict(pairs).shape == (24, 3)


def test_answers_that_are_no_sets_are_refused():
    texts, sets = zip(*make_sets(16), strict=True)
    classifier = TextClassifier("scratch", settings=TINY)
    with pytest.raises(DataError, match="y holds 'art' among sets of labels"):
        classifier.fit(texts, [*sets[:-1], "art"])
    with pytest.raises(DataError, match="y has two dimensions, and no text has label 1"):
        classifier.fit(texts, np.array([[1, 0]] * 16))
    with pytest.raises(DataError, match="y holds lists of 0 and 1, all of one length"):
        classifier.fit(texts, [[1, 0], [0, 1]] * 8)
    with pytest.raises(DataError, match="only one label, 'art'"):
        classifier.fit(texts, [{"art"}, set()] * 8)
    with pytest.raises(ConfigError, match=r"The recipe supports .* not pairs of texts"):
        TextClassifier().fit([(text, text) for text in texts], sets)
    with pytest.raises(ConfigError, match=r"supports .* one label each, not .* several labels"):
        TextClassifier("scratch", settings={**TINY, "data.label_separator": "|"}).fit(
            texts, ["a", "b"] * 8
        )


def test_weights_and_smoothing_are_told_from_labels(files: dict[str, Path], tmp_path: Path):
    for key, value in (("class_weight", "balanced"), ("label_smoothing", 0.1)):
        settings = set_settings(**{f"train.{key}": value, "train.epochs": 1})
        out = tmp_path / key
        finetune(base=None, train=files["train"], out=out, settings=settings)
        assert len(read_info(out).thresholds) == 3


@pytest.mark.slow
def test_exports_score_labels_by_themselves(tmp_path: Path, monkeypatch, capsys):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("onnxruntime")
    run_dir = write_run(
        tmp_path / "run",
        preset="modern",
        objective="masked",
        pooling="mean",
        overrides={"data.label_separator": "|"},
    )
    export_huggingface(run_dir, out=tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    classifier = TextClassifier.load(run_dir)
    text = "What a lovely story."
    ours = dict(zip(LABELS, classifier.predict_proba([text])[0], strict=True))
    classify = transformers.pipeline("text-classification", model=str(tmp_path / "hf"), top_k=None)
    theirs = {score["label"]: score["score"] for score in classify([text])[0]}
    assert theirs == pytest.approx(ours, abs=1e-4)
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "any number of `bad`, `good`, `so so`" in card
    assert "`good` 0.40" in card

    data = tmp_path / "test.csv"
    data.write_text("text,label\na book,good|bad\na bore,\na story,so so\n")
    with unchecked():
        result = export_onnx(run_dir, out=tmp_path / "onnx", int8=True, data_path=data)
    assert result.int8 is not None
    assert 0 <= result.int8.agreement <= 1
    assert 0 <= (result.int8.accuracy or 0) <= 1
    assert json.loads((tmp_path / "onnx" / "config.json").read_text())["thresholds"] == [
        *THRESHOLDS
    ]
    code = (tmp_path / "onnx" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path / "onnx")
    exec(code, {})
    sets = classifier.predict_sets(["What a lovely story.", "A dull book."])
    assert capsys.readouterr().out == f"{[list(names) for names in sets]}\n"


def finetune_args(train: Path, out: Path, *more: object) -> list[Any]:
    command = ["finetune", "--base", "scratch", "--train", train, "--out", out, *SET_TINY]
    return [*command, "--label-separator", "|", *more]


def test_command_prints_the_linear_row(files: dict[str, Path], tmp_path: Path):
    more = ["--valid", files["valid"], "--epochs", 1]
    done = run(*finetune_args(files["train"], tmp_path / "out", *more))
    assert done.exit_code == 0, done.output
    assert "valid micro-F1 by epoch" in done.stdout
    (row,) = [line for line in done.stdout.splitlines() if "TF-IDF" in line]
    assert float(row.rstrip(" %").split()[-1]) > 90


def test_bad_labels_are_refused(files: dict[str, Path], tmp_path: Path):
    out, test = tmp_path / "out", tmp_path / "bad.csv"
    test.write_text("text,label\na,x\nb,\nc,x|x\n")
    assert refusal(run(*finetune_args(test, out))) == (
        f"{test} has only one label, 'x'. A classifier needs at least two classes. "
        "Add examples of another class, or name another column with --label-column; in Python, "
        "label=NAME."
    )
    test.write_text("text,label\na,\nb,\n")
    assert refusal(run(*finetune_args(test, out))).startswith(f"{test} has no label.")
    test.write_text("text,label\na,food|mood\n")
    told = refusal(run(*finetune_args(files["train"], out, "--valid", test)))
    assert told.startswith(f"Labels differ between splits: 'mood' occurs only in {test} (row 2).")
    lines = tmp_path / "bad.jsonl"
    lines.write_text('{"text": "a", "label": ["x|y"]}\n')
    assert refusal(run(*finetune_args(lines, out))).startswith(
        f"The label 'x|y' of {lines} row 1 contains the separator '|'."
    )
    lines.write_text('{"text": "a", "label": ["x", "y"]}\n')
    single = [each for each in finetune_args(lines, out) if each not in ("--label-separator", "|")]
    assert refusal(run(*single)).endswith(
        "Pass --label-separator for several labels, or --label-column with another column."
    )
    test.write_text("text,label\na,0.5|1.25\nb,0.5\n")
    assert "are floats, such as '0.5'" in refusal(run(*finetune_args(test, out)))
    assert "train.rdrop: " in refusal(run(*finetune_args(test, out, "--set=train.rdrop=1")))
    assert not out.exists()
    with pytest.raises(ConfigError, match="label_separator"):
        set_settings(**{"data.label_separator": ""})


def test_a_separator_that_separates_nothing_is_told(tmp_path: Path):
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + 'one,"a,b"\ntwo,c\nthree,"a,b"\nfour,c\n' * 4)
    progress = Recorder()
    settings = set_settings(**{"train.epochs": 1})
    finetune(base=None, train=path, out=tmp_path / "out", settings=settings, progress=progress)
    assert any("has more than one label: is '|'" in m for m in progress.messages)


def test_what_knows_one_label_says_so(
    set_run: Path, shared_base: Path, shared_classifier: Path, files: dict[str, Path], tmp_path
):
    out = tmp_path / "out"
    train = ["--train", files["train"], "--out", out, "--set=data.max_length=24"]
    sets = "--set=data.label_separator=|"
    others = ["--valid", files["valid"], "--test", files["test"]]
    compare = run("compare", "--base", shared_base, *train, *others, sets)
    assert_names(refusal(compare), "arm supports", "data.label_separator is '|'")
    unlabelled = ["--self-train", 1, "--text", files["test"]]
    told = run("finetune", "--base", shared_base, *train, "--label-separator", "|", *unlabelled)
    assert_names(refusal(told), "--self-train supports", "data.label_separator is '|'")
    pretrained = run("pretrain", files["test"], "--out", out, sets)
    assert "data.label_separator: pre-training reads no labels" in refusal(pretrained)
    learned = run("evaluate", shared_classifier, files["test"], "--label-separator", "|")
    assert_names(refusal(learned), shared_classifier, "several labels", "'|'")
    with pytest.raises(ConfigError, match="supports single texts with several labels"):
        evaluate(set_run, files["test"], data=resolve("finetune").data)
    with pytest.raises(ConfigError, match="gives every text one label"):
        TextClassifier.load(shared_classifier).predict_sets(["a"])


def test_network_of_label_sets_is_explained_and_served(set_run: Path):
    classifier, text = load_classifier(set_run), "a soup on the train"
    explained = Explainer(classifier).explain(text, "food")
    assert explained.method == "leave-one-out"
    chance = classifier.predict_proba([text])[0, classifier.labels.index("food")]
    assert explained.output == pytest.approx(np.log(chance / (1 - chance)), abs=1e-6)
    (answer,) = load_engine(set_run, runtime="torch").classify([text])
    assert isinstance(answer["label"], list)


def test_run_that_lost_its_thresholds_is_refused(set_run: Path, tmp_path: Path):
    import shutil

    shutil.copytree(set_run, tmp_path / "run")
    change_facts(tmp_path / "run" / "run.json", thresholds=[])
    with pytest.raises(RunFolderError, match="has 0 thresholds for 3 labels"):
        load_run(tmp_path / "run")


def test_profile_counts_labels_and_not_sets(files: dict[str, Path]):
    told = run("data", "check", files["test"], "--label-separator", "|", "--json")
    counts = json.loads(told.stdout)["files"][0]["label_counts"]
    assert counts == {"art": 12, "food": 12, "travel": 12}
