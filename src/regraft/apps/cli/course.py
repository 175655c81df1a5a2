"""`regraft course`: list questions, write notebooks, check answers."""

from pathlib import Path
from typing import Annotated

import typer

from regraft.apps.cli import options, terminal
from regraft.apps.cli.options import argument

EXIT_WRONG = 1


@options.grouped
def list_questions(*, output: options.Output) -> None:
    """List the questions of the course, chapter by chapter.

    \b
    Example:
      regraft course list
    """
    from regraft.apps.course.questions import QUESTIONS

    rows = [(q.chapter, q.name, q.text) for q in QUESTIONS]
    output.show(
        [{"name": q.name, "chapter": q.chapter, "text": q.text} for q in QUESTIONS],
        lambda: terminal.show_table(["chapter", "name", "question"], rows),
    )


@options.grouped
def notebooks(
    folder: Annotated[Path, argument("Folder to write.", "DIR")], quiet: options.Quiet = False
) -> None:
    """Write the chapters as Jupyter notebooks, and an answer sheet.

    \b
    Example:
      regraft course notebooks course/
    """
    from regraft.apps.course.chapters import write_notebooks
    from regraft.apps.course.questions import answer_sheet
    from regraft.runtime import write_text

    paths = write_notebooks(folder)
    sheet = folder / "answers.toml"
    if not sheet.exists():
        write_text(sheet, answer_sheet())
    if not quiet:
        terminal.show_message(f"{len(paths)} notebooks and {sheet.name} are in {folder}.")


@options.grouped
def check(
    answers: Annotated[
        Path, argument("TOML file with one line `name = number` per answer.", "ANSWERS")
    ],
    *,
    output: options.Output,
) -> None:
    """Check answers to the course, with a hint for each wrong one.

    The exit code is 0 if all answers are right, else 1.

    \b
    Example:
      regraft course check answers.toml
    """
    from regraft.apps.course.questions import check_answers, load_answers

    checked = check_answers(load_answers(answers))
    num_right = sum(row.is_right for row in checked)
    if output.json:
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
