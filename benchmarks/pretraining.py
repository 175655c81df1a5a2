"""Causal pre-training in the lab's shape: tokens a second and peak memory, regraft and its peers.

V 50,001, d 200, 4 layers, 2 heads, dropout 0.5, 16 rows of 256 tokens a step. The peers are torch's
own encoder with full scores and Adam, and a GPT-2 of that shape under transformers' Trainer. All
draw the same dropout, on attention weights, too; ours runs once more without that last one, which
is how regraft trains by default, and once with a sampled softmax. Cost: seven minutes on two cores.
With --text, both losses also train on that text for as many minutes each, and the exact validation
loss of both is printed.

    .venv/bin/python benchmarks/pretraining.py [--vocab 50001] [--json FILE] [--plot FILE]
        [--text FILE --tokenizer FOLDER --minutes 2]
"""

import argparse
import dataclasses
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from _peers import gpt2_trainer, plain_lab
from _turns import Contender, Turn, add_arguments, has_transformers, publish, take_turns

from regraft.config import ModelSettings, resolve
from regraft.data import Batch
from regraft.models import build_language_model, ledger
from regraft.runtime import keep_memory
from regraft.training import build_state, pretrain, steps
from regraft.training.objectives import causal, sampled_causal
from regraft.training.sampled_softmax import build_sampler

BATCH, LENGTH, STEPS = 16, 256, 2
SAMPLED_TOKENS = 1024


class RandomRows:
    """As many rows as anyone asks for; speed does not depend on what they say."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.lengths = np.full(1_000_000, LENGTH)

    def batch(self, numbers: np.ndarray) -> Batch:
        rows = torch.randint(self.vocab_size, (len(numbers), LENGTH + 1))
        ids = rows[:, :-1]
        return Batch(ids, torch.ones_like(ids, dtype=torch.bool), rows[:, 1:])


def regraft_turn(model: ModelSettings, *, vocab_size: int, num_sampled: int | None = None) -> Turn:
    """Steps of regraft's own loop; with `num_sampled` against so many tokens of the vocabulary."""
    keep_memory()
    train = resolve("pretrain", preset="lab", overrides={"train.batch_size": BATCH}).train
    rows = RandomRows(vocab_size)
    state = build_state(
        build_language_model(model, vocab_size=vocab_size),
        settings=train,
        num_rows=len(rows.lengths),
    )
    objective = causal
    if num_sampled is not None:
        counts_V = np.ones(vocab_size, dtype=np.int64)
        objective = sampled_causal(build_sampler(counts_V, num_tokens=num_sampled))
    loop = steps(state, rows=rows, objective=objective, settings=train)

    def turn() -> tuple[float, float]:
        records = [next(loop) for _ in range(STEPS)]
        return sum(r.num_tokens for r in records), sum(r.seconds for r in records)

    return turn


def equal_time(text: Path, *, tokenizer: Path, minutes: float) -> None:
    """Print the exact validation loss after equal time, trained by the exact loss and sampled."""
    for name, num_sampled in (("exact", None), ("sampled", SAMPLED_TOKENS)):
        overrides = {
            "objective.stages": "language",
            "objective.sampled_tokens": "none" if num_sampled is None else num_sampled,
            "data.max_length": 128,
            "train.minutes": minutes,
        }
        settings = resolve("pretrain", preset="lab", overrides=overrides)
        with tempfile.TemporaryDirectory() as folder:
            result = pretrain(
                [text], out=Path(folder) / "run", settings=settings, tokenizer_path=tokenizer
            )
        print(
            f"{name}: {result.num_tokens:,} tokens in {minutes:g} min, valid loss "
            f"{result.valid_loss:.3f} nats"
        )


def main() -> None:
    """Take turns and publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=50_001)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--minutes", type=float, default=2.0)
    add_arguments(parser)
    arguments = parser.parse_args()
    lab = resolve("finetune", preset="lab").model  # with the lab's own dropout
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
    sampled = partial(regraft_turn, fast, vocab_size=arguments.vocab, num_sampled=SAMPLED_TOKENS)
    contenders.append(Contender(f"regraft, the same, {SAMPLED_TOKENS:,} tokens sampled", sampled))
    counted = ledger(lab, vocab_size=arguments.vocab, max_length=LENGTH, batch_size=BATCH)
    result = take_turns(
        contenders,
        title=f"Causal pre-training, lab shape, V = {arguments.vocab:,}, {BATCH} x {LENGTH} tokens",
        unit="tokens/s",
        rounds=arguments.rounds,
        flops_per_unit=counted.flops_forward_backward,
    )
    publish(result, arguments=arguments)
    if arguments.text is not None:
        equal_time(arguments.text, tokenizer=arguments.tokenizer, minutes=arguments.minutes)


if __name__ == "__main__":
    main()
