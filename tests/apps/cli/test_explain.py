"""`regraft explain`: with and without colours, where it reads from, what it refuses."""

import io
import json
import re
from pathlib import Path

import pytest
from explanations import explanation
from rich.console import Console
from tiny_blends import blend_dir
from typer.testing import CliRunner, Result

from regraft.apps.cli import app
from regraft.apps.cli.explain import marked, show_explanation
from regraft.classifiers.attribution import Explainer
from regraft.classifiers.explanation import Explanation

TEXT = "A superb camera, I love it, but the lid broke after a day."


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    return blend_dir(tmp_path_factory, num_labels=2)


def explain(*words: object, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["explain", *map(str, words)], input=given)


def test_words_are_shown_with_signs_where_there_are_no_colours(run_dir):
    result = explain(run_dir, TEXT)
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert re.search(r"\w\[\+\+\+\]|\w\[---\]", result.stdout)
    assert re.search(r"\nfor: .+ \+\d\.\d\d\b", result.stdout)
    assert "\nagainst: " in result.stdout
    assert "\n[+] to [+++]" in result.stdout
    assert "completeness gap" in result.stdout
    assert "Method: contributions." in result.stdout


def test_words_are_coloured_in_a_terminal(run_dir):
    found = Explainer.load(run_dir).explain(TEXT)
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=200)
    console.print(marked(found, has_colours=True))
    shown = console.file.getvalue()
    strongest = max(found.words, key=lambda word: abs(word.score))
    colour = "0;114;178" if strongest.score > 0 else "198;83;0"
    assert f"\x1b[37;48;2;{colour}m{strongest.text}\x1b[0m" in shown
    assert "[+++]" not in shown


def shown_in(terminal: dict[str, str], found: Explanation, capsys, monkeypatch) -> str:
    for name in ("NO_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"FORCE_COLOR": "1", **terminal}.items():
        monkeypatch.setenv(name, value)
    show_explanation(found)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("terminal", "has_colours"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_signs_stand_in_where_colours_would_not_tell(
    run_dir, terminal, has_colours, capsys, monkeypatch
):
    found = Explainer.load(run_dir).explain(TEXT)
    shown = shown_in(terminal, found, capsys, monkeypatch)
    assert ("[+++]" not in shown.partition("for ")[0]) == has_colours
    legend = f"Blue: evidence for {found.label}"
    signs = f"[+] to [+++]: evidence for {found.label}"
    assert (legend in shown, signs in shown) == (has_colours, not has_colours)


def test_unread_words_are_told_apart(shared_classifier, capsys, monkeypatch):
    found = Explainer.load(shared_classifier).explain("the plot is dull " * 1_000)
    grey = shown_in({"TERM": "xterm-256color"}, found, capsys, monkeypatch)
    assert grey.count("\x1b[38;5;244m") == found.num_unread
    assert "grey words" in grey
    plain = shown_in({"TERM": "xterm", "NO_COLOR": "1"}, found, capsys, monkeypatch)
    assert plain.count("[not read:] ") == 2, "before the first of them, and in the legend"
    words = re.sub(r"\x1b\[[0-9;]*m", "", plain).split()
    assert "text after [not read:] was not read" in " ".join(words)
    # 3,900 words that nobody reads are no reason.
    assert max(int(count) for count in re.findall(r"\(x (\d+)\)", plain)) < 20


def test_explanation_wraps_at_words_in_a_narrow_terminal(run_dir, capsys, monkeypatch):
    found = Explainer.load(run_dir).explain(f"{TEXT} " * 10)
    environment = {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "60"}
    shown = re.sub(r"\x1b\[[0-9;]*m", "", shown_in(environment, found, capsys, monkeypatch))
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= 60
    assert "evidence for" in " ".join(shown.split())


def test_list_of_words_quotes_signs_and_leaves_out_nothing(capsys, monkeypatch):
    found = explanation("good , so !", [1.0, -0.5, 0.001, -0.001])
    shown = shown_in({}, found, capsys, monkeypatch)
    assert "\nfor: good +1.00\n" in shown
    assert "\nagainst: ',' -0.50\n" in shown


def test_json_is_the_explanation(run_dir):
    told = json.loads(explain(run_dir, TEXT, "--json", "--check").stdout)
    assert told["method"] == "contributions"
    assert abs(told["gap"]) < 1e-3
    assert -1 <= told["agreement"] <= 1
    assert [word["text"] for word in told["words"]][:3] == ["A", "superb", "camera"]


def test_label_and_method_can_be_chosen(run_dir):
    labels = json.loads(explain(run_dir, TEXT, "--json").stdout)["probabilities"]
    for label in labels:
        result = explain(run_dir, TEXT, "--label", label, "--method", "leave-one-out", "--json")
        told = json.loads(result.stdout)
        assert (told["label"], told["method"]) == (label, "leave-one-out")


def test_network_is_explained_by_its_gradients(shared_classifier):
    result = explain(shared_classifier, "the plot is dull", "--check")
    assert result.exit_code == 0
    assert "Method: integrated-gradients, " in result.stdout
    assert "Rank correlation with leave-one-out: " in result.stdout


def test_text_comes_from_stdin_or_a_file(run_dir, tmp_path):
    path = tmp_path / "review.txt"
    path.write_text("\ufeff" + TEXT, encoding="utf-8")
    expected = explain(run_dir, TEXT, "--json").stdout
    assert explain(run_dir, "-", "--json", given=TEXT).stdout == expected
    assert explain(run_dir, "--file", path, "--json").stdout == expected


def test_page_is_written_and_escaped(run_dir, tmp_path):
    page = tmp_path / "why.html"
    result = explain(run_dir, "<script>alert(1)</script> superb", "--html", page)
    assert result.exit_code == 0
    assert f"The page is in {page}." in result.stderr
    assert "<script" not in page.read_text(encoding="utf-8")
    assert "&lt;" in page.read_text(encoding="utf-8")


def test_commands_to_the_terminal_do_not_pass(run_dir):
    result = explain(run_dir, "-", given="\x1b[2J\x07 superb \u202e camera")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    assert "\x07" not in result.stdout
    assert "\u202e" not in result.stdout
    assert "\u241b[" in result.stdout


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        ((), None, "--file"),
        (("text", "--file", "x.txt"), None, "Two texts"),
        (("--file", "nowhere.txt"), None, "Cannot read nowhere.txt: No such file or directory."),
        (("-",), b"caf\xe9", "stdin is not UTF-8: byte 3 is 0xe9. Convert it"),
        (("-",), b"", "The text is empty."),
        (("good", "--label", "goood"), None, "The label 'goood' is unknown."),
        (("good", "--method", "integrated-gradients"), None, "does not fit this classifier"),
    ],
)
def test_mistakes_are_told(run_dir, words, given, message):
    result = explain(run_dir, *words, given=given)
    assert result.exit_code == 2
    assert message in result.stderr


def test_base_is_refused(shared_base):
    result = explain(shared_base, "good")
    assert result.exit_code == 2
    assert "holds a language-model, not a classifier" in result.stderr
