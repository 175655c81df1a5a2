"""Tokens per second of causal pre-training: regraft against the lab as its notebooks write it.

Both have the lab's shape (V 50,001, d 200, 4 layers, 2 heads), the same batch and the same dropout,
and take turns, so that whatever else the machine does falls on both. Prints peer, ours, the median
ratio with its spread, and both as a share of the arithmetic this machine shows in one large matrix
product. Cost: about two minutes on two cores.

    .venv/bin/python benchmarks/pretraining.py [--rounds 5] [--vocab 50001] [--json FILE]
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from regraft.batches import Batch
from regraft.config import ModelSettings, resolve
from regraft.heads import build_language_model
from regraft.ledger import ledger
from regraft.model import sinusoidal_positions, square_mask
from regraft.objectives import causal
from regraft.optim import build_optimizer

BATCH, LENGTH = 8, 128


class PlainLab(nn.Module):
    """torch's own encoder with scores over the whole vocabulary at every position."""

    def __init__(self, settings: ModelSettings, vocab_size: int) -> None:
        super().__init__()
        width = settings.width
        self.encoder = nn.Embedding(vocab_size, width)
        layer = nn.TransformerEncoderLayer(width, settings.num_heads, width, settings.dropout)
        self.layers = nn.TransformerEncoder(layer, settings.num_layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, vocab_size)
        self.dropout = nn.Dropout(settings.dropout)
        self.register_buffer("positions", sinusoidal_positions(LENGTH, width=width).unsqueeze(1))
        mask = torch.zeros(LENGTH, LENGTH).masked_fill(~square_mask(LENGTH), -math.inf)
        self.register_buffer("mask", mask)

    def forward(self, ids_TB: torch.Tensor) -> torch.Tensor:
        x = self.encoder(ids_TB) * math.sqrt(self.encoder.embedding_dim) + self.positions
        return self.decoder(self.layers(self.dropout(x), self.mask))


def peer_step(settings: ModelSettings, vocab_size: int) -> Callable[[torch.Tensor], None]:
    """One training step of the plain model: full scores, cross-entropy, Adam."""
    model = PlainLab(settings, vocab_size).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(rows: torch.Tensor) -> None:
        scores = model(rows[:, :-1].T)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].T.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def our_step(settings: ModelSettings, vocab_size: int) -> Callable[[torch.Tensor], None]:
    """One training step of regraft, as the trainer takes it."""
    model = build_language_model(settings, vocab_size=vocab_size).train()
    optimizer = build_optimizer(model, settings=resolve("finetune", preset="lab").train)

    def step(rows: torch.Tensor) -> None:
        ids = rows[:, :-1]
        loss = causal(model, Batch(ids, torch.ones_like(ids, dtype=torch.bool), rows[:, 1:]))
        optimizer.zero_grad(set_to_none=True)
        (loss.total / loss.count).backward()
        optimizer.step()

    return step


def matrix_speed() -> float:
    """Floating-point operations per second of one comfortable product."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    a @ b
    start = time.perf_counter()
    for _ in range(3):
        a @ b
    return 3 * 2 * 2048**3 / (time.perf_counter() - start)


def main() -> None:
    """Take turns, print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=50_001)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    settings = resolve("pretrain", preset="lab").model
    steps = {
        "plain nn.TransformerEncoder": peer_step(settings, arguments.vocab),
        "regraft": our_step(settings, arguments.vocab),
    }
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    limits = []
    for turn in range(arguments.rounds + 1):
        rows = torch.randint(arguments.vocab, (BATCH, LENGTH + 1))
        limits.append(matrix_speed())
        for name, step in steps.items():
            start = time.perf_counter()
            step(rows)
            if turn:  # the first turn warms up
                speeds[name].append(BATCH * LENGTH / (time.perf_counter() - start))
    peer, ours = (np.array(speeds[name]) for name in steps)
    ratios = ours / peer
    counted = ledger(settings, vocab_size=arguments.vocab, max_length=LENGTH, batch_size=BATCH)
    limit = float(np.median(limits)) / counted.flops_forward_backward
    result = {
        "vocab_size": arguments.vocab,
        "peer_tokens_per_second": float(np.median(peer)),
        "our_tokens_per_second": float(np.median(ours)),
        "ratio": float(np.median(ratios)),
        "ratio_low": float(ratios.min()),
        "ratio_high": float(ratios.max()),
        "our_share_of_limit": float(np.median(ours)) / limit,
        "peer_share_of_limit": float(np.median(peer)) / limit,
    }
    for key, value in result.items():
        print(f"{key:24} {value:,.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
