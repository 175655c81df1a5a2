"""What is asked of a comparison: files, bases, arms, seeds, numbers of labels, complete.

Comes in: what a user gave, or the report of a comparison that is to be repeated. Goes out: a
`Request`, checked before any work is done for it. Trains nothing and reads no example.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regraft.arms import Task
from regraft.bases import read_base_settings
from regraft.config import (
    Settings,
    refuse_label_sets,
    refuse_pairs,
    resolve,
    settings_from_dict,
    settings_to_dict,
)
from regraft.errors import ConfigError, DataError, RunFolderError
from regraft.evidence import OUTCOMES_NAME, Comparison, Outcomes
from regraft.seal import file_fingerprint
from regraft.subsets import ALL

Grid = Literal["none", "small"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """All that is asked of a comparison, complete: `compare --from` asks it again.

    `bases` are paths by name, the first under the empty name, and `settings` go with them. A number
    of labels that is None stands for all.
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
            "test_file": file_fingerprint(self.test),
        }


def settings_for(path: Path, *, like: Settings) -> Settings:
    """Another base keeps its shape, its head, and the rate of its preset; all else is alike."""
    base = read_base_settings(path)
    length = min(like.data.max_length, base.model.max_positions)
    own = resolve("finetune", base=base, overrides={"data.max_length": length})
    rate = like.train.lr if own.preset == like.preset else own.train.lr
    return dataclasses.replace(
        own,
        data=dataclasses.replace(like.data, max_length=length),
        train=dataclasses.replace(like.train, lr=rate),
    )


def check_request(request: Request, *, jobs: int) -> None:
    """Refuse numbers that make no comparison."""
    if request.seeds < 1:
        raise ConfigError(
            f"--seeds is {request.seeds}.", "It must be 1 or more.", remedy="Use 3 or more."
        )
    if jobs < 1:
        raise ConfigError(f"--jobs is {jobs}.", "It must be 1 or more.", remedy="Use 1 or 2.")
    for settings in request.settings.values():
        refuse_pairs(settings.data, who="`regraft compare`")
        refuse_label_sets(settings.data, who="`regraft compare`")
        if settings.train.minutes is not None:
            raise ConfigError(
                "Arms cannot be compared by the clock: train.minutes is "
                f"{settings.train.minutes:g}.",
                "The faster arm would see more batches; a fair budget is the same batches for all.",
                remedy="Give --epochs or --steps.",
            )


def check_files(request: Request) -> None:
    """Refuse a test file that is the training file under whatever name."""
    for name in ("train", "valid"):
        other = getattr(request, name)
        if other is None or not other.exists():
            continue
        if file_fingerprint(other) == file_fingerprint(request.test):
            raise DataError(
                f"{request.test} and {other} are the same file, and one is --test, the other "
                f"--{name}.",
                "A test on what was learned by heart shows nothing.",
                remedy="Give examples to --test that are in neither --train nor --valid.",
            )


def load_comparison(
    path: Path, *, remedy: str = "Choose another --out, or remove the file."
) -> Comparison:
    """The comparison that a report.json tells, with the outcomes that lie beside it, if any."""
    outcomes_path, outcomes = path.with_name(OUTCOMES_NAME), None
    read = path
    try:
        comparison = Comparison.from_dict(_read_json(path))
        if outcomes_path.exists():
            read = outcomes_path
            outcomes = Outcomes.from_dict(_read_json(outcomes_path))
        return dataclasses.replace(comparison, outcomes=outcomes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{read} cannot be read: {error}.",
            "Expected what `regraft compare` has written.",
            remedy=remedy,
        ) from error


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_request(like: Comparison, *, source: Path) -> Request:
    """What was asked of a comparison, from its report."""
    asked = like.request
    try:
        if asked is None:
            raise ValueError("it does not say what was asked")
        return Request(
            bases={name: Path(path) for name, path in asked["bases"].items()},
            settings={
                name: settings_from_dict(values) for name, values in asked["settings"].items()
            },
            train=Path(asked["train"]),
            valid=None if asked["valid"] is None else Path(asked["valid"]),
            test=Path(asked["test"]),
            texts=tuple(map(Path, asked["texts"])),
            arms=tuple(asked["arms"]),
            seeds=int(asked["seeds"]),
            labels=tuple(None if size == ALL else int(size) for size in asked["labels"]),
            grid="small" if asked["grid"] == "small" else "none",
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunFolderError(
            f"{source} cannot be repeated: {error}.",
            "Expected the report.json of `regraft compare`.",
            remedy="Repeat the command that it names instead.",
        ) from error


def relocated(
    request: Request,
    *,
    bases: Mapping[str, Path],
    texts: Sequence[Path],
    files: Mapping[str, Path],
    beside: Path,
) -> Request:
    """The same request where its files lie now: as given, else as asked, else beside the report.

    Whether they hold the same is told by their fingerprints, later.
    """

    def found(path: Path) -> Path:
        places = (path, beside / path, beside / path.name)
        return next((place for place in places if place.exists()), path)

    strange = [name for name in bases if name not in request.bases]
    if strange:
        known = ", ".join(name for name in request.bases if name) or "none with a name"
        raise ConfigError(
            f"The report knows no base called {strange[0]!r}.",
            f"Its bases are the first and {known}.",
            remedy="Give --base PATH for the first, --base NAME=PATH for another.",
        )
    moved = {name: found(path) for name, path in request.bases.items()} | dict(bases)
    valid = files.get("valid") or (None if request.valid is None else found(request.valid))
    return dataclasses.replace(
        request,
        bases=moved,
        train=files.get("train") or found(request.train),
        valid=valid,
        test=files.get("test") or found(request.test),
        texts=tuple(texts) or tuple(map(found, request.texts)),
    )


def refuse_other_data(like: Comparison, *, task: Task, request: Request) -> None:
    """Refuse to repeat a comparison on other examples or bases."""
    now = {**task.fingerprints, "test_file": request.to_dict()["test_file"]}
    before = {**like.fingerprints, "test_file": (like.request or {}).get("test_file")}
    changed = [name for name, value in now.items() if before.get(name) != value]
    if changed:
        raise DataError(
            f"The data differ from those of the report: {', '.join(changed)}.",
            "A comparison is repeated on the same examples and bases.",
            remedy="Restore the files that its report names, say where they lie with --base, "
            "--train, --valid, --test and --unlabelled, or compare anew without --from.",
        )
