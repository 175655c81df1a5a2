"""The recipe: what it leaves behind, that it is judged on unseen texts, that it can be resumed."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Recorder
from typer.testing import CliRunner

from regraft.classifier import load_classifier
from regraft.cli import app
from regraft.config import Settings, resolve
from regraft.ensemble import MOST_BASES
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.evaluate import Evaluation
from regraft.evidence import PairedTest
from regraft.fit import FitResult, fit
from regraft.fitted import FinalScore, evaluate_fitted, final_score, load_fitted
from regraft.metrics import Interval
from regraft.runfolder import load_run, read_settings
from regraft.synthetic import synthetic_reviews

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
    result = fit([files["text"]], train=files["train"], out=out, settings=settings, minutes=2)
    return out, result


def test_folder_holds_bases_members_and_no_pickle(fitted):
    out, result = fitted
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {"run.json", "config.json", "tokenizer.json"} <= names
    assert {path.suffix for path in map(Path, names)} <= {".json", ".jsonl", ".safetensors"}
    assert {name.split("/")[1] for name in names if name.startswith("members/")} == {
        "linear",
        "latent",
        "features",
    }
    assert result.num_bases == MOST_BASES == len(list((out / "bases").iterdir()))
    # The labelled texts are text as well.
    assert (result.num_train, result.num_valid, result.num_documents) == (60, 0, 360)
    assert sum(result.weights.values()) == pytest.approx(1)
    assert result.scores.keys() == {"blend", "linear", "latent", "features"}
    says = {name: score.weight for name, score in result.scores.items() if name != "blend"}
    assert sum(says.values()) == pytest.approx(1)
    assert (says["latent"], result.scores["blend"].weight) == (0, None)
    # Judged, so that it can be beaten, but not heard.
    assert result.weights["latent"] == 0
    assert load_fitted(out).speakers == ["linear", "features"]


def test_loaded_classifier_says_what_the_members_say_by_weight(fitted, files):
    out, result = fitted
    loaded = load_fitted(out)
    texts = ["A superb camera, I love it.", "It broke after a day."]
    chances = loaded.member_probabilities(texts)
    logs = sum(result.weights[name] * np.log(chances[name]) for name in chances)
    scores = np.exp(logs / result.temperature)
    expected = scores / scores.sum(axis=1, keepdims=True)
    assert load_classifier(out).predict_proba(texts) == pytest.approx(expected, abs=1e-9)
    assert loaded.predict(texts).tolist() == loaded.classes_[expected.argmax(axis=1)].tolist()
    assert loaded.predict_proba([]).shape == (0, 2)


def test_test_file_is_scored_for_the_blend_and_every_member(fitted, files):
    out, result = fitted
    tested = evaluate_fitted(out, files["test"])
    assert tested.keys() == result.scores.keys()
    right = load_fitted(out).predict(
        [json.loads(line)["text"] for line in files["test"].read_text().splitlines()]
    )
    truth = [json.loads(line)["label"] for line in files["test"].read_text().splitlines()]
    assert tested["blend"].accuracy.mean == pytest.approx(np.mean(right == np.array(truth)))


def final(fitted, files, *, test: Path, texts: list[Path]) -> FinalScore:
    data = resolve("finetune").data
    return final_score(fitted[0], test, labelled=[files["train"]], texts=texts, data=data)


def test_final_score_compares_the_blend_with_what_it_must_beat(fitted, files):
    score = final(fitted, files, test=files["test"], texts=[files["text"]])
    assert score.scores == evaluate_fitted(fitted[0], files["test"])
    assert [(test.first, test.second) for test in score.tests] == [
        ("blend", "linear"),
        ("blend", "latent"),
    ]
    ours = score.clean_scores["blend"].accuracy.mean
    for test in score.tests:
        gap = ours - score.clean_scores[test.second].accuracy.mean
        assert test.difference.mean == pytest.approx(gap)
    assert score.verdict.startswith(f"The blend reaches {ours:.1%};")
    json.dumps(score.to_dict())


def test_verdict_tells_the_p_that_overrules_its_interval():
    score = Evaluation(10, Interval(0.9, 0.8, 1.0), 0.9, 0.1, 0.0, ("a", "b"), [[5, 0], [1, 4]])
    test = PairedTest(
        "blend", "linear", Interval(0.075, 0.017, 0.133), 0.04, p_mcnemar=0.04, p_holm=0.08
    )
    both = {"blend": score, "linear": score}
    told = FinalScore(10, 0, 0, scores=both, clean_scores=both, tests=(test,)).verdict
    assert "cannot be told apart from linear" in told
    assert "[+1.7, +13.3], but p = 0.080 corrected for both rivals" in told


def test_final_score_counts_leaks_and_leaves_them_out(fitted, files, tmp_path):
    lines = files["test"].read_text().splitlines()
    learned = files["train"].read_text().splitlines()
    before = final(fitted, files, test=files["test"], texts=[files["text"]])
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text("\n".join([*lines, *learned[:3]]))
    text = tmp_path / "text.txt"
    text.write_text(" ".join(json.loads(lines[0])["text"].split()) + "\n")
    score = final(fitted, files, test=mixed, texts=[text])
    assert (score.num_test, score.num_leaks) == (len(lines) + 3, before.num_leaks + 3)
    assert score.num_in_text == 1
    assert score.notes[0].endswith("labelled ones, exactly or nearly: they decide nothing.")
    with pytest.raises(DataError, match="learned by heart"):
        final(fitted, files, test=files["train"], texts=[])


def new_examples(num: int) -> list[dict[str, str]]:
    """Reviews with so many words of their own that none is nearly another."""
    drawn = np.random.default_rng(0)
    rows = []
    for review in synthetic_reviews(num_documents=num, seed=9):
        own = " ".join(f"w{number}" for number in drawn.integers(10_000, size=100))
        rows.append({"text": f"{' '.join(review.text.split())} {own}", "label": review.label})
    return rows


def write_lines(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_leaks_and_repeats_decide_nothing_in_a_final_score(fitted, files, tmp_path):
    learned = [json.loads(line) for line in files["train"].read_text().splitlines()]
    new = new_examples(40)
    read = {**new[0], "text": new[0]["text"] + " nearly"}
    text = tmp_path / "text.txt"
    text.write_text(read["text"] + "\n", encoding="utf-8")
    test = write_lines(tmp_path / "test.jsonl", [*new, *learned[:20], *new[5:15]])
    score = final(fitted, files, test=test, texts=[text])
    assert (score.num_test, score.num_leaks, score.num_repeats) == (70, 20, 10)
    assert (score.num_in_text, score.num_read_deciding) == (1, 0)
    unseen = write_lines(tmp_path / "unseen.jsonl", new[1:])
    alone = final(fitted, files, test=unseen, texts=[])
    assert (alone.num_leaks, alone.notes) == (0, [])
    assert score.scores == evaluate_fitted(fitted[0], test)
    for name, decides in score.clean_scores.items():
        assert decides.num_examples == 39
        assert (decides.accuracy, decides.confusion) == (
            alone.scores[name].accuracy,
            alone.scores[name].confusion,
        )
    assert (score.tests, score.verdict) == (alone.tests, alone.verdict)
    assert [note.split(":")[0] for note in score.notes] == [
        "20 of 70 test examples are also among the labelled ones, exactly or nearly",
        "Of the test examples, 1 were read, exactly or nearly, without their labels, as part "
        "of the text",
        "10 of the test examples repeat the text of an earlier one",
        "Decided by 39 of 70 test examples",
    ]


def test_final_score_on_texts_that_were_nearly_all_read_says_so(fitted, files, tmp_path):
    new = new_examples(40)
    test = write_lines(tmp_path / "test.jsonl", new)
    text = tmp_path / "text.txt"
    text.write_text("".join(row["text"] + "\n" for row in new[:-1]), encoding="utf-8")
    score = final(fitted, files, test=test, texts=[text])
    assert (score.num_in_text, score.num_read_deciding) == (39, 39)
    assert score.clean_scores == score.scores
    (note,) = score.notes
    assert "too few others are left to decide by, so 39 of them decide, too" in note


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
    assert result.weights["latent"] > 0
    assert (result.num_bases, result.passes) == (0, 0.0)
    assert any("Going on without one" in message for message in said.messages)
    assert load_fitted(tmp_path / "run").predict(["a good film"]).tolist() == ["good"]


def test_valid_is_judged_by_when_it_is_given(files, settings, tmp_path):
    result = fit(
        [files["text"]],
        train=files["train"],
        valid=files["valid"],
        out=tmp_path / "run",
        settings=settings,
        minutes=1,
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
    with pytest.raises(RunFolderError, match="holds a blend of `regraft fit`, not one model"):
        load_run(out)
    with pytest.raises(RunFolderError, match="already holds a run"):
        fit([files["text"]], train=files["train"], out=out, settings=settings)


def test_interrupted_recipe_goes_on_to_the_same_weights(fitted, files, settings, tmp_path):
    _, result = fitted

    class Stop(Recorder):
        def say(self, message: str) -> None:
            super().say(message)
            if message.startswith("Fitting the members"):
                raise KeyboardInterrupt

    arguments = {"train": files["train"], "out": tmp_path / "run", "settings": settings}
    with pytest.raises(KeyboardInterrupt):
        fit([files["text"]], **arguments, minutes=2, progress=Stop())
    made = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("model.safetensors"))]
    again = fit([files["text"]], **arguments, minutes=2, resume=True)
    now = [path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("model.safetensors"))]
    assert made == now[: len(made)]
    assert again.weights == result.weights


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
    for minutes in (0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="--minutes is"):
            fit([files["text"]], train=files["train"], minutes=minutes, **arguments)
    with pytest.raises(ConfigError, match="standard input"):
        fit(["-"], train=files["train"], **arguments)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="starts processes of its own"):
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
        minutes=1,
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
    result = fit([text], train=train, out=out, settings=settings, minutes=1, progress=told)
    assert any("parts of words are taken instead" in message for message in told.messages)
    assert read_settings(out).tokenizer.kind == "bpe"
    assert load_fitted(out).tokenizer.unknown_id not in load_fitted(out).tokenizer.encode(lines[0])
    # Resumed, it is the same recipe, although whole words are asked for again.
    assert fit([text], train=train, out=out, settings=settings, minutes=1, resume=True) == result


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
    arguments = [*given, "--minutes", "1", *small]
    done = CliRunner().invoke(app, ["fit", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    assert "The blend reaches" in done.output
    page = (out / "report" / "report.html").read_text()
    assert "The blend reaches" in page
    assert (out / "report" / "report.json").exists()
    # The folder still holds a classifier, and nothing that is in its way.
    assert load_fitted(out).labels == ("negative", "positive")
