"""Masked pre-training: tokens per second, regraft against transformers' Trainer with a BERT.

The lab's size (d 200, 4 layers, 2 heads, feed-forward 200) as a BERT with tied embeddings, 15 % of
the tokens masked, dropout 0.1, 16 rows of 256 tokens a step. The peer gets its rows masked already;
regraft masks them during training. Both drop attention weights; ours runs once more without that,
which is how regraft trains by default. One table for a large vocabulary, one for a small one. Cost:
eight minutes on two cores.

    .venv/bin/python benchmarks/masked.py [--vocab 50001 8192] [--json FILE] [--plot FILE]
"""

import argparse
from functools import partial
from pathlib import Path

from _peers import masked_trainer
from _turns import Contender, Turn, add_arguments, has_transformers, publish, take_turns

from regraft.config import Settings, replace, resolve
from regraft.data import numbered_tokenizer
from regraft.models import build_language_model, ledger
from regraft.runtime import keep_memory
from regraft.training import build_objective, build_state, steps
from regraft.training.benchmark import random_rows

BATCH, LENGTH, STEPS = 16, 256, 4


def settings_for(vocab_size: int) -> Settings:
    """A BERT of the lab's size."""
    lab = resolve("pretrain", preset="lab").model
    return resolve(
        "pretrain",
        preset="bert",
        overrides={
            "objective.kind": "masked",
            "model.width": lab.width,
            "model.num_layers": lab.num_layers,
            "model.num_heads": lab.num_heads,
            "model.feedforward_width": lab.width,
            "model.dropout": 0.1,
            "model.attention_dropout": 0.1,
            "tokenizer.size": vocab_size,
            "data.max_length": LENGTH,
            "train.batch_size": BATCH,
            "train.epochs": 100_000,
        },
    )


def regraft_turn(settings: Settings) -> Turn:
    """Steps of regraft's own loop."""
    keep_memory()
    vocab_size = settings.tokenizer.size
    model = build_language_model(
        settings.model, vocab_size=vocab_size, objective=settings.objective
    )
    rows = random_rows(vocab_size, settings=settings)
    state = build_state(model, settings=settings.train, num_rows=len(rows.lengths))
    objective = build_objective(settings, tokenizer=numbered_tokenizer(vocab_size))
    loop = steps(state, rows=rows, objective=objective, settings=settings.train)

    def turn() -> tuple[float, float]:
        records = [next(loop) for _ in range(STEPS)]
        return sum(r.num_tokens for r in records), sum(r.seconds for r in records)

    return turn


def main() -> None:
    """Take turns and publish, one vocabulary after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, nargs="+", default=[50_001, 8192])
    add_arguments(parser)
    arguments = parser.parse_args()
    written = {name: getattr(arguments, name) for name in ("json", "plot")}
    for vocab_size in arguments.vocab:
        settings = settings_for(vocab_size)
        contenders = []
        if has_transformers():
            peer = partial(
                masked_trainer,
                settings.model,
                vocab_size=vocab_size,
                mask_rate=settings.objective.mask_rate,
                batch_size=BATCH,
                length=LENGTH,
                num_steps=STEPS,
            )
            contenders.append(
                Contender("transformers Trainer, BertForMaskedLM", peer, ("torch", "transformers"))
            )
        fast = replace(settings, "model", attention_dropout=0.0)
        for name, ours in {
            "regraft": settings,
            "regraft, attention weights not dropped": fast,
        }.items():
            contenders.append(Contender(name, partial(regraft_turn, ours)))
        counted = ledger(
            settings.model,
            vocab_size=vocab_size,
            objective=settings.objective,
            max_length=LENGTH,
            batch_size=BATCH,
        )
        result = take_turns(
            contenders,
            title=f"Masked pre-training, V = {vocab_size:,}, {BATCH} x {LENGTH} tokens",
            unit="tokens/s",
            rounds=arguments.rounds,
            flops_per_unit=counted.flops_forward_backward,
        )
        for name, path in written.items():
            setattr(arguments, name, _named(path, vocab_size))
        publish(result, arguments=arguments)


def _named(path: Path | None, vocab_size: int) -> Path | None:
    return path and path.with_stem(f"{path.stem}-{vocab_size}")


if __name__ == "__main__":
    main()
