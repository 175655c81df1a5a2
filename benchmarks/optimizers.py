"""Does Muon reach a lower validation loss than AdamW in the same time?

A causal model of size mini (V 8,192, 16 x 128 tokens a step) learns real text on one thread. First
both take turns for the time a step takes; then each trains for as many steps as that allows in the
given minutes, at several rates and two seeds. Equal time is thus made of steps: other work on the
machine cannot favour one. Without a file, the text is the corpus `imdb-25k`. Cost: 12 times the
minutes.

    .venv/bin/python benchmarks/optimizers.py [--text FILE] [--minutes 2] [--json FILE]
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regraft.config import Settings, resolve
from regraft.data import Batch, fetch, read_documents, train_tokenizer
from regraft.models import build_language_model
from regraft.runtime import environment, seeded
from regraft.training import TrainState, build_state, steps
from regraft.training.objectives import causal, readings

BATCH, LENGTH, VOCABULARY = 16, 128, 8192
VALID_TOKENS = 50_000
RATES = (2e-3, 4e-3, 8e-3)
SEEDS = (0, 1)
OPTIMIZERS = ("adamw", "muon")
PACE_STEPS = 10
CORPUS = "imdb-25k"


class StreamOfTokens:
    """One array of tokens, cut into full rows."""

    def __init__(self, ids: np.ndarray) -> None:
        self.ids = ids
        self.lengths = np.full((len(ids) - 1) // LENGTH, LENGTH)

    def batch(self, numbers: np.ndarray) -> Batch:
        """Rows of equal length."""
        places = numbers[:, None] * LENGTH + np.arange(LENGTH + 1)
        rows = torch.from_numpy(self.ids[places])
        ids = rows[:, :-1]
        return Batch(ids, torch.ones_like(ids, dtype=torch.bool), rows[:, 1:])


def read_tokens(path: Path | None, *, settings: Settings, max_documents: int) -> np.ndarray:
    """The first documents of a file, in the tokens of a tokenizer trained on them."""
    source = path or next(iter(fetch(CORPUS).files.values()))
    texts = []
    for document in read_documents([source], data=settings.data):
        texts.append(document.text)
        if len(texts) == max_documents:
            break
    tokenizer = train_tokenizer(texts, settings=settings.tokenizer)
    rows = [[tokenizer.start_id, *ids, tokenizer.end_id] for ids in tokenizer.encode_batch(texts)]
    return np.concatenate([np.array(row, dtype=np.int64) for row in rows])


def settings_of(optimizer: str, *, lr: float, seed: int, num_steps: int) -> Settings:
    """The modern preset, with what the comparison changes."""
    return resolve(
        "pretrain",
        preset="modern",
        size="mini",
        overrides={
            "objective.kind": "causal",
            "tokenizer.size": VOCABULARY,
            "train.optimizer": optimizer,
            "train.lr": lr,
            "train.seed": seed,
            "train.steps": num_steps,
            "train.batch_size": BATCH,
        },
    )


def new_state(settings: Settings, *, rows: StreamOfTokens) -> TrainState:
    """A new model: equal seeds give equal weights."""
    with seeded(settings.train.seed, stream="weights"):
        model = build_language_model(settings.model, vocab_size=VOCABULARY)
    return build_state(model, settings=settings.train, num_rows=len(rows.lengths))


def seconds_per_step(rows: StreamOfTokens) -> dict[str, float]:
    """Both optimisers in turn, step by step: each one's fastest step."""
    loops = {}
    for name in OPTIMIZERS:
        settings = settings_of(name, lr=1e-3, seed=0, num_steps=PACE_STEPS + 1)
        state = new_state(settings, rows=rows)
        loops[name] = steps(state, rows=rows, objective=causal, settings=settings.train)
    seconds = [
        {name: next(loop).seconds for name, loop in loops.items()} for _ in range(PACE_STEPS)
    ]
    return {name: min(turn[name] for turn in seconds) for name in OPTIMIZERS}


def valid_loss(settings: Settings, *, rows: StreamOfTokens, valid_rows: StreamOfTokens) -> float:
    """Train to the end; nats a token on text that was not trained on."""
    state = new_state(settings, rows=rows)
    for _ in steps(state, rows=rows, objective=causal, settings=settings.train):
        pass
    found = readings(state.model, valid_rows, objective=causal, max_tokens=VALID_TOKENS)
    return found["loss"]


def main() -> None:
    """Measure the pace, then train every optimiser at every rate with every seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, metavar="FILE", help="documents, one a line")
    parser.add_argument("--documents", type=int, default=60_000, help="how many of them to read")
    parser.add_argument("--minutes", type=float, default=2.0, help="training time of one model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them into FILE.png")
    arguments = parser.parse_args()
    # Two threads that other work keeps waiting would measure that work.
    torch.set_num_threads(1)
    settings = settings_of("adamw", lr=1e-3, seed=0, num_steps=1)
    ids = read_tokens(arguments.text, settings=settings, max_documents=arguments.documents)
    rows, valid_rows = StreamOfTokens(ids[:-VALID_TOKENS]), StreamOfTokens(ids[-VALID_TOKENS:])
    pace = seconds_per_step(rows)
    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "environment": environment(),
        "minutes": arguments.minutes,
        "seconds_per_step": pace,
        "valid_loss": {name: {} for name in OPTIMIZERS},
    }
    print(f"seconds a step: adamw {pace['adamw']:.3f}, muon {pace['muon']:.3f}")
    for name in OPTIMIZERS:
        num_steps = int(arguments.minutes * 60 / pace[name])
        for lr in RATES:
            losses = []
            for seed in SEEDS:
                settings = settings_of(name, lr=lr, seed=seed, num_steps=num_steps)
                losses.append(valid_loss(settings, rows=rows, valid_rows=valid_rows))
            result["valid_loss"][name][f"{lr:g}"] = losses
            shown = ", ".join(f"{loss:.3f}" for loss in losses)
            print(f"{name:6} lr {lr:<6g} {num_steps:5} steps   valid loss by seed: {shown}")
    best = {
        name: min(float(np.mean(losses)) for losses in by_rate.values())
        for name, by_rate in result["valid_loss"].items()
    }
    print(f"best mean: adamw {best['adamw']:.3f}, muon {best['muon']:.3f} nats a token")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if arguments.plot:
        draw(result, path=arguments.plot)


def draw(result: dict[str, Any], *, path: Path) -> None:
    """Loss by rate, a line an optimiser, a dot a seed."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name, color in zip(OPTIMIZERS, ("#8a8d94", "#2f6f4f"), strict=True):
        losses = result["valid_loss"][name]
        rates = [float(rate) for rate in losses]
        axes.plot(rates, [np.mean(pair) for pair in losses.values()], color=color, label=name)
        for rate, pair in zip(rates, losses.values(), strict=True):
            axes.plot([rate] * len(pair), pair, "o", color=color, markersize=4)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("validation loss (nats a token)")
    title = f"{result['minutes']:g} minutes of training each"
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
