"""Was the pre-training worth it? The procedure of a comparison, from a request to its results.

All arms see the same subsets and batches for the same budget (jobs.py). The labels of the test file
are read once, after every choice is made (test_set.py).
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regraft.classifiers import load_splits, start_from_base
from regraft.comparison.analysis import Evidence, Provenance, SeedRun, build_comparison, split
from regraft.comparison.arms import parse_arms
from regraft.comparison.caveats import setup_caveats
from regraft.comparison.folder import ArmsFolder, TrainedCell, refuse_other_setup, setup_facts
from regraft.comparison.jobs import Stage, Workforce, answer_cells, plan_cells, train_cells
from regraft.comparison.plan import (
    DEFAULT_FIT_MINUTES,
    FIRST,
    Cell,
    Grid,
    Request,
    Setup,
    build_setup,
    check_files,
    check_request,
    load_comparison,
    refuse_other_data,
    settings_for,
)
from regraft.comparison.results import REPORT_NAME, Comparison
from regraft.comparison.test_set import (
    LEDGER_NAME,
    Opened,
    Seen,
    find_seen,
    open_sealed,
    refuse_seen,
    sealed_texts,
)
from regraft.config import DEFAULT_ARMS, Settings, Task, check_task, resolve, settings_to_dict
from regraft.data import (
    Document,
    Example,
    check_labels_known,
    check_readable,
    read_documents,
    settled_sizes,
)
from regraft.errors import DataError, RunFolderError
from regraft.runtime import SILENT, Progress, cluster_size, fingerprint, scratch_folder
from regraft.training import read_base_settings


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
    fit_minutes: float = DEFAULT_FIT_MINUTES,
    jobs: int = 1,
    cluster: str | None = None,
    command: str = "",
    progress: Progress = SILENT,
) -> Comparison:
    """Train every arm with every seed and number of labels, then read the test labels once.

    `arms` are registered names; those of a base in `more_bases` take its name, as in
    `pretrained:NAME`. `labels` are sizes of nested subsets, None for all. With the small `grid`,
    networks choose among three learning rates on valid, as shallow arms always choose their
    regularisation; with none they keep their rate, at a third of the cost, and the report warns.
    `texts` are files of unlabelled text: the latent and fit arms read them, and the test file is
    searched for leaks from them. `fit_minutes` is the time budget of each run of the fit arm.

    With a folder `out`, finished runs are kept there until `write_report` writes the report: a
    comparison that was killed continues when it is called again, and a finished one is returned if
    the request is the same. `jobs` runs go on at a time, each in its own process; `cluster` is the
    address of a Dask scheduler to use its workers. Another number of threads rounds sums
    differently: results are exactly repeatable with the same jobs.
    """
    bases = {FIRST: Path(base)} | {name: Path(p) for name, p in (more_bases or {}).items()}
    if arms is None:
        arms = ("pretrained", *(f"pretrained:{name}" for name in bases if name), *DEFAULT_ARMS[1:])
    parse_arms(arms, bases=[name for name in bases if name], has_text=bool(texts))
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
        fit_minutes=fit_minutes,
    )
    return run_request(
        request, out=out, jobs=jobs, cluster=cluster, command=command, progress=progress
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
    """Run a complete request.

    `like` is a comparison to repeat: data other than its own are refused.
    """
    check_request(request, jobs=jobs)
    arms = parse_arms(
        request.arms, bases=[name for name in request.bases if name], has_text=bool(request.texts)
    )
    for arm in arms:
        data = request.settings[arm.base].data
        if not arm.supports(Task.of(data)):
            check_task(data, by=f"The {arm.name} arm")
    with contextlib.ExitStack() as stack:
        if out is None:
            out_dir = stack.enter_context(scratch_folder("compare"))
        else:
            out_dir = Path(out)
            _check_out(out_dir)
        check_readable(request.test)
        check_files(request)
        workforce = _workforce(request, jobs=jobs, cluster=cluster)
        setup = _build_setup(request, progress=progress)
        if like is not None:
            refuse_other_data(like, setup=setup, request=request)
        # Sizes that cannot be drawn are refused before a folder is made.
        settled_sizes(request.labels, examples=setup.train)
        folder = ArmsFolder(out_dir)
        if (out_dir / REPORT_NAME).exists():
            finished = load_comparison(out_dir / REPORT_NAME)
            _refuse_other(out_dir, finished, setup=setup, request=request)
            folder.discard()
            progress.say(f"{out_dir} is complete already.")
            return finished
        stack.enter_context(folder.opened(setup_facts(setup)))
        stage = Stage(setup, {arm.name: arm for arm in arms}, folder, workforce, progress)
        ledger_path = None if out is None else out_dir.absolute().parent / LEDGER_NAME
        return _run(request, stage, like=like, command=command, ledger_path=ledger_path)


def _run(
    request: Request,
    stage: Stage,
    *,
    like: Comparison | None,
    command: str,
    ledger_path: Path | None,
) -> Comparison:
    """Train, open the test file, predict, analyse."""
    setup, progress = stage.setup, stage.progress
    data = setup.start.settings.data
    sizes = settled_sizes(request.labels, examples=setup.train)
    first_seed = setup.start.settings.train.seed
    seeds = range(first_seed, first_seed + request.seeds)
    arms = tuple(stage.arms.values())
    cells = plan_cells(arms, sizes=sizes, seeds=seeds, num_train=len(setup.train))
    # Texts without labels: a test file that was trained on is refused before the training.
    sealed = sealed_texts(request.test, data=data)
    seen = _find_seen(request, sealed, setup=setup, progress=progress) if sealed else None
    trained = train_cells(stage, cells, num_test=_num_test(request, setup))
    # Every choice is made: now, and only now, the test labels are read.
    opened = open_sealed(
        request.test,
        data=data,
        choices=_choices(setup_facts(setup), trained),
        command=command,
        ledger_path=ledger_path,
        progress=progress,
    )
    if like is not None and opened.fingerprint != like.fingerprints.get("test"):
        raise DataError(
            f"{request.test} has other examples than in the report.",
            "A comparison is repeated on the same examples.",
            remedy="Restore the file, or start a new comparison without --from.",
        )
    check_labels_known(opened.examples, setup.labels)
    texts = [example.text for example in opened.examples]
    if seen is None or seen.texts != tuple(texts):
        seen = _find_seen(request, opened.examples, setup=setup, progress=progress)
    answer_cells(stage, cells, test=opened.fingerprint, texts=texts)
    evidence = _evidence(request, stage, trained, opened=opened, seen=seen)
    return build_comparison(evidence, _provenance(request, setup, command=command))


def _evidence(
    request: Request,
    stage: Stage,
    trained: Mapping[Cell, TrainedCell],
    *,
    opened: Opened,
    seen: Seen,
) -> Evidence:
    setup, labels = stage.setup, stage.setup.labels
    valid_targets_V = labels.targets(setup.valid)

    def runs_of(name: str, num_labels: int) -> list[SeedRun]:
        runs = []
        for cell, run in trained.items():
            if (cell.arm, cell.num_labels) == (name, num_labels):
                answers = stage.folder.load_answers(cell, test=opened.fingerprint)
                assert answers is not None, "answers are written before they are read"
                runs.append(
                    SeedRun(
                        cell=cell,
                        valid_accuracy=run.valid_accuracy,
                        seconds=run.seconds,
                        chosen=run.chosen,
                        test_NC=answers["test"],
                        valid_VC=answers["valid"],
                        valid_targets_V=valid_targets_V,
                    )
                )
        return runs

    sizes = sorted({cell.num_labels for cell in trained})
    rows, valid_rows = setup.rows[FIRST]
    test_rows = setup.rows_of([example.text for example in opened.examples])
    arms = tuple(stage.arms.values())
    return Evidence(
        arms=[arm.info(setup) for arm in arms],
        opened=opened,
        seen=seen,
        labels=labels,
        sizes=sizes,
        runs_of=runs_of,
        is_whole=sizes[-1] == len(setup.train),
        splits=(
            split("train", setup.train, labels=labels, cut_share=rows.cut_share),
            split("valid", setup.valid, labels=labels, cut_share=valid_rows.cut_share),
            split("test", opened.examples, labels=labels, cut_share=test_rows.cut_share),
        ),
        num_seeds=request.seeds,
        caveats=setup_caveats(request, setup=setup, arms=arms, smallest=sizes[0]),
    )


def _provenance(request: Request, setup: Setup, *, command: str) -> Provenance:
    base = setup.start.base
    assert base is not None
    return Provenance(
        settings=settings_to_dict(setup.start.settings),
        fingerprints={**setup.fingerprints, "text": base.info.fingerprints.get("text", "")},
        command=command,
        base={"run_dir": str(request.bases[FIRST]), **base.info.result},
        request=request.to_dict(),
    )


def _check_out(out_dir: Path) -> None:
    """Refuse a path that cannot be a folder, before any work is done for it."""
    if out_dir.exists() and not out_dir.is_dir():
        raise RunFolderError(
            f"{out_dir} exists and is not a folder.",
            "A comparison is written into a folder.",
            remedy="Choose another --out.",
        )


def _workforce(request: Request, *, jobs: int, cluster: str | None) -> Workforce:
    num_threads = request.settings[FIRST].train.threads
    if cluster is not None:
        return Workforce(
            cluster_size(cluster), 1 if num_threads == "auto" else num_threads, cluster
        )
    # Chosen by speed, the number would differ between arms and from one time to the next, and with
    # it the rounding of sums.
    usual = torch.get_num_threads() if jobs == 1 else max((os.cpu_count() or 1) // jobs, 1)
    return Workforce(jobs, usual if num_threads == "auto" else num_threads)


def _build_setup(request: Request, *, progress: Progress) -> Setup:
    settings = request.settings[FIRST]
    starts = {
        name: start_from_base(path, settings=request.settings[name])
        for name, path in request.bases.items()
    }
    train, valid = load_splits(
        request.train, valid=request.valid, settings=settings, progress=progress
    )
    documents = read_documents(request.texts, data=settings.data)
    return build_setup(
        starts,
        train=train,
        valid=valid,
        text_paths=request.texts,
        text=fingerprint(document.text for document in documents) if request.texts else "",
        grid=request.grid,
        fit_minutes=request.fit_minutes,
    )


def _num_test(request: Request, setup: Setup) -> int:
    """The number of test examples, guessed from the file size for the remaining time."""
    sizes = {path: path.stat().st_size for path in (request.train, request.test) if path.is_file()}
    if len(sizes) < 2:
        return len(setup.valid)
    return round(len(setup.train) * sizes[request.test] / max(sizes[request.train], 1))


def _choices(facts: Mapping[str, Any], trained: Mapping[Cell, TrainedCell]) -> str:
    """A hash of everything that was decided before the test file was opened."""
    runs = [dataclasses.asdict(run) for run in trained.values()]
    return fingerprint([json.dumps([facts, runs], sort_keys=True, default=str)])


def _find_seen(
    request: Request, test: Sequence[Example | Document], *, setup: Setup, progress: Progress
) -> Seen:
    """Which test texts were seen during training; refuses a test with no new example."""
    documents = read_documents(request.texts, data=setup.start.settings.data)
    seen = find_seen(
        test,
        train=setup.train,
        valid=setup.valid,
        documents=documents if request.texts else None,
        progress=progress,
    )
    refuse_seen(seen, request.test, remedy="Use another --test; finished runs are kept.")
    return seen


def _refuse_other(out_dir: Path, finished: Comparison, *, setup: Setup, request: Request) -> None:
    """Refuse to mistake a finished comparison for one of other arms, seeds, settings or data."""
    before = finished.request or {}
    wanted = {name: request.to_dict()[name] for name in ("arms", "seeds", "labels")}
    changed = [f"{name} {before.get(name)}" for name in wanted if wanted[name] != before.get(name)]
    if changed:
        raise RunFolderError(
            f"{out_dir} already has a report with other {', '.join(changed)}.",
            remedy="Choose another --out, or remove the folder.",
        )
    more = {"grid": request.grid, "fit_minutes": request.fit_minutes}
    now = {**setup_facts(setup), "more": more}
    # The report has a hash of the test examples; before the file is opened, there is one of bytes.
    now["fingerprints"] = {**now["fingerprints"], "test": request.to_dict()["test_file"]}
    learned = {name: h for name, h in finished.fingerprints.items() if name not in ("test", "text")}
    then = {
        "settings": finished.settings,
        "more": {name: before.get(name) for name in more},
        "fingerprints": {**learned, "test": before.get("test_file")},
    }
    refuse_other_setup(out_dir, before=then, now=now)
