"""The runs in a folder: kind, status, score, curve and report of each.

A run is named by an id that is made here, so that no request names a path. Reads small files only,
and copes with runs that are being written, damaged, or removed since they were listed.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from regraft.apps.serve.limits import RefusedError
from regraft.classifiers import classifier_kinds
from regraft.comparison import REPORT_NAME, ArmsFolder, Comparison
from regraft.config import FAMILIES, OBJECTIVES
from regraft.errors import RegraftError
from regraft.report import base_arm
from regraft.runtime import Plain, counted, in_percent, read_json, read_object, sha256
from regraft.training import RunInfo, is_running, read_info

METRICS_NAME, PAGE_NAME = "metrics.jsonl", "report.html"
# More would be no list that a person reads; deeper folders are not ours.
MOST_RUNS = 1_000
_DEEPEST = 6
# Parts of a run or a comparison that are not listed as runs.
_INNER = {"arms", "checkpoints", "tokens"}
# Of a long curve so much is read for one answer; the page asks on.
MOST_CURVE_BYTES = 1 << 20
_MOST_REPORT_BYTES = 64 << 20


@dataclass(frozen=True)
class Score:
    """What a run reached: `value` to compare and to sort, `text` to read."""

    name: str
    value: float
    text: str


@dataclass(frozen=True)
class RunRow(Plain):
    """A line of the list. `note` says what a person should know: a verdict, or what is broken.

    `part_of` is the id of the blend whose base this is. A training whose process has ended is
    interrupted.
    """

    id: str
    name: str
    # As run.json names it, or "comparison", or "damaged".
    kind: str
    status: Literal["training", "interrupted", "complete", "damaged"]
    created: str
    updated: float
    score: Score | None = None
    labels: tuple[str, ...] = ()
    family: str = ""
    note: str = ""
    has_curve: bool = False
    has_report: bool = False
    can_classify: bool = False
    can_continue: bool = False
    has_attention: bool = False
    learns_positions: bool = False
    part_of: str = ""


class RunsFolder:
    """The runs below one folder, read again on every request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._paths: dict[str, Path] = {}

    def rows(self) -> list[RunRow]:
        """The runs: those that train, then the one that changed last; parts after their whole."""
        wholes: list[RunRow] = []
        parts: dict[str, list[RunRow]] = {}
        for path, part_of in self._run_dirs():
            try:
                row = _row(path, name=self._name(path))
            except FileNotFoundError:
                continue  # removed since it was found
            self._paths[row.id] = path
            if part_of is None:
                wholes.append(row)
            else:
                whole_id = _run_id(self._name(part_of))
                parts.setdefault(whole_id, []).append(replace(row, part_of=whole_id))
        wholes = [_with_news(row, parts.get(row.id, ())) for row in wholes]
        return [one for row in _in_order(wholes) for one in (row, *parts.get(row.id, ()))]

    def path(self, run_id: str) -> Path:
        """The folder of a run that was listed before; 404 for any other id, and for one removed."""
        if run_id not in self._paths:
            self.rows()
        path = self._paths.get(run_id)
        if path is None or not path.is_dir():
            raise RefusedError(
                404,
                "This run is not in the folder, or no longer.",
                remedy="Choose another from the list.",
            )
        return path

    def row(self, run_id: str) -> RunRow:
        """The line of one run, as it is now."""
        path = self.path(run_id)
        return _row(path, name=self._name(path))

    def _name(self, path: Path) -> str:
        relative = path.relative_to(self.folder).as_posix()
        return self.folder.name or "run" if relative == "." else relative

    def _run_dirs(self) -> Iterator[tuple[Path, Path | None]]:
        """Every run, and the run whose part it is; parts come in the order of their numbers."""
        num_found, wholes = 0, set()
        for root, folders, files in os.walk(self.folder):
            path = Path(root)
            depth = len(path.relative_to(self.folder).parts)
            is_run = "run.json" in files
            if is_run or PAGE_NAME in files or ("arms" in folders and _is_comparison(path)):
                yield path, path.parent.parent if path.parent.parent in wholes else None
                num_found += 1
            if is_run:
                wholes.add(path)
            if num_found >= MOST_RUNS or depth >= _DEEPEST:
                folders.clear()
            # In a run only the bases of a blend are runs.
            folders[:] = [
                name
                for name in sorted(folders, key=lambda name: (name.isdecimal() * len(name), name))
                if not name.startswith(".") and (name == "bases" if is_run else name not in _INNER)
            ]


def _in_order(rows: Sequence[RunRow]) -> list[RunRow]:
    """Trainings by their beginning: by their news they would change places all the time."""
    training = [row for row in rows if row.status == "training"]
    others = [row for row in rows if row.status != "training"]
    return [
        *sorted(training, key=lambda row: row.created, reverse=True),
        *sorted(others, key=lambda row: row.updated, reverse=True),
    ]


def _with_news(row: RunRow, parts: Sequence[RunRow]) -> RunRow:
    """What happens in a part is news of the whole."""
    if not parts:
        return row
    return replace(row, updated=max(row.updated, *(part.updated for part in parts)))


def curve(run_dir: Path, *, cursor: str = "") -> dict[str, Any]:
    """The records of metrics.jsonl behind a cursor, and the cursor of the next ones.

    Another file than the cursor's belongs to a run that was begun or resumed since: it is read from
    its beginning, and `is_new` says that older records do not count.
    """
    before, _, place = cursor.partition(".")
    try:
        with (run_dir / METRICS_NAME).open("rb") as file:
            found = os.fstat(file.fileno())
            is_same = before == str(found.st_ino) and place.isdecimal()
            start = min(int(place[:18]), found.st_size) if is_same else 0
            file.seek(start)
            data = file.read(MOST_CURVE_BYTES)
    except FileNotFoundError:
        return {"records": [], "cursor": "", "is_new": bool(cursor), "is_all": True}
    whole = data[: data.rfind(b"\n") + 1]
    return {
        "records": list(_records(whole)),
        "cursor": f"{found.st_ino}.{start + len(whole)}",
        "is_new": bool(cursor) and not is_same,
        "is_all": start + len(data) >= found.st_size,
    }


def page_path(run_dir: Path) -> Path:
    """The folder of the report of a comparison, or of `regraft fit`."""
    own = run_dir / "report" / PAGE_NAME
    return own if own.exists() else run_dir / PAGE_NAME


def report(run_dir: Path) -> bytes:
    """The page that a comparison or `regraft fit` left in its folder."""
    path = page_path(run_dir)
    try:
        if path.stat().st_size <= _MOST_REPORT_BYTES:
            return path.read_bytes()
    except FileNotFoundError:
        pass
    raise RefusedError(
        404,
        "This run has no report to show.",
        "`regraft compare` and `regraft fit` write one.",
        remedy="Choose a run with a report.",
    )


def read_config(run_dir: Path) -> dict[str, Any]:
    """The settings in config.json as they are; none where they cannot be read."""
    try:
        return read_object(run_dir / "config.json")
    except (OSError, ValueError):
        return {}  # what needs it will say so when the run is used


def _records(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        try:
            # What is not a number is nothing to draw, and no JSON.
            record = json.loads(line, parse_constant=lambda name: None)
        except ValueError:
            continue  # a crash and a resumed run may leave half a line in between
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            yield record


def _run_id(name: str) -> str:
    return sha256([name.encode("utf-8", "surrogateescape")])[:16]


def _is_comparison(path: Path) -> bool:
    """Does a comparison work here, or did it until it was stopped?"""
    return ArmsFolder(path).setup_path.exists()


def _newest(files: Iterable[Path]) -> float:
    """When one of these changed last; 0 if none is there."""
    newest = 0.0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            newest = max(newest, file.stat().st_mtime)
    return newest


def _row(path: Path, *, name: str) -> RunRow:
    run_id = _run_id(name)
    shown = name.encode("utf-8", "replace").decode()
    files = [path / "run.json", path / METRICS_NAME, page_path(path)]
    present = [file for file in files if file.exists()]
    more: dict[str, Any] = {
        "has_curve": files[1] in present,
        "has_report": files[2] in present,
        "updated": _newest(present) or path.stat().st_mtime,
    }
    if files[0] not in present:
        if files[2] in present:
            return _comparison_row(path, run_id=run_id, name=shown, more=more)
        return _unfinished_comparison_row(path, run_id=run_id, name=shown)
    try:
        info, config = read_info(path), read_config(path)
    except RegraftError as error:
        # The place of the folder is the command line's business, not the page's.
        note = error.problem.replace(str(path), shown)
        return RunRow(run_id, shown, "damaged", "damaged", "", note=note, **more)
    family = str(config.get("model", {}).get("family", ""))
    is_complete = info.status == "complete"
    if not is_complete:
        # Checkpoints, tokens and members are news, too.
        more["updated"] = max(more["updated"], _newest(path.glob("*/*")))
    traits = FAMILIES.get(family)
    has_layers = traits is None or traits.has_layers
    objective = (config.get("objective") or {}).get("kind", "causal")
    continues_text = objective in OBJECTIVES and OBJECTIVES[objective].continues_text
    status = info.status if is_complete or is_running(path) else "interrupted"
    return RunRow(
        run_id,
        shown,
        info.kind,
        status,
        info.created,
        score=_test_score(path, info) or _score(info, is_complete=is_complete),
        labels=info.labels,
        family=family if info.is_network else "",
        can_classify=is_complete and info.kind in classifier_kinds(),
        can_continue=is_complete and info.is_language_model and continues_text,
        has_attention=is_complete and info.is_network and info.is_classifier and has_layers,
        learns_positions=traits is not None and traits.positions == "learned",
        **more,
    )


def _comparison_row(path: Path, *, run_id: str, name: str, more: dict[str, Any]) -> RunRow:
    try:
        found = Comparison.from_dict(read_json(path / REPORT_NAME))
        arm = next(arm for arm in found.arms if arm.name == base_arm(found))
        score = _share(f"test accuracy, {arm.name}", arm.deciding.mean)
        created, note = found.created, found.verdict
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        score, created, note = None, "", ""  # another report.html; the page itself can be shown
    return RunRow(run_id, name, "comparison", "complete", created, score=score, note=note, **more)


def _unfinished_comparison_row(path: Path, *, run_id: str, name: str) -> RunRow:
    folder = ArmsFolder(path)
    began = folder.setup_path.stat().st_mtime
    num_finished = len(folder.finished())
    return RunRow(
        run_id,
        name,
        "comparison",
        "training" if folder.is_running else "interrupted",
        datetime.fromtimestamp(began, timezone.utc).isoformat(timespec="seconds"),
        max(began, _newest(folder.path.glob("*/*"))),
        note=f"{counted(num_finished, 'training')} finished so far.",
    )


def _share(name: str, value: float) -> Score:
    return Score(name, value, in_percent(value))


def _test_score(path: Path, info: RunInfo) -> Score | None:
    """The score of the blend, where `regraft fit` was given a test file."""
    if info.status != "complete" or "scores" not in info.result:
        return None
    try:
        values = read_json(page_path(path).parent / REPORT_NAME)
        tested = Comparison.from_dict(values["tested"])
        blend = next(arm for arm in tested.arms if arm.name == "blend")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return None
    return _share("test accuracy", blend.deciding.mean)


def _score(info: RunInfo, *, is_complete: bool) -> Score | None:
    result = info.result
    try:
        if not is_complete:
            return None
        if "scores" in result:
            value = float(result["scores"]["blend"]["accuracy"]["mean"])
            return _share("accuracy on unseen labels", value)
        if result.get("valid_accuracy"):
            kept = result.get("best_epoch")
            value = float(result["valid_accuracy"][-1 if kept is None else kept])
            return _share(f"valid {result.get('followed', 'accuracy')}", value)
        if result.get("agreement"):
            return _share("agreement with the teacher", float(result["agreement"][-1]))
        if result.get("bits_per_byte"):
            value = float(result["bits_per_byte"])
            return Score("bits a byte", value, f"{value:.3f}")
        if result.get("valid_loss"):
            value = float(result["valid_loss"])
            return Score("valid loss", value, f"{value:.3f}")
    except (KeyError, IndexError, TypeError, ValueError):
        return None  # an older format; the run itself may be sound
    return None
