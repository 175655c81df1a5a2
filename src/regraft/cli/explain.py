"""The command `regraft explain`: which words moved a decision, in colours, as HTML or as JSON."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from regraft.cli import options, terminal
from regraft.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rich.text import Text

    from regraft.explanation import Explanation, StrongWord

# Background colours of the 256 that terminals know, from faint to strong; ink that reads on each.
_BLUES = ("#dbeaf5", "#9cc9e8", "#4a9fd6", "#0072b2")
_ORANGES = ("#fae3d3", "#f3bd95", "#e88a4a", "#c65300")
_INKS = ("black", "black", "black", "white")
_GREY = "grey50"
_UNREAD = "[not read:]"


def explain(
    run: options.RunFolder,
    text: Annotated[
        str | None, typer.Argument(help="Text to explain; - is stdin.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="FILE", help="Read the text from a file.", show_default=False
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--label",
            metavar="LABEL",
            help="Explain this label, by default the predicted one.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        Literal["auto", "integrated-gradients", "contributions", "leave-one-out"],
        typer.Option(
            "--method",
            help="auto: integrated gradients for one network, exact contributions for a blend.",
        ),
    ] = "auto",
    check: Annotated[
        bool,
        typer.Option("--check", help="Leave words out, too, and tell whether both rank alike."),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE.html", help="Write a page, too.", show_default=False),
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Tell which words moved a classifier's decision, and how much.

    A word in blue (or with +) speaks for the label, one in orange (or with -) against it. Scores
    are log-odds; the completeness gap says what they leave unexplained.

    \b
    Example:
      regraft explain runs/reviews "Un livre vraiment charmant."
      regraft explain runs/reviews --file review.txt --check --html why.html
      echo "Un livre charmant." | regraft explain runs/reviews - --label negative --json
    """
    given = _given_text(text, file)
    from regraft.attribution import Explainer, explanation_to_html
    from regraft.bases import check_run_folder
    from regraft.runtime import write_text

    check_run_folder(
        run,
        expected="A model from elsewhere knows no labels yet: there is no decision to explain.",
        remedy=f"Run `regraft finetune --base {run} --train FILE --out RUN`, and give RUN.",
    )
    explainer = Explainer.load(run)
    found = explainer.explain(given, label, method=method)
    if check and found.method != "leave-one-out":
        found = explainer.checked(found)
    if html is not None:
        write_text(html, explanation_to_html(found))
        if not quiet:
            terminal.show_message(f"The page is in {html}.")
    if json:
        terminal.show_json(found.to_dict())
    else:
        show_explanation(found)


def show_explanation(found: "Explanation") -> None:
    """The label, the text with its words marked, the strongest words, how far to trust them."""
    from rich.console import Console

    from regraft.explanation import facts_told, harmless

    console = Console(highlight=False, markup=False, emoji=False)
    console.print(f"{harmless(found.label)} ({found.probability:.1%})\n", style="bold")
    # With fewer colours, faint blue and faint orange become the same grey.
    has_colours = console.is_terminal and not console.no_color
    has_colours = has_colours and console.color_system in ("256", "truecolor")
    console.print(marked(found, has_colours=has_colours), soft_wrap=True)
    legend = harmless(_legend(found, has_colours=has_colours))
    console.print(f"\n{legend}", style="dim", soft_wrap=True)
    pro, contra = found.strongest()
    for side, words in (("for", pro), ("against", contra)):
        told = ", ".join(map(_told, words))
        console.print(f"\n{side}: {told or 'no word'}", soft_wrap=True)
    console.print()
    for fact in facts_told(found):
        console.print(harmless(fact), style="dim", soft_wrap=True)


def marked(found: "Explanation", *, has_colours: bool) -> "Text":
    """The text with its words on colours, or with signs behind them where there are none."""
    from rich.text import Text

    from regraft.explanation import NUM_LEVELS, harmless

    marked_text = Text()
    for piece, word, level in found.pieces():
        # Four shades are all that an eye tells apart in a terminal.
        shade = -(-abs(level) * len(_BLUES) // NUM_LEVELS)
        if word is not None and found.is_unread(word):
            if not has_colours and word == found.words[found.num_read]:
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


def _legend(found: "Explanation", *, has_colours: bool) -> str:
    """What the marks mean."""
    if not has_colours:
        unread = f"; what stands behind {_UNREAD} is not read" if found.num_unread else ""
        return f"[+] to [+++] speak for {found.label}, [-] to [---] against it{unread}."
    unread = "; what is grey is not read" if found.num_unread else ""
    return f"Blue speaks for {found.label}, orange against it, the stronger the more{unread}."


def _told(word: "StrongWord") -> str:
    from regraft.explanation import harmless, signed

    # A comma would be lost between the commas of the list.
    is_sign = not any(map(str.isalnum, word.text))
    times = f" (x {word.count:,})" if word.count > 1 else ""
    return f"{harmless(repr(word.text) if is_sign else word.text)} {signed(word.score)}{times}"


def _given_text(text: str | None, file: Path | None) -> str:
    """The text of the argument, of a file, or of stdin; UTF-8 only."""
    if (text is None) == (file is None):
        raise ConfigError(
            "There is no text to explain." if text is None else "There are two texts to explain.",
            "Give it in quotes, or with --file, or as - from stdin.",
            remedy='For example: regraft explain RUN "A fine film."',
        )
    if text is not None and text != "-":
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
