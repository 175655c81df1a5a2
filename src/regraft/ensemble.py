"""Several bases of one text, which differ in their seed alone: as many as the minutes allow.

Comes in: a token store, settings and a clock. Goes out: finished run folders, one a core at a time,
planned once, so that a resumed recipe makes the same. Knows no labels.
"""

import dataclasses
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np

from regraft.config import Settings, replace
from regraft.fitted import base_dir
from regraft.halves import SHORTEST, num_divisible
from regraft.heads import build_language_model, frequent_pair_keys
from regraft.objectives import build_objective
from regraft.pairs import pretraining_rows
from regraft.pretrain import pretrain
from regraft.runfolder import RunFolder, read_info, read_metrics
from regraft.runtime import SILENT, Progress, device, write_json
from regraft.store import TokenStore, open_store
from regraft.tokenizer import Tokenizer
from regraft.trainer import build_state, steps, steps_per_epoch
from regraft.workers import results

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

# What the members take when the bases are there: so long, and so much more for each document that
# the latent one reads; never more than a share of the minutes.
_MEMBERS_SECONDS = 20.0
_SECONDS_PER_DOCUMENT = 0.005
_MEMBERS_SHARE = 0.3

# Share of the minutes by which the last bases may be late: else the time would often end with cores
# that have nothing to do.
_LATE_SHARE = 0.05

# Fewer documents that can be halved teach a base nothing; the other members do without.
FEWEST_DOCUMENTS = 200

# Steps that tell how long a pass over the text will take.
_PACE_STEPS = 6

# Steps between checkpoints of a base in a process of its own: Ctrl-C ends that without a last one.
_CHECKPOINT_EVERY = 50

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

    def left_for_bases(self, num_documents: int) -> float:
        """Seconds until the members need theirs; below zero when it is too late already."""
        members = _MEMBERS_SECONDS + _SECONDS_PER_DOCUMENT * num_documents
        return self.budget_seconds - min(members, _MEMBERS_SHARE * self.budget_seconds) - self.gone


def can_teach(store: TokenStore, *, settings: Settings, progress: Progress) -> bool:
    """Whether the text can teach bases by contrast; if it cannot, say so."""
    if settings.objective.kind != "contrast":
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
    """What is made: so many bases, each of so many passes, so many of them at a time.

    `num_bases` is None until the first of them have shown how long one takes. `length` is that of a
    base as the trainer takes it, and `num_steps` about how many steps that is. `num_pairs` is as
    many pairs of neighbours as the text has, where that is less than the settings allow.
    """

    passes: float
    length: dict[str, float]
    num_steps: int
    num_pairs: int
    num_jobs: int
    num_bases: int | None


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
        RunFolder(self.out).halve_weights()
        return self.out


def make_bases(
    store_dir: Path,
    *,
    folder: RunFolder,
    settings: Settings,
    tokenizer: Tokenizer,
    num_documents: int,
    clock: Clock,
    progress: Progress,
) -> tuple[int, float]:
    """(number of bases, passes of each over the store): what the time allows, at least one base.

    `num_documents` are those that the latent member will read, whose time is not ours to take.
    """
    plan_path = folder.run_dir / PLAN_NAME
    if plan_path.exists():
        # A resumed recipe goes on as it was planned, however fast the machine is now.
        plan = Plan(**json.loads(plan_path.read_text(encoding="utf-8")))
    else:
        plan = _plan(
            open_store(store_dir, tokenizer=tokenizer),
            settings=settings,
            tokenizer=tokenizer,
            seconds=clock.left_for_bases(num_documents),
            clock=clock,
            progress=progress,
        )
        write_json(plan_path, dataclasses.asdict(plan))
    settings = replace(settings, "model", num_pairs=plan.num_pairs)
    length = {"steps": None, "epochs": None, "minutes": None, **plan.length}
    if plan.num_jobs > 1:
        # One thread each, and so it is when a run is resumed elsewhere.
        alone = {"threads": 1, "checkpoint_every": _CHECKPOINT_EVERY}
        settings = replace(settings, "train", **alone)
    jobs = [
        BaseJob(
            store_dir,
            base_dir(folder.run_dir, number),
            replace(settings, "train", seed=settings.train.seed + number, **length),
        )
        for number in range(MOST_BASES)
    ]
    if plan.num_bases is None:
        first, first_start = jobs[: plan.num_jobs], time.perf_counter()
        _make(first, plan=plan, progress=progress)
        # A base that was resumed took longer than we have waited for it.
        seconds = [read_info(job.out).result["seconds"] for job in first]
        num_bases = _number_of_bases(
            plan,
            seconds=max(time.perf_counter() - first_start, *seconds),
            left=clock.left_for_bases(num_documents) + _LATE_SHARE * clock.budget_seconds,
        )
        plan = dataclasses.replace(plan, num_bases=num_bases)
        write_json(plan_path, dataclasses.asdict(plan))
    assert plan.num_bases is not None, "it was settled above"
    missing = [job for job in jobs[: plan.num_bases] if not is_made(job.out)]
    if missing:
        if plan.num_jobs > 1:
            progress.say(f"There is time for {plan.num_bases} bases: {len(missing)} to go.")
        _make(missing, plan=plan, progress=progress)
    return plan.num_bases, plan.passes


def _number_of_bases(plan: Plan, *, seconds: float, left: float) -> int:
    """Those made in `seconds`, one a job, and as many rounds more as the time left holds."""
    rounds = 1 + max(int(left / seconds), 0)
    return min(plan.num_jobs * rounds, MOST_BASES)


def is_made(run_dir: Path) -> bool:
    """Has the base in this folder come to its end?"""
    return (run_dir / "run.json").exists() and read_info(run_dir).status == "complete"


def _make(jobs: Sequence[BaseJob], *, plan: Plan, progress: Progress) -> None:
    """Each in a process of its own; a single one in this process, which then tells its loss."""
    num_jobs = min(plan.num_jobs, len(jobs))
    made = results(
        jobs, num_jobs=num_jobs, num_threads=1, cluster=None, progress_of=lambda _: progress
    )
    if num_jobs == 1:
        for _ in made:
            pass
        return
    with _followed([job.out for job in jobs], num_steps=plan.num_steps, progress=progress):
        for _ in made:
            pass


@contextmanager
def _followed(run_dirs: Sequence[Path], *, num_steps: int, progress: Progress) -> Iterator[None]:
    """A bar over bases that other processes make, by what they log."""
    total = num_steps * len(run_dirs)
    is_over = threading.Event()

    def look() -> None:
        seen, is_last = 0, False
        while not is_last:
            is_last = is_over.wait(_LOOK_EVERY)
            here = sum(min(_last_step(run_dir), num_steps) for run_dir in run_dirs)
            num_made = sum(map(is_made, run_dirs))
            progress.advance(here - seen, note=f"{num_made} of {len(run_dirs)} bases made")
            seen = here

    progress.start("bases", total=total)
    watcher = threading.Thread(target=look, daemon=True)
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
    seconds: float,
    clock: Clock,
    progress: Progress,
) -> Plan:
    """How long a base learns: the passes wanted, or what the `seconds` for all of them allow."""
    pass_seconds, pass_steps = _pace(store, settings=settings, tokenizer=tokenizer)
    passes = min(wanted_passes(store), int(seconds / pass_seconds))
    known = len(frequent_pair_keys(store, settings=settings.model))
    num_pairs = max(min(known, settings.model.num_pairs), 1)
    if passes < 1:
        # One base that does not see all of the text: better than none.
        minutes = max(seconds, 0.1 * clock.budget_seconds) / 60
        seen = min(minutes * 60 / pass_seconds, 1.0)
        progress.say(
            f"A pass over the text would take {pass_seconds / 60:.1f} min; in {minutes:.1f} min "
            f"the base sees about {seen:.0%} of it. More --minutes would help."
        )
        length = {"minutes": minutes}
        return Plan(seen, length, pass_steps, num_pairs, num_jobs=1, num_bases=1)
    num_jobs = min(joblib.cpu_count(), MOST_JOBS) if device().type == "cpu" else 1
    times = "one pass" if passes == 1 else f"{passes} passes"
    together = "one base" if num_jobs == 1 else f"{num_jobs} bases"
    progress.say(
        f"A pass over the text takes about {pass_seconds:.0f} s: {together} at a time, {times} "
        "each."
    )
    length = {"epochs": passes}
    return Plan(float(passes), length, passes * pass_steps, num_pairs, num_jobs, num_bases=None)


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
