"""The command `regraft`: its commands, and what happens when one fails.

A command's module is imported when the command is used, and imports the library inside its
functions, so that `regraft --help` does not load torch.
This is the only place that catches RegraftError, and every other exception.
"""

import importlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from regraft.apps.cli import terminal
from regraft.apps.cli.failures import bug_report, explained, misuse
from regraft.apps.cli.options import Command
from regraft.errors import RegraftError
from regraft.runtime import check_training, end_workers, keep_memory, optional, share_cores

EXIT_MISTAKE = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
# Where the context of a command keeps its words.
_WORDS = f"{__name__}.words"


class _Commands(TyperGroup):
    """Turns every failure into a message and an exit code; the details of a bug are saved."""

    def __init__(self, *, commands: Any, **attributes: Any) -> None:
        """Without `commands`, it has those of `_COMMANDS`."""
        super().__init__(**attributes)
        self.commands: Any = commands or _Loaded()

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of the pipeline; typer would put groups last."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """By what they are for, in the order of `_SECTIONS`."""
        width = max(map(len, self.commands))
        for title, names in _SECTIONS.items():
            rows = [(n, self.commands[n].get_short_help_str(formatter.width)) for n in names]
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])

    def invoke(self, ctx: Any) -> Any:
        try:
            with optional("This command", extra="train"):
                result = super().invoke(ctx)
            sys.stdout.flush()  # a broken pipe is noticed here, where typer exits quietly
            return result
        except RegraftError as error:
            terminal.show_error(str(error))
            raise typer.Exit(EXIT_MISTAKE) from error
        except TyperException as error:
            _refuse_misuse(error, ctx.meta[_WORDS])
            raise
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as error:
            cause = explained(error)
            terminal.show_error(bug_report(error) if cause is None else str(cause))
            raise typer.Exit(EXIT_BUG if cause is None else EXIT_MISTAKE) from error
        except KeyboardInterrupt as interrupt:
            where = f" The unfinished run is in {interrupt}." if str(interrupt) else ""
            terminal.show_message(f"Interrupted.{where}{self._continuation(ctx)}")
            raise typer.Exit(EXIT_INTERRUPTED) from interrupt

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words of the command, to show how to continue it."""
        ctx.meta[_WORDS] = list(args)
        try:
            parsed: list[str] = super().parse_args(ctx, args)
        except TyperException as error:
            _refuse_misuse(error, ctx.meta[_WORDS])
            raise
        return parsed

    def _continuation(self, ctx: Any) -> str:
        """The command that continues an interrupted one; empty if there is none."""
        command = self.commands.get(ctx.invoked_subcommand or "")
        can_resume = command and any(option.name == "resume" for option in command.params)
        if not can_resume and ctx.invoked_subcommand != "tokenize":
            return ""
        flags = ["--resume"] if can_resume else []
        if "TORCHELASTIC_RUN_ID" in os.environ:  # the options of torchrun are unknown here
            return f" Repeat the command{' with --resume' if can_resume else ''} to continue."
        words = [word for word in ctx.meta[_WORDS] if word not in flags]
        return f" Continue with:\n  {shlex.join(['regraft', *words, *flags])}"


def _refuse_misuse(error: TyperException, words: list[str]) -> None:
    """Say what is wrong with the words of a command as all other errors are said."""
    if (cause := misuse(error, words)) is not None:
        terminal.show_error(str(cause))
        raise typer.Exit(EXIT_MISTAKE) from error


class _TrainingCommand(Command):
    """A command that needs the extra `train`, and says so before it does anything else."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not set(args) & set(ctx.help_option_names):
            check_training(f"`regraft {ctx.info_name}`")
        return super().parse_args(ctx, args)


# Plain help: rich would take more time than everything else in `regraft --help`.
_LOOKS: dict[str, Any] = {"rich_markup_mode": None, "no_args_is_help": True}

app = typer.Typer(
    name="regraft",
    cls=_Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    **_LOOKS,
)

# Module and function of each, in the order of the pipeline, which `regraft --help` keeps.
_COMMANDS: dict[str, str | dict[str, str]] = {
    "demo": "demo.demo",
    "fit": "fit.fit",
    "data": {
        "check": "data.check",
        "clean": "data.clean",
        "list": "data.list_corpora",
        "fetch": "data.fetch",
    },
    "tokenizer": {"train": "tokenizer.train", "show": "tokenizer.show"},
    "tokenize": "tokenizer.tokenize",
    "pretrain": "pretrain.pretrain",
    "import": "pretrain.import_",
    "finetune": "finetune.finetune",
    "compare": "compare.compare",
    "evaluate": "predict.evaluate",
    "predict": "predict.predict",
    "explain": "explain.explain",
    "generate": "predict.generate",
    "fill": "predict.fill",
    "distill": "distill.distill",
    "export": "export.export",
    "verify": "verify.verify",
    "serve": "serve.serve",
    "studio": "studio.studio",
    "attention": "inspect.attention",
    "picture": "inspect.picture",
    "params": "inspect.params",
    "settings": "inspect.settings",
    "bench": "pretrain.bench",
    "course": {
        "list": "course.list_questions",
        "notebooks": "course.notebooks",
        "check": "course.check",
    },
}
# These train a network or look into one; all others work without torch, as long as the run folder
# that they read holds no network.
_TRAINING = {
    *("demo", "fit", "pretrain", "import", "finetune", "compare", "generate", "fill"),
    *("studio", "attention", "picture", "params", "bench"),
}
# How `regraft --help` groups them.
_SECTIONS = {
    "Start here": ("demo", "fit", "predict", "data", "studio"),
    "Pre-train and prove": (
        *("tokenizer", "tokenize", "pretrain", "import", "finetune", "compare", "evaluate"),
        "bench",
    ),
    "Use and share": ("explain", "generate", "fill", "distill", "export", "verify", "serve"),
    "Look inside": ("attention", "picture", "params", "settings", "course"),
}
_GROUP_HELP = {
    "data": "Check data before using it; fix labels; fetch corpora.",
    "tokenizer": "Train a tokenizer; show the tokens of a text.",
    "course": "Learn how it works: chapters to run, with answers checked.",
}


class _Loaded(Mapping[str, Any]):
    """The commands by name; each is built, and its module imported, when it is first asked for."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _command(name, _COMMANDS[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


def _command(name: str, parts: str | dict[str, str]) -> Any:
    """A command, or a group of them."""
    typed = typer.Typer(name=name, help=_GROUP_HELP.get(name), add_completion=False, **_LOOKS)
    for part, place in ({name: parts} if isinstance(parts, str) else parts).items():
        module, _, function = place.partition(".")
        kind = _TrainingCommand if part in _TRAINING else Command
        source = importlib.import_module(f"{__name__}.{module}")
        typed.command(part, cls=kind)(getattr(source, function))
    return typer.main.get_command(typed)


def _show_version(is_given: bool) -> bool:
    if is_given:
        from importlib.metadata import version

        terminal.show_line(f"regraft {version('regraft')}")
        raise typer.Exit
    return is_given


@app.callback()
def regraft(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Pre-train on your own text, fine-tune a classifier, and measure what it was worth.

    \b
    Example:
      regraft demo                                          the whole story in ten minutes
      regraft fit --text reviews.txt --train labels.csv --out runs/reviews
      regraft pretrain reviews.txt --out runs/base          learn from unlabelled text
      regraft finetune --base runs/base --train train.csv --out runs/reviews
      regraft predict runs/reviews new.csv
    """


def main() -> None:
    """Run the command line."""
    share_cores()
    keep_memory()
    terminal.silence_other_processes()
    with terminal.exit_at_once_under_torchrun():
        try:
            app()
        finally:
            end_workers()
