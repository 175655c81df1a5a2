"""`regraft explain`: the words that moved a decision, or the decisions about a whole table."""

import contextlib
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from regraft.apps.cli import options, terminal
from regraft.apps.cli.options import argument, flag, option
from regraft.errors import ConfigError, DataError
from regraft.runtime import in_percent

if TYPE_CHECKING:
    from rich.text import Text

    from regraft.classifiers import Explanation, StrongWord, TableExplanation

_TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx")
# Words of a class in the terminal.
_WORDS_SHOWN = 6
# Background colours from faint to strong, and a readable text colour for each.
_BLUES = ("#dbeaf5", "#9cc9e8", "#4a9fd6", "#0072b2")
_ORANGES = ("#fae3d3", "#f3bd95", "#e88a4a", "#c65300")
_INKS = ("black", "black", "black", "white")
_GREY = "grey50"
_UNREAD = "[not read:]"


@options.grouped
def explain(
    run: options.RunFolder,
    text: Annotated[str | None, argument("Text to explain; - is stdin.")] = None,
    file: Annotated[
        Path | None,
        option(
            "--file",
            f"A file with the text, or a table of texts: {' '.join(_TABLES)}, also .gz.",
            "FILE",
        ),
    ] = None,
    label: Annotated[
        str | None, option("--label", "Label to explain (default: the predicted one).", "LABEL")
    ] = None,
    method: Annotated[
        Literal["auto", "integrated-gradients", "contributions", "leave-one-out"],
        typer.Option(
            "--method",
            help="auto: integrated gradients for a network, exact contributions for a blend.",
        ),
    ] = "auto",
    check: Annotated[
        bool, flag("--check", "Compare with the ranking by leaving words out.")
    ] = False,
    html: Annotated[Path | None, option("--html", "HTML page to write.", "FILE.html")] = None,
    out: Annotated[
        Path | None,
        option("--out", "Copy of the table to write, with the words of each row added.", "FILE"),
    ] = None,
    *,
    reading: options.Reading,
    output: options.Output,
) -> None:
    """Show which words moved a decision, and by how much.

    Blue words (or +) are evidence for the label, orange words (or -) against it. Scores are
    log-odds; the completeness gap is the part that they leave unexplained. For a table, the most
    important words of each class are shown: mean scores over the texts of that class.

    \b
    Example:
      regraft explain runs/reviews "Un livre vraiment charmant."
      regraft explain runs/reviews --file review.txt --check --html why.html
      regraft explain runs/reviews --file test.csv --html words.html --out explained.csv
      echo "Un livre charmant." | regraft explain runs/reviews - --label negative --json
    """
    is_table = text is None and file is not None and _is_table(file)
    _check_options(is_table, check=check, out=out, reading=reading)
    given = "" if is_table else _given_text(text, file)
    from regraft.classifiers import Explainer, explain_table
    from regraft.report import class_words_to_html, explanation_to_html
    from regraft.runtime import output_path, write_text

    inputs = [run] if file is None else [run, file]
    for path in filter(None, (html, out)):
        output_path(path, inputs=inputs)
    explainer = Explainer.load(run)
    if is_table:
        assert file is not None
        data = options.data_of(explainer.classifier.data, reading)
        with output.progress() as progress:
            found = explain_table(
                explainer, file, data=data, label=label, method=method, out=out, progress=progress
            )
        if html is not None:
            write_text(html, class_words_to_html(found.classes), inputs=inputs)
        output.show(found, lambda: show_class_words(found))
        return
    explanation = explainer.explain(given, label, method=method)
    if check and explanation.method != "leave-one-out":
        explanation = explainer.checked(explanation)
    if html is not None:
        write_text(html, explanation_to_html(explanation), inputs=inputs)
        if not output.quiet:
            terminal.show_message(f"The page is in {html}.")
    output.show(explanation, lambda: show_explanation(explanation))


def show_class_words(found: "TableExplanation") -> None:
    """The most important words of each class."""
    heads = ["class", "texts", "for", "against"]
    terminal.show_table(
        heads,
        [
            (
                words.label,
                f"{words.num_texts:,}",
                *(", ".join(map(_with_score, side)) for side in words.strongest(_WORDS_SHOWN)),
            )
            for words in found.classes
        ],
        right=["texts"],
    )
    terminal.show_line(
        f"Log-odds of the class, mean over its texts ({found.method}); (x N): in N texts. "
        f"{found.num_texts:,} of {found.num_rows:,} rows have words."
    )


def show_explanation(explanation: "Explanation") -> None:
    """The label, the text with its words marked, the strongest words, and their reliability."""
    from rich.console import Console

    from regraft.classifiers import harmless, trust_facts

    # Words are wrapped where a person reads: a line of a pipe stays whole.
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(
        f"{harmless(explanation.label)} ({in_percent(explanation.probability)})\n", style="bold"
    )
    # With fewer colours, faint blue and faint orange become the same grey.
    has_colours = console.is_terminal and not console.no_color
    has_colours = has_colours and console.color_system in ("256", "truecolor")
    console.print(marked(explanation, has_colours=has_colours), soft_wrap=not console.is_terminal)
    legend = harmless(_legend(explanation, has_colours=has_colours))
    console.print(f"\n{legend}", style="dim", soft_wrap=not console.is_terminal)
    pro, contra = explanation.strongest()
    for side, words in (("for", pro), ("against", contra)):
        listed = ", ".join(map(_with_score, words))
        console.print(f"\n{side}: {listed or 'no word'}", soft_wrap=not console.is_terminal)
    console.print()
    for fact in trust_facts(explanation):
        console.print(harmless(fact), style="dim", soft_wrap=not console.is_terminal)


def marked(explanation: "Explanation", *, has_colours: bool) -> "Text":
    """The text with coloured words, or with signs after them where there are no colours."""
    from rich.text import Text

    from regraft.classifiers import NUM_LEVELS, harmless

    marked_text = Text()
    for piece, word, level in explanation.pieces():
        # More than four shades cannot be distinguished in a terminal.
        shade = -(-abs(level) * len(_BLUES) // NUM_LEVELS)
        if word is not None and explanation.is_unread(word):
            if not has_colours and word == explanation.words[explanation.num_read]:
                marked_text.append(f"{_UNREAD} ")
            marked_text.append(harmless(piece), style=_GREY)
        elif word is None or shade == 0:
            marked_text.append(harmless(piece))
        elif has_colours:
            colours = _BLUES if level > 0 else _ORANGES
            style = f"{_INKS[shade - 1]} on {colours[shade - 1]}"
            marked_text.append(harmless(piece), style=style)
        else:
            sign = ("+" if level > 0 else "-") * min(shade, 3)
            marked_text.append(f"{harmless(piece)}[{sign}]")
    return marked_text


def _legend(explanation: "Explanation", *, has_colours: bool) -> str:
    """The meaning of the marks."""
    if not has_colours:
        unread = f"; the text after {_UNREAD} was not read" if explanation.num_unread else ""
        return f"[+] to [+++]: evidence for {explanation.label}, [-] to [---]: against it{unread}."
    unread = "; grey words were not read" if explanation.num_unread else ""
    return (
        f"Blue: evidence for {explanation.label}, orange: against it; darker is stronger{unread}."
    )


def _with_score(word: "StrongWord") -> str:
    from regraft.classifiers import harmless, signed

    # A comma would be lost among the commas of the list.
    is_sign = not any(map(str.isalnum, word.text))
    times = f" (x {word.count:,})" if word.count > 1 else ""
    return f"{harmless(repr(word.text) if is_sign else word.text)} {signed(word.score)}{times}"


def _is_table(file: Path) -> bool:
    return Path(file.name.lower().removesuffix(".gz")).suffix in _TABLES


def _check_options(
    is_table: bool, *, check: bool, out: Path | None, reading: options.Reading
) -> None:
    """Refuse options that do not go with what is explained."""
    if is_table and check:
        raise ConfigError("--check compares two explanations of one text.", remedy="Omit --check.")
    given = {"out": out, **vars(reading)}
    flags = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if flags and not is_table:
        raise ConfigError(
            f"{', '.join(flags)} is about a table, and one text is explained.",
            f"A table ends in {' '.join(_TABLES)}.",
            remedy=f"Pass a table with --file, or omit {', '.join(flags)}.",
        )


def _refuse_file_name(text: str) -> None:
    """A text that is the name of a file is meant as the file."""
    with contextlib.suppress(ValueError):  # a NUL byte
        if os.path.isfile(text):
            raise ConfigError(
                f"The text to explain is {text!r}, the name of a file.",
                "A text is in quotes; a file is named with --file.",
                remedy=f"Did you mean --file {shlex.quote(text)}? If not, pass the text with -, on "
                "stdin.",
            )


def _given_text(text: str | None, file: Path | None) -> str:
    """The text from the argument, a file or stdin, as UTF-8."""
    if (text is None) == (file is None):
        raise ConfigError(
            "No text was given." if text is None else "Two texts were given.",
            "Pass one text: in quotes, with --file, or - for stdin.",
            remedy='For example: regraft explain RUN "A fine film."',
        )
    if text is not None and text != "-":
        _refuse_file_name(text)
        return text
    source = "stdin" if file is None else str(file)
    try:
        data = sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as error:
        raise DataError(
            f"Cannot read {source}: {error.strerror}.", remedy="Check the path."
        ) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{source} is not UTF-8: byte {error.start:,} is 0x{data[error.start]:02x}.",
            remedy="Convert it, for example: iconv -f latin1 -t utf-8.",
        ) from error
