"""An encoder on disk as a member of `fit`: read once, saved with the run, refused by name."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import Recorder
from foreign_models import make_folder
from tiny_blends import TINY_BAG, blend_dir
from typer.testing import CliRunner

import regraft
from regraft.apps.cli import app
from regraft.apps.serve.engine import load_engine
from regraft.classifiers.attribution import Explainer
from regraft.classifiers.base import load_classifier
from regraft.classifiers.embeddings import BaseSpace, EmbeddingModel, KeptVectors
from regraft.classifiers.fitting import fit, fit_again
from regraft.classifiers.updating import fit_update
from regraft.config.resolution import resolve
from regraft.config.schema import Settings
from regraft.errors import ConfigError, RegraftError, RunFolderError
from regraft.runtime import seeded
from regraft.training.bases import load_base

WORDS = ("film", "great", "plot", "dull", "story", "camera")


def write(path: Path, *, num: int, seed: int, labels: tuple[str, ...] = ("short", "long")) -> Path:
    """Long and short texts of one word each: counting its share of the text cannot tell them."""
    source = random.Random(seed)
    rows = []
    for row in range(num):
        word = f"{source.choice(WORDS)}{source.choice(WORDS)} "
        times = source.randint(2, 4) if row % 2 else source.randint(9, 14)
        rows.append({"text": word * times, "label": labels[1 - row % 2]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def held_out_accuracy(predict: Callable[[list[str]], Sequence[str]], folder: Path) -> float:
    """Over held-out rows: what one text is taken for may differ between processors."""
    lines = write(folder / "held_out.jsonl", num=60, seed=9).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in lines.splitlines()]
    predicted = predict([row["text"] for row in rows])
    return float(
        np.mean([row["label"] == label for row, label in zip(rows, predicted, strict=True)])
    )


@pytest.fixture(scope="module")
def settings() -> Settings:
    return resolve("pretrain", preset="bag", overrides=TINY_BAG)


@pytest.fixture(scope="module")
def made(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A fit with an encoder, the encoder, and the examples."""
    folder = tmp_path_factory.mktemp("encoder")
    with seeded(0, stream="encoder"):
        base = make_folder(folder / "bert", "bert")
    train = write(folder / "train.jsonl", num=60, seed=2)
    fit(train=train, out=folder / "run", base=base, settings=settings, bases=1)
    return {"run": folder / "run", "base": base, "train": train}


def test_encoder_knows_what_counting_words_cannot_tell(made, tmp_path):
    blend = load_classifier(made["run"])
    scores = blend.info.result["scores"]
    accuracy = {name: score["accuracy"]["mean"] for name, score in scores.items()}
    assert accuracy["encoder"] > accuracy["linear"] + 0.1
    assert accuracy["blend"] > accuracy["linear"] + 0.1
    assert blend.weights["encoder"] > 0
    assert blend.computed_by == "torch"
    assert held_out_accuracy(blend.predict, tmp_path) > 0.65


def test_run_with_an_encoder_stands_alone(made, tmp_path):
    """The folder of the encoder is not needed, and the copy has no other weights than the base."""
    run = shutil.copytree(made["run"], tmp_path / "run")
    there = load_base(made["base"]).model.state_dict()
    kept = load_classifier(run).members["encoder"].space.bases[0].model.state_dict()
    assert there.keys() == kept.keys()
    assert all((there[name] == kept[name]).all() for name in there)
    texts = ["filmfilm " * 3, ""]
    before = load_classifier(made["run"]).predict_proba(texts)
    load_classifier(run).save(tmp_path / "copy")
    np.testing.assert_allclose(load_classifier(tmp_path / "copy").predict_proba(texts), before)
    (run / "members" / "encoder" / "bases" / "0" / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(RunFolderError, match=r"model\.safetensors"):
        load_classifier(run)


def test_commands_read_a_run_with_an_encoder(made, tmp_path):
    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    report = json.loads(run("evaluate", made["run"], made["train"], "--json"))
    assert report["accuracy"]["mean"] > 0.7
    run("predict", made["run"], made["train"], "--out", tmp_path / "out.csv")
    assert "long" in (tmp_path / "out.csv").read_text(encoding="utf-8")
    explanation = json.loads(run("explain", made["run"], "plotplot plotplot", "--json"))
    assert explanation["method"] == "leave-one-out"
    engine = load_engine(made["run"])
    assert engine.runtime == "torch"
    assert (
        held_out_accuracy(lambda texts: [row["label"] for row in engine.classify(texts)], tmp_path)
        > 0.65
    )


def test_command_takes_a_pretrained_run_and_tests_its_member(shared_base, settings, made, tmp_path):
    test = write(tmp_path / "test.jsonl", num=20, seed=5)
    assignments = [f"--set={name}={value}" for name, value in TINY_BAG.items()]
    files = ["--train", made["train"], "--test", test, "--base", shared_base]
    command = ["fit", *files, "--out", tmp_path / "run", "--bases", 1, "--json", *assignments]
    result = CliRunner().invoke(app, [str(part) for part in command])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert "encoder" in {arm["name"] for arm in found["test"]["arms"]}
    assert found["files"]["base"] == [str(shared_base)]


def test_update_and_resume_read_no_text_again(made, tmp_path):
    known = KeptVectors(BaseSpace([]), made["run"] / "vectors")._read()
    assert len(known) == len(
        {
            json.loads(line)["text"]
            for line in made["train"].read_text(encoding="utf-8").splitlines()
        }
    )
    more = write(tmp_path / "more.jsonl", num=12, seed=7)
    result = fit_update(made["run"], train=more, out=tmp_path / "more")
    assert result.scores["encoder"].accuracy.mean > 0.7
    now = KeptVectors(BaseSpace([]), tmp_path / "more" / "vectors")._read()
    assert now.keys() > known.keys()
    assert all(np.array_equal(now[key], known[key]) for key in known)


def test_kept_vectors_are_those_of_the_space_and_are_not_computed_again(shared_base, tmp_path):
    space = BaseSpace([load_base(shared_base)])
    kept = KeptVectors(space, tmp_path / "vectors")
    texts = ["a fine film", "dull", "a fine film"]
    expected = space.vectors(texts)
    np.testing.assert_allclose(kept.vectors(texts), expected, atol=1e-6)
    progress = Recorder()
    np.testing.assert_array_equal(
        KeptVectors(space, tmp_path / "vectors").vectors(texts[::-1], progress=progress),
        kept.vectors(texts)[::-1],
    )
    assert not progress.tasks
    kept.vectors([*texts, "new"], progress=progress)
    assert progress.tasks == ["read 1 texts"]


def test_repeated_fit_has_the_same_encoder(made, settings, tmp_path):
    again = shutil.copytree(made["base"], tmp_path / "moved")
    fit_again(made["run"], out=tmp_path / "again", base=again)
    texts = ["filmplot " * 3, "filmplot " * 12]
    both = [load_classifier(run).predict_proba(texts) for run in (made["run"], tmp_path / "again")]
    np.testing.assert_array_equal(*both)
    other = make_folder(tmp_path / "other", "electra")
    with pytest.raises(RegraftError, match="base"):
        fit_again(made["run"], out=tmp_path / "other-again", base=other)
    with pytest.raises(RunFolderError, match="base has changed"):
        fit(
            train=made["train"],
            out=tmp_path / "again",
            base=other,
            settings=settings,
            bases=1,
            resume=True,
        )


def test_encoder_in_python(made, tmp_path):
    rows = [json.loads(line) for line in made["train"].read_text(encoding="utf-8").splitlines()]
    texts, labels = zip(*((row["text"], row["label"]) for row in rows), strict=True)
    classifier = regraft.fit(
        list(texts), list(labels), base=made["base"], num_bases=1, settings=TINY_BAG
    )
    assert isinstance(classifier.classifier_.members["encoder"], EmbeddingModel)
    assert held_out_accuracy(classifier.predict, tmp_path) > 0.65
    with pytest.raises(ConfigError, match="base"):
        regraft.fit(list(texts), list(labels), base=made["base"], update=made["run"])


def test_encoder_that_cannot_be_one_is_refused_by_name(made, tmp_path, tmp_path_factory):
    train = made["train"]
    no_tokenizer = shutil.copytree(made["base"], tmp_path / "no-tokenizer")
    (no_tokenizer / "tokenizer.json").unlink()
    blend = blend_dir(tmp_path_factory, num_labels=2)
    for base, problem in (
        (no_tokenizer, "no-tokenizer holds no tokenizer"),
        (blend, "holds a blend"),
        (tmp_path / "nowhere", "nowhere"),
    ):
        command = ["fit", "--train", train, "--base", base, "--out", tmp_path / "run"]
        result = CliRunner().invoke(app, [str(part) for part in command])
        assert result.exit_code == 2, result.output
        assert problem in " ".join(result.stderr.split())
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="no encoder"):
        fit_again(blend, out=tmp_path / "run", base=made["base"])


def test_explanation_of_a_run_with_an_encoder_leaves_words_out(made):
    explainer = Explainer.load(made["run"])
    assert explainer.explain("plotplot plotplot").method == "leave-one-out"
