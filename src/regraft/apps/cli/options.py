"""The options that commands share: each is written once and means the same everywhere.

An option that is a setting takes its help from the setting. Related options form a group,
which `grouped` unfolds into single options for typer.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer
from typer.core import TyperCommand

from regraft.apps.cli import terminal
from regraft.config import (
    DEFAULT_PRESET,
    OBJECTIVES,
    PRESET_HELP,
    SIZES,
    DataSettings,
    Recipe,
    Settings,
    parse_assignments,
    resolve,
    setting_help,
)
from regraft.errors import ConfigError, DataError
from regraft.runtime import Progress

# More words that a command has no use for are counted, not listed.
_WORDS_SHOWN = 3
SCRATCH = "scratch"
BASES = "Pre-trained run folder, Hugging Face folder, or a .pt file of the lab"
# Options that had another name before. A command that has the old name itself keeps it.
RENAMED = {
    "--text": "--text-column",
    "--text-pair": "--pair-column",
    "--label": "--label-column",
    "--unlabelled": "--text",
}


class Command(TyperCommand):
    """A command that names the new spelling of a renamed option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for parameter in self.params for name in parameter.opts}
        for word in args:
            old = word.partition("=")[0]
            new = RENAMED.get(old)
            if new in known and old not in known:
                raise ConfigError(f"{old} is now {new}.", remedy=f"Write {new} instead.")
            if old == "--target-accuracy" and old not in known and "--abstain-below" in known:
                raise ConfigError(
                    f"`{ctx.command_path}` has no option --target-accuracy.",
                    "The report of `fit` shows the confidence from which answers are so accurate; "
                    "so does `regraft evaluate`.",
                    remedy="Pass that confidence as --abstain-below.",
                )
            if old == "--pair-column" and old not in known:
                raise ConfigError(
                    f"`{ctx.command_path}` reads single texts, not pairs.",
                    remedy="Use `regraft finetune --pair-column NAME` for sentence pairs.",
                )
        # The library would list every word that it has no use for.
        ctx.allow_extra_args = True
        parsed: list[str] = super().parse_args(ctx, args)
        if ctx.args:
            raise _unexpected(ctx.args, command=ctx.command_path, takes_text="--text" in known)
        return parsed


def _unexpected(words: list[str], *, command: str, takes_text: bool) -> ConfigError:
    """The error for words that are no option and no argument, often what the shell made of `*`."""
    more = f" and {len(words) - _WORDS_SHOWN:,} more" if len(words) > _WORDS_SHOWN else ""
    shown = ", ".join(map(repr, words[:_WORDS_SHOWN]))
    folder = Path(words[0]).parent
    if takes_text and Path(words[0]).exists():
        remedy = "Write --text before each file"
        remedy += f", or give their folder: --text {folder}." if folder.name else "."
    else:
        remedy = f"Quote what has blanks in it, or see `{command} --help`."
    return ConfigError(
        f"`{command}` has no use for {shown}{more}.",
        "An option takes one value." if len(words) == 1 else "An option takes one value each time.",
        remedy=remedy,
    )


def option(flag: str, help: str, metavar: str | None = None, **more: Any) -> Any:
    """An option whose default is not worth showing."""
    return typer.Option(flag, help=help, metavar=metavar, show_default=False, **more)


def argument(help: str, metavar: str | None = None) -> Any:
    """A word of the command that must be given."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def flag(name: str, help: str) -> Any:
    """An option that is given or not."""
    return typer.Option(name, help=help)


def setting(key: str, flag: str, metavar: str | None = None) -> Any:
    """An option that is a setting, with the setting's help."""
    return option(flag, setting_help(key), metavar)


def reading_setting(key: str, flag: str, metavar: str | None = None) -> Any:
    """An option about reading files: with its default, or what it is instead."""
    _, _, name = key.partition(".")
    default = getattr(DataSettings(), name)
    how = f"{setting_help(key)} Default: {default}, or that of the run folder that is used."
    return option(flag, how, metavar)


def existing_texts(paths: list[Path] | None) -> list[Path] | None:
    """Refuse a --text that is no file: it may be meant as a column."""
    from regraft.data import near_file

    for path in paths or ():
        if str(path) != "-" and not path.exists():
            near = near_file(path)
            hint = "" if near is None else f"Did you mean {near}? "
            raise DataError(
                f"There is no file {path}.",
                "--text takes files of unlabelled text.",
                remedy=f"{hint}Check the path; if it is the name of a column, use --text-column.",
            )
    return paths


def _holds_texts(path: Path) -> bool:
    """Whether it is a folder of text files, not a token store."""
    return path.is_dir() and any(path.rglob("*.txt*"))


def check_documents(documents: str | None, paths: Sequence[Path] | None) -> None:
    """Refuse --documents where it would change nothing: in folders, each file is a document."""
    if documents is not None and paths and all(map(_holds_texts, paths)):
        raise ConfigError(
            f"--documents {documents} would not be used: {paths[0]} is a folder.",
            "In a folder, each file is one document.",
            remedy="Omit it, or join the files into one.",
        )


_SIZES = ", ".join(f"{name} (width {row[0]}, {row[1]} layers)" for name, row in SIZES.items())
_PRESETS = "; ".join(f"`{name}`: {text}" for name, text in PRESET_HELP.items())
_TOKENIZER = option(
    "--tokenizer", "A tokenizer.json, a run folder, or a folder with the lab's dict.txt.", "PATH"
)

Text = Annotated[
    list[Path] | None,
    option(
        "--text", "File or folder of unlabelled text; repeatable.", "FILE", callback=existing_texts
    ),
]
TrainFile = Annotated[Path, option("--train", "Labelled examples to train on.", "FILE")]
ValidFile = Annotated[Path | None, option("--valid", "Labelled examples for validation.", "FILE")]
TestFile = Annotated[
    Path | None, option("--test", "Labelled examples for the final test, read once.", "FILE")
]

AbstainBelow = Annotated[
    float | None,
    option("--abstain-below", "Leave the label empty where its probability is lower.", "P"),
]
Preset = Annotated[
    str | None,
    option(
        "--preset",
        f"Settings to start from (default: those of the base, else {DEFAULT_PRESET}). {_PRESETS}.",
        "NAME",
    ),
]
Size = Annotated[
    Literal["tiny", "mini", "small", "base", "auto"] | None,
    option("--size", f"Shape of the model: {_SIZES}; auto picks one for --minutes."),
]
# Not a Literal: a user may register more.
Objective = Annotated[
    str | None, setting("objective.kind", "--objective", f"<{'|'.join(OBJECTIVES)}>")
]
Stages = Annotated[str | None, setting("objective.stages", "--stages", "NAMES")]
Steps = Annotated[int | None, setting("train.steps", "--steps", "N")]
Epochs = Annotated[int | None, setting("train.epochs", "--epochs", "N")]
Minutes = Annotated[float | None, setting("train.minutes", "--minutes", "M")]
Seed = Annotated[int | None, setting("train.seed", "--seed", "N")]
PairColumn = Annotated[str | None, setting("data.pair_column", "--pair-column", "NAME")]
Documents = Annotated[
    Literal["line", "blank"] | None, reading_setting("data.documents", "--documents")
]
MaxLength = Annotated[int | None, setting("data.max_length", "--max-length", "N")]

RunOut = Annotated[Path, option("--out", "Run folder to write.", "DIR")]
FolderOut = Annotated[Path, option("--out", "Folder to write.", "DIR")]
PictureOut = Annotated[Path, option("--out", "Picture to write.", "FILE.png")]
Resume = Annotated[bool, flag("--resume", "Continue the run in --out; start it if there is none.")]
TokenizerPath = Annotated[Path | None, _TOKENIZER]
RequiredTokenizer = Annotated[Path, _TOKENIZER]
Port = typer.Option("--port", min=0, max=65535, help="Port; 0 picks a free one.")

Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print errors only: no progress, no summary of what is saved."
    ),
]
RunFolder = Annotated[Path, argument("Run folder.", "RUN")]


class Group:
    """Related options as one parameter of a command; annotated class attributes are options.

    Not a dataclass: making a dozen of them would slow down `regraft --help`.
    """

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """The options, those of base classes first."""
        kind = inspect.Parameter.KEYWORD_ONLY
        return [
            inspect.Parameter(name, kind, default=getattr(cls, name), annotation=annotation)
            for base in reversed(cls.__mro__)
            for name, annotation in inspect.get_annotations(base).items()
            if name != "section"
        ]


class SettingsGroup(Group):
    """A group whose options are the settings of one section, under the same names."""

    section: ClassVar[str]

    def flags(self) -> dict[str, Any]:
        """The values by the name of their setting."""
        return {f"{self.section}.{name}": value for name, value in vars(self).items()}


class Reading(SettingsGroup):
    """How a table is read."""

    section = "data"

    text_column: Annotated[
        str | None, reading_setting("data.text_column", "--text-column", "NAME")
    ] = None
    encoding: Annotated[str | None, reading_setting("data.encoding", "--encoding", "NAME")] = None


class TextReading(Reading):
    """How unlabelled text is read."""

    documents: Documents = None


class LabelReading(Reading):
    """How labelled examples are read."""

    label_column: Annotated[
        str | None, reading_setting("data.label_column", "--label-column", "NAME")
    ] = None


class SetReading(LabelReading):
    """How examples are read that may have several labels."""

    label_separator: Annotated[
        str | None, setting("data.label_separator", "--label-separator", "SIGN")
    ] = None


class TaskReading(SetReading):
    """How examples are read that may have two texts or several labels."""

    pair_column: PairColumn = None


class Training(SettingsGroup):
    """How long and in which order to train."""

    section = "train"

    steps: Steps = None
    epochs: Epochs = None
    minutes: Minutes = None
    seed: Seed = None
    checkpoint_every: Annotated[
        int | None, setting("train.checkpoint_every", "--checkpoint-every", "N")
    ] = None


class Overrides(Group):
    """A file of settings, and single settings."""

    config: Annotated[
        Path | None,
        option("--config", "TOML file of settings; other options override it.", "FILE.toml"),
    ] = None
    assignments: Annotated[
        list[str] | None,
        option(
            "--set",
            "Any other setting, for example train.lr=3e-4; repeatable. See `regraft settings`.",
            "SECTION.KEY=VALUE",
        ),
    ] = None


class Choices(Overrides):
    """A preset, and what overrides it."""

    preset: Preset = None


class Answering(Group):
    """When the classifier answers."""

    abstain_below: AbstainBelow = None
    target_accuracy: Annotated[
        float | None,
        option(
            "--target-accuracy",
            "Do not answer below the confidence from which answers are this accurate.",
            "P",
        ),
    ] = None


class TextFiles(Group):
    """Unlabelled text, as arguments or with --text."""

    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Files or folders of unlabelled text; - is stdin."),
    ] = None
    text: Text = None

    def paths(self, *, optional: bool = False) -> list[Path]:
        """All files; at least one unless they are optional."""
        paths = [*(self.files or ()), *(self.text or ())]
        if not paths and not optional:
            raise ConfigError("No text was given.", remedy="Add a file: --text FILE.")
        return paths


class Output(Group):
    """What is printed."""

    json: Annotated[bool, flag("--json", "Print the result as JSON.")] = False
    quiet: Quiet = False

    @contextmanager
    def progress(self, folder: Path | None = None) -> Iterator[Progress]:
        """Progress on stderr; an interruption names the folder with the unfinished run."""
        with terminal.progress_on_stderr(quiet=self.quiet) as progress:
            if folder is None:
                yield progress
            else:
                with terminal.interruption_names(folder):
                    yield progress

    def show(self, result: Any, show: Callable[[], None], *, is_saved: bool = False) -> None:
        """A result or plain values as JSON, or as `show` prints them for people.

        What is saved as well is not printed if all is to be quiet.
        """
        if self.json:
            terminal.show_json(result if isinstance(result, dict | list) else result.to_dict())
        elif not (is_saved and self.quiet):
            show()

    def note(self, values: dict[str, Any], message: str) -> None:
        """What was done: as JSON, or as a message unless quiet."""
        if self.json:
            terminal.show_json(values)
        elif not self.quiet:
            terminal.show_message(message)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Unfold the groups among a command's parameters: typer sees options, the command groups."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[Any, list[str]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Group):
            members = kind.parameters()
        elif dataclasses.is_dataclass(kind):
            members = list(map(_number_parameter, dataclasses.fields(kind)))
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = (kind, [member.name for member in members])
        parameters += members

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, (group, members) in groups.items():
            values[name] = group(**{member: values.pop(member) for member in members})
        command(**values)

    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _number_parameter(field: "dataclasses.Field[Any]") -> inspect.Parameter:
    """The option of a field that is a positive number with its own help."""
    flag = f"--{field.name.replace('_', '-')}"
    number = typer.Option(flag, metavar="N", min=1, help=field.metadata["help"])
    annotation: Any = Annotated[field.type, number]
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, kind, default=field.default, annotation=annotation)


def settings_from(
    recipe: Recipe,
    *groups: SettingsGroup,
    choices: Overrides | None = None,
    preset: str | None = None,
    size: str | None = None,
    flags: dict[str, Any] | None = None,
    base: Path | None = None,
) -> Settings:
    """Complete settings; an option overrides --set, and --set overrides --config.

    A base keeps its shape, and its preset unless another one is chosen.
    """
    base_settings = None
    if base is not None:
        from regraft.training import read_base_settings

        base_settings = read_base_settings(base)
    choices = choices or Overrides()
    given = dict(flags or {})
    for group in groups:
        given.update(group.flags())
    overrides = parse_assignments(choices.assignments or [])
    overrides.update((key, value) for key, value in given.items() if value is not None)
    return resolve(
        recipe,
        preset=choices.preset if isinstance(choices, Choices) else preset,
        size=size,
        config_path=choices.config,
        overrides=overrides,
        base=base_settings,
    )


def data_of(learned: DataSettings, reading: Reading, **more: Any) -> DataSettings:
    """How the files of a classifier were read, overridden by the options that were given."""
    changes = {
        name: value for name, value in {**vars(reading), **more}.items() if value is not None
    }
    return dataclasses.replace(learned, **changes)


def check_preset_of(base: Path | None, choices: Choices) -> None:
    """A base that chooses the preset must be able to: no option or file does."""
    if base is not None and choices.preset is None and choices.config is None:
        from regraft.training import check_preset

        check_preset(base)


def check_base_fixes(
    base: Path | None, *, size: str | None, tokenizer: Path | None, remedy: str
) -> None:
    """Refuse a shape or a tokenizer for a base, which has both already."""
    for flag, value, what in (("--size", size, "shape"), ("--tokenizer", tokenizer, "tokenizer")):
        if base is not None and value is not None:
            raise ConfigError(
                f"{flag} {value} cannot change the {what} of the base {base}.",
                remedy=f"Omit {flag}, or {remedy}.",
            )


def missing(flag: str, what: str) -> ConfigError:
    """The error for an option that must be given."""
    return ConfigError(f"{flag} is missing.", f"It names {what}.", remedy=f"Add {flag}.")


def refuse_repeated(what: str, values: dict[str, Any], *, choices: Overrides) -> None:
    """Refuse options that would change what --from repeats; files may have moved."""
    flags = {f"--{name.replace('_', '-')}": value for name, value in values.items()}
    more = {"assignments": "--set", "config": "--config", "preset": "--preset"}
    flags |= {more[name]: value for name, value in vars(choices).items()}
    given = [flag for flag, value in flags.items() if value not in (None, [])]
    if given:
        raise ConfigError(
            f"{', '.join(given)} cannot change a {what} that is repeated.",
            "--from takes all but files from the earlier run.",
            remedy=f"Omit it, or run a new {what} without --from.",
        )
