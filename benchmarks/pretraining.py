"""Causal pre-training in the lab's shape: tokens a second and peak memory, regraft and its peers.

V 50,001, d 200, 4 layers, 2 heads, dropout 0.5, 16 rows of 256 tokens a step. The peers are torch's
own encoder with full scores and Adam, and a GPT-2 of that shape under transformers' Trainer. All
draw the same dropout, on attention weights, too; ours runs once more without that last one, which
is how regraft trains unless told otherwise. Cost: six minutes on two cores.

    .venv/bin/python benchmarks/pretraining.py [--vocab 50001] [--json FILE] [--plot FILE]
"""

import argparse
import dataclasses
from functools import partial

import numpy as np
import torch
from _peers import gpt2_trainer, plain_lab
from _turns import Contender, Turn, add_arguments, has_transformers, publish, take_turns

from regraft.batches import Batch
from regraft.config import ModelSettings, resolve
from regraft.heads import build_language_model
from regraft.ledger import ledger
from regraft.objectives import causal
from regraft.runtime import keep_memory
from regraft.trainer import build_state, steps

BATCH, LENGTH, STEPS = 16, 256, 2


class RandomRows:
    """As many rows as anyone asks for; speed does not depend on what they say."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.lengths = np.full(1_000_000, LENGTH)

    def batch(self, numbers: np.ndarray) -> Batch:
        rows = torch.randint(self.vocab_size, (len(numbers), LENGTH + 1))
        ids = rows[:, :-1]
        return Batch(ids, torch.ones_like(ids, dtype=torch.bool), rows[:, 1:])


def regraft_turn(model: ModelSettings, *, vocab_size: int) -> Turn:
    """Steps of regraft's own loop."""
    keep_memory()
    train = resolve("pretrain", preset="lab", overrides={"train.batch_size": BATCH}).train
    rows = RandomRows(vocab_size)
    state = build_state(
        build_language_model(model, vocab_size=vocab_size),
        settings=train,
        num_rows=len(rows.lengths),
    )
    loop = steps(state, rows=rows, objective=causal, settings=train)

    def turn() -> tuple[float, float]:
        records = [next(loop) for _ in range(STEPS)]
        return sum(r.num_tokens for r in records), sum(r.seconds for r in records)

    return turn


def main() -> None:
    """Take turns and publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=50_001)
    add_arguments(parser)
    arguments = parser.parse_args()
    lab = resolve("pretrain", preset="lab").model
    shape = {
        "vocab_size": arguments.vocab,
        "batch_size": BATCH,
        "length": LENGTH,
        "num_steps": STEPS,
    }
    contenders = [
        Contender("nn.TransformerEncoder, full scores, Adam", partial(plain_lab, lab, **shape))
    ]
    if has_transformers():
        gpt2 = partial(gpt2_trainer, lab, **shape)
        contenders.append(Contender("transformers Trainer, GPT-2", gpt2, ("torch", "transformers")))
    fast = dataclasses.replace(lab, attention_dropout=0.0)
    for name, settings in {
        "regraft": lab,
        "regraft, attention weights not dropped": fast,
    }.items():
        build = partial(regraft_turn, settings, vocab_size=arguments.vocab)
        contenders.append(Contender(name, build))
    counted = ledger(lab, vocab_size=arguments.vocab, max_length=LENGTH, batch_size=BATCH)
    result = take_turns(
        contenders,
        title=f"Causal pre-training, lab shape, V = {arguments.vocab:,}, {BATCH} x {LENGTH} tokens",
        unit="tokens/s",
        rounds=arguments.rounds,
        flops_per_unit=counted.flops_forward_backward,
    )
    publish(result, arguments=arguments)


if __name__ == "__main__":
    main()
