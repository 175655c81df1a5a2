"""The course: chapters run at a small scale, answers are checked, notebooks are well formed."""

import importlib.util
import json
import math
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regraft.apps.cli import app
from regraft.apps.course.chapters import parse_chapter, read_chapters, start, write_notebooks
from regraft.apps.course.questions import QUESTIONS, answer_sheet, check_answers, load_answers
from regraft.errors import DataError, RunFolderError

DOCS_DIR = Path(__file__).parents[3] / "docs"
CHAPTERS = read_chapters()


def load_script(name):
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS_DIR / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_chapter_runs_after_those_before_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scripts = load_script("course")
    for chapter in CHAPTERS:
        outputs = scripts.run_chapter(chapter, scale="small")
        page = scripts.page(chapter, outputs, images_dir=tmp_path / "images")
        assert scripts.without_outputs(page) == scripts.page(chapter, None, images_dir=tmp_path)
        assert "<!-- output -->" in page


def test_pages_say_what_their_chapters_say():
    scripts = load_script("course")
    for chapter in CHAPTERS:
        text = (DOCS_DIR / "course" / f"{chapter.name}.md").read_text(encoding="utf-8")
        expected = scripts.page(chapter, None, images_dir=DOCS_DIR)
        assert scripts.without_outputs(text) == expected, f"{chapter.name}: run `make course`"
        assert "<!-- output -->" in text, f"{chapter.name}: what its code printed is not there"
        for image in re.findall(r"\]\((images/[^)]+)\)", text):
            assert (DOCS_DIR / "course" / image).exists()


def test_chapter_is_cut_into_text_and_code():
    chapter = parse_chapter("99-x", "# Title\n\nText.\n\n```python\na = 1\n```\n\nMore.\n")
    assert chapter.title == "Title"
    assert [cell.kind for cell in chapter.cells] == ["markdown", "code", "markdown"]
    assert chapter.cells[1].source == "a = 1"


def test_every_chapter_asks_something():
    asked = {question.chapter for question in QUESTIONS}
    assert asked == {chapter.name for chapter in CHAPTERS}


def test_right_answers_are_right_and_others_get_a_hint():
    right = {question.name: question.solution() for question in QUESTIONS}
    assert all(row.is_right and not row.hint for row in check_answers(right))
    wrong = {name: value + 1 for name, value in right.items()}
    assert all(not row.is_right and row.hint for row in check_answers(wrong))


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("uniform-loss", math.log(8192)),
        ("mask-cells", 21),
        ("unchanged-rows", 4),
        ("position-length", 100),
        ("unigram-entropy", 1.5 * math.log(2)),
        ("bits-per-byte", 5 * 1000 / 4000 / math.log(2)),
        ("sharp-probability", 1 / (1 + math.exp(-2) + math.exp(-4))),
        ("lab-parameters", 21_018_401),
        ("layer-parameters", 242_000),
        ("four-heads", 21_018_401),
        ("counted-twice", 21_650_401 - 21_018_401),
        ("thrown-away", 10_050_201),
        ("new-head", 402),
        ("bag-size", 6),
        ("shown-masks", 120),
        ("zero-weights", 28),
        ("contrast-chance", math.log(32)),
    ],
)
def test_solution_is_what_a_pencil_gives(name, by_hand):
    question = next(question for question in QUESTIONS if question.name == name)
    assert question.solution() == pytest.approx(by_hand)


def test_rounding_as_asked_for_is_right():
    assert [row.name for row in check_answers({"half-width": 1.8}) if row.is_right] == [
        "half-width"
    ]


def test_question_left_out_is_open_not_wrong():
    rows = check_answers({})
    assert all(row.given is None and not row.is_right and not row.hint for row in rows)


def test_sheet_is_toml_that_answers_nothing_yet(tmp_path):
    path = tmp_path / "answers.toml"
    path.write_text(answer_sheet(), encoding="utf-8")
    assert load_answers(path) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mask-cell = 21", "which the course does not ask"),
        ('mask-cells = "21"', "An answer is a number"),
        ("mask-cells = true", "An answer is a number"),
        ("mask-cells", "Answers are lines of a name"),
    ],
)
def test_strange_answers_are_refused(tmp_path, text, message):
    path = tmp_path / "answers.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_answers(path)


def test_check_ends_with_zero_only_if_all_is_right(tmp_path):
    path = tmp_path / "answers.toml"
    right = "".join(f"{question.name} = {question.solution()!r}\n" for question in QUESTIONS)
    path.write_text(right, encoding="utf-8")
    result = CliRunner().invoke(app, ["course", "check", str(path)])
    assert result.exit_code == 0
    assert f"{len(QUESTIONS)} of {len(QUESTIONS)} are right" in result.stdout
    path.write_text("mask-cells = 20\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["course", "check", str(path), "--json"])
    assert result.exit_code == 1
    found = {row["name"]: row for row in json.loads(result.stdout)["answers"]}
    assert found["mask-cells"]["hint"]


def test_list_shows_every_question():
    result = CliRunner().invoke(app, ["course", "list", "--json"])
    assert [row["name"] for row in json.loads(result.stdout)] == [q.name for q in QUESTIONS]


def test_notebooks_hold_all_code_and_are_never_overwritten(tmp_path):
    result = CliRunner().invoke(app, ["course", "notebooks", str(tmp_path)])
    assert result.exit_code == 0
    assert (tmp_path / "answers.toml").exists()
    for chapter in CHAPTERS:
        book = json.loads((tmp_path / f"{chapter.name}.ipynb").read_text(encoding="utf-8"))
        assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
        code = ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == "code"]
        assert code[1:] == [cell.source for cell in chapter.cells if cell.kind == "code"]
        assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    with pytest.raises(RunFolderError, match="would be lost"):
        write_notebooks(tmp_path)


def test_material_is_made_once_and_keeps_its_scale(tmp_path):
    lab = start(tmp_path / "material", scale="small")
    assert len(lab.test.read_text().splitlines()) > lab.scale.num_test
    written = lab.train.stat().st_mtime_ns
    assert start(tmp_path / "material", scale="small").train.stat().st_mtime_ns == written
    with pytest.raises(RunFolderError, match="holds the course at the scale small"):
        start(tmp_path / "material", scale="full")


def test_listing_questions_needs_no_torch():
    import subprocess

    code = "import regraft.apps.course.questions, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
