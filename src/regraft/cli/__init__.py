"""The command `regraft`: the list of commands, and what happens when one fails.

One thin function a command, in the modules beside this one; each imports the library inside, so
that `regraft --help` loads no torch. The only place that prints, exits or catches RegraftError.
"""

import os
import shlex
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from regraft.cli import (
    compare,
    course,
    data,
    explain,
    export,
    fit,
    serve,
    show,
    studio,
    terminal,
    tokenizer,
    train,
    use,
)
from regraft.errors import RegraftError
from regraft.runtime import keep_memory, share_cores

_ORDER = (
    *("demo", "fit", "data", "tokenizer", "tokenize", "pretrain", "import", "finetune"),
    *(
        "compare",
        "evaluate",
        "predict",
        "explain",
        "generate",
        "fill",
        "export",
        "serve",
        "studio",
        "attention",
        "picture",
        "params",
        "settings",
        "bench",
        "course",
    ),
)
EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130
# Where the context of the command keeps its words.
_WORDS = f"{__name__}.words"


class _Commands(TyperGroup):
    """Turns a user's mistake into one message and an exit code; bugs keep their traceback."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of the pipeline; typer would put groups last."""
        return sorted(self.commands, key=_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # a broken pipe shows here, where typer ends the program quietly
            return result
        except RegraftError as error:
            terminal.show_error(str(error))
            raise typer.Exit(EXIT_MISTAKE) from error
        except KeyboardInterrupt as interrupt:
            where = f" What is done is in {interrupt}." if str(interrupt) else ""
            terminal.show_message(f"Interrupted.{where}{self._way_on(ctx)}")
            raise typer.Exit(EXIT_INTERRUPTED) from interrupt

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keeps the words of the command, for one that is interrupted."""
        ctx.meta[_WORDS] = list(args)
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def _way_on(self, ctx: Any) -> str:
        """The command that goes on where this one was interrupted; nothing if there is none."""
        command = self.commands.get(ctx.invoked_subcommand or "")
        can_resume = command and any(option.name == "resume" for option in command.params)
        if not can_resume and ctx.invoked_subcommand != "tokenize":
            return ""
        flags = ["--resume"] if can_resume else []
        if "TORCHELASTIC_RUN_ID" in os.environ:  # what torchrun was told is not known here
            return f" Repeat the command{' with --resume' if can_resume else ''} to go on."
        words = [word for word in ctx.meta[_WORDS] if word not in flags]
        return f" Go on with:\n  {shlex.join(['regraft', *words, *flags])}"


# Plain help: rich's own would cost more time than all else in `regraft --help`.
_LOOKS: dict[str, Any] = {"rich_markup_mode": None, "no_args_is_help": True}

app = typer.Typer(
    name="regraft",
    cls=_Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    **_LOOKS,
)

app.command()(train.demo)
app.command()(fit.fit)

_data = typer.Typer(**_LOOKS)
_data.command()(data.check)
_data.command("list")(data.list_corpora)
_data.command()(data.fetch)
app.add_typer(_data, name="data", help="Look at text before using it; get text to start with.")

_tokenizer = typer.Typer(**_LOOKS)
_tokenizer.command("train")(tokenizer.train)
_tokenizer.command("show")(tokenizer.show)
app.add_typer(_tokenizer, name="tokenizer", help="Train a tokenizer; see what it makes of text.")

app.command()(tokenizer.tokenize)
app.command()(train.pretrain)
app.command("import")(train.import_)
app.command()(train.finetune)
app.command()(compare.compare)
app.command()(use.evaluate)
app.command()(use.predict)
app.command()(explain.explain)
app.command()(use.generate)
app.command()(use.fill)
app.command()(export.export)
app.command()(serve.serve)
app.command()(studio.studio)
app.command()(show.attention)
app.command()(show.picture)
app.command()(show.params)
app.command()(show.settings)
app.command()(train.bench)

_course = typer.Typer(**_LOOKS)
_course.command("list")(course.list_questions)
_course.command()(course.notebooks)
_course.command()(course.check)
app.add_typer(_course, name="course", help="Learn how it works: chapters to run, answers checked.")


def _show_version(asked: bool) -> bool:
    if asked:
        from importlib.metadata import version

        terminal.show_line(f"regraft {version('regraft')}")
        raise typer.Exit
    return asked


@app.callback()
def regraft(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Pre-train a small language model on your own text, graft a classifier, prove its worth.

    \b
    Example:
      regraft demo                                          the whole story in ten minutes
      regraft fit --text reviews.txt --train labels.csv --out runs/reviews
      regraft pretrain reviews.txt --out runs/base          learn from text without labels
      regraft finetune --base runs/base --train train.csv --out runs/reviews
      regraft predict runs/reviews new.csv
    """


def main() -> None:
    """The entry point of the command."""
    share_cores()
    keep_memory()
    terminal.speak_for_all()
    with terminal.without_farewell():
        app()
