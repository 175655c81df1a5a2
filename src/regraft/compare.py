"""Was the pre-training worth it? Arms that differ in one thing, seeds, label curves, a verdict.

Comes in: bases, three labelled files, settings. Goes out: a `Comparison`, ready for report. All
arms see the same subsets and batches for the same budget (stages.py); the test labels are read
once, after every choice is frozen (seal.py). Draws nothing and prints nothing.
"""

import contextlib
import dataclasses
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regraft.arms import (
    FIRST,
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
from regraft.config import Settings, resolve
from regraft.errors import DataError, RunFolderError
from regraft.evidence import (
    REPORT_NAME,
    Comparison,
)
from regraft.findings import build_comparison
from regraft.finetune import load_splits, start_from_base
from regraft.presets import DEFAULT_ARMS
from regraft.request import (
    Grid,
    Request,
    check_files,
    check_request,
    load_comparison,
    refuse_other_data,
    settings_for,
)
from regraft.runtime import SILENT, Progress, fingerprint
from regraft.seal import LEDGER_NAME, open_sealed, sealed_texts
from regraft.seen import Seen, find_seen
from regraft.stages import Stage, Workforce, answer_cells, train_cells
from regraft.subsets import settled_sizes
from regraft.text import Document, Example, check_labels_known, check_readable, read_documents
from regraft.workers import cluster_size


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
    grid: Grid = "small",
    texts: Sequence[str | Path] = (),
    jobs: int = 1,
    cluster: str | None = None,
    command: str = "",
    progress: Progress = SILENT,
) -> Comparison:
    """Train every arm with every seed and number of labels, then open the test labels once.

    `arms` are names of presets.ARMS; those of a base in `more_bases` take its name, as in
    `pretrained:NAME`. `labels` are sizes of nested subsets, None for all. With the `grid` small,
    networks choose among three learning rates on valid, as shallow arms always choose a strength;
    with none they keep theirs, at a third of the cost, and the report warns that it is unequal.
    `texts` are files without labels: the latent arm reads them, and the test file is searched for
    leaks from them.

    With a folder `out`, what is finished is kept there until `write_report` writes the report
    beside it: a comparison that was killed goes on when it is called again, and one that has its
    report gives it back, if the same is asked. With `jobs`, as many runs at a time, each in a
    process of its own; with `cluster`, the address of a Dask scheduler, on its workers. Sums are
    rounded differently on another number of threads: results are repeated exactly with the same
    jobs.
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
        command=command,
        progress=progress,
    )


def run_request(
    request: Request,
    *,
    out: str | Path | None,
    jobs: int = 1,
    cluster: str | None = None,
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
            _check_out(out_dir)
        check_readable(request.test)
        check_files(request)
        workforce = _workforce(request, jobs=jobs, cluster=cluster)
        task = _build_task(request, progress=progress)
        if like is not None:
            refuse_other_data(like, task=task, request=request)
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
        # Texts are no labels: a test on what was learned by heart is refused before the learning.
        sealed = sealed_texts(request.test, data=task.start.settings.data)
        seen = _find_seen(request, sealed, task=task, progress=progress) if sealed else None
        by_name = {arm.name: arm for arm in arms}
        stage = Stage(task, by_name, request.grid, folder, workforce, progress)
        trained = train_cells(stage, cells, num_test=_num_test(request, task))
        # Every choice is made: now, and only now, the test labels are read.
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
        texts = [example.text for example in opened.examples]
        if seen is None or seen.texts != tuple(texts):
            seen = _find_seen(request, opened.examples, task=task, progress=progress)
        answer_cells(stage, cells, test=opened.fingerprint, texts=texts)
        return build_comparison(
            request,
            stage,
            trained,
            opened=opened,
            seen=seen,
            command=command,
        )


def _check_out(out_dir: Path) -> None:
    """Refuse what cannot take a report, before any work is done for it."""
    if out_dir.exists() and not out_dir.is_dir():
        raise RunFolderError(
            f"{out_dir} exists and is not a folder.",
            "A comparison is written into a folder.",
            remedy="Choose another --out.",
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


def _find_seen(
    request: Request,
    test: Sequence[Example | Document],
    *,
    task: Task,
    progress: Progress,
) -> Seen:
    """Which texts were seen too early; refuses a test of which nothing new is left."""
    documents = read_documents(request.texts, data=task.start.settings.data)
    seen = find_seen(
        test,
        train=task.train,
        valid=task.valid,
        documents=documents if request.texts else None,
        progress=progress,
    )
    if seen.labelled_N.all():
        raise DataError(
            f"Every example of {request.test} is also in train or valid, exactly or nearly.",
            "A test on what was learned by heart shows nothing.",
            remedy="Give another --test; runs that are trained already are used again.",
        )
    return seen


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
    now["more"] = {"grid": request.grid}
    # Of the test file the report knows the examples, and we, before it is opened, the bytes.
    now["fingerprints"] = {**now["fingerprints"], "test": request.to_dict()["test_file"]}
    asked = there.request or {}
    learned = {name: h for name, h in there.fingerprints.items() if name not in ("test", "text")}
    before = {
        "settings": there.settings,
        "more": {"grid": asked.get("grid")},
        "fingerprints": {**learned, "test": asked.get("test_file")},
    }
    refuse_changes(out_dir, before=before, now=now)
