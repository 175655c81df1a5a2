"""`regraft course`: the questions, the chapters as notebooks, and answers checked."""

from pathlib import Path
from typing import Annotated

import typer

from regraft.cli import options, terminal

EXIT_WRONG = 1


def list_questions(json: options.Json = False) -> None:
    """List the questions of the course, chapter by chapter.

    \b
    Example:
      regraft course list
    """
    from regraft.course import QUESTIONS

    if json:
        terminal.show_json(
            [{"name": q.name, "chapter": q.chapter, "text": q.text} for q in QUESTIONS]
        )
    else:
        terminal.show_table(
            ["chapter", "name", "question"], [(q.chapter, q.name, q.text) for q in QUESTIONS]
        )


def notebooks(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to write.", show_default=False)
    ],
    quiet: options.Quiet = False,
) -> None:
    """Write the chapters as Jupyter notebooks, and a sheet for the answers.

    \b
    Example:
      regraft course notebooks course/
    """
    from regraft.chapters import write_notebooks
    from regraft.course import answer_sheet
    from regraft.runtime import write_text

    paths = write_notebooks(folder)
    sheet = folder / "answers.toml"
    if not sheet.exists():
        write_text(sheet, answer_sheet())
    if not quiet:
        terminal.show_message(f"{len(paths)} notebooks and {sheet.name} are in {folder}.")


def check(
    answers: Annotated[
        Path,
        typer.Argument(
            metavar="ANSWERS", help="TOML file, a line `name = number` each.", show_default=False
        ),
    ],
    json: options.Json = False,
) -> None:
    """Check answers to the course, with a hint where one is wrong.

    The exit code is 0 if every question is answered rightly, else 1.

    \b
    Example:
      regraft course check answers.toml
    """
    from regraft.course import check_answers, load_answers

    checked = check_answers(load_answers(answers))
    num_right = sum(row.is_right for row in checked)
    if json:
        terminal.show_json(
            {"right": num_right, "of": len(checked), "answers": [row.to_dict() for row in checked]}
        )
    else:
        rows = [
            (
                row.chapter,
                row.name,
                "right" if row.is_right else "open" if row.given is None else "wrong",
                row.hint,
            )
            for row in checked
        ]
        terminal.show_table(["chapter", "question", "answer", "hint"], rows)
        terminal.show_line(f"{num_right} of {len(checked)} are right.")
    if num_right < len(checked):
        raise typer.Exit(EXIT_WRONG)
