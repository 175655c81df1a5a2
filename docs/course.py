"""Run the chapters of the course and write docs/course/ with their outputs and figures.

`make course` takes a few minutes; tests run the same chapters at a small scale. Runs stay in
runs/course, so `python docs/course.py 11-masked` can run a single chapter again; without a name
all of them start from scratch. `docs/generate.py --check` compares text and code with the chapters.
"""

import ast
import contextlib
import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from regraft.apps.course.chapters import FULL_SCALE, Chapter, read_chapters
from regraft.apps.course.questions import QUESTIONS

PAGES_DIR = Path(__file__).resolve().parent / "course"
RUNS_DIR = Path(__file__).resolve().parent.parent / "runs" / "course"
NOTE = (
    "<!-- Written by `make course` from src/regraft/apps/course/text; edit the chapter instead. -->"
)
# The outputs, between a code block and the next text.
OUTPUT = re.compile(r"<!-- output -->\n.*?<!-- end of output -->\n\n", re.DOTALL)
DPI = 110


def run_chapter(chapter: Chapter, *, scale: str) -> Iterator[tuple[str, Any]]:
    """Run the code cells in the current folder; yield the output and last value of each."""
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
    """The page of a chapter, with or without outputs."""
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
    for question in questions:
        text = f"- `{question.name}`: {question.text}"
        asked += textwrap.wrap(text, 100, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join([title, "", NOTE, *rest, *asked]).rstrip("\n") + "\n"


def without_outputs(text: str) -> str:
    """A page without its outputs."""
    return OUTPUT.sub("", text)


def _shown(printed: str, value: Any, *, name: str, images_dir: Path) -> Iterator[str]:
    from matplotlib.figure import Figure

    printed_text = printed.rstrip("\n")
    if isinstance(value, Figure):
        images_dir.mkdir(parents=True, exist_ok=True)
        value.savefig(images_dir / f"{name}.png", dpi=DPI)
        picture = f"![What the code above draws](images/{name}.png)"
        yield from (["```text", printed_text, "```", picture] if printed_text else [picture])
        return
    if value is not None:
        printed_text = f"{printed_text}\n{value!r}" if printed_text else repr(value)
    if printed_text:
        yield from ("```text", printed_text, "```")


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
