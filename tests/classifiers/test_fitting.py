"""The recipe: what it leaves behind, that it is judged on unseen texts, that it can be resumed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Recorder
from tampering import change_facts
from typer.testing import CliRunner

from regraft.apps.cli import app
from regraft.classifiers.base import load_classifier
from regraft.classifiers.fit_result import FitResult
from regraft.classifiers.fitting import fit, fit_again
from regraft.classifiers.scoring import Evaluation, evaluate, score_classifier
from regraft.config.resolution import resolve
from regraft.config.schema import Settings
from regraft.data.synthetic import synthetic_reviews
from regraft.data.text.label_issues import read_label_issues
from regraft.data.text.readers import load_examples
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.training.loaded_run import load_run
from regraft.training.run_folder import read_settings

SMALL = {
    "model.width": 16,
    "model.num_pairs": 200,
    "tokenizer.size": 400,
    "data.max_length": 64,
    "train.batch_size": 2,
}


def write(path: Path, *, num: int, seed: int) -> Path:
    reviews = synthetic_reviews(num_documents=num, seed=seed)
    lines = [json.dumps({"text": r.text, "label": r.label}) + "\n" for r in reviews]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reviews")
    text = folder / "text.txt"
    reviews = synthetic_reviews(num_documents=300, seed=1)
    text.write_text("".join(" ".join(r.text.split()) + "\n" for r in reviews), encoding="utf-8")
    return {
        "text": text,
        "train": write(folder / "train.jsonl", num=60, seed=2),
        "valid": write(folder / "valid.jsonl", num=40, seed=3),
        "test": write(folder / "test.jsonl", num=50, seed=4),
    }


@pytest.fixture(scope="module")
def settings() -> Settings:
    return resolve("pretrain", preset="bag", overrides=SMALL)


@pytest.fixture(scope="module")
def fitted(
    files: dict[str, Path], settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, FitResult]:
    out = tmp_path_factory.mktemp("fit") / "run"
    result = fit([files["text"]], train=files["train"], out=out, settings=settings, bases=3)
    return out, result


def test_folder_holds_members_no_bases_and_no_pickle(fitted):
    out, result = fitted
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {"run.json", "config.json", "tokenizer.json"} <= names
    assert {path.suffix for path in map(Path, names)} <= {".json", ".jsonl", ".csv", ".safetensors"}
    # A member of weight 0 is scored, not kept, unless `fit --update` needs its table.
    members = {name.split("/")[1] for name in names if name.startswith("members/")}
    assert members == {"features", *(name for name, part in result.weights.items() if part > 0)}
    assert {path.name for path in out.iterdir()} == {
        "run.json",
        "config.json",
        "tokenizer.json",
        "plan.json",
        "label_issues.csv",
        "examples.jsonl",
        "members",
    }
    assert result.num_bases == 3
    assert (result.passes, result.minutes) == ([3.0] * 3, None)
    # The labelled texts are text as well.
    assert (result.num_train, result.num_valid, result.num_documents) == (60, 0, 360)
    assert sum(result.weights.values()) == pytest.approx(1)
    assert result.scores.keys() == {"blend", "linear", "latent", "features"}
    says = {name: score.weight for name, score in result.scores.items() if name != "blend"}
    assert says == result.weights
    assert (says["latent"], result.scores["blend"].weight) == (0, None)
    # A baseline.
    assert result.weights["latent"] == 0
    assert {*load_classifier(out).active_members} <= {*load_classifier(out).members} == members


def test_label_issues_are_rows_of_the_training_file(fitted, files):
    out, result = fitted
    issues = read_label_issues(out / "label_issues.csv")
    assert len(issues) == result.num_label_issues
    rows = [json.loads(line) for line in files["train"].read_text().splitlines()]
    for issue in issues:
        assert rows[issue.row - 1] == {"text": issue.text, "label": issue.label}
        assert issue.proposal in set(result.labels) - {issue.label}


def test_result_has_a_forecast_and_comes_back_from_disk(fitted):
    out, result = fitted
    assert [point.num_labels for point in result.label_curve if point.is_forecast] == [60, 120, 240]
    assert result.coverage[-1].coverage == 1
    assert result.abstain_below is None is load_classifier(out).abstain_below
    assert FitResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_target_accuracy_leaves_labels_empty(files, settings, tmp_path):
    """Without --text: the labelled texts are the text, and too few for a base."""
    out = tmp_path / "run"
    result = fit(
        train=files["train"], out=out, settings=settings, minutes=0.1, target_accuracy=0.9999
    )
    assert result.num_documents == 60
    assert load_classifier(out).abstain_below == result.abstain_below > 0.5
    (tmp_path / "new.txt").write_text("qwerty\n", encoding="utf-8")
    answer = CliRunner().invoke(app, ["predict", str(out), str(tmp_path / "new.txt"), "--json"])
    assert json.loads(answer.stdout)[0]["predicted_label"] is None
    with pytest.raises(ConfigError):
        fit(train=files["train"], out=out, settings=settings, abstain_below=2)


def test_rows_without_text_are_left_out_and_never_issues(files, settings, tmp_path):
    train = tmp_path / "train.jsonl"
    blank = '{"text": " ", "label": "positive"}\n'
    train.write_text(blank + files["train"].read_text() + 2 * blank, encoding="utf-8")
    said = Recorder()
    how = {"out": tmp_path / "run", "settings": settings, "minutes": 0.05, "progress": said}
    result = fit(train=train, **how)
    assert f"note: {train}: left out 3 rows without text: 1, 62, 63." in said.messages
    assert said.messages[1] == f"Run folder: {how['out']}"
    assert "score by number of labels" in said.tasks
    assert result.num_train == 60
    assert all(issue.text.strip() for issue in read_label_issues(how["out"] / "label_issues.csv"))
    said = Recorder()
    assert evaluate(how["out"], train, progress=said).num_examples == 60
    assert any("3 rows without text" in message for message in said.messages)


def test_loaded_classifier_says_what_the_members_say_by_weight(fitted, files):
    out, result = fitted
    loaded = load_classifier(out)
    texts = ["A superb camera, I love it.", "It broke after a day."]
    chances = {name: member.predict_proba(texts) for name, member in loaded.members.items()}
    logs = sum(result.weights[name] * np.log(chances[name]) for name in chances)
    scores = np.exp(logs / result.temperature)
    expected = scores / scores.sum(axis=1, keepdims=True)
    assert loaded.predict_proba(texts) == pytest.approx(expected, abs=1e-9)
    assert loaded.predict(texts).tolist() == loaded.classes_[expected.argmax(axis=1)].tolist()
    assert loaded.predict_proba([]).shape == (0, 2)


def scores(run_dir: Path, path: Path) -> dict[str, Evaluation]:
    blend, examples = load_classifier(run_dir), load_examples(path, data=resolve("finetune").data)
    classifiers = {"blend": blend, **blend.members}
    return {name: score_classifier(one, examples) for name, one in classifiers.items()}


def test_test_file_is_scored_for_the_blend_and_every_member(fitted, files):
    out, _ = fitted
    tested = scores(out, files["test"])
    assert tested.keys() == {"blend", *load_classifier(out).members}
    right = load_classifier(out).predict(
        [json.loads(line)["text"] for line in files["test"].read_text().splitlines()]
    )
    truth = [json.loads(line)["label"] for line in files["test"].read_text().splitlines()]
    assert tested["blend"].accuracy.mean == pytest.approx(np.mean(right == np.array(truth)))


def test_text_too_short_for_bases_leaves_the_shallow_members(files, settings, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("good film\nbad film\n" * 200)
    train = tmp_path / "train.jsonl"
    rows = [
        {"text": f"{kind} film {n}", "label": kind} for n in range(10) for kind in ("good", "bad")
    ]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = Recorder()
    result = fit(
        [words], train=train, out=tmp_path / "run", settings=settings, minutes=1, progress=said
    )
    assert result.scores.keys() == {"blend", "linear", "latent"}
    assert result.weights.keys() == {"linear", "latent"}
    assert (result.num_bases, result.passes) == (0, [])
    assert any("Going on without one" in message for message in said.messages)
    assert load_classifier(tmp_path / "run").predict(["a good film"]).tolist() == ["good"]


def test_valid_is_judged_by_when_it_is_given(files, settings, tmp_path):
    result = fit(
        [files["text"]],
        train=files["train"],
        valid=files["valid"],
        out=tmp_path / "run",
        settings=settings,
        bases=1,
    )
    assert result.num_valid == 40
    # All of 40: an accuracy is a multiple of one in forty.
    assert (result.scores["linear"].accuracy.mean * 40) % 1 == pytest.approx(0, abs=1e-9)


def test_finished_recipe_is_not_run_again(fitted, files, settings):
    out, result = fitted
    told = Recorder()
    again = fit(
        [files["text"]],
        train=files["train"],
        out=out,
        settings=settings,
        resume=True,
        progress=told,
    )
    assert again == result
    with pytest.raises(RunFolderError, match="train has changed"):
        fit([files["text"]], train=files["valid"], out=out, settings=settings, resume=True)
    with pytest.raises(RunFolderError, match="holds a blend, not one network"):
        load_run(out)
    with pytest.raises(RunFolderError, match="already holds a run"):
        fit([files["text"]], train=files["train"], out=out, settings=settings)


def test_interrupted_recipe_goes_on_to_the_same_weights(
    fitted, files, settings, tmp_path, monkeypatch
):
    _, result = fitted

    class Stop(Recorder):
        def say(self, message: str) -> None:
            super().say(message)
            if message.startswith("Fitting the member on the vectors"):
                raise KeyboardInterrupt

    arguments = {"train": files["train"], "out": tmp_path / "run", "settings": settings}
    with pytest.raises(KeyboardInterrupt):
        fit([files["text"]], **arguments, bases=3, progress=Stop())
    bases = tmp_path / "run" / "bases"
    made = {path: path.stat().st_mtime_ns for path in bases.rglob("model.safetensors")}
    assert len(made) == result.num_bases

    def killed(path, **options):
        if path == bases:
            now = {path: path.stat().st_mtime_ns for path in bases.rglob("model.safetensors")}
            assert now == made
            raise KeyboardInterrupt
        return rmtree(path, **options)

    # Once more while the folded bases are removed: the classifier is whole, the rest can go.
    rmtree = shutil.rmtree
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            fit([files["text"]], **arguments, bases=3, resume=True)
    assert bases.exists()
    assert load_classifier(tmp_path / "run").weights == result.weights
    again = fit([files["text"]], **arguments, bases=3, resume=True)
    assert again.weights == result.weights
    assert not bases.exists()


def test_bad_input_is_told(files, settings, tmp_path, monkeypatch):
    few = tmp_path / "few.csv"
    few.write_text("text,label\n" + "good,pos\nbad,neg\n" * 3, encoding="utf-8")
    arguments = {"out": tmp_path / "run", "settings": settings}
    with pytest.raises(DataError, match="holds 6 examples"):
        fit([files["text"]], train=few, **arguments)
    lonely = tmp_path / "lonely.csv"
    lonely.write_text(
        "text,label\n" + "good,pos\nbad,neg\n" * 6 + "so so,mixed\n", encoding="utf-8"
    )
    with pytest.raises(DataError, match="one example only of 'mixed'"):
        fit([files["text"]], train=lonely, **arguments)
    slip = tmp_path / "slip.csv"
    slip.write_text("text,label\n" + "good,pos\nbad,neg\n" * 6 + "so so,Pos\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"only of 'Pos'.* Did you mean 'pos' \(6 examples\)\?"):
        fit([files["text"]], train=slip, progress=(said := Recorder()), **arguments)
    assert said.messages == []  # no folder was made
    ids = tmp_path / "ids.csv"
    rows = "".join(f"good {row},id-{row % 5000}\n" for row in range(10_000))
    ids.write_text(f"text,label\n{rows}", encoding="utf-8")
    with pytest.raises(DataError, match="5,000 classes for 10,000 examples"):
        fit([files["text"]], train=ids, **arguments)
    unlabelled = tmp_path / "unlabelled.csv"
    unlabelled.write_text("text,label\n" + "good,pos\nbad,neg\nso so,\n" * 6, encoding="utf-8")
    with pytest.raises(DataError, match="row 4 has no label"):
        fit([files["text"]], train=unlabelled, **arguments)
    with pytest.raises(ConfigError, match="--bases is 0"):
        fit([files["text"]], train=files["train"], bases=0, **arguments)
    with pytest.raises(ConfigError, match="standard input"):
        fit(["-"], train=files["train"], **arguments)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="starts its own processes"):
        fit([files["text"]], train=files["train"], **arguments)
    assert not (tmp_path / "run").exists()


def test_labels_in_another_language_are_told(files, settings, tmp_path):
    other = tmp_path / "other.csv"
    rows = "".join(f"一本{n}好书,是\n这{n}本很差,否\n" for n in range(10))
    other.write_text("text,label\n" + rows, encoding="utf-8")
    told = Recorder()
    # The vocabulary is learned from all text: most of it must be the other language's.
    fit(
        [files["text"]],
        train=other,
        out=tmp_path / "run",
        settings=settings,
        bases=1,
        progress=told,
    )
    assert any("look like another language" in message for message in told.messages)


def test_text_without_spaces_is_read_in_parts_of_words(settings, tmp_path):
    generator = np.random.default_rng(0)
    letters = [chr(0x4E00 + n) for n in range(60)]
    lines = ["".join(generator.choice(letters, size=40)) for _ in range(250)]
    text, train = tmp_path / "text.txt", tmp_path / "train.jsonl"
    text.write_text("\n".join(lines), encoding="utf-8")
    rows = [{"text": line, "label": str(n % 2)} for n, line in enumerate(lines[:20])]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = Recorder()
    out = tmp_path / "run"
    result = fit([text], train=train, out=out, settings=settings, bases=1, progress=told)
    assert any("subwords are used" in message for message in told.messages)
    assert read_settings(out).tokenizer.kind == "bpe"
    tokenizer = load_classifier(out).tokenizer
    assert tokenizer.unknown_id not in tokenizer.encode(lines[0])
    # Resumed, it is the same recipe, although whole words are asked for again.
    assert fit([text], train=train, out=out, settings=settings, bases=1, resume=True) == result


def test_missing_test_file_is_told_before_the_work(files, tmp_path):
    given = ["--text", files["text"], "--train", files["train"], "--test", tmp_path / "none.csv"]
    done = CliRunner().invoke(app, ["fit", *map(str, given), "--out", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "There is no file" in done.stderr
    assert not (tmp_path / "run").exists()


def test_command_ends_with_a_verdict_and_a_report(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Without --out it is named after the labels.
    out = tmp_path / "runs" / "train"
    small = [flag for key, value in SMALL.items() for flag in ("--set", f"{key}={value}")]
    given = ["--text", files["text"], "--train", files["train"], "--test", files["test"]]
    arguments = [*given, "--bases", "2", *small]
    done = CliRunner().invoke(app, ["fit", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    assert "The blend reaches" in done.output
    page = (out / "report" / "report.html").read_text()
    assert "The blend reaches" in page
    # The latent member has weight 0: compared, then removed.
    arms = json.loads((out / "report" / "report.json").read_text())["tested"]["arms"]
    assert [arm["name"] for arm in arms] == ["blend", "linear", "latent", "features"]
    assert not (out / "baselines").exists()
    # The folder still holds a classifier, and nothing that is in its way.
    assert load_classifier(out).labels == ("negative", "positive")


def tensors(run_dir: Path) -> dict[str, bytes]:
    paths = sorted(run_dir.rglob("*.safetensors"))
    return {path.relative_to(run_dir).as_posix(): path.read_bytes() for path in paths}


def test_fit_is_repeated_from_its_folder(fitted, files, settings, tmp_path):
    out, result = fitted
    moved = tmp_path / "moved.txt"
    moved.write_bytes(files["text"].read_bytes())
    away = files["train"].rename(tmp_path / "away.csv")
    with pytest.raises(DataError, match=r"was made from .*no such file here.*pass --train FILE"):
        fit_again(out, out=tmp_path / "again", texts=[moved])
    away.rename(files["train"])
    again = fit_again(out, out=tmp_path / "again", texts=[moved])
    assert tensors(tmp_path / "again") == tensors(out)
    assert (again.weights, again.temperature) == (result.weights, result.temperature)
    assert again.files == {**result.files, "text": [str(moved)]}
    with pytest.raises(DataError, match="differ from those of the run to repeat: train, text"):
        fit_again(out, out=tmp_path / "other", train=files["valid"])
    with pytest.raises(DataError, match="run to repeat: valid"):
        fit_again(out, out=tmp_path / "other", valid=files["valid"])
    shutil.copytree(out, tmp_path / "copy")
    plan = tmp_path / "copy" / "plan.json"
    plan.write_text(plan.read_text().replace("true", "false"))
    with pytest.raises(RunFolderError, match=r"plan\.json is damaged"):
        fit_again(tmp_path / "copy", out=tmp_path / "other")
    shutil.copy(out / "plan.json", plan)
    change_facts(tmp_path / "copy" / "run.json", status="training")
    with pytest.raises(RunFolderError, match="is no finished run of `regraft fit`"):
        fit_again(tmp_path / "copy", out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_command_repeats_a_fit_and_refuses_to_change_it(fitted, tmp_path):
    out, result = fitted
    given = ["fit", "--from", str(out), "--out", str(tmp_path / "again")]
    done = CliRunner().invoke(app, [*given, "--bases", "2", "--seed", "0", "--config", "x.toml"])
    assert done.exit_code == 2
    assert "--bases, --seed, --config cannot change a fit that is repeated" in done.stderr
    done = CliRunner().invoke(app, [*given, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["weights"] == result.weights


def test_command_reads_settings_from_a_file(files, tmp_path):
    config = tmp_path / "small.toml"
    config.write_text("[model]\nwidth = 16\n[data]\nmax_length = 64\n[tokenizer]\nsize = 400\n")
    given = ["--text", files["text"], "--train", files["train"], "--config", config]
    out = ["--out", tmp_path / "run", "--bases", "1"]
    done = CliRunner().invoke(app, ["fit", *map(str, [*given, *out])])
    assert done.exit_code == 0, done.output
    assert read_settings(tmp_path / "run").model.width == 16
    done = CliRunner().invoke(app, ["fit", "--text", str(files["text"])])
    assert done.exit_code == 2
    assert "--train is missing" in done.stderr


def test_balanced_classes_count_the_same(files, settings, tmp_path):
    rows = [json.loads(line) for line in files["train"].read_text().splitlines()]
    rare = [row for row in rows if row["label"] == "positive"][:8]
    uneven = [row for row in rows if row["label"] == "negative"] + rare
    train = tmp_path / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in uneven), encoding="utf-8")
    weighted = resolve("fit", preset="bag", overrides={**SMALL, "train.class_weight": "balanced"})
    runs = {
        name: fit(train=train, out=tmp_path / name, settings=chosen, minutes=0.1)
        for name, chosen in (("plain", settings), ("balanced", weighted))
    }
    priors = np.array(runs["balanced"].priors)
    assert priors.tolist() == [(len(uneven) - 8) / len(uneven), 8 / len(uneven)]
    assert runs["plain"].priors == ()
    plain, balanced = (load_classifier(tmp_path / name) for name in runs)
    texts = ["A superb camera, I love it.", "It broke after a day."]
    expected = plain.predict_proba(texts) / priors
    expected /= expected.sum(axis=1, keepdims=True)
    assert balanced.predict_proba(texts) == pytest.approx(expected, abs=1e-9)
