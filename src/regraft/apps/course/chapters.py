"""The chapters of the course: Markdown whose Python blocks run, and the texts they run on.

The texts come from a grammar, so that everyone has the same ones. docs/course.py runs the chapters
for the site.
"""

import json
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from regraft.data import (
    csv_text,
    split_examples,
    subset_examples,
    synthetic_reviews,
    without_duplicates,
)
from regraft.errors import RunFolderError
from regraft.runtime import write_text

_PYTHON = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
# Only in notebooks: there a figure at the end of a cell is drawn below it.
_FIRST_CELL = "%matplotlib inline"
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")
# How a chapter asks for its material; tests and impatient readers take the other scale.
FULL_SCALE = 'scale="full"'


@dataclass(frozen=True)
class Cell:
    """A part of a chapter: text in Markdown, or code."""

    kind: Literal["markdown", "code"]
    source: str


@dataclass(frozen=True)
class Chapter:
    """One chapter; `name` is that of its file and page, such as 02-mask."""

    name: str
    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Scale:
    """How much of everything a chapter takes."""

    num_documents: int
    num_test: int
    num_labels: int
    num_valid: int
    num_seeds: int
    steps: int
    epochs: int
    fit_minutes: float


SCALES = {
    # A few minutes of two cores for the whole course.
    "full": Scale(
        num_documents=6000,
        num_test=1000,
        num_labels=300,
        num_valid=200,
        num_seeds=3,
        steps=1000,
        epochs=10,
        fit_minutes=1.0,
    ),
    # Seconds: enough to see that everything runs, too little to conclude anything.
    "small": Scale(
        num_documents=500,
        num_test=60,
        num_labels=40,
        num_valid=40,
        num_seeds=2,
        steps=8,
        epochs=1,
        fit_minutes=0.02,
    ),
}


@dataclass(frozen=True)
class Material:
    """The files of the course, and how much to do with them."""

    folder: Path
    text: Path
    train: Path
    valid: Path
    test: Path
    scale: Scale

    def run(self, name: str) -> Path:
        """The path of the run of this name."""
        return self.folder / name


def read_chapters() -> list[Chapter]:
    """All chapters, in order."""
    folder = files("regraft.apps.course") / "text"
    found = sorted(
        (entry.name, entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".md")
    )
    return [parse_chapter(name.removesuffix(".md"), text) for name, text in found]


def parse_chapter(name: str, text: str) -> Chapter:
    """A chapter from its Markdown: every Python block is a cell, and so is the text between."""
    cells = []
    for number, part in enumerate(_PYTHON.split(text)):
        if part.strip():
            cells.append(Cell("code" if number % 2 else "markdown", part.strip("\n")))
    title = text.partition("\n")[0].removeprefix("# ")
    return Chapter(name=name, title=title, cells=tuple(cells))


def start(folder: str | Path, *, scale: str = "full") -> Material:
    """The material of the course in `folder`; what is there already is taken as it is."""
    folder, chosen = Path(folder), SCALES[scale]
    paths = {name: folder / f"{name}.csv" for name in ("train", "valid", "test")}
    text, note = folder / "text.txt", folder / "scale.txt"
    if note.exists() and note.read_text(encoding="utf-8") != scale:
        raise RunFolderError(
            f"{folder} holds the course at the scale {note.read_text(encoding='utf-8')}.",
            f"Its texts and runs do not fit the scale {scale}.",
            remedy="Take another folder, or remove this one.",
        )
    if not note.exists():
        examples = without_duplicates(synthetic_reviews(num_documents=chosen.num_documents, seed=0))
        rest, test = split_examples(examples, share=chosen.num_test / len(examples), seed=0)
        rest, valid = split_examples(rest, share=chosen.num_valid / len(rest), seed=1)
        train = subset_examples(rest, size=chosen.num_labels, seed=0)
        # Training texts may be read without their labels, too; valid and test stay unseen.
        write_text(text, "".join(f"{example.text}\n" for example in rest))
        for name, part in (("train", train), ("valid", valid), ("test", test)):
            rows = [(example.text, example.label) for example in part]
            write_text(paths[name], csv_text(["text", "label"], rows))
        write_text(note, scale)
    return Material(folder=folder, text=text, scale=chosen, **paths)


def notebook(chapter: Chapter) -> dict[str, Any]:
    """A chapter in Jupyter's format, version 4.5; links into the site are kept as their words."""
    cells: list[dict[str, Any]] = [_notebook_cell("code", _FIRST_CELL, number=0)]
    for number, cell in enumerate(chapter.cells, start=1):
        source = _LINK.sub(r"*\1*", cell.source) if cell.kind == "markdown" else cell.source
        cells.append(_notebook_cell(cell.kind, source, number=number))
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def write_notebooks(folder: str | Path) -> list[Path]:
    """Every chapter as a notebook in `folder`; those that are there are never overwritten."""
    paths = [Path(folder) / f"{chapter.name}.ipynb" for chapter in read_chapters()]
    there = [path.name for path in paths if path.exists()]
    if there:
        raise RunFolderError(
            f"{folder} has notebooks of the course already: {', '.join(there)}.",
            "What you wrote into them would be lost.",
            remedy="Choose another folder.",
        )
    for path, chapter in zip(paths, read_chapters(), strict=True):
        write_text(path, json.dumps(notebook(chapter), indent=1, ensure_ascii=False) + "\n")
    return paths


def _notebook_cell(kind: str, source: str, *, number: int) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})
