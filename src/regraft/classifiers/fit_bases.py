"""Several bases of one text, which differ in their seed alone, made in rounds of one per core.

`fit_plan` decides how many there are and how long each trains. Knows no labels.
"""

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import joblib

from regraft.classifiers.embeddings import base_dir
from regraft.classifiers.fit_plan import (
    MOST_BASES,
    Clock,
    FitLimit,
    Pace,
    Plan,
    lengths_of,
    measured_pace,
    next_bases,
    read_plan,
    time_for_bases,
)
from regraft.config import Settings, replace
from regraft.data import (
    FEWEST_TOKENS_TO_HALVE,
    Tokenizer,
    TokenStore,
    num_divisible,
    open_store,
    pretraining_rows,
)
from regraft.errors import RunFolderError
from regraft.models import frequent_pair_keys
from regraft.runtime import SILENT, Progress, counted, device, duration, results
from regraft.training import RunFolder, pretrain, read_info, read_metrics, steps_per_epoch

# Processes at most: each holds a base and its optimiser, most of a gigabyte.
MOST_JOBS = 8

# Fewer documents that can be halved teach a base nothing; the other members do without.
FEWEST_FOR_BASE = 200

# Tokens of a bag per second on a slow or busy core, by which its first round is planned: a trial
# would take as long as some bases, because starting and saving one takes longer than its steps.
_SLOW_TOKENS = 150_000

# Steps of the bases of a trial, which are made only to measure how long a network will take.
_TRIAL_STEPS = 8

# Steps between checkpoints of a base.
CHECKPOINT_EVERY = 200

# From this share of the budget on, time that is left over is explained.
_MUCH_LEFT = 0.1

# Seconds between two looks at how far the bases are.
_LOOK_EVERY = 1.0


def can_teach(store: TokenStore, *, settings: Settings, progress: Progress) -> bool:
    """Whether the text can teach bases by contrast; if it cannot, say so."""
    if settings.objective.traits.rows != "halves":
        return True
    num_documents = num_divisible(store)
    if num_documents < FEWEST_FOR_BASE:
        progress.say(
            f"{num_documents:,} documents of the text have {FEWEST_TOKENS_TO_HALVE} tokens or "
            f"more; a base needs {FEWEST_FOR_BASE}. Going on without one: give more or longer text."
        )
    return num_documents >= FEWEST_FOR_BASE


@dataclass(frozen=True)
class BaseJob:
    """One base, in any process; if it was begun before, it goes on from its last checkpoint."""

    store_dir: Path
    out: Path
    settings: Settings

    def run(self, *, progress: Progress = SILENT) -> Path:
        """Make it, and return its folder."""
        pretrain(
            [self.store_dir], out=self.out, settings=self.settings, resume=True, progress=progress
        )
        if not self.settings.model.traits.has_layers:
            RunFolder(self.out).keep_half_precision()
        return self.out

    @property
    def num_steps(self) -> int:
        """How long it trains."""
        return self.settings.train.steps or 0

    @property
    def is_done(self) -> bool:
        """Made, and in the precision it is kept in: a crash may have come in between."""
        if not _is_made(self.out):
            return False
        return self.settings.model.traits.has_layers or RunFolder(self.out).has_half_precision


def make_bases(
    store_dir: Path,
    *,
    folder: RunFolder,
    settings: Settings,
    tokenizer: Tokenizer,
    num_examples: int,
    limit: FitLimit,
    clock: Clock,
    progress: Progress,
) -> Plan:
    """Make as many bases as the limit allows, at least one per core.

    A part of a time budget is left for the vectors of `num_examples` labelled examples.
    """
    run_dir = folder.run_dir
    store = open_store(store_dir, tokenizer=tokenizer)
    rows = pretraining_rows(store, tokenizer=tokenizer, settings=settings)
    pass_steps = steps_per_epoch(len(rows.lengths), settings=settings.train)
    lengths = lengths_of(num_tokens=store.num_tokens, pass_steps=pass_steps)
    plan = read_plan(run_dir) or limit.plan
    if plan is None:
        known = len(frequent_pair_keys(store, settings=settings.model))
        plan = Plan(
            minutes=limit.minutes,
            pass_steps=pass_steps,
            num_pairs=max(min(known, settings.model.num_pairs), 1),
            base_steps=[lengths.wanted] * (limit.num_bases or 0),
            is_settled=limit.minutes is None,
        )
    limit.refuse_other(plan, run_dir=run_dir)
    settings = replace(settings, "model", num_pairs=plan.num_pairs)
    budget = None if plan.is_settled else 60 * (plan.minutes or 0)
    pace: Pace | None = None
    with _Bar(clock, budget=budget, progress=progress) as bar:
        while True:
            plan.save(run_dir)
            jobs = [
                _job(store_dir, base_dir(run_dir, number), number, num_steps, settings=settings)
                for number, num_steps in enumerate(plan.base_steps)
            ]
            bar.follow(jobs)
            pace = _make(jobs) or pace
            if budget is None or plan.is_settled:
                return plan
            if pace is None and settings.model.traits.has_layers:
                pace = _trial(store_dir, run_dir / "trial", settings=settings)
            elif pace is None:
                pace = Pace(store.num_tokens / pass_steps / _SLOW_TOKENS)
            left = time_for_bases(
                budget, gone=clock.seconds, num_examples=num_examples, num_made=len(jobs)
            )
            more = next_bases(
                plan.base_steps, lengths=lengths, pace=pace, left=left, num_jobs=num_processes()
            )
            plan = plan.with_bases(more)
            if not more and left > _MUCH_LEFT * budget:
                progress.say(
                    f"{duration(left)} of the time are left over: {len(jobs)} bases are made, and "
                    "more bases or more passes over the text add little."
                )


def _job(store_dir: Path, out: Path, number: int, num_steps: int, *, settings: Settings) -> BaseJob:
    """In one thread wherever it is made, for sums depend on the number of threads."""
    train = settings.train
    every = min(train.checkpoint_every or CHECKPOINT_EVERY, CHECKPOINT_EVERY)
    changes = {
        "seed": train.seed + number,
        **{"epochs": None, "minutes": None, "steps": num_steps},
        "threads": 1 if train.threads == "auto" else train.threads,
        **{"checkpoint_every": every, "keep_checkpoints": 1},
    }
    # A base reads no labels.
    settings = replace(settings, "data", label_separator=None)
    return BaseJob(store_dir, out, replace(settings, "train", class_weight=None, **changes))


def _trial(store_dir: Path, trial_dir: Path, *, settings: Settings) -> Pace:
    """Measured on very short bases, which are thrown away."""
    shutil.rmtree(trial_dir, ignore_errors=True)
    pace = _make(
        [
            _job(store_dir, trial_dir / str(number), number, _TRIAL_STEPS, settings=settings)
            for number in range(num_processes())
        ]
    )
    shutil.rmtree(trial_dir)
    assert pace is not None, "a trial makes bases"
    return pace


def _make(jobs: Sequence[BaseJob]) -> Pace | None:
    """Make those that are missing; their pace, or that of the others if none is missing."""
    missing = [job for job in jobs if not job.is_done]
    start = time.perf_counter()
    if missing:
        list(side_by_side(missing))
    made = missing or jobs
    if not made:
        return None
    results_of = (read_info(job.out).result for job in made)
    times = [(float(result["seconds"]), int(result["num_steps"])) for result in results_of]
    return measured_pace(times, waited=time.perf_counter() - start, num_jobs=num_processes())


def num_processes() -> int:
    """How many bases are made at a time; LOKY_MAX_CPU_COUNT bounds it, as it does joblib."""
    return min(int(joblib.cpu_count()), MOST_JOBS) if device().type == "cpu" else 1


def side_by_side(jobs: Sequence[BaseJob]) -> Iterator[Path]:
    """Make bases, one per core; their folders, in the order in which they end."""
    return results(
        jobs,
        num_jobs=num_processes(),
        num_threads=1,
        cluster=None,
        progress_of=lambda _: SILENT,
        remedy="Repeat the command with --resume; LOKY_MAX_CPU_COUNT=1 before it makes one base "
        "at a time.",
    )


class _Bar:
    """One bar for all bases, in its own thread, that also saves the clock.

    It shows the time if there is a budget, in seconds, else the steps of the bases.
    """

    def __init__(self, clock: Clock, *, budget: float | None, progress: Progress) -> None:
        self._clock, self._budget, self._progress = clock, budget, progress
        self._jobs: Sequence[BaseJob] = ()
        self._done = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def follow(self, jobs: Sequence[BaseJob]) -> None:
        """Show these bases, from the first call to the end."""
        self._jobs = jobs
        if not self._thread.is_alive():
            total = self._budget or sum(job.num_steps for job in jobs)
            most = f"up to {MOST_BASES} are made while there is time" if self._budget else ""
            self._progress.say(
                f"Bases are small models of your text: {most or counted(len(jobs), 'base')}."
            )
            self._progress.start("bases", total=total)
            self._show()
            self._thread.start()

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread.is_alive():
            self._is_over.set()
            self._thread.join()
            if error[0] is None:
                self._progress.finish()
            else:
                self._progress.say(f"bases: stopped ({self._note()}).")

    def _watch(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over.wait(_LOOK_EVERY)
            # A folder may be gone at this moment: the next look will show it.
            with suppress(OSError, RunFolderError):
                self._show()
                self._clock.save()

    def _show(self) -> None:
        jobs, done = self._jobs, self._clock.seconds
        if self._budget is None:
            done = sum(min(_last_step(job.out), job.num_steps) for job in jobs)
        self._progress.advance(done - self._done, note=self._note())
        self._done = done

    def _note(self) -> str:
        """How many there are; more may be planned later."""
        num_made = sum(_is_made(job.out) for job in self._jobs)
        return f"{num_made} of {len(self._jobs)} bases made" if self._jobs else ""


def _is_made(run_dir: Path) -> bool:
    return (run_dir / "run.json").exists() and read_info(run_dir).status == "complete"


def _last_step(run_dir: Path) -> int:
    if not (run_dir / "metrics.jsonl").exists():
        return 0
    return max((record["step"] for record in read_metrics(run_dir)), default=0)
