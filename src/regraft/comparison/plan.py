"""The plan of a comparison: what was requested, what every arm is given, and the runs to do.

A `Request` is complete and checked before any work is done; report.json stores it, so that
`compare --from` can repeat it. Trains nothing.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from regraft.classifiers import Start
from regraft.comparison.results import OUTCOMES_NAME, Comparison, Outcomes
from regraft.comparison.test_set import file_fingerprint
from regraft.config import Settings, resolve, settings_from_dict, settings_to_dict
from regraft.data import (
    ALL,
    Example,
    ExampleRows,
    Labels,
    example_rows,
    examples_fingerprint,
    labels_of,
)
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.runtime import read_json
from regraft.training import read_base_settings

Grid = Literal["none", "small"]
# The name of the base that was given first.
FIRST = ""
DEFAULT_FIT_MINUTES = 10.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that was requested of a comparison; `compare --from` repeats it.

    `bases` are paths by name, the first under the empty name, each with its `settings`. A number
    of labels that is None stands for all. `fit_minutes` is the time budget of each run of the
    `fit` arm.
    """

    bases: Mapping[str, Path]
    settings: Mapping[str, Settings]
    train: Path
    valid: Path | None
    test: Path
    texts: tuple[Path, ...]
    arms: tuple[str, ...]
    seeds: int
    labels: tuple[int | None, ...]
    grid: Grid
    fit_minutes: float = DEFAULT_FIT_MINUTES

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; files by name as they were given."""
        return {
            "bases": {name: str(path) for name, path in self.bases.items()},
            "settings": {name: settings_to_dict(each) for name, each in self.settings.items()},
            **{name: str(getattr(self, name)) for name in ("train", "test")},
            "valid": None if self.valid is None else str(self.valid),
            "texts": [str(path) for path in self.texts],
            "arms": list(self.arms),
            "seeds": self.seeds,
            "labels": [ALL if size is None else size for size in self.labels],
            "grid": self.grid,
            "fit_minutes": self.fit_minutes,
            "test_file": file_fingerprint(self.test),
        }


@dataclass(frozen=True)
class Setup:
    """What every arm is given: bases by name, labels, examples, and the examples as rows.

    `rows` holds train and valid for each base, because each base has its own tokenizer.
    `text_paths` are files of unlabelled text, and `text` is their fingerprint.
    """

    starts: Mapping[str, Start]
    labels: Labels
    train: Sequence[Example]
    valid: Sequence[Example]
    rows: Mapping[str, tuple[ExampleRows, ExampleRows]]
    text_paths: tuple[Path, ...] = ()
    text: str = ""
    grid: Grid = "none"
    fit_minutes: float = DEFAULT_FIT_MINUTES

    @property
    def start(self) -> Start:
        """The base that was given first: its settings read the files."""
        return self.starts[FIRST]

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of everything that the arms learn from."""
        bases = {
            f"base:{name}" if name else "base": start.fingerprint
            for name, start in self.starts.items()
        }
        return {
            "train": examples_fingerprint(self.train),
            "valid": examples_fingerprint(self.valid),
            "tokenizer": self.start.tokenizer.fingerprint,
            **bases,
            **({"unlabelled": self.text} if self.text_paths else {}),
        }

    def rows_of(self, texts: Sequence[str], *, base: str = FIRST) -> ExampleRows:
        """Texts without labels as rows."""
        start = self.starts[base]
        return ExampleRows(
            texts,
            targets=np.zeros(len(texts), dtype=np.int64),
            tokenizer=start.tokenizer,
            data=start.settings.data,
        )


def build_setup(
    starts: Mapping[str, Start],
    *,
    train: Sequence[Example],
    valid: Sequence[Example],
    text_paths: Sequence[Path] = (),
    text: str = "",
    grid: Grid = "none",
    fit_minutes: float = DEFAULT_FIT_MINUTES,
) -> Setup:
    """The setup with the rows of both splits encoded for every base."""
    labels = labels_of(train)
    rows = {}
    for name, start in starts.items():
        tokenizer, data = start.tokenizer, start.settings.data
        rows[name] = (
            example_rows(train, labels=labels, tokenizer=tokenizer, data=data),
            example_rows(valid, labels=labels, tokenizer=tokenizer, data=data),
        )
    return Setup(starts, labels, train, valid, rows, tuple(text_paths), text, grid, fit_minutes)


@dataclass(frozen=True)
class Cell:
    """One training run: an arm, a number of labels, a seed."""

    arm: str
    num_labels: int
    seed: int

    def __str__(self) -> str:
        return f"{self.arm}, {self.num_labels:,} labels, seed {self.seed}"


def settings_for(path: Path, *, like: Settings) -> Settings:
    """Settings of another base: its own shape, head and learning rate, the rest as in `like`."""
    base = read_base_settings(path)
    length = min(like.data.max_length, base.model.max_positions)
    own = resolve("finetune", base=base, overrides={"data.max_length": length})
    rate = like.train.lr if own.preset == like.preset else own.train.lr
    return dataclasses.replace(
        own,
        data=dataclasses.replace(like.data, max_length=length),
        train=dataclasses.replace(like.train, lr=rate, base_rate=own.train.base_rate),
    )


def check_request(request: Request, *, jobs: int) -> None:
    """Refuse numbers that make no comparison."""
    if request.seeds < 1:
        raise ConfigError(
            f"--seeds is {request.seeds}.", "It must be 1 or more.", remedy="Use 3 or more."
        )
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}.", "It must be 1 or more.", remedy="Use 1 or 2.")
    if request.fit_minutes <= 0:
        raise ConfigError(
            f"--fit-minutes is {request.fit_minutes:g}.",
            "It must be more than 0.",
            remedy="Use one minute or more.",
        )
    for settings in request.settings.values():
        if settings.train.minutes is not None:
            raise ConfigError(
                f"train.minutes is {settings.train.minutes:g}, but arms cannot be compared by "
                "wall-clock time.",
                "The faster arm would see more batches; a fair budget is the same batches for all.",
                remedy="Use --epochs or --steps.",
            )


def check_files(request: Request) -> None:
    """Refuse a test file that is the training file under another name."""
    for name in ("train", "valid"):
        other = getattr(request, name)
        if other is None or not other.exists():
            continue
        if file_fingerprint(other) == file_fingerprint(request.test):
            raise DataError(
                f"--test {request.test} and --{name} {other} are the same file.",
                "A test on examples that were trained on shows nothing.",
                remedy="Pass a --test file whose examples are in neither --train nor --valid.",
            )


def load_comparison(
    path: Path, *, remedy: str = "Choose another --out, or remove the file."
) -> Comparison:
    """The comparison stored in a report.json, with the outcomes.json next to it, if any."""
    outcomes_path, outcomes = path.with_name(OUTCOMES_NAME), None
    read = path
    try:
        comparison = Comparison.from_dict(read_json(path))
        if outcomes_path.exists():
            read = outcomes_path
            outcomes = Outcomes.from_dict(read_json(outcomes_path))
        return dataclasses.replace(comparison, outcomes=outcomes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{read} cannot be read: {error}.",
            "Expected a file written by `regraft compare`.",
            remedy=remedy,
        ) from error


def read_request(like: Comparison, *, source: Path) -> Request:
    """The request of a comparison, from its report."""
    values = like.request
    try:
        if values is None:
            raise ValueError("it stores no request")
        return Request(
            bases={name: Path(path) for name, path in values["bases"].items()},
            settings={
                name: settings_from_dict(section) for name, section in values["settings"].items()
            },
            train=Path(values["train"]),
            valid=None if values["valid"] is None else Path(values["valid"]),
            test=Path(values["test"]),
            texts=tuple(map(Path, values["texts"])),
            arms=tuple(values["arms"]),
            seeds=int(values["seeds"]),
            labels=tuple(None if size == ALL else int(size) for size in values["labels"]),
            grid="small" if values["grid"] == "small" else "none",
            fit_minutes=float(values["fit_minutes"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunFolderError(
            f"{source} cannot be repeated: {error}.",
            "Expected the report.json of `regraft compare`.",
            remedy="Repeat the command in the report instead.",
        ) from error


def relocated(
    request: Request,
    *,
    bases: Mapping[str, Path],
    texts: Sequence[Path],
    files: Mapping[str, Path],
    report_dir: Path,
) -> Request:
    """The same request with the current places of its files.

    A file is looked for as given, as in the request, and next to the report. Whether its content is
    the same is checked later, by fingerprints.
    """

    def place_of(path: Path) -> Path:
        places = (path, report_dir / path, report_dir / path.name)
        return next((place for place in places if place.exists()), path)

    unknown = [name for name in bases if name not in request.bases]
    if unknown:
        known = ", ".join(name for name in request.bases if name) or "none with a name"
        raise ConfigError(
            f"The report has no base called {unknown[0]!r}.",
            f"Its bases are the first and {known}.",
            remedy="Use --base PATH for the first, --base NAME=PATH for another.",
        )
    moved = {name: place_of(path) for name, path in request.bases.items()} | dict(bases)
    valid = files.get("valid") or (None if request.valid is None else place_of(request.valid))
    return dataclasses.replace(
        request,
        bases=moved,
        train=files.get("train") or place_of(request.train),
        valid=valid,
        test=files.get("test") or place_of(request.test),
        texts=tuple(texts) or tuple(map(place_of, request.texts)),
    )


def refuse_other_data(like: Comparison, *, setup: Setup, request: Request) -> None:
    """Refuse to repeat a comparison on other examples or bases."""
    now = {**setup.fingerprints, "test_file": request.to_dict()["test_file"]}
    before = {**like.fingerprints, "test_file": (like.request or {}).get("test_file")}
    changed = [name for name, value in now.items() if before.get(name) != value]
    if changed:
        raise DataError(
            f"The data differ from the report's: {', '.join(changed)}.",
            "A comparison is repeated on the same examples and bases.",
            remedy="Restore the files named in the report, pass their new places with --base, "
            "--train, --valid, --test and --text, or start a new comparison without --from.",
        )
