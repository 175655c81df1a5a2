"""Run the chapters of the course and write docs/course/ with what they printed and drew.

`python docs/course.py` takes some minutes (`make course`); tests run the same chapters at a small
scale. The text and code of a page are the chapter's own: `docs/generate.py --check` compares them.
Material and runs stay in runs/course, so that `python docs/course.py 11-masked` can run one chapter
again; without a name all of them start anew.
"""

import ast
import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from regraft.chapters import FULL_SCALE, Chapter, read_chapters
from regraft.course import QUESTIONS

PAGES_DIR = Path(__file__).resolve().parent / "course"
RUNS_DIR = Path(__file__).resolve().parent.parent / "runs" / "course"
NOTE = (
    "<!-- Written by `make course` from src/regraft/templates/course; edit the chapter instead. -->"
)
# What running added: everything between a code block and the next text.
OUTPUT = re.compile(r"<!-- output -->\n.*?<!-- end of output -->\n\n", re.DOTALL)
DPI = 110


def run_chapter(chapter: Chapter, *, scale: str) -> Iterator[tuple[str, Any]]:
    """Run the code cells in the current folder: what each printed, and its last value."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in chapter.cells:
        if cell.kind != "code":
            continue
        source = cell.source.replace(FULL_SCALE, f'scale="{scale}"')
        body = ast.parse(source, filename=f"{chapter.name}.md")
        last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(body, chapter.name, "exec"), names)
            value = None
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), chapter.name, "eval"), names)
        yield printed.getvalue(), value


def page(chapter: Chapter, outputs: Iterator[tuple[str, Any]] | None, *, images_dir: Path) -> str:
    """The page of a chapter; without outputs, only what the chapter itself says."""
    lines = []
    number = 0
    for cell in chapter.cells:
        if cell.kind == "markdown":
            lines += [cell.source, ""]
            continue
        lines += ["```python", cell.source, "```", ""]
        if outputs is None:
            continue
        number += 1
        shown = list(_shown(*next(outputs), name=f"{chapter.name}-{number}", images_dir=images_dir))
        if shown:
            lines += ["<!-- output -->", *shown, "<!-- end of output -->", ""]
    title, *rest = "\n".join(lines).split("\n")
    questions = [question for question in QUESTIONS if question.chapter == chapter.name]
    asked = ["## Questions", ""] if questions else []
    asked += [f"- `{question.name}`: {question.text}" for question in questions]
    return "\n".join([title, "", NOTE, *rest, *asked]).rstrip("\n") + "\n"


def without_outputs(text: str) -> str:
    """A page as it was before its code ran."""
    return OUTPUT.sub("", text)


def _shown(printed: str, value: Any, *, name: str, images_dir: Path) -> Iterator[str]:
    from matplotlib.figure import Figure

    told = printed.rstrip("\n")
    if isinstance(value, Figure):
        images_dir.mkdir(parents=True, exist_ok=True)
        value.savefig(images_dir / f"{name}.png", dpi=DPI)
        picture = f"![What the code above draws](images/{name}.png)"
        yield from (["```text", told, "```", picture] if told else [picture])
        return
    if value is not None:
        told = f"{told}\n{value!r}" if told else repr(value)
    if told:
        yield from ("```text", told, "```")


def main() -> None:
    """Write the pages named on the command line, or all of them, one after the other."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    names = sys.argv[1:]
    if not names:
        shutil.rmtree(RUNS_DIR, ignore_errors=True)
    RUNS_DIR.mkdir(parents=True, exist_ok=True)
    os.chdir(RUNS_DIR)
    for chapter in read_chapters():
        if names and chapter.name not in names:
            continue
        text = page(chapter, run_chapter(chapter, scale="full"), images_dir=PAGES_DIR / "images")
        (PAGES_DIR / f"{chapter.name}.md").write_text(text, encoding="utf-8")
        print(f"{date.today()} {chapter.name}", flush=True)


if __name__ == "__main__":
    main()
