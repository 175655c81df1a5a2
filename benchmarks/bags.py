"""How long does a base of `regraft fit` take, and are its vectors as good as before?

The peer is the path of 2026-11-17: vectors for every position, dense gradients, AdamW on whole
tables. Both make bases of the same text in turn, and logistic regression on the vectors of each
answers the same test reviews from the same labels. Time is that of the whole base, pairs,
checkpoints and validation included: on the clock, and of the processor, which a busy machine does
not change as much.

    .venv/bin/python benchmarks/bags.py [--corpus imdb-25k] [--bases 2] [--passes 3]
        [--documents N] [--labels 200 800] [--draws 5] [--work DIR] [--json FILE]

Cost with the defaults: 8 minutes on one core.
"""

import argparse
import json
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipes import split_corpus
from torch.nn import functional as F

from regraft.classifiers import document_vectors, fit_regression
from regraft.classifiers.fit_bases import CHECKPOINT_EVERY
from regraft.config import ObjectiveTraits, Settings, replace, resolve
from regraft.data import (
    Batch,
    labels_of,
    load_examples,
    read_documents,
    subset_examples,
    train_tokenizer,
    write_store,
)
from regraft.models import Model, pool
from regraft.runtime import environment, write_json
from regraft.stats import accuracy_interval, difference_interval
from regraft.training import load_run, pretrain
from regraft.training.masking import Moment
from regraft.training.objectives import TEMPERATURE, LossSum, register_objective

CORPUS = "imdb-25k"
BEFORE, NOW = "before", "now"


@register_objective("contrast-by-positions", ObjectiveTraits(head="none", rows="halves"))
def build_before(context: object) -> Any:
    """Contrast as it was: a vector for every position, then their mean."""

    def objective(model: Model, batch: Batch, moment: Moment) -> LossSum:
        hidden_BTD = model.backbone(batch.ids_BT, real_BT=batch.real_BT)
        vectors_BD = F.normalize(pool(hidden_BTD, real_BT=batch.real_BT, pooling="mean"), dim=1)
        groups_N = batch.targets[0::2]
        scores_NN = vectors_BD[0::2] @ vectors_BD[1::2].T / TEMPERATURE
        scores_NN = scores_NN.masked_fill(groups_N.unsqueeze(1) != groups_N, -torch.inf)
        own_N = torch.arange(len(groups_N))
        total = F.cross_entropy(scores_NN, own_N, reduction="sum")
        total = total + F.cross_entropy(scores_NN.T, own_N, reduction="sum")
        return LossSum(total / 2, len(own_N))

    return objective


def settings_of(name: str, *, seed: int, passes: int) -> Settings:
    """As `fit` makes a base in a process of its own, before and now."""
    settings = resolve("pretrain", preset="bag")
    length = {"epochs": passes, "steps": None, "minutes": None}
    train: dict[str, Any] = {"checkpoint_every": CHECKPOINT_EVERY}
    if name == BEFORE:
        settings = replace(settings, "objective", kind="contrast-by-positions")
        train = {"checkpoint_every": 50, "optimizer": "adamw", "micro_batch_tokens": 16_384}
    return replace(settings, "train", seed=seed, threads=1, keep_checkpoints=1, **length, **train)


def make_base(name: str, *, seed: int, passes: int, store_dir: Path, work: Path) -> dict[str, Any]:
    """One base in the folder `work / name-seed`; its time and its speed."""
    out = work / f"{name}-{seed}"
    done = out.with_suffix(".json")
    if not done.exists():
        shutil.rmtree(out, ignore_errors=True)
        clock, processor = time.perf_counter(), time.process_time()
        result = pretrain(
            [store_dir], out=out, settings=settings_of(name, seed=seed, passes=passes)
        )
        seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - processor
        speed = result.num_tokens / cpu_seconds
        write_json(
            done, {"seconds": seconds, "cpu_seconds": cpu_seconds, "tokens_per_cpu_s": speed}
        )
    made: dict[str, Any] = json.loads(done.read_text())
    print(f"{name} {seed}: {made}", file=sys.stderr, flush=True)
    return made


def vectors_of(run_dir: Path, texts: list[str]) -> np.ndarray:
    """The vectors of one base, which lie beside it when they were made once."""
    path = run_dir.with_suffix(f".{len(texts)}.npy")
    if not path.exists():
        np.save(path, document_vectors([load_run(run_dir)], texts))
    return np.load(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", default=CORPUS)
    parser.add_argument("--bases", type=int, default=2)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--documents", type=int, help="documents of text at most")
    parser.add_argument("--labels", type=int, nargs="+", default=[200, 800])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--tests", type=int, default=4_000)
    parser.add_argument("--work", type=Path, default=Path("build/bags"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    text, folder = split_corpus(given.corpus, work=given.work)
    if given.documents is not None:
        lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
        text.write_text("".join(lines[: given.documents]), encoding="utf-8")
    torch.set_num_threads(1)
    settings, data = resolve("pretrain", preset="bag"), resolve("finetune").data
    store_dir = given.work / "store"
    documents = (document.text for document in read_documents([text], data=settings.data))
    tokenizer = train_tokenizer(documents, settings=settings.tokenizer)
    write_store([text], data=settings.data, tokenizer=tokenizer, store_dir=store_dir)
    times: dict[str, list[dict[str, Any]]] = {BEFORE: [], NOW: []}
    for seed in range(given.bases):
        for name in times if seed % 2 else reversed(times):
            times[name].append(
                make_base(
                    name, seed=seed, passes=given.passes, store_dir=store_dir, work=given.work
                )
            )
    candidates = load_examples(folder / "train.jsonl", data=data)
    test = load_examples(folder / "test.jsonl", data=data)[: given.tests]
    labels = labels_of(candidates)
    right: dict[str, list[np.ndarray]] = {BEFORE: [], NOW: []}
    for seed in range(given.bases):
        for num_labels in given.labels:
            for draw in range(given.draws):
                some = subset_examples(candidates, size=num_labels, seed=draw)
                for name, found in right.items():
                    found.append(answers(given.work / f"{name}-{seed}", some, test, labels=labels))
    report(times, right, given=given)


def answers(run_dir: Path, some: Any, test: Any, *, labels: Any) -> np.ndarray:
    """Which test texts are answered rightly from these examples."""
    learned = document_vectors([load_run(run_dir)], [e.text for e in some])
    model = fit_regression(learned, labels.targets(some), labels=labels)
    chances = model.vector_probabilities(vectors_of(run_dir, [e.text for e in test]))
    correct: np.ndarray = chances.argmax(axis=1) == labels.targets(test)
    return correct


def report(
    times: dict[str, list[dict[str, Any]]],
    right: dict[str, list[np.ndarray]],
    *,
    given: argparse.Namespace,
) -> None:
    """The ratio of times, and the paired difference of accuracies."""
    summary: dict[str, Any] = {"times": times}
    for what in ("seconds", "cpu_seconds"):
        ratios = [b[what] / n[what] for b, n in zip(times[BEFORE], times[NOW], strict=True)]
        summary[f"ratio_of_{what}"] = ratios
        print(f"{what}: now {np.median(ratios):.2f} times as fast ({ratios})")
    for name, found in right.items():
        interval = accuracy_interval(np.stack(found))
        summary[name] = [interval.mean, interval.low, interval.high]
        print(f"{name}: {interval.mean:.2%} ({interval.low:.2%} - {interval.high:.2%})")
    over = difference_interval(np.stack(right[NOW]), np.stack(right[BEFORE]))
    summary["difference"] = [over.mean, over.low, over.high]
    print(f"now - before: {over.mean:+.2%} ({over.low:+.2%} to {over.high:+.2%})")
    if given.json is not None:
        command = shlex.join(["python", "benchmarks/bags.py", *sys.argv[1:]])
        date = time.strftime("%Y-%m-%d", time.gmtime())
        write_json(
            given.json,
            {"command": command, "date": date, "environment": environment(), **summary},
        )


if __name__ == "__main__":
    main()
