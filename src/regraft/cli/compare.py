"""`regraft compare`: was the pre-training worth it?"""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regraft.cli import options, results, terminal
from regraft.cli.options import data_flags, settings_from, train_flags
from regraft.cli.train import BASES, TRAIN, VALID, check_preset_of, tell_assumed
from regraft.errors import ConfigError
from regraft.presets import ARMS, DEFAULT_ARMS

_ARMS = "; ".join(f"`{name}`: {text}" for name, text in ARMS.items())


def compare(
    bases: Annotated[
        list[str] | None,
        typer.Option(
            "--base",
            metavar="[NAME=]BASE",
            help=f"{BASES}; repeat for more, whose arms are then called pretrained:NAME.",
            show_default=False,
        ),
    ] = None,
    train: Annotated[Path | None, TRAIN] = None,
    valid: Annotated[Path | None, VALID] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            "--test", metavar="FILE", help="Examples opened once, at the end.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder to write; runs/comparison, or runs/again with --from.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", metavar="K", help="Runs of each arm; 3.", show_default=False),
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(
            "--arms",
            metavar="NAMES",
            help=f"Arms to compare, between commas; {','.join(DEFAULT_ARMS)}. {_ARMS}.",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="SIZES",
            help="Numbers of labels for a curve, such as 50,200,all; all.",
            show_default=False,
        ),
    ] = None,
    grid: Annotated[
        Literal["none", "small"] | None,
        typer.Option(
            "--grid",
            help="small: networks choose among three learning rates on valid, as shallow arms "
            "choose a strength; none: they keep theirs, at a third of the cost; small.",
            show_default=False,
        ),
    ] = None,
    unlabelled: Annotated[
        list[Path] | None,
        typer.Option(
            "--unlabelled",
            metavar="TEXT",
            help="Text without labels: for the latent arm, and to look for test examples in it.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            help="Runs at a time; by default one for each core.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ADDRESS",
            help="Dask scheduler whose workers do the runs, such as tcp://host:8786.",
            show_default=False,
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="report.json",
            help="Repeat this comparison on the same data; other paths say where they lie now.",
            show_default=False,
        ),
    ] = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    # Hidden, for it is always refused; but with the reason, not as an unknown option.
    minutes: Annotated[
        float | None, typer.Option("--minutes", hidden=True, help="Refused: not a fair budget.")
    ] = None,
    seed: options.Seed = None,
    text: options.TextColumn = None,
    label: options.LabelColumn = None,
    encoding: options.Encoding = None,
    documents: options.Documents = None,
    config: options.Config = None,
    preset: options.Preset = None,
    assignments: options.Assignments = None,
    # Taken because the other commands have it: a comparison goes on in any case.
    resume: options.Resume = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Prove whether pre-training paid.

    Arms on the same batches and budget, several seeds, a paired test, a verdict in one sentence.
    A comparison that was interrupted goes on when the command is repeated.

    \b
    Example:
      regraft compare --base runs/base --train train.csv --valid valid.csv --test test.csv \\
        --seeds 3 --out runs/comparison
      regraft compare --base runs/base --train train.csv --valid valid.csv --test test.csv \\
        --arms pretrained,linear,latent --labels 100,400,all --out runs/curve
    """
    if out is None:
        out = Path("runs") / ("comparison" if like is None else "again")
    chosen = {
        **{"--seeds": seeds, "--arms": arms, "--labels": labels, "--grid": grid},
        **{"--steps": steps, "--epochs": epochs, "--minutes": minutes, "--seed": seed},
        **{"--text": text, "--label": label, "--encoding": encoding, "--documents": documents},
        **{"--config": config, "--preset": preset, "--set": assignments},
    }
    how: dict[str, Any] = {
        "out": out,
        "jobs": jobs if jobs is not None else os.cpu_count() or 1,
        "cluster": cluster,
        "command": shlex.join(["regraft", *sys.argv[1:]]),
    }
    if like is not None:
        _refuse_choices(chosen)
        comparison = _repeat(
            like,
            bases=bases or [],
            texts=unlabelled or [],
            files={"train": train, "valid": valid, "test": test},
            how=how,
            quiet=quiet,
        )
    else:
        files = _required(train=train, valid=valid, test=test)
        named = _named_bases(bases)
        (_, base), *others = named.items()
        check_preset_of(base, preset=preset, config=config)
        settings = settings_from(
            "finetune",
            preset=preset,
            config=config,
            assignments=assignments,
            base=base,
            flags={
                **data_flags(text=text, label=label, encoding=encoding, documents=documents),
                **train_flags(
                    steps=steps, epochs=epochs, minutes=minutes, seed=seed, checkpoint_every=None
                ),
            },
        )
        from regraft.compare import compare as run
        from regraft.subsets import parse_sizes

        with (
            terminal.progress_on_stderr(quiet=quiet) as progress,
            terminal.told_when_interrupted(out),
        ):
            tell_assumed(base, settings=settings, progress=progress)
            comparison = run(
                base=base,
                more_bases=dict(others),
                **files,
                seeds=3 if seeds is None else seeds,
                settings=settings,
                arms=None if arms is None else _words(arms),
                labels=(None,) if labels is None else parse_sizes(labels),
                grid=grid or "small",
                texts=unlabelled or (),
                progress=progress,
                **how,
            )
    from regraft.report import comparison_to_dict, write_report

    written = write_report(comparison, out)
    if json:
        terminal.show_json(comparison_to_dict(comparison))
    else:
        results.show_comparison(comparison, report_path=written["report.html"])


def _repeat(
    report: Path,
    *,
    bases: list[str],
    texts: list[Path],
    files: dict[str, Path | None],
    how: dict[str, Any],
    quiet: bool,
) -> Any:
    """The comparison of a report again; paths say where its files lie now."""
    from regraft.compare import run_request
    from regraft.request import load_comparison, read_request, relocated

    like = load_comparison(report, remedy="Check the path of --from.")
    request = relocated(
        read_request(like, source=report),
        bases=dict(map(_base_of, bases)),
        texts=texts,
        files={name: path for name, path in files.items() if path is not None},
        beside=report.parent,
    )
    with (
        terminal.progress_on_stderr(quiet=quiet) as progress,
        terminal.told_when_interrupted(how["out"]),
    ):
        return run_request(request, like=like, progress=progress, **how)


def _base_of(word: str) -> tuple[str, Path]:
    """(name, path) of a base of a report: of the first without a name."""
    name, sign, path = word.partition("=")
    # A path may hold the sign itself.
    return ("", Path(word)) if not sign or Path(word).exists() else (name, Path(path))


def _missing(flag: str, what: str) -> ConfigError:
    return ConfigError(f"{flag} is missing.", f"It names {what}.", remedy=f"Add {flag}.")


def _required(*, train: Path | None, valid: Path | None, test: Path | None) -> dict[str, Any]:
    files: dict[str, Any] = {"train": train, "valid": valid, "test": test}
    told = {"train": "the examples to learn", "valid": "those to watch", "test": "the sealed ones"}
    for name, path in files.items():
        if path is None:
            raise _missing(f"--{name}", told[name])
    return files


def _refuse_choices(chosen: dict[str, Any]) -> None:
    given = [flag for flag, value in chosen.items() if value]
    if given:
        raise ConfigError(
            f"{', '.join(given)} cannot change a comparison that is repeated.",
            "--from takes arms, seeds and settings from the report.",
            remedy="Leave it away, or compare anew without --from.",
        )


def _named_bases(bases: list[str] | None) -> dict[str, Path]:
    """Paths by name; the first base needs none, others are named after their folder."""
    if not bases:
        raise _missing("--base", "what was pre-trained")
    named: dict[str, Path] = {}
    for number, word in enumerate(bases):
        name, sign, path = word.partition("=")
        # A path may hold the sign itself.
        if not sign or Path(word).exists():
            name, path = Path(word).stem, word
        name = name if number else ""
        if name in named or (number and not name):
            raise ConfigError(
                f"Two bases are called {name!r}.",
                "Every base after the first has a name of its own.",
                remedy="Name it: --base NAME=PATH.",
            )
        named[name] = Path(path)
    return named


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
