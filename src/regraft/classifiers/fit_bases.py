"""Several bases of one text, which differ in their seed alone: as many as the minutes allow.

They are made in rounds, one base per core. After each round the time left decides about the next,
and the plan is written down, so that a resumed recipe goes on with it. Knows no labels.
"""

import dataclasses
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np

from regraft.classifiers.embeddings import base_dir
from regraft.config import Settings, replace
from regraft.data import (
    SHORTEST,
    Tokenizer,
    TokenStore,
    num_divisible,
    open_store,
    pretraining_rows,
)
from regraft.errors import RunFolderError
from regraft.models import build_language_model, frequent_pair_keys
from regraft.runtime import SILENT, Progress, device, results, write_json
from regraft.training import (
    RunFolder,
    build_objective,
    build_state,
    pretrain,
    read_info,
    read_metrics,
    steps,
    steps_per_epoch,
)

# How many bases a recipe makes, decided once: it lies in the folder while it runs and after.
PLAN_NAME = "plan.json"

# Bases that differ in their seed alone, side by side: the more the better, each adding less.
MOST_BASES = 16

# Processes at most: each holds a base and its optimiser, most of a gigabyte.
MOST_JOBS = 8

# A base sees a small text several times, until it has seen about so many tokens. Film reviews of
# 4.7 million, one base, 200 / 500 / 2,000 labels: 85.6 / 86.4 / 87.6 % after one pass, 86.9 /
# 87.4 / 88.4 % after three (2026-11-16).
WANTED_TOKENS = 15_000_000
MOST_PASSES = 3

# What the member on the vectors takes when the bases are there: so long, and so much more for each
# labelled example; never more than a share of the minutes. The other members are fitted before.
_FEATURES_SECONDS = 10.0
_SECONDS_PER_EXAMPLE = 0.02
_FEATURES_SHARE = 0.2

# Share of the minutes by which the last bases may be late.
_LATE_SHARE = 0.02

# How much of the time left is planned at once: what a base takes is known better after each round.
_PLANNED_SHARE = 0.7

# The last round may be shorter than the others. With less than this share of their steps, or of a
# pass, a base is not worth its place.
_LEAST_LENGTH = 1 / 3
_LEAST_PASS = 0.5

# Fewer documents that can be halved teach a base nothing; the other members do without.
FEWEST_DOCUMENTS = 200

# Steps that tell how long a pass over the text will take.
_PACE_STEPS = 6

# Steps between checkpoints of a base in a process of its own: Ctrl-C ends that without a last one.
CHECKPOINT_EVERY = 200

# Seconds between two looks at how far the bases are that other processes make.
_LOOK_EVERY = 1.0


@dataclass(frozen=True)
class Clock:
    """When the recipe began, and how long it may take."""

    began: float
    budget_seconds: float

    @property
    def gone(self) -> float:
        """Seconds since then."""
        return time.perf_counter() - self.began

    def left_for_bases(self, num_examples: int) -> float:
        """Seconds until the member on their vectors needs its time; negative if it is too late."""
        features = _FEATURES_SECONDS + _SECONDS_PER_EXAMPLE * num_examples
        reserve = min(features, _FEATURES_SHARE * self.budget_seconds)
        return self.budget_seconds - reserve - self.gone


def can_teach(store: TokenStore, *, settings: Settings, progress: Progress) -> bool:
    """Whether the text can teach bases by contrast; if it cannot, say so."""
    if settings.objective.traits.rows != "halves":
        return True
    num_documents = num_divisible(store)
    if num_documents < FEWEST_DOCUMENTS:
        progress.say(
            f"{num_documents:,} documents of the text have {SHORTEST} tokens or more; a base needs "
            f"{FEWEST_DOCUMENTS}. Going on without one: give more or longer text."
        )
    return num_documents >= FEWEST_DOCUMENTS


@dataclass(frozen=True)
class Plan:
    """What is made: the steps of every base decided on so far, one per process or in this one.

    A base sees the text `passes` times if there is time, each in `pass_steps`. Where there is no
    time for a single pass, one base learns for `minutes`. `num_pairs` is as many pairs of
    neighbours as the text has, where that is less than the settings allow.
    """

    passes: float
    pass_steps: int
    num_pairs: int
    base_steps: list[int]
    is_side_by_side: bool
    is_settled: bool
    minutes: float | None = None

    @property
    def full_steps(self) -> int:
        """Steps of a base that sees the text as often as wanted."""
        return round(self.passes * self.pass_steps)


@dataclass(frozen=True)
class BaseJob:
    """One base, in any process; if it was begun before, it goes on from its last checkpoint."""

    store_dir: Path
    out: Path
    settings: Settings

    def run(self, *, progress: Progress = SILENT) -> Path:
        """Make it, and say where it lies."""
        pretrain(
            [self.store_dir], out=self.out, settings=self.settings, resume=True, progress=progress
        )
        if not self.settings.model.traits.has_layers:
            RunFolder(self.out).keep_half_precision()
        return self.out


def make_bases(
    store_dir: Path,
    *,
    folder: RunFolder,
    settings: Settings,
    tokenizer: Tokenizer,
    num_examples: int,
    clock: Clock,
    progress: Progress,
) -> tuple[int, float]:
    """(number of bases, passes of each over the store): what the time allows, at least one base.

    Some time is left for `num_examples` labelled examples, whose vectors are read afterwards.
    """
    plan_path = folder.run_dir / PLAN_NAME
    if plan_path.exists():
        # A resumed recipe goes on as it was planned, however fast the machine is now.
        plan = _read_plan(plan_path)
    else:
        plan = _plan(
            open_store(store_dir, tokenizer=tokenizer),
            settings=settings,
            tokenizer=tokenizer,
            left=clock.left_for_bases(num_examples),
            clock=clock,
            progress=progress,
        )
        write_json(plan_path, dataclasses.asdict(plan))
    settings = replace(settings, "model", num_pairs=plan.num_pairs)
    if plan.is_side_by_side:
        settings = _alone(settings)
    while True:
        jobs = [
            _job(number, plan=plan, store_dir=store_dir, folder=folder, settings=settings)
            for number in range(len(plan.base_steps))
        ]
        missing = [job for job in jobs if not _is_kept(job)]
        round_start = time.perf_counter()
        if missing:
            _make(missing, plan=plan, progress=progress)
        if plan.is_settled:
            return len(jobs), plan.passes
        more = next_bases(
            plan,
            step_seconds=_step_seconds(jobs, missing, waited=time.perf_counter() - round_start),
            left=clock.left_for_bases(num_examples) + _LATE_SHARE * clock.budget_seconds,
            num_jobs=num_processes(),
        )
        plan = dataclasses.replace(plan, base_steps=[*plan.base_steps, *more], is_settled=not more)
        write_json(plan_path, dataclasses.asdict(plan))


def next_bases(plan: Plan, *, step_seconds: float, left: float, num_jobs: int) -> list[int]:
    """The steps of the bases to make next, whole rounds of `num_jobs`; none when time is up.

    As long as full bases fit, most of them are planned at once. The last round is as long as the
    time that is left.
    """
    room = max(MOST_BASES - len(plan.base_steps), 0)
    affordable = left / step_seconds
    num_rounds = int(affordable / plan.full_steps)
    if num_rounds >= 1:
        num_rounds = max(int(_PLANNED_SHARE * num_rounds), 1)
        return [plan.full_steps] * min(num_rounds * num_jobs, room)
    least = max(_LEAST_LENGTH * plan.full_steps, _LEAST_PASS * plan.pass_steps)
    return [int(affordable)] * min(num_jobs, room) if affordable >= least else []


def _step_seconds(jobs: Sequence[BaseJob], made: Sequence[BaseJob], *, waited: float) -> float:
    """Seconds per step of a round of bases, their start and end included.

    A base that was resumed took longer than we have waited for it.
    """
    num_rounds = -(-len(made) // num_processes())
    infos = [read_info(job.out).result for job in jobs]
    slowest = max(float(result["seconds"]) / int(result["num_steps"]) for result in infos)
    if not made:
        return slowest
    longest = max(job.settings.train.steps or 1 for job in made)
    return max(slowest, waited / (num_rounds * longest))


def _job(
    number: int, *, plan: Plan, store_dir: Path, folder: RunFolder, settings: Settings
) -> BaseJob:
    length: dict[str, float | None] = {"steps": plan.base_steps[number], "minutes": None}
    if plan.minutes is not None:
        length = {"steps": None, "minutes": plan.minutes}
    train = {"seed": settings.train.seed + number, "epochs": None, **length}
    out = base_dir(folder.run_dir, number)
    return BaseJob(store_dir, out, replace(settings, "train", **train))


def num_processes() -> int:
    """How many bases are made at a time; LOKY_MAX_CPU_COUNT bounds it, as it does joblib."""
    return min(int(joblib.cpu_count()), MOST_JOBS) if device().type == "cpu" else 1


def side_by_side(jobs: Sequence[BaseJob]) -> Iterator[Path]:
    """Make bases in processes of their own; where each lies, in the order in which they end."""
    return results(
        jobs,
        num_jobs=max(num_processes(), 2),
        num_threads=1,
        cluster=None,
        progress_of=lambda _: SILENT,
        remedy="Repeat the command with --resume; LOKY_MAX_CPU_COUNT=1 before it makes one base "
        "at a time.",
    )


def _alone(settings: Settings) -> Settings:
    """As a base learns in a process of its own, wherever the recipe is resumed."""
    threads = 1 if settings.train.threads == "auto" else settings.train.threads
    every = min(settings.train.checkpoint_every or CHECKPOINT_EVERY, CHECKPOINT_EVERY)
    return replace(settings, "train", threads=threads, checkpoint_every=every, keep_checkpoints=1)


def _read_plan(path: Path) -> Plan:
    try:
        return Plan(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} is of another regraft, or damaged: {error}.",
            "A recipe is resumed by the version that began it.",
            remedy="Choose another --out and start again.",
        ) from error


def _is_made(run_dir: Path) -> bool:
    return (run_dir / "run.json").exists() and read_info(run_dir).status == "complete"


def _is_kept(job: BaseJob) -> bool:
    """Made, and in the precision it is kept in: a crash may have come in between."""
    if not _is_made(job.out):
        return False
    return job.settings.model.traits.has_layers or RunFolder(job.out).has_half_precision


def _make(jobs: Sequence[BaseJob], *, plan: Plan, progress: Progress) -> None:
    """Side by side with one bar for all, or in this process, where each tells its loss."""
    if plan.is_side_by_side:
        with _followed(jobs, progress=progress):
            for _ in side_by_side(jobs):
                pass
    else:
        for job in jobs:
            job.run(progress=progress)


@contextmanager
def _followed(jobs: Sequence[BaseJob], *, progress: Progress) -> Iterator[None]:
    """A bar over bases that other processes make, by what they log."""
    is_over = threading.Event()
    run_dirs = [job.out for job in jobs]
    total = sum(job.settings.train.steps or 0 for job in jobs)

    def look() -> int:
        return sum(min(_last_step(job.out), job.settings.train.steps or 0) for job in jobs)

    def watch() -> None:
        seen, is_last = before, False
        while not is_last:
            is_last = is_over.wait(_LOOK_EVERY)
            # A folder may be gone at this moment: the next look will tell.
            with suppress(OSError, RunFolderError):
                here, num_made = look(), sum(map(_is_made, run_dirs))
                progress.advance(here - seen, note=f"{num_made} of {len(run_dirs)} bases made")
                seen = here

    before = look()
    progress.start("bases", total=total - before)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        progress.finish()


def _last_step(run_dir: Path) -> int:
    if not (run_dir / "metrics.jsonl").exists():
        return 0
    return max((record["step"] for record in read_metrics(run_dir)), default=0)


def wanted_passes(store: TokenStore) -> int:
    """How often a base sees all documents, if there is time."""
    return min(max(round(WANTED_TOKENS / store.num_tokens), 1), MOST_PASSES)


def _plan(
    store: TokenStore,
    *,
    settings: Settings,
    tokenizer: Tokenizer,
    left: float,
    clock: Clock,
    progress: Progress,
) -> Plan:
    """The first round: bases of the passes wanted, or of what the time for all of them allows."""
    num_jobs = num_processes()
    alone = _alone(settings) if num_jobs > 1 else settings
    pass_seconds, pass_steps = _pace(store, settings=alone, tokenizer=tokenizer)
    passes = min(wanted_passes(store), int(left / pass_seconds))
    known = len(frequent_pair_keys(store, settings=settings.model))
    num_pairs = max(min(known, settings.model.num_pairs), 1)
    if passes < 1:
        # One base that does not see all of the text: better than none.
        minutes = max(left, 0.1 * clock.budget_seconds) / 60
        seen = min(minutes * 60 / pass_seconds, 1.0)
        progress.say(
            f"A pass over the text would take {pass_seconds / 60:.1f} min; in {minutes:.1f} min "
            f"the base sees about {seen:.0%} of it. More --minutes would help."
        )
        return Plan(
            passes=seen,
            pass_steps=pass_steps,
            num_pairs=num_pairs,
            base_steps=[pass_steps],
            is_side_by_side=False,
            is_settled=True,
            minutes=minutes,
        )
    times = "one pass" if passes == 1 else f"{passes} passes"
    together = "one base" if num_jobs == 1 else f"{num_jobs} bases"
    progress.say(
        f"A pass over the text takes about {pass_seconds:.0f} s: {together} at a time, {times} "
        "each."
    )
    return Plan(
        passes=float(passes),
        pass_steps=pass_steps,
        num_pairs=num_pairs,
        base_steps=[passes * pass_steps] * num_jobs,
        is_side_by_side=num_jobs > 1,
        is_settled=False,
    )


def _pace(store: TokenStore, *, settings: Settings, tokenizer: Tokenizer) -> tuple[float, int]:
    """Seconds and steps of a pass, measured on a few steps of a model that is thrown away."""
    model = build_language_model(
        settings.model, vocab_size=tokenizer.vocab_size, objective=settings.objective
    ).to(device())
    rows = pretraining_rows(store, tokenizer=tokenizer, settings=settings)
    trial = dataclasses.replace(settings.train, epochs=None, minutes=None, steps=_PACE_STEPS)
    state = build_state(model, settings=trial, num_rows=len(rows.lengths))
    loop = steps(
        state,
        rows=rows,
        objective=build_objective(settings, tokenizer=tokenizer),
        settings=trial,
    )
    records = list(loop)
    per_token = float(np.median([record.seconds / record.num_tokens for record in records]))
    num_steps = steps_per_epoch(len(rows.lengths), settings=settings.train)
    # By tokens as by steps: a step of long documents takes longer than one of short ones.
    num_tokens = min(store.num_tokens, int(rows.lengths.sum()))
    return max(per_token * num_tokens, num_steps * min(r.seconds for r in records)), num_steps
