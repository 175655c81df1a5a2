"""Several bases of one text, which differ in their seed alone: as many as the minutes allow.

Comes in: a token store, settings and a clock. Goes out: finished run folders, one a core at a time.
How many is settled when the first are made, and then kept: a resumed recipe makes no others. Knows
no labels.
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

from regraft.config import Settings, replace
from regraft.errors import RunFolderError
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
    """What is made: so many bases, each of so many passes, one a process or in this one.

    `num_bases` is None until the first of them have shown how long one takes. `length` is that of a
    base as the trainer takes it, and `num_steps` about how many steps that is. `num_pairs` is as
    many pairs of neighbours as the text has, where that is less than the settings allow.
    """

    passes: float
    length: dict[str, float]
    num_steps: int
    num_pairs: int
    is_side_by_side: bool
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
        if self.settings.model.family == "bag":
            RunFolder(self.out).keep_half_precision()
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
        plan = _read_plan(plan_path)
    else:
        plan = _plan(
            open_store(store_dir, tokenizer=tokenizer),
            settings=settings,
            tokenizer=tokenizer,
            num_documents=num_documents,
            clock=clock,
            progress=progress,
        )
        write_json(plan_path, dataclasses.asdict(plan))
    settings = replace(settings, "model", num_pairs=plan.num_pairs)
    if plan.is_side_by_side:
        settings = _alone(settings)
    length = {"steps": None, "epochs": None, "minutes": None, **plan.length}
    jobs = [
        BaseJob(
            store_dir,
            base_dir(folder.run_dir, number),
            replace(settings, "train", seed=settings.train.seed + number, **length),
        )
        for number in range(MOST_BASES)
    ]
    if plan.num_bases is None:
        first, first_start = jobs[: num_processes()], time.perf_counter()
        _make(first, plan=plan, progress=progress)
        # A base that was resumed took longer than we have waited for it.
        seconds = [read_info(job.out).result["seconds"] for job in first]
        left = clock.left_for_bases(num_documents) + _LATE_SHARE * clock.budget_seconds
        waited = max(time.perf_counter() - first_start, *seconds)
        plan = dataclasses.replace(
            plan, num_bases=number_of_bases(len(first), seconds=waited, left=left)
        )
        write_json(plan_path, dataclasses.asdict(plan))
    assert plan.num_bases is not None, "it was settled above"
    missing = [job for job in jobs[: plan.num_bases] if not _is_kept(job)]
    if missing:
        if plan.is_side_by_side:
            progress.say(f"There is time for {plan.num_bases} bases: {len(missing)} to go.")
        _make(missing, plan=plan, progress=progress)
    return plan.num_bases, plan.passes


def number_of_bases(num_made: int, *, seconds: float, left: float) -> int:
    """Those made together in `seconds`, and as many rounds more as the time left holds."""
    rounds = 1 + max(int(left / seconds), 0)
    return min(num_made * rounds, MOST_BASES)


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
    every = min(settings.train.checkpoint_every or _CHECKPOINT_EVERY, _CHECKPOINT_EVERY)
    return replace(settings, "train", threads=threads, checkpoint_every=every, keep_checkpoints=1)


def _read_plan(path: Path) -> Plan:
    try:
        return Plan(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} is of another regraft, or damaged: {error}.",
            "A recipe is resumed by the version that began it.",
            remedy="Choose another --out and begin anew.",
        ) from error


def _is_made(run_dir: Path) -> bool:
    return (run_dir / "run.json").exists() and read_info(run_dir).status == "complete"


def _is_kept(job: BaseJob) -> bool:
    """Made, and in the precision it is kept in: a crash may have come in between."""
    if not _is_made(job.out):
        return False
    return job.settings.model.family != "bag" or RunFolder(job.out).has_half_precision


def _make(jobs: Sequence[BaseJob], *, plan: Plan, progress: Progress) -> None:
    """Side by side with one bar for all, or in this process, where each tells its loss."""
    if plan.is_side_by_side:
        with _followed([job.out for job in jobs], num_steps=plan.num_steps, progress=progress):
            for _ in side_by_side(jobs):
                pass
    else:
        for job in jobs:
            job.run(progress=progress)


@contextmanager
def _followed(run_dirs: Sequence[Path], *, num_steps: int, progress: Progress) -> Iterator[None]:
    """A bar over bases that other processes make, by what they log."""
    is_over = threading.Event()

    def look() -> int:
        return sum(min(_last_step(run_dir), num_steps) for run_dir in run_dirs)

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
    progress.start("bases", total=num_steps * len(run_dirs) - before)
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
    num_documents: int,
    clock: Clock,
    progress: Progress,
) -> Plan:
    """How long a base learns: the passes wanted, or what the time for all of them allows."""
    num_jobs = num_processes()
    alone = _alone(settings) if num_jobs > 1 else settings
    pass_seconds, pass_steps = _pace(store, settings=alone, tokenizer=tokenizer)
    seconds = clock.left_for_bases(num_documents)
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
        return Plan(seen, length, pass_steps, num_pairs, is_side_by_side=False, num_bases=1)
    times = "one pass" if passes == 1 else f"{passes} passes"
    together = "one base" if num_jobs == 1 else f"{num_jobs} bases"
    progress.say(
        f"A pass over the text takes about {pass_seconds:.0f} s: {together} at a time, {times} "
        "each."
    )
    return Plan(
        passes=float(passes),
        length={"epochs": passes},
        num_steps=passes * pass_steps,
        num_pairs=num_pairs,
        is_side_by_side=num_jobs > 1,
        num_bases=None,
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
