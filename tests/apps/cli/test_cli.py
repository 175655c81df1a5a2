"""The command line: its surface, its speed, its manners when something goes wrong."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from conftest import write_examples
from typer import Option, Typer
from typer.main import get_command
from typer.testing import CliRunner, Result

from regraft.apps.cli import app, terminal
from regraft.apps.cli.demo import free_folder
from regraft.apps.cli.options import RENAMED, Overrides, settings_from
from regraft.apps.cli.results import show_finetuned
from regraft.classifiers.finetuning import FinetuneResult
from regraft.config import presets, schema
from regraft.config.traits import OBJECTIVES

REGRAFT = [sys.executable, "-m", "regraft"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def read_commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name in command.list_commands(None) if hasattr(command, "commands") else ():
        yield from read_commands(command.commands[name], *names, name)


COMMANDS = dict(read_commands(get_command(app)))
LEAVES = [names for names, command in COMMANDS.items() if not hasattr(command, "commands")]


def test_options_match_golden(golden: Callable[[str, str], None]) -> None:
    of_settings = {row.help for row in schema.read_setting_help()}  # in docs/reference
    lines = []
    for names, command in COMMANDS.items():
        help_text = " ".join(command.help.partition("Example:")[0].split())
        lines.append(f"{' '.join(['regraft', *names])}: {help_text}")
        for option in command.params if names in LEAVES else ():
            flags = ", ".join(option.opts) if option.param_type_name == "option" else option.name
            required = " (required)" if option.required else ""
            text = "" if option.help in of_settings else f": {option.help}"
            lines.append(f"{' '.join(names)}: {flags}{required}{text}")
    golden("cli.txt", "\n".join(lines) + "\n")


def test_settings_match_golden(golden: Callable[[str, str], None]) -> None:
    rows = [f"{row.key} ({row.type}) = {row.default}" for row in schema.read_setting_help()]
    golden("settings.txt", "\n".join(rows) + "\n")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom regraft.apps.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'pydantic', 'sklearn', 'matplotlib', 'numpy', 'scipy', 'jinja2'}\n"
        "heavy |= {'tokenizers', 'safetensors', 'joblib', 'fastapi', 'asyncio'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize("names", LEAVES, ids=" ".join)
def test_command_help_has_an_example_of_itself(names: tuple[str, ...]) -> None:
    result = run(*names, "--help")
    assert result.exit_code == 0
    _, _, example = result.stdout.partition("Example:\n")
    assert f"regraft {' '.join(names)}" in example.partition("Options:")[0]


@pytest.mark.parametrize("names", LEAVES, ids=" ".join)
def test_every_option_has_help(names: tuple[str, ...]) -> None:
    assert [option.name for option in COMMANDS[names].params if not option.help] == []


def test_option_help_is_the_help_of_the_setting() -> None:
    helps = {option.name: option.help for option in COMMANDS[("pretrain",)].params}
    assert helps["steps"] == schema.setting_help("train.steps")
    assert helps["documents"].startswith(schema.setting_help("data.documents"))


def test_sizes_of_the_option_are_those_of_the_settings() -> None:
    assert run("pretrain", "a.txt", "--out", "b", "--size", "huge").exit_code == 2
    usage = run("pretrain", "--help").stdout
    assert f"<{'|'.join([*presets.SIZES, 'auto'])}>" in usage


def test_objectives_of_the_option_are_those_of_the_settings() -> None:
    usage = run("pretrain", "--help").stdout
    assert f"<{'|'.join(OBJECTIVES)}>" in "".join(usage.split())


def test_no_command_shows_the_commands() -> None:
    result = run()
    assert "pretrain" in result.output
    assert "Start here:" in result.output
    # Whole sentences on a terminal of 80 columns, and every command once.
    assert "..." not in result.output.partition("Start here:")[2]
    listed = [line.split()[0] for line in result.output.splitlines() if line.startswith("  ")]
    assert all(listed.count(name) == 1 for name in get_command(app).list_commands(None))


def test_words_that_no_option_takes_are_counted_and_the_folder_is_named(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(50)]
    for file in files:
        file.write_text("text")
    result = run("fit", "--text", *files)
    assert result.exit_code == 2
    assert f"'{files[1]}', '{files[2]}', '{files[3]}' and 46 more" in result.stderr
    assert f"--text {tmp_path}" in result.stderr
    result = run("verify", "a", "b", "c")
    assert result.exit_code == 2
    assert "regraft verify --help" in result.stderr


def test_documents_of_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("text")
    arguments = ["--text", tmp_path / "texts", "--train", "a.csv", "--documents", "line"]
    result = run("fit", *arguments)
    assert result.exit_code == 2
    assert "In a folder, each file is one document." in result.stderr


def test_data_check_names_the_files_of_a_folder(tmp_path: Path) -> None:
    for name in ("a/1", "b/2"):
        path = tmp_path / "set" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("the same")
    table = run("data", "check", tmp_path / "set").stdout
    place = Path("b/2.txt"), Path("a/1.txt")
    assert f"file (first file): {place[0]} ({place[1]})" in " ".join(table.split())


def test_version_is_shown() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("regraft ")


def test_mistake_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    missing = tmp_path / "missing.csv"
    done = subprocess.run([*REGRAFT, "data", "check", missing], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "missing.csv" in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_settings_are_reported_together(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run(
        "pretrain", "x.txt", "--out", out, "--set", "train.lr=9", "--set", "model.widths=8"
    )
    assert result.exit_code == 2
    assert "2 settings are wrong" in result.stderr
    assert "train.lr" in result.stderr
    assert "Did you mean 'model.width'?" in result.stderr
    assert not out.exists()


def test_set_without_equals_is_refused() -> None:
    result = run("pretrain", "x.txt", "--out", "run", "--set", "train.lr")
    assert result.exit_code == 2
    assert "Write for example --set train.lr=3e-4." in result.stderr


def test_unknown_option_is_exit_code_2() -> None:
    result = run("pretrain", "x.txt", "--out", "run", "--stepps", "3")
    assert result.exit_code == 2
    assert "--stepps" in result.stderr


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["predict", "run", "new.csv", "--text", "body"], "--text-column"),
        (["evaluate", "run", "test.csv", "--label=stars"], "--label-column"),
        (["data", "check", "a.csv", "--text-pair", "answer"], "--pair-column"),
        (["compare", "--unlabelled", "text.txt"], "--text"),
        (["finetune", "--unlabelled=text.txt"], "--text"),
        # A file of this name would be read.
        (["pretrain", "reviews.csv", "--text", "body", "--out", "run"], "--text-column"),
    ],
)
def test_old_spelling_is_refused_with_the_new_one(words: list[str], new: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert new in result.stderr.replace(".", " ").split()


def test_an_option_means_the_same_in_every_command() -> None:
    meanings: dict[str, set[str]] = {}
    for names in LEAVES:
        for option in COMMANDS[names].params:
            for flag in option.opts:
                meanings.setdefault(flag, set()).add(option.metavar or "")
    assert meanings["--text"] == {"FILE"}
    assert meanings["--label"] == {"LABEL"}  # explain: a label, not a column
    for flag in ("--text-column", "--label-column", "--pair-column"):
        assert meanings[flag] == {"NAME"}
    assert not set(RENAMED) - {"--text", "--label"} & set(meanings)


def test_commands_without_text_ask_for_it(tmp_path: Path) -> None:
    result = run("pretrain", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert "--text FILE" in result.stderr


def test_flag_goes_before_set_and_set_before_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[train]\nlr = 0.5\nseed = 5\nsteps = 5\n")
    settings = settings_from(
        "pretrain",
        choices=Overrides(config=path, assignments=["train.lr=0.25", "train.seed=6"]),
        flags={"train.seed": 7, "train.epochs": None},
    )
    assert (settings.train.lr, settings.train.seed, settings.train.steps) == (0.25, 7, 5)


def failing(error: BaseException) -> Typer:
    """Commands that end in this error, in the same group as regraft's own."""
    failing_app = Typer(cls=type(get_command(app)), pretty_exceptions_enable=False)

    @failing_app.command()
    def pretrain(out: Path, resume: Annotated[bool, Option("--resume")] = False) -> None:
        with terminal.interruption_names(out):
            raise error

    @failing_app.command()
    def tokenize() -> None:
        raise error

    @failing_app.command()
    def evaluate() -> None:
        raise error

    return failing_app


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["pretrain", "no run"],
            "Interrupted. Continue with:\n  regraft pretrain 'no run' --resume",
        ),
        (
            ["pretrain", "--resume", "a run"],
            "Interrupted. The unfinished run is in a run. Continue with:\n"
            "  regraft pretrain 'a run' --resume",
        ),
        (["pretrain", "empty"], "Interrupted. Continue with:\n  regraft pretrain empty --resume"),
        (["tokenize"], "Interrupted. Continue with:\n  regraft tokenize"),
        (["evaluate"], "Interrupted."),
    ],
)
def test_interruption_says_where_and_how_to_go_on(words, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a run", "empty"):
        Path(name).mkdir()
    Path("a run", "run.json").write_text("{}")
    result = CliRunner().invoke(failing(KeyboardInterrupt()), words)
    assert result.exit_code == 130
    assert result.stderr.strip() == message


def test_interruption_under_torchrun_does_not_guess_the_command(monkeypatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    result = CliRunner().invoke(failing(KeyboardInterrupt()), ["pretrain", "no run"])
    assert result.stderr.strip() == "Interrupted. Repeat the command with --resume to continue."


def test_evaluate_warns_of_the_file_that_the_run_was_trained_on(shared_classifier, tmp_path):
    train = shared_classifier.parent / "train.csv"
    result = run("evaluate", shared_classifier, train)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"note: {shared_classifier} was trained on {train}")
    assert run("evaluate", shared_classifier, train, "--quiet").stderr == ""
    other = write_examples(tmp_path / "test.csv", 8, seed=9)
    assert "note:" not in run("evaluate", shared_classifier, other).stderr


def test_evaluate_shows_its_result_before_it_waits_for_the_ledger(
    shared_classifier, tmp_path, monkeypatch
):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    test = write_examples(tmp_path / "test.csv", 8, seed=9)
    monkeypatch.setattr("filelock.FileLock.acquire", interrupted)
    result = run("evaluate", shared_classifier, test, "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["num_examples"] == 8


def test_broken_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [*REGRAFT, "settings", "--json"], stdout=closed, stderr=subprocess.PIPE
        )
    assert done.stderr == b""
    assert done.returncode == 1


def test_settings_are_listed_as_table_and_json() -> None:
    rows = json.loads(run("settings", "--json").stdout)
    assert [row["key"] for row in rows] == [row.key for row in schema.read_setting_help()]
    table = run("settings").stdout
    assert all(row["key"] in table for row in rows)


def test_output_has_no_colour_codes_in_a_pipe() -> None:
    assert "\x1b" not in run("settings").stdout


def test_demo_takes_the_first_free_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert free_folder() == Path("runs/demo")
    Path("runs/demo").mkdir(parents=True)
    Path("runs/demo-2").mkdir()
    assert free_folder() == Path("runs/demo-3")


@pytest.mark.parametrize("command", ["predict", "evaluate", "explain", "serve"])
def test_missing_run_folder_names_the_command_that_makes_a_classifier(
    command: str, tmp_path: Path
) -> None:
    words = [] if command == "serve" else ["text"]
    result = run(command, tmp_path / "none", *words)
    assert result.exit_code == 2
    assert str(tmp_path / "none") in result.stderr
    assert "regraft fit" in result.stderr


def test_generate_refuses_equal_texts(tmp_path: Path) -> None:
    result = run("generate", tmp_path, "Once", "--num", "3")
    assert result.exit_code == 2
    assert "--num 3 at temperature 0 would give 3 equal texts." in result.stderr


@pytest.mark.parametrize("subject", ["mask", "positions"])
def test_picture_is_a_png(subject: str, tmp_path: Path) -> None:
    out = tmp_path / "picture.png"
    result = run("picture", subject, "--out", out, "--length", "9")
    assert result.exit_code == 0, result.output
    assert (result.stdout, result.stderr) == ("", f"The picture is in {out}.\n")
    assert out.read_bytes().startswith(b"\x89PNG")
    quiet = run("picture", subject, "--out", out, "--json", "--quiet")
    assert json.loads(quiet.stdout)["path"] == str(out)
    assert quiet.stderr == ""


def test_quiet_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress_on_stderr(quiet=True) as progress:
        progress.start("pretrain", total=1)
        progress.say("nothing")
        progress.finish()
    assert capsys.readouterr() == ("", "")


def test_data_check_counts_leaks(splits: dict[str, Path], tmp_path: Path) -> None:
    with splits["train"].open(encoding="utf-8", newline="") as file:
        leaked = list(csv.reader(file))[5]
    with splits["test"].open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow(leaked)
    clean = tmp_path / "clean"
    arguments = ["data", "check", *splits.values(), "--no-near", "--drop-leaks", clean]
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    profile = json.loads(result.stdout)
    assert [leak["kind"] for leak in profile["leaks"]] == ["exact"]
    assert leaked[0] not in (clean / "test.csv").read_text(encoding="utf-8")
    table = run("data", "check", *splits.values()).stdout
    assert "leaks: 1 row of" in table
    assert "train.csv: negative 16, positive 16" in table


def test_data_clean_applies_what_is_accepted(tmp_path: Path) -> None:
    train, issues, out = (tmp_path / name for name in ("train.csv", "issues.csv", "clean.csv"))
    train.write_text("text,label\ngreat,bad\nawful,good\nfine,good\n", encoding="utf-8")
    header = "row,id,text,label,proposal,confidence\n"
    issues.write_text(f"{header}2,,great,bad,good,0.97\n3,,awful,good,bad,0.8\n", encoding="utf-8")
    words = ["data", "clean", str(train), "--issues", str(issues), "--out", str(out)]
    result = run(*words, "--accept", "2", "--json")
    assert json.loads(result.stdout)["num_relabelled"] == 1
    assert out.read_text() == "text,label\ngreat,good\nawful,good\nfine,good\n"
    assert run(*words, "--min-confidence", "0.8").exit_code == 0
    assert out.read_text() == "text,label\ngreat,good\nawful,bad\nfine,good\n"
    for wrong in (["--accept", "two"], ["--accept", "4"], ["--min-confidence", "2"]):
        assert run(*words, *wrong).exit_code == 2


def test_data_check_warns_of_contradicting_labels(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,label\nsame,Good\nsame,bad\nother,good\n", encoding="utf-8")
    warnings = json.loads(run("data", "check", str(path), "--json").stdout)["warnings"]
    assert any("row 2 'Good', row 3 'bad'" in warning for warning in warnings)
    assert any("case or blanks" in warning for warning in warnings)


def test_data_check_shows_lengths_and_rows(tmp_path: Path) -> None:
    file = tmp_path / "train.csv"
    texts = ["one two", "", "one two", "a b c d e", *(f"w {row} w" for row in range(20))]
    file.write_text("text\n" + "".join(f'"{text}"\n' for text in texts))
    table = run("data", "check", file).stdout
    lines = [line.split() for line in table.splitlines()]
    header = next(words for words in lines if "p50" in words)
    row = dict(zip(header, next(words for words in lines if words[:1] == ["24"]), strict=False))
    assert [row[name] for name in ("p5", "p25", "p50", "p75", "p95", "max")] == list("233335")
    assert "256 words, the rest of which a transformer of `finetune` does not read" in table
    assert f"empty texts in {file}, rows: 3" in table
    assert f"duplicates in {file}, row (first row): 4 (2)" in table
    (profile,) = json.loads(run("data", "check", file, "--json").stdout)["files"]
    assert profile["empty_rows"] == [3]
    assert [twin["row"] for twin in profile["duplicates"]] == [4]


def test_data_check_counts_the_start_token(shared_base: Path, tmp_path: Path) -> None:
    from regraft.data.tokens.tokenizer import load_tokenizer

    text = "the plot is dull again"
    length = len(load_tokenizer(shared_base).encode(text))
    file = tmp_path / "a.txt"
    file.write_text(text)
    for max_length, share in ((length, 1.0), (length + 1, 0.0)):
        arguments = ["data", "check", file, "--tokenizer", shared_base, "--max-length", max_length]
        (profile,) = json.loads(run(*arguments, "--json").stdout)["files"]
        assert profile["cut"]["share"] == share


def test_data_check_takes_the_length_of_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a text")
    assert "longer than 512 words" in run("data", "check", file, "--preset", "lab").stdout


def test_tokenizer_is_trained_and_shown(documents_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "vocabulary"
    trained = run("tokenizer", "train", documents_path, "--size", 300, "--out", out, "--json")
    assert json.loads(trained.stdout)["vocab_size"] == 300
    shown = json.loads(run("tokenizer", "show", out, "the plot", "--json").stdout)
    assert "".join(shown["pieces"]).replace("▁", " ") == "the plot"
    assert len(shown["ids"]) == len(shown["pieces"])


def test_predictions_have_names_and_probabilities(
    shared_classifier: Path, splits: dict[str, Path]
) -> None:
    rows = list(
        csv.DictReader(run("predict", shared_classifier, splits["test"]).stdout.splitlines())
    )
    assert len(rows) == 16
    added = ["predicted_label", "predicted_probability", "p(negative)", "p(positive)"]
    assert list(rows[0]) == ["text", "label", *added]
    first = rows[0]
    assert float(first["predicted_probability"]) == float(first[f"p({first['predicted_label']})"])
    records = json.loads(run("predict", shared_classifier, splits["test"], "--json").stdout)
    assert [list(record) for record in records] == [["text", "label", *added]] * 16
    assert [record["predicted_label"] for record in records] == [
        row["predicted_label"] for row in rows
    ]


def test_predict_tells_the_share_cut(shared_classifier: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text(f"{'long ' * 100}\nshort\n")
    result = run("predict", shared_classifier, file)
    assert "50.0 % of the texts are longer than 24 tokens and were cut." in result.stderr
    assert run("predict", shared_classifier, file, "--quiet").stderr == ""


def test_attention_tells_what_was_cut(shared_base: Path, tmp_path: Path) -> None:
    out = tmp_path / "attention.png"
    result = run("attention", shared_base, "long " * 100, "--out", out, "--json")
    seen = json.loads(result.stdout)
    assert (seen["path"], len(seen["tokens"])) == (str(out), 24)
    assert f"its last {seen['num_cut']:,} tokens were cut." in result.stderr
    quiet = run("attention", shared_base, "long " * 100, "--out", out, "--quiet")
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_minutes_are_no_budget_of_a_comparison(
    shared_base: Path, splits: dict[str, Path], tmp_path: Path
) -> None:
    files = [f"--{name}={path}" for name, path in splits.items()]
    arguments = ["--base", shared_base, *files, "--out", tmp_path / "out", "--minutes", 3]
    result = run("compare", *arguments, "--set=data.max_length=24")
    assert result.exit_code == 2
    assert "train.minutes is 3" in result.stderr


@pytest.mark.parametrize(
    ("temperature", "told"),
    [(None, "no"), (1.375, "temperature 1.38, fitted on valid")],
)
def test_fine_tuned_run_tells_whether_it_is_calibrated(
    temperature: float | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = FinetuneResult(
        run_dir="runs/x",
        base="scratch",
        labels=("a", "b"),
        num_train=8,
        num_valid=4,
        valid_accuracy=(0.5, 0.75),
        cut_share=0.0,
        seconds=1.0,
        transplant="",
        temperature=temperature,
    )
    show_finetuned(result, linear=None)
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["calibrated", told] in [[part.strip() for part in line] for line in lines]


def test_params_counts_the_lab() -> None:
    result = run("params", "--preset", "lab", "--classes", "2", "--json")
    assert result.exit_code == 0, result.output
    counts = json.loads(result.stdout)
    assert counts["language_model"] == 21_018_401
    assert counts["classifier"] == 10_968_602


def test_params_explains_wrong_answers() -> None:
    result = run("params", "--preset", "lab", "--classes", "2", "--explain")
    assert result.exit_code == 0, result.output
    assert "built model" in result.stdout
    assert "21,650,401" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--version"], 0), (["params", "--preset", "none"], 2)]
)
def test_a_process_of_torchrun_ends_at_once_with_its_output_and_its_code(arguments, code):
    script = (
        "import atexit, sys\n"
        "from regraft.apps.cli import main\n"
        "atexit.register(print, 'farewell')\n"
        f"sys.argv[1:] = {arguments}\n"
        "main()\n"
    )
    told = {}
    for name, more in (("alone", {}), ("torchrun", {"TORCHELASTIC_RUN_ID": "one"})):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **more},
        )
        assert done.returncode == code
        told[name] = done.stdout + done.stderr
    # Without torchrun the interpreter takes its leave; with it, only that is missing.
    assert told["alone"].replace("farewell\n", "") == told["torchrun"]
    assert "farewell" in told["alone"]


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["fit", "--minute", "2"], ["no option --minute. Did you mean --minutes? See"]),
        (["fit", "--minutes", "two"], ["--minutes is 'two'. It must be a valid number. See"]),
        (["predict", "a", "b", "--top-k=0"], ["--top-k is '0'. It must be greater than or equal"]),
        (["predict", "a"], ["FILE is missing. Tables (csv, tsv,", "- is text from stdin. See"]),
        (["predict", "a", "b", "--format", "xml"], ["--format is 'xml'. It must be one of 'csv',"]),
        (["predict", "a", "b", "--top-k"], ["Option '--top-k' requires an argument. See `regraft"]),
        (["fti"], ["No such command 'fti'. Did you mean 'fit'? See"]),
        (["--nope"], ["has no option --nope. See"]),
        (
            ["predict", "a", "b", "--target-accuracy", "0.9"],
            ["report of `fit`", "--abstain-below."],
        ),
        (
            ["data", "fetch", "20newsgroup"],
            ["no corpus '20newsgroup'. Did you mean '20newsgroups'?"],
        ),
    ],
)
def test_words_that_a_command_does_not_take_are_refused_in_the_house_style(words, facts):
    result = run(*words)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "Error" not in result.stderr
    assert "Usage" not in result.stderr
    assert all(fact in result.stderr for fact in facts), result.stderr


def test_missing_run_folder_or_text_names_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tickets", "mails"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
    (tmp_path / "texts.txt").write_text("text\n")
    for wrong in ("runs/ticket", "run/tickets", "tickets"):
        message = run("predict", wrong, "texts.txt").stderr
        assert message == f"error: There is no run folder {wrong}. Did you mean runs/tickets?\n"
    message = run("predict", "runs", "texts.txt").stderr
    assert "runs is not a run folder, but holds some. They are runs/mails, runs/tickets." in message
    message = run("fit", "--text", "text.txt", "--train", "train.csv").stderr
    assert "There is no file text.txt." in message
    assert "Did you mean texts.txt?" in message


def test_explained_text_that_is_the_name_of_a_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text("text\n")
    result = run("explain", "runs/a", "new.csv")
    assert result.exit_code == 2
    assert "Did you mean --file new.csv?" in result.stderr


def test_predict_says_what_it_left_empty(shared_classifier, tmp_path):
    file, out = write_examples(tmp_path / "new.csv", 8, seed=9), tmp_path / "out.csv"
    with file.open("a") as table:
        table.write(" ,x\n,y\n")
    message = run("predict", shared_classifier, file, "--out", out).stderr
    assert f"8 predictions in {out}, 2 rows without text." in message
    how = ["--out", out, "--abstain-below", "1"]
    message = run("predict", shared_classifier, file, *how).stderr
    assert "0 predictions" in message
    assert "8 left empty (confidence below 1), 2 rows without text." in message
    found = json.loads(run("predict", shared_classifier, file, *how, "--json").stdout)
    assert (found["num_abstained"], found["abstain_below"]) == (8, 1)
