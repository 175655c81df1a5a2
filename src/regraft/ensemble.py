"""Several bases of one text, which differ in their seed alone: as many as the minutes allow.

Comes in: a token store, settings and a clock. Goes out: finished run folders, planned once, so that
a resumed recipe makes the same. Knows no labels.
"""

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regraft.config import Settings, replace
from regraft.fitted import base_dir
from regraft.halves import SHORTEST, num_divisible
from regraft.heads import build_language_model
from regraft.objectives import build_objective
from regraft.pairs import pretraining_rows
from regraft.pretrain import pretrain
from regraft.runfolder import RunFolder
from regraft.runtime import Progress, device, write_json
from regraft.store import TokenStore, open_store
from regraft.tokenizer import Tokenizer
from regraft.trainer import build_state, steps, steps_per_epoch

# How many bases a recipe makes, decided once: it lies in the folder while it runs and after.
PLAN_NAME = "plan.json"

# Bases that differ in their seed alone, side by side: the more the better, each adding less.
MOST_BASES = 4

# A base sees a small text several times, until it has seen about so many tokens. Film reviews of
# 4.7 million, one base, 200 / 500 / 2,000 labels: 85.6 / 86.4 / 87.6 % after one pass, 86.9 /
# 87.4 / 88.4 % after three (2026-11-16).
WANTED_TOKENS = 15_000_000
MOST_PASSES = 3

# Share of the minutes that pre-training may take; the rest is for the members.
BASES_SHARE = 0.7

# Fewer documents that can be halved teach a base nothing; the other members do without.
FEWEST_DOCUMENTS = 200

# Steps that tell how long a pass over the text will take.
_PACE_STEPS = 6


@dataclass(frozen=True)
class Clock:
    """When the recipe began, and how long it may take."""

    began: float
    budget_seconds: float

    @property
    def gone(self) -> float:
        """Seconds since then."""
        return time.perf_counter() - self.began

    @property
    def left_for_bases(self) -> float:
        """Seconds; below zero when the share of the bases is used up."""
        return BASES_SHARE * self.budget_seconds - self.gone


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


def make_bases(
    store_dir: Path,
    *,
    folder: RunFolder,
    settings: Settings,
    tokenizer: Tokenizer,
    clock: Clock,
    progress: Progress,
) -> tuple[int, float]:
    """(number of bases, passes of each over the store): what the time allows, at least one base."""
    plan_path = folder.run_dir / PLAN_NAME
    if plan_path.exists():
        # A resumed recipe goes on as it was planned, however fast the machine is now.
        plan = json.loads(plan_path.read_text(encoding="utf-8"))
    else:
        store = open_store(store_dir, tokenizer=tokenizer)
        plan = _plan(store, settings=settings, tokenizer=tokenizer, clock=clock, progress=progress)
        write_json(plan_path, plan)
    lengths = {"steps": None, "epochs": None, "minutes": None, **plan["length"]}
    for number in range(plan["num_bases"]):
        pretrain(
            [store_dir],
            out=base_dir(folder.run_dir, number),
            settings=replace(settings, "train", seed=settings.train.seed + number, **lengths),
            resume=True,
            progress=progress,
        )
    return plan["num_bases"], plan["passes"]


def wanted_passes(store: TokenStore) -> int:
    """How often a base sees all documents, if there is time."""
    return min(max(round(WANTED_TOKENS / store.num_tokens), 1), MOST_PASSES)


def _plan(
    store: TokenStore,
    *,
    settings: Settings,
    tokenizer: Tokenizer,
    clock: Clock,
    progress: Progress,
) -> dict[str, Any]:
    """How many bases, and how long each learns: the passes wanted, or what the time allows."""
    pass_seconds = _pass_seconds(store, settings=settings, tokenizer=tokenizer)
    passes = min(wanted_passes(store), int(clock.left_for_bases / pass_seconds))
    if passes < 1:
        # One base that does not see all of the text: better than none.
        minutes = max(clock.left_for_bases, 0.1 * clock.budget_seconds) / 60
        seen = min(minutes * 60 / pass_seconds, 1.0)
        progress.say(
            f"A pass over the text would take {pass_seconds / 60:.1f} min; in {minutes:.1f} min "
            f"the base sees about {seen:.0%} of it. More --minutes would help."
        )
        return {"num_bases": 1, "passes": seen, "length": {"minutes": minutes}}
    base_seconds = 1.15 * passes * pass_seconds
    num_bases = min(max(int(clock.left_for_bases / base_seconds), 1), MOST_BASES)
    bases = "1 base" if num_bases == 1 else f"{num_bases} bases"
    times = "one pass" if passes == 1 else f"{passes} passes"
    progress.say(f"A pass over the text takes about {pass_seconds:.0f} s: {bases}, {times} each.")
    return {"num_bases": num_bases, "passes": float(passes), "length": {"epochs": passes}}


def _pass_seconds(store: TokenStore, *, settings: Settings, tokenizer: Tokenizer) -> float:
    """Measured on a few steps of a model that is thrown away."""
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
    return max(per_token * num_tokens, num_steps * min(r.seconds for r in records))
