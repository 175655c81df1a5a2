"""Bad input through the command line: one clear message, exit code 2, nothing half-written."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import assert_names, refusal, run
from conftest import TINY
from tampering import accept_files, change_facts
from typer.testing import CliRunner

from regraft.apps.cli import app

SET_TINY = [f"--set={key}={value}" for key, value in TINY.items()]
SHORT = "--set=data.max_length=24"

Command = Callable[[Path], list[Any]]


def files_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def commands(
    shared_base: Path, shared_classifier: Path, splits: dict[str, Path], tmp_path: Path
) -> dict[str, Command]:
    """Every command that reads a file of the user's, as a function of that file."""
    out = tmp_path / "out"
    data = ["--train", splits["train"], "--valid", splits["valid"], "--out", out, SHORT]
    scratch = ["finetune", "--base", "scratch", "--out", out, *SET_TINY, "--train"]
    return {
        "check": lambda file: ["data", "check", file],
        "tokenizer": lambda file: ["tokenizer", "train", file, "--size", 300, "--out", out],
        "pretrain": lambda file: ["pretrain", file, "--out", out, *SET_TINY, "--steps", 1],
        "train": lambda file: [*scratch, file],
        "valid": lambda file: ["finetune", "--base", shared_base, *data, "--valid", file],
        "evaluate": lambda file: ["evaluate", shared_classifier, file],
        "predict": lambda file: ["predict", shared_classifier, file],
        "test": lambda file: [
            *("compare", "--base", shared_base, *data, "--test", file, "--arms", "linear")
        ],
    }


READ_BY = ("check", "tokenizer", "pretrain", "train", "valid", "evaluate", "predict", "test")
LABELS_READ_BY = ("train", "valid", "evaluate", "test")

UNREADABLE: dict[str, tuple[str, bytes, str]] = {
    "missing column": (
        "a.csv",
        b"texte,label\nfine,positive\n",
        "{file} has no column 'text'. Its columns are 'texte', 'label'. "
        "Did you mean 'texte'? Pass --text-column NAME.",
    ),
    "wrong encoding": (
        "a.csv",
        "text,label\nfine,positive\ncafé,negative\n".encode("latin-1"),
        "{file} line 3 is not utf-8: byte 0xe9 at offset 28 (invalid continuation byte). "
        "Convert the file to UTF-8, or pass the --encoding it was saved in: cp1252 or latin-1 "
        "(western), cp1254 or iso8859-9 (Turkish), cp1250 (central European), cp1251 (Cyrillic). "
        "A wrong one is not always refused: look at a line first.",
    ),
    "NUL byte": (
        "a.csv",
        b"text,label\nfine,positive\nb\0d,negative\n",
        "{file} line 3 contains a NUL byte. The file is binary, damaged, or in UTF-16. "
        "Convert it to text, or pass --encoding utf-16.",
    ),
    "ragged row": (
        "a.csv",
        b"text,label\nfine,positive\nbad, really,negative\n",
        "{file} row 3 has 3 fields. The header has 2. "
        "Quote texts that contain ',' or newlines with \"...\".",
    ),
    "unclosed quote": (
        "a.csv",
        b'text,label\nfine,positive\n"bad,negative\nmore,positive\n',
        "{file} line 3 opens a quote that is never closed. Everything up to line 4 is inside it. "
        'Close it, or write a quote inside a quoted text twice ("").',
    ),
    "invalid JSON": (
        "a.jsonl",
        b'{"text": "fine", "label": "positive"}\n{"text": bad}\n',
        "{file} row 2 is not a JSON object: Expecting value at character 10. "
        'Each line holds one, such as {{"text": "...", "label": "..."}}. Fix or remove the line.',
    ),
    "empty file": (
        "a.csv",
        b"",
        "{file} is empty. Expected at least one record with text. Check the path and the file.",
    ),
    "header only": (
        "a.csv",
        b"text,label\n",
        "{file} is empty. Expected at least one record with text. Check the path and the file.",
    ),
    "all texts empty": (
        "a.csv",
        b'text,label\n"",positive\n" ",negative\n',
        "All texts of {file} are empty. data.text_column is 'text'. "
        "Check the file, or pass --text-column with another column.",
    ),
    "a number too long for Python": (
        "a.jsonl",
        b'{"text": "fine", "label": ' + b"1" * 5000 + b"}\n",
        "{file} row 1 is not a JSON object: a number has 5,000 digits. "
        'Each line holds one, such as {{"text": "...", "label": "..."}}. Fix or remove the line.',
    ),
    "first line longer than the csv module likes": (
        "a.csv",
        b"x" * 140_000 + b",label\nfine,positive\n",
        "{file} has no column 'text'. Its columns are '"
        + "x" * 40
        + "', 'label'. Pass --text-column NAME.",
    ),
    "lines that end as on an old Mac": (
        "a.csv",
        b"text,label\rfine,positive\rbad,negative\r",
        "{file} line 1 contains a carriage return outside quotes. Lines end with a newline, "
        "optionally after a carriage return. Convert the line endings of the file.",
    ),
    "unknown extension": (
        "a.docx",
        b"PK",
        "{file} has the unknown extension '.docx'. "
        "regraft reads .csv .tsv .parquet .xlsx .jsonl .txt .spm (each also .gz) and folders. "
        "Rename or convert the file, or pipe plain text in with `-`.",
    ),
}
WRONG_LABELS: dict[str, tuple[str, str, str]] = {
    "missing label column": (
        "a.csv",
        "text,labels\nfine,positive\nbad,negative\n",
        "{file} has no column 'label'. Its columns are 'text', 'labels'. "
        "Did you mean 'labels'? Pass --label-column NAME.",
    ),
    "missing label": (
        "a.csv",
        "text,label\nfine,positive\nbad,\n",
        "{file} row 3 has no label. Every example needs one. Fill it in, or remove the row.",
    ),
    "floats": (
        "a.csv",
        "text,label\nfine,4.5\nbad,1.0\nwell,nan\n",
        "The labels of {file} are floats, such as '4.5' (row 2). "
        "Labels are classes: names or whole numbers. "
        "Bin or rename the values, or pass --label-column with the column of classes.",
    ),
    "not a number": (
        "a.jsonl",
        '{"text": "fine", "label": 1.5}\n{"text": "bad", "label": NaN}\n',
        "{file} row 2 is not a JSON object: NaN is not JSON. Each line holds one, such as "
        '{{"text": "...", "label": "..."}}. Fix or remove the line.',
    ),
    "half a character": (
        "a.jsonl",
        '{"text": "fine", "label": "\\ud83d"}\n',
        "{file} row 1 contains a lone surrogate, which is not a character. "
        "Fix the escape such as \\ud83d in that row.",
    ),
    "NUL": (
        "a.jsonl",
        '{"text": "fine", "label": "a\\u0000b"}\n',
        "{file} row 1 contains a NUL byte. The file is binary, damaged, or in UTF-16. "
        "Convert it to text, or pass --encoding utf-16.",
    ),
}


@pytest.mark.parametrize("reader", READ_BY)
@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_file_is_refused(
    case: str, reader: str, commands: dict[str, Command], tmp_path: Path
) -> None:
    name, content, message = UNREADABLE[case]
    file = tmp_path / name
    file.write_bytes(content)
    before = files_under(tmp_path)
    assert refusal(run(*commands[reader](file))) == message.format(file=file)
    assert files_under(tmp_path) == before


@pytest.mark.parametrize("reader", READ_BY)
def test_missing_file_is_refused(reader: str, commands: dict[str, Command], tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "reviews.csv"
    message = f"There is no file or folder {str(file)!r}. Check the path."
    assert refusal(run(*commands[reader](file))) == message
    near = tmp_path / "trains.csv"
    assert f"Did you mean '{tmp_path / 'train.csv'}'?" in refusal(run(*commands[reader](near)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("reader", READ_BY)
def test_name_too_long_is_refused(
    reader: str, commands: dict[str, Command], tmp_path: Path
) -> None:
    file = tmp_path / ("x" * 300 + ".csv")
    assert refusal(run(*commands[reader](file))) == (
        f"Cannot read {file}: File name too long. Check the path and its permissions."
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("reader", LABELS_READ_BY)
@pytest.mark.parametrize("case", WRONG_LABELS)
def test_wrong_labels_are_refused(
    case: str, reader: str, commands: dict[str, Command], tmp_path: Path
) -> None:
    name, content, message = WRONG_LABELS[case]
    file = tmp_path / name
    file.write_text(content)
    assert refusal(run(*commands[reader](file))) == message.format(file=file)
    # Labels of test are read when all is trained, and what is trained is kept; its texts before.
    is_late = reader == "test" and case in ("missing label column", "missing label", "floats")
    assert (tmp_path / "out").exists() == is_late
    assert (tmp_path / "out" / "arms" / "linear").exists() == is_late


def test_one_class_only_is_refused(commands: dict[str, Command], tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,label\nfine,good\nwell,good\n")
    assert refusal(run(*commands["train"](file))) == (
        f"{file} has only one label, 'good'. A classifier needs at least two classes. "
        "Add examples of another class, or name another column with --label-column; in Python, "
        "label=NAME."
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("reader", ["valid", "evaluate", "test"])
def test_label_unknown_in_train_is_refused(
    reader: str, commands: dict[str, Command], tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,label\nfine,positive\nso so,neutal\n")
    assert refusal(run(*commands[reader](file))) == (
        f"Labels differ between splits: 'neutal' occurs only in {file} (row 3). "
        "Training knows 'negative', 'positive'. "
        "Fix the row, or add such examples to the training file."
    )
    assert (tmp_path / "out" / "arms" / "linear").exists() == (reader == "test")


def test_encoding_that_is_offered_reads_the_file(shared_classifier: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes("text,label\ncafé,positive\nthé,negative\n".encode("latin-1"))
    message = refusal(run("evaluate", shared_classifier, file))
    assert_names(message, "--encoding", "latin-1", "cp1254", "look at a line")
    result = run("evaluate", shared_classifier, file, "--encoding", "latin-1", "--json")
    assert json.loads(result.stdout)["num_examples"] == 2
    message = refusal(run("evaluate", shared_classifier, file, "--encoding", "latin-11"))
    assert message.startswith("There is no text encoding 'latin-11'.")


def test_standard_input_is_named_in_errors(shared_classifier: Path) -> None:
    result = CliRunner().invoke(app, ["predict", str(shared_classifier), "-"], input=b"\xe9t\xe9\n")
    assert refusal(result).startswith("standard input line 1 is not utf-8: byte 0xe9 at offset 0")


def test_text_longer_than_the_model_is_cut_and_told(
    shared_classifier: Path, splits: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"text,label\n{'long ' * 100},positive\nshort,negative\n")
    result = run("evaluate", shared_classifier, file, "--json")
    assert json.loads(result.stdout)["cut_share"] == 0.5
    files = ["--train", splits["train"], "--valid", file, "--out", tmp_path / "out"]
    result = run("finetune", "--base", "scratch", *files, *SET_TINY, "--epochs", 1)
    assert result.exit_code == 0, result.output
    assert "of the training texts are longer than 24 tokens and were cut." in result.stderr


def test_prompt_longer_than_the_model_is_refused(shared_base: Path) -> None:
    message = refusal(run("generate", shared_base, "a b c " * 100))
    assert message.startswith("The prompt has ")
    assert message.endswith(" tokens; the model has 64 positions. Shorten the prompt.")


@pytest.mark.parametrize("temperature", ["nan", "inf", "1e-42", "1e9"])
def test_temperature_that_cannot_be_sampled_at_is_refused(
    temperature: str, shared_base: Path
) -> None:
    message = refusal(run("generate", shared_base, "a", "--temperature", temperature))
    assert f"temperature is {float(temperature)}" in message
    assert "between 0.01 and 100" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("preset = 5", "There is no preset 5. Presets are lab, bert, modern, bag, student."),
        (
            'preset = ["lab"]',
            "There is no preset ['lab']. Presets are lab, bert, modern, bag, student.",
        ),
        ("train = 5", "1 setting is wrong: train: a section holds settings, such as train.lr"),
        ("[train]\nepochs = 'none'", "1 setting is wrong: train: set steps, epochs or minutes."),
        ("[train]\nminutes = inf", "1 setting is wrong: train.minutes: input should be a finite"),
    ],
)
def test_wrong_configuration_is_refused(
    content: str, message: str, documents_path: Path, tmp_path: Path
) -> None:
    config, out = tmp_path / "a.toml", tmp_path / "out"
    config.write_text(content)
    command = ["pretrain", documents_path, "--out", out, "--config", config, "--seed", 3]
    assert refusal(run(*command)).startswith(message)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--set", "model.width=48", "--set", "tokenizer.size=500"],
            "2 settings are wrong: model.width: the base has 12",
        ),
        (
            ["--tokenizer", "vocabulary.json"],
            "--tokenizer vocabulary.json cannot change the tokenizer of the base {base}.",
        ),
        (
            ["--size", "tiny"],
            "--size tiny cannot change the shape of the base {base}.",
        ),
    ],
)
def test_what_a_base_decides_is_not_changed_silently(
    options: list[str], message: str, shared_base: Path, splits: dict[str, Path], tmp_path: Path
) -> None:
    files = ["--train", splits["train"], "--out", tmp_path / "out", SHORT]
    result = run("finetune", "--base", shared_base, *files, *options)
    assert refusal(result).startswith(message.format(base=shared_base))
    assert not (tmp_path / "out").exists()


@pytest.fixture
def broken(shared_classifier: Path, tmp_path: Path) -> Path:
    """A copy of a classifier's run folder, to be broken."""
    return Path(shutil.copytree(shared_classifier, tmp_path / "broken"))


def using(run_dir: Path, splits: dict[str, Path]) -> list[list[Any]]:
    """Commands that read a classifier."""
    return [
        ["evaluate", run_dir, splits["test"]],
        ["predict", run_dir, splits["test"]],
        ["attention", run_dir, "a text", "--out", run_dir.parent / "out.png"],
    ]


@pytest.mark.parametrize("name", ["run.json", "config.json", "tokenizer.json", "model.safetensors"])
def test_incomplete_run_folder_is_refused(name: str, broken: Path, splits: dict[str, Path]) -> None:
    (broken / name).unlink()
    for command in using(broken, splits):
        assert refusal(run(*command)) == (
            f"{broken} is not a complete run folder: {name} is missing. "
            "Check the path, restore the file, or train again."
        )
    assert not (broken.parent / "out.png").exists()


def test_missing_run_folder_is_refused(splits: dict[str, Path], tmp_path: Path) -> None:
    for command in using(tmp_path / "nowhere", splits):
        message = refusal(run(*command))
        assert str(tmp_path / "nowhere") in message
        assert "regraft fit" in message


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_run_folder_of_a_newer_format_is_refused(broken: Path, splits: dict[str, Path]) -> None:
    change_facts(broken / "run.json", format_version=99, novelty={"a": 1})
    # What a newer regraft writes elsewhere is no damage.
    change_json(broken / "config.json", novelty={"a": 1})
    for command in using(broken, splits):
        problem = refusal(run(*command))
        assert problem.startswith(f"{broken} was written by another version")
        assert "format_version 99" in problem


def test_run_that_has_not_ended_is_refused(broken: Path, splits: dict[str, Path]) -> None:
    change_facts(broken / "run.json", status="training")
    for command in using(broken, splits):
        assert refusal(run(*command)) == (
            f"The run in {broken} is not finished: there are no final weights yet. "
            "Wait if it is still running; otherwise repeat its command with --resume."
        )


def test_vocabulary_of_another_size_is_refused(
    broken: Path, documents_path: Path, splits: dict[str, Path]
) -> None:
    other = broken.parent / "other"
    assert run("tokenizer", "train", documents_path, "--size", 280, "--out", other).exit_code == 0
    shutil.copy(other / "tokenizer.json", broken / "tokenizer.json")
    accept_files(broken)
    for command in using(broken, splits):
        assert refusal(run(*command)) == (
            f"{broken / 'tokenizer.json'} has 280 tokens, but the weights have 300. "
            "Tokenizer and weights must come from the same run. "
            "Restore the tokenizer.json this model was trained with."
        )


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("run.json", b"{", "run.json cannot be read: "),
        ("run.json", b"[]", "run.json holds no JSON object."),
        ("config.json", b'{"train": {"lr": -1}}', "config.json is damaged: 1 setting is wrong: "),
        ("tokenizer.json", b"{}", "tokenizer.json is not a tokenizer: "),
        ("model.safetensors", b"\x08", "model.safetensors is damaged: "),
    ],
)
def test_damaged_run_folder_is_refused(
    name: str, content: bytes, problem: str, broken: Path, splits: dict[str, Path]
) -> None:
    (broken / name).write_bytes(content)
    if name != "run.json":
        for command in using(broken, splits):
            assert refusal(run(*command)).startswith(f"{broken}/{name} is damaged: it changed")
        accept_files(broken)
    for command in using(broken, splits):
        assert refusal(run(*command)).startswith(f"{broken}/{problem}")


def test_weights_of_another_shape_are_refused(broken: Path, splits: dict[str, Path]) -> None:
    settings = json.loads((broken / "config.json").read_text())
    settings["model"]["num_layers"] = 3
    (broken / "config.json").write_text(json.dumps(settings))
    accept_files(broken)
    for command in using(broken, splits):
        assert refusal(run(*command)) == (
            f"{broken / 'model.safetensors'} does not fit {broken / 'config.json'}. "
            "Weights and configuration must come from the same run. "
            "Restore the folder or train again."
        )


def test_base_and_classifier_are_not_confused(
    shared_base: Path, shared_classifier: Path, splits: dict[str, Path], tmp_path: Path
) -> None:
    files = ["--train", splits["train"], "--out", tmp_path / "out", SHORT]
    remedy = "Use `regraft finetune` to make a classifier, `regraft pretrain` for a base."
    for command in (
        ["generate", shared_classifier, "a"],
        ["finetune", "--base", shared_classifier],
    ):
        extra = files if command[0] == "finetune" else []
        assert refusal(run(*command, *extra)) == (
            f"{shared_classifier} holds a classifier, not a language-model. {remedy}"
        )
    message = refusal(run("evaluate", shared_base, splits["test"]))
    assert message.startswith(f"{shared_base} holds a language-model")
    assert "regraft finetune" in message
    assert not (tmp_path / "out").exists()


def fill_disk(patch: pytest.MonkeyPatch, *, at: str) -> None:
    """From now on no file of this name (or any, at "") can be put in its place."""
    replace = os.replace

    def refuse(source: Any, target: Any) -> None:
        if not at or Path(target).name == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    patch.setattr(os, "replace", refuse)


def written_by(
    shared_base: Path, shared_classifier: Path, splits: dict[str, Path], out: Path
) -> dict[str, list[Any]]:
    """Every command that writes, each into `out`."""
    train, valid, test = splits.values()
    files = ["--train", train, "--valid", valid, "--out", out]
    return {
        "tokenizer": ["tokenizer", "train", train, "--size", 300, "--out", out],
        "pretrain": ["pretrain", train, "--out", out, *SET_TINY, "--steps", 1],
        "finetune": ["finetune", "--base", "scratch", *files, *SET_TINY, "--epochs", 1],
        "compare": [
            *("compare", "--base", shared_base, *files, "--test", test, "--arms", "frozen"),
            *("--seeds", 1, "--epochs", 1, "--jobs", 1, SHORT),
        ],
        "predict": ["predict", shared_classifier, test, "--out", out / "a.csv"],
        "attention": ["attention", shared_base, "a text", "--out", out / "a.png"],
        "picture": ["picture", "mask", "--out", out / "a.png"],
        "clean copies": ["data", "check", train, test, "--no-near", "--drop-leaks", out],
    }


@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer", "pretrain", "finetune", "compare"),
        *("predict", "attention", "picture", "clean copies"),
    ],
)
def test_full_disk_leaves_nothing(
    name: str,
    shared_base: Path,
    shared_classifier: Path,
    splits: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    command = written_by(shared_base, shared_classifier, splits, out)[name]
    with monkeypatch.context() as patch:
        fill_disk(patch, at="")
        message = refusal(run(*command))
    assert message.startswith("The disk is full: ")
    assert " was not written." in message
    assert not out.exists() or files_under(out) == set()
    result = run(*command)
    assert result.exit_code == 0, result.output


# While it trains, a full disk makes a run wait (test_survival.py).
@pytest.mark.parametrize("at", ["tokenizer.json", "config.json", "run.json", "model.safetensors"])
def test_disk_that_fills_up_on_the_way_leaves_whole_files(
    at: str, documents_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    command = ["pretrain", documents_path, "--out", out, *SET_TINY, "--steps", 3]
    with monkeypatch.context() as patch:
        fill_disk(patch, at=at)
        assert refusal(run(*command)).startswith("The disk is full: ")
    assert not any(Path(name).name.startswith(".") for name in files_under(out))
    assert not list(out.rglob("*.partial"))
    has_begun = (out / "run.json").exists()
    assert has_begun or files_under(out) == set()
    result = run(*command, *(["--resume"] if has_begun else []))
    assert result.exit_code == 0, result.output


def test_error_in_a_worker_process_is_told_as_in_our_own(
    shared_base: Path, splits: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    blocked = out / "arms" / "frozen" / "32-0" / "weights.safetensors"
    blocked.mkdir(parents=True)
    files = [f"--{name}={path}" for name, path in splits.items()]
    command = ["compare", "--base", shared_base, *files, "--out", out, SHORT, "--epochs", 1]
    result = run(*command, "--arms", "frozen,pretrained", "--seeds", 1, "--jobs", 2)
    assert refusal(result).startswith(f"Cannot write {blocked}: it is a folder.")


def test_folder_that_cannot_be_written_is_refused(documents_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    command = ["pretrain", documents_path, *SET_TINY, "--steps", 1, "--out"]
    for out in (tmp_path / "file" / "run", tmp_path / "file"):
        message = refusal(run(*command, out))
        assert str(tmp_path / "file") in message
    assert (tmp_path / "file").read_text() == "mine"


def test_output_that_is_an_input_is_refused(
    shared_base: Path, shared_classifier: Path, splits: dict[str, Path], tmp_path: Path
) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text('[{"text": "A fine book."}]')
    commands: list[list[Any]] = [
        ["predict", shared_classifier, mine, "--out", mine],
        ["predict", shared_classifier, mine, "--out", shared_classifier / "run.json"],
        ["explain", shared_classifier, "--file", mine, "--html", mine],
        ["tokenizer", "train", mine, "--size", 300, "--out", mine],
        ["picture", "positions", "--run", shared_base, "--out", shared_base / "run.png"],
        ["attention", shared_base, "a text", "--out", shared_base / "run.png"],
    ]
    before = files_under(shared_base) | files_under(shared_classifier)
    for command in commands:
        message = refusal(run(*command))
        assert message.startswith(f"Cannot write {command[-1]}: it is an input of this command")
    assert mine.read_text() == '[{"text": "A fine book."}]'
    assert files_under(shared_base) | files_under(shared_classifier) == before


def test_output_that_is_a_device_is_refused_before_any_work(
    shared_classifier: Path, splits: dict[str, Path], tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo.png"
    os.mkfifo(fifo)
    command = ["predict", shared_classifier, tmp_path / "nowhere.csv", "--out", "/dev/null"]
    assert refusal(run(*command)).startswith("Cannot write /dev/null: it is a device")
    assert refusal(run("picture", "mask", "--out", fifo)).startswith(f"Cannot write {fifo}: ")
    assert fifo.is_fifo()
    assert Path("/dev/null").is_char_device()
