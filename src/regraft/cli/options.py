"""The grammar all commands share: each option is written once, with its help, and used by name.

The help of an option that is a setting comes from config.py. Goes out: annotated types for the
signatures of commands, and `settings_from` which turns their values into complete Settings.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regraft.assignments import parse_assignments
from regraft.config import DataSettings, Settings, check_same_task, resolve, setting_help
from regraft.presets import DEFAULT_PRESET, PRESET_HELP, SIZES, Recipe


def _setting(key: str, flag: str, metavar: str | None = None) -> Any:
    """An option that is a setting: its help is the setting's own."""
    return typer.Option(flag, help=setting_help(key), metavar=metavar, show_default=False)


_SIZES = ", ".join(f"{name} (width {row[0]}, {row[1]} layers)" for name, row in SIZES.items())
_PRESETS = "; ".join(f"`{name}`: {text}" for name, text in PRESET_HELP.items())

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.toml", help="Settings as TOML; flags go before it."),
]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        help=f"Settings to start from; by default the base's, else {DEFAULT_PRESET}. {_PRESETS}.",
        show_default=False,
    ),
]
Size = Annotated[
    Literal["tiny", "mini", "small", "base", "auto"] | None,
    typer.Option(
        "--size",
        help=f"Shape of the model: {_SIZES}; auto chooses for --minutes.",
        show_default=False,
    ),
]
Objective = Annotated[
    Literal["causal", "masked", "bert", "sop", "replaced", "hybrid", "contrast"] | None,
    _setting("objective.kind", "--objective"),
]
Steps = Annotated[int | None, _setting("train.steps", "--steps", "N")]
Epochs = Annotated[int | None, _setting("train.epochs", "--epochs", "N")]
Minutes = Annotated[float | None, _setting("train.minutes", "--minutes", "M")]
Seed = Annotated[int | None, _setting("train.seed", "--seed", "N")]
CheckpointEvery = Annotated[
    int | None, _setting("train.checkpoint_every", "--checkpoint-every", "N")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Any other setting, such as train.lr=3e-4; repeatable. `regraft settings` lists them.",
        show_default=False,
    ),
]

TextColumn = Annotated[str | None, _setting("data.text_column", "--text", "NAME")]
PairColumn = Annotated[str | None, _setting("data.pair_column", "--text-pair", "NAME")]
LabelColumn = Annotated[str | None, _setting("data.label_column", "--label", "NAME")]
LabelSeparator = Annotated[
    str | None, _setting("data.label_separator", "--label-separator", "SIGN")
]
Encoding = Annotated[str | None, _setting("data.encoding", "--encoding", "NAME")]
Documents = Annotated[
    Literal["line", "blank"] | None, _setting("data.documents", "--documents", None)
]
MaxLength = Annotated[int | None, _setting("data.max_length", "--max-length", "N")]

RunOut = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Run folder to write.", show_default=False)
]
FolderOut = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder to write.", show_default=False)
]
PictureOut = Annotated[
    Path, typer.Option("--out", metavar="FILE.png", help="Picture to write.", show_default=False)
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on where the run in --out stopped; if empty, start one."),
]
TokenizerPath = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="PATH",
        help="A tokenizer.json, a run folder, or a folder with the lab's dict.txt.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="The result alone, as JSON on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no messages, but errors.")]

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)]
Texts = Annotated[
    list[Path],
    typer.Argument(
        metavar="TEXT", help="Files or folders of text; - is stdin.", show_default=False
    ),
]


def settings_from(
    recipe: Recipe,
    *,
    preset: str | None = None,
    size: str | None = None,
    config: Path | None = None,
    assignments: list[str] | None = None,
    flags: dict[str, Any] | None = None,
    base: Path | None = None,
) -> Settings:
    """Complete settings; a flag that was given goes before the same key in --set.

    A base is fine-tuned with its own preset unless one is named, and keeps its shape.
    """
    base_settings = None
    if base is not None:
        from regraft.bases import read_base_settings

        base_settings = read_base_settings(base)
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    overrides = {**parse_assignments(assignments or []), **given}
    return resolve(
        recipe,
        preset=preset,
        size=size,
        config_path=config,
        overrides=overrides,
        base=base_settings,
    )


def data_flags(
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    label_separator: str | None = None,
    encoding: str | None = None,
    documents: str | None = None,
    max_length: int | None = None,
) -> dict[str, Any]:
    """The flags that say how files are read, as settings."""
    return {
        "data.text_column": text,
        "data.pair_column": text_pair,
        "data.label_column": label,
        "data.label_separator": label_separator,
        "data.encoding": encoding,
        "data.documents": documents,
        "data.max_length": max_length,
    }


def data_of(run: Path, flags: dict[str, Any]) -> DataSettings:
    """A run's own data settings, with the flags that were given."""
    from regraft.runfolder import read_settings

    changes = {key.partition(".")[2]: value for key, value in flags.items() if value is not None}
    learned = read_settings(run).data
    data = dataclasses.replace(learned, **changes)
    check_same_task(data, learned=learned, run=str(run))
    return data


def train_flags(
    *,
    steps: int | None,
    epochs: int | None,
    minutes: float | None,
    seed: int | None,
    checkpoint_every: int | None,
) -> dict[str, Any]:
    """The flags that say how long and in what order to train, as settings."""
    return {
        "train.steps": steps,
        "train.epochs": epochs,
        "train.minutes": minutes,
        "train.seed": seed,
        "train.checkpoint_every": checkpoint_every,
    }
