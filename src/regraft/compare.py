"""Was the pre-training worth it? Arms that differ in one thing, seeds, label curves, a verdict.

Comes in: bases, three labelled files, settings. Goes out: a `Comparison`, ready for report. All
arms see the same subsets and batches for the same budget (stages.py); the test file is read once,
after every choice is frozen (seal.py). Draws nothing and prints nothing.
"""

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regraft.arms import (
    FIRST,
    Arm,
    ArmsFolder,
    Cell,
    Task,
    TrainedCell,
    build_task,
    parse_arms,
    plan_cells,
    refuse_changes,
    task_facts,
)
from regraft.bases import read_base_settings
from regraft.config import Settings, resolve, settings_to_dict
from regraft.errors import DataError, RunFolderError
from regraft.evaluate import cut_share
from regraft.evidence import REPORT_NAME, Comparison, LabelWorth, uses_base
from regraft.finetune import load_splits, start_from_base
from regraft.presets import ARMS, DEFAULT_ARMS
from regraft.request import (
    Grid,
    Request,
    check_files,
    check_request,
    load_comparison,
    refuse_other_data,
    settings_for,
)
from regraft.runtime import SILENT, Progress, environment, fingerprint
from regraft.seal import LEDGER_NAME, Opened, check_sealed, leaked, open_sealed
from regraft.stages import Stage, Workforce, answer_cells, load_answers, train_cells
from regraft.subsets import rare_classes, settled_sizes
from regraft.summaries import (
    Exam,
    SeedRun,
    arm_summary,
    correct,
    curve_point,
    doubting_arms,
    doubts,
    mistakes,
    paired_tests,
    split,
    split_warnings,
    warnings,
)
from regraft.text import check_labels_known, check_readable, normalised, read_documents
from regraft.verdict import easily_missed, judge
from regraft.workers import cluster_size
from regraft.worth import worth_in_labels


def compare(
    *,
    base: str | Path,
    train: str | Path,
    valid: str | Path | None = None,
    test: str | Path,
    out: str | Path | None = None,
    seeds: int = 3,
    settings: Settings | None = None,
    arms: Sequence[str] | None = None,
    more_bases: Mapping[str, str | Path] | None = None,
    labels: Sequence[int | None] = (None,),
    grid: Grid = "none",
    texts: Sequence[str | Path] = (),
    jobs: int = 1,
    cluster: str | None = None,
    resume: bool = False,
    command: str = "",
    progress: Progress = SILENT,
) -> Comparison:
    """Train every arm with every seed and number of labels, then open the test file once.

    `arms` are names of presets.ARMS; those of a base in `more_bases` take its name, as in
    `pretrained:NAME`. `labels` are sizes of nested subsets, None for all. With the `grid` small,
    networks choose among three learning rates on valid; shallow arms choose a strength always.
    `texts` are files without labels: the latent arm reads them, and the test file is searched for
    leaks from them.

    With a folder `out`, what is finished is kept there until `write_report` writes the report
    beside it: a comparison that was killed goes on when it is called again, and one that has its
    report is given back with `resume`. With `jobs`, as many runs at a time, each in a process of
    its own; with `cluster`, the address of a Dask scheduler, on its workers. Sums are rounded
    differently on another number of threads: results are repeated exactly with the same jobs.
    """
    bases = {FIRST: Path(base)} | {name: Path(p) for name, p in (more_bases or {}).items()}
    if arms is None:
        arms = ("pretrained", *(f"pretrained:{name}" for name in bases if name), *DEFAULT_ARMS[1:])
    parse_arms(arms, bases=[name for name in bases if name])
    settings = settings or resolve("finetune", base=read_base_settings(Path(base)))
    request = Request(
        bases=bases,
        settings={
            name: settings_for(path, like=settings) if name else settings
            for name, path in bases.items()
        },
        train=Path(train),
        valid=None if valid is None else Path(valid),
        test=Path(test),
        texts=tuple(map(Path, texts)),
        arms=tuple(arms),
        seeds=seeds,
        labels=tuple(labels),
        grid=grid,
    )
    return run_request(
        request,
        out=out,
        jobs=jobs,
        cluster=cluster,
        resume=resume,
        command=command,
        progress=progress,
    )


def run_request(
    request: Request,
    *,
    out: str | Path | None,
    jobs: int = 1,
    cluster: str | None = None,
    resume: bool = False,
    command: str = "",
    like: Comparison | None = None,
    progress: Progress = SILENT,
) -> Comparison:
    """What `compare` does once its request is complete.

    `like` is a comparison to be repeated: other data than it had are refused.
    """
    check_request(request, jobs=jobs)
    arms = parse_arms(request.arms, bases=[name for name in request.bases if name])
    with contextlib.ExitStack() as stack:
        ledger_path = None
        if out is None:
            temporary = tempfile.TemporaryDirectory(prefix="regraft-compare-")
            out_dir = Path(stack.enter_context(temporary))
        else:
            out_dir = Path(out)
            ledger_path = out_dir.absolute().parent / LEDGER_NAME
            _check_out(out_dir, resume=resume)
        check_readable(request.test)
        check_files(request)
        workforce = _workforce(request, jobs=jobs, cluster=cluster)
        task = _build_task(request, progress=progress)
        if like is not None:
            refuse_other_data(like, task=task, request=request)
        # Only that it could be scored: what it says stays sealed until every choice is frozen.
        check_sealed(request.test, data=task.start.settings.data, labels=task.labels)
        sizes = settled_sizes(request.labels, examples=task.train)
        first_seed = task.start.settings.train.seed
        seeds = range(first_seed, first_seed + request.seeds)
        cells = plan_cells(arms, sizes=sizes, seeds=seeds, num_train=len(task.train))
        folder = ArmsFolder(out_dir)
        if (out_dir / REPORT_NAME).exists():
            there = load_comparison(out_dir / REPORT_NAME)
            _refuse_other(out_dir, there, task=task, request=request)
            folder.discard()
            progress.say(f"{out_dir} is complete already.")
            return there

        facts = task_facts(task, grid=request.grid)
        stack.enter_context(folder.opened(facts))
        by_name = {arm.name: arm for arm in arms}
        stage = Stage(task, by_name, request.grid, folder, workforce, progress)
        trained = train_cells(stage, cells, num_test=_num_test(request, task))
        # Every choice is made: now, and only now, the test file is read.
        opened = open_sealed(
            request.test,
            data=task.start.settings.data,
            choices=_choices(facts, trained),
            command=command,
            ledger_path=ledger_path,
        )
        if like is not None and opened.fingerprint != like.fingerprints.get("test"):
            raise DataError(
                f"{request.test} holds other examples than that of the report.",
                "A comparison is repeated on the same examples.",
                remedy="Restore the file, or compare anew without --from.",
            )
        check_labels_known(opened.examples, task.labels)
        found = _find_leaks(request, opened, task=task, progress=progress)
        texts = [example.text for example in opened.examples]
        answer_cells(stage, cells, test=opened.fingerprint, texts=texts)
        return _comparison(
            request,
            stage,
            trained,
            opened=opened,
            leaks=found,
            command=command,
        )


def _check_out(out_dir: Path, *, resume: bool) -> None:
    """Refuse a folder that cannot take the report, before any work is done for it."""
    if out_dir.exists() and not out_dir.is_dir():
        raise RunFolderError(
            f"{out_dir} exists and is not a folder.",
            "A comparison is written into a folder.",
            remedy="Choose another --out.",
        )
    # Killed between its report and its farewell, a comparison has ended all the same.
    is_left = ArmsFolder(out_dir).path.exists()
    if (out_dir / REPORT_NAME).exists() and not resume and not is_left:
        raise RunFolderError(
            f"{out_dir} already holds a report.",
            remedy="Choose another --out, or remove the folder.",
        )


def _workforce(request: Request, *, jobs: int, cluster: str | None) -> Workforce:
    asked = request.settings[FIRST].train.threads
    if cluster is not None:
        return Workforce(cluster_size(cluster), 1 if asked == "auto" else asked, cluster)
    # Chosen by the clock, the number would differ between arms and from one time to the next, and
    # with it the rounding of sums.
    threads = torch.get_num_threads() if jobs == 1 else max((os.cpu_count() or 1) // jobs, 1)
    return Workforce(jobs, threads if asked == "auto" else asked)


def _build_task(request: Request, *, progress: Progress) -> Task:
    settings = request.settings[FIRST]
    starts = {
        name: start_from_base(path, settings=request.settings[name])
        for name, path in request.bases.items()
    }
    train, valid = load_splits(
        request.train, valid=request.valid, settings=settings, progress=progress
    )
    documents = read_documents(request.texts, data=settings.data)
    text = fingerprint(document.text for document in documents) if request.texts else ""
    return build_task(starts, train=train, valid=valid, text_paths=request.texts, text=text)


def _num_test(request: Request, task: Task) -> int:
    """About how many examples the sealed file holds, by its size; only the time left asks."""
    sizes = {path: path.stat().st_size for path in (request.train, request.test) if path.is_file()}
    if len(sizes) < 2:
        return len(task.valid)
    return round(len(task.train) * sizes[request.test] / max(sizes[request.train], 1))


def _choices(facts: Mapping[str, Any], trained: Mapping[Cell, TrainedCell]) -> str:
    """A hash of everything that was decided before the test file was opened."""
    runs = [dataclasses.asdict(run) for run in trained.values()]
    return fingerprint([json.dumps([facts, runs], sort_keys=True, default=str)])


@dataclass(frozen=True)
class _Leaks:
    """Which test examples are also among the labelled ones, and which in the text."""

    labelled_N: NDArray[np.bool_]
    text_N: NDArray[np.bool_] | None

    @property
    def clean_N(self) -> NDArray[np.bool_]:  # noqa: N802
        return ~self.labelled_N if self.text_N is None else ~(self.labelled_N | self.text_N)


def _find_leaks(request: Request, opened: Opened, *, task: Task, progress: Progress) -> _Leaks:
    labelled_N = leaked(opened.examples, [*task.train, *task.valid], progress=progress)
    if labelled_N.all():
        raise DataError(
            f"Every example of {request.test} is also in train or valid, exactly or nearly.",
            "A test on what was learned by heart shows nothing.",
            remedy="Give another --test; the trained runs are used again.",
        )
    if not request.texts:
        return _Leaks(labelled_N, None)
    documents = read_documents(request.texts, data=task.start.settings.data)
    return _Leaks(labelled_N, leaked(opened.examples, documents, progress=progress))


def _refuse_other(out_dir: Path, there: Comparison, *, task: Task, request: Request) -> None:
    """Refuse to take a finished comparison for one of other arms, seeds, settings or data."""
    wanted = {name: request.to_dict()[name] for name in ("arms", "seeds", "labels")}
    found = {name: (there.request or {}).get(name) for name in wanted}
    if wanted != found:
        changed = [f"{name} {found[name]}" for name in wanted if wanted[name] != found[name]]
        raise RunFolderError(
            f"{out_dir} already holds a report of other {', '.join(changed)}.",
            remedy="Choose another --out, or remove the folder.",
        )
    now = task_facts(task, grid=request.grid)
    before = {
        "settings": there.settings,
        "more": {"grid": (there.request or {}).get("grid")},
        "fingerprints": there.fingerprints,
    }
    now["more"] = {"grid": request.grid}
    if (there.request or {}).get("test_file") != request.to_dict()["test_file"]:
        now["fingerprints"]["test"] = "another file"
    refuse_changes(out_dir, before=before, now=now)


def _comparison(
    request: Request,
    stage: Stage,
    trained: Mapping[Cell, TrainedCell],
    *,
    opened: Opened,
    leaks: _Leaks,
    command: str,
) -> Comparison:
    task = stage.task
    exam = Exam(
        examples=opened.examples,
        labels=task.labels,
        targets_N=task.labels.targets(opened.examples),
        valid_targets_N=task.labels.targets(task.valid),
        clean_N=leaks.clean_N,
    )
    largest = max(cell.num_labels for cell in trained)

    def runs_of(name: str, num_labels: int) -> list[SeedRun]:
        """Read when asked for: no more than one arm's answers are in memory at a time."""
        runs = []
        for cell, run in trained.items():
            if (cell.arm, cell.num_labels) == (name, num_labels):
                answers = load_answers(stage.folder, cell, test=opened.fingerprint)
                runs.append(
                    SeedRun(
                        cell=cell,
                        valid_accuracy=run.valid_accuracy,
                        seconds=run.seconds,
                        chosen=run.chosen,
                        valid_NC=answers["valid"],
                        test_NC=answers["test"],
                    )
                )
        return runs

    names = _in_order(stage.arms)
    sizes = sorted({cell.num_labels for cell in trained})
    curve = tuple(
        curve_point(name, runs_of(name, size), exam=exam, num_labels=size)
        for name in stage.arms
        for size in (sizes if len(sizes) > 1 else ())
    )
    summaries = tuple(
        arm_summary(
            name,
            runs_of(name, largest),
            exam=exam,
            description=_description(arm, request),
        )
        for name, arm in stage.arms.items()
    )
    tests = paired_tests(
        {name: correct(runs_of(name, largest), exam) for name in names},
        is_whole=largest == len(task.train),
    )
    kind, verdict = judge(summaries, tests)
    rows, valid_rows = task.rows[FIRST]
    test_rows = stage.rows_of([example.text for example in opened.examples])
    splits = (
        split("train", task.train, labels=task.labels, cut_share=cut_share(rows)),
        split("valid", task.valid, labels=task.labels, cut_share=cut_share(valid_rows)),
        split("test", opened.examples, labels=task.labels, cut_share=cut_share(test_rows)),
    )
    num_leaks = int(leaks.labelled_N.sum())
    worths = _worths(names, sizes, lambda *of: correct(runs_of(*of), exam))
    base = task.start.base
    assert base is not None
    return Comparison(
        verdict=verdict,
        verdict_kind=kind,
        arms=summaries,
        tests=tests,
        labels=task.labels.names,
        num_train=len(task.train),
        num_valid=len(task.valid),
        num_test=len(opened.examples),
        num_test_leaks=num_leaks,
        cut_share=cut_share(rows),
        settings=settings_to_dict(task.start.settings),
        environment=environment(),
        fingerprints={
            **task.fingerprints,
            "test": opened.fingerprint,
            "text": base.info.fingerprints.get("text", ""),
        },
        command=command,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        base={"run_dir": str(request.bases[FIRST]), **base.info.result},
        mistakes=mistakes(runs_of(names[0], largest), exam=exam),
        warnings=(
            *warnings(summaries, curve, seeds=request.seeds, num_leaks=num_leaks),
            *_data_warnings(request, task=task, leaks=leaks, opened=opened, smallest=sizes[0]),
            *split_warnings(splits),
        ),
        curve=curve,
        worth=next(iter(worths), None),
        more_worths=worths[1:],
        smallest_difference=easily_missed(summaries, tests),
        num_text_leaks=None if leaks.text_N is None else int(leaks.text_N.sum()),
        label_doubts=doubts(
            [run for name in doubting_arms(summaries) for run in runs_of(name, largest)], exam=exam
        ),
        splits=splits,
        openings=opened.openings,
        request=request.to_dict(),
    )


def _in_order(arms: Mapping[str, Arm]) -> list[str]:
    """The base arm first, wherever it was named; if none is fine-tuned, one that uses a base."""
    names = sorted(arms, key=lambda name: (arms[name].kind != "pretrained", ":" in name))
    first = names[0] if arms[names[0]].kind == "pretrained" else next(filter(uses_base, names), "")
    return sorted(names, key=lambda name: name != first)


def _worths(
    names: Sequence[str],
    sizes: Sequence[int],
    correct_of: Callable[[str, int], NDArray[np.bool_]],
) -> tuple[LabelWorth, ...]:
    """What every arm that uses a base is worth in labels, in this order; none without a curve."""
    if len(sizes) < 2:
        return ()
    curves = {name: {size: correct_of(name, size) for size in sizes} for name in names}
    found = (worth_in_labels(curves, arm=name) for name in names if uses_base(name))
    return tuple(worth for worth in found if worth is not None)


def _description(arm: Arm, request: Request) -> str:
    told = ARMS[arm.kind]
    if arm.kind == "latent" and not request.texts:
        told = told.replace("text without labels", "the training texts")
    return f"{told}; the base is {arm.base}" if arm.base else told


def _data_warnings(
    request: Request, *, task: Task, leaks: _Leaks, opened: Opened, smallest: int
) -> tuple[str, ...]:
    told = []
    if leaks.text_N is not None and leaks.text_N.any():
        told.append(
            f"{int(leaks.text_N.sum())} of the test examples are also, exactly or nearly, in the "
            "text without labels; scores are given with and without them."
        )
    seen = {normalised(example.text) for example in task.train}
    num_shared = sum(normalised(example.text) in seen for example in task.valid)
    if num_shared:
        told.append(
            f"{num_shared} of the valid examples are also in train: what was chosen on valid was "
            "chosen on what is known."
        )
    if smallest < len(task.train):
        seed = task.start.settings.train.seed
        told += rare_classes(task.train, smallest=smallest, seed=seed)
    if len(opened.openings) > 1:
        told.append(
            f"The test file has been opened {len(opened.openings)} times. What was changed after "
            "a look at it fits it better than it fits new examples."
        )
    return tuple(told)
