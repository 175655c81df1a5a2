"""Fine-tuning a classifier: reviews per second, regraft against transformers' Trainer.

Both read the same reviews, cut at 256 tokens, in batches of 16, into models of the lab's shape with
dropout 0.1 (d 200, 4 layers, 2 heads, V about 50,000), all weights trained. The peer is a BERT with
dynamic padding. Without a folder, the rows are random tokens of random lengths. Cost: four minutes
on two cores.

    .venv/bin/python benchmarks/finetuning.py [--data FOLDER] [--json FILE] [--plot FILE]

FOLDER holds train.jsonl and a tokenizer: tokenizer.json, or dict.txt with its SentencePiece model.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from _peers import bert_trainer
from _turns import Contender, Turn, add_arguments, has_transformers, publish, take_turns

from regraft.config import ModelSettings, resolve
from regraft.config.presets import LAB_VOCABULARY
from regraft.data import Batch, labels_of, load_examples, load_tokenizer
from regraft.models import build_classifier
from regraft.runtime import keep_memory
from regraft.training import build_state, classify, steps

BATCH, LENGTH, STEPS = 16, 256, 20


@dataclass(frozen=True)
class Reviews:
    """Rows of tokens with their classes, the same for every contender."""

    rows: list[list[int]]
    targets: list[int]
    vocab_size: int
    pad_id: int


def read_reviews(folder: Path) -> Reviews:
    """The training examples of a folder in its own tokens."""
    data = resolve("finetune", preset="lab").data
    examples = load_examples(folder / "train.jsonl", data=data)
    is_lab = not (folder / "tokenizer.json").exists()
    tokenizer = load_tokenizer(folder if is_lab else folder / "tokenizer.json")
    labels = labels_of(examples)
    texts = tokenizer.encode_batch([example.text for example in examples])
    return Reviews(
        rows=[[tokenizer.start_id, *ids][:LENGTH] for ids in texts],
        targets=[labels.target(example.label) for example in examples],
        vocab_size=tokenizer.vocab_size,
        pad_id=tokenizer.pad_id,
    )


def random_reviews() -> Reviews:
    """Random tokens; lengths spread as those of book reviews are."""
    generator = np.random.default_rng(0)
    lengths = generator.lognormal(mean=4.7, sigma=0.9, size=1600).clip(8, LENGTH).astype(int)
    rows = [generator.integers(4, LAB_VOCABULARY, length).tolist() for length in lengths]
    return Reviews(rows, generator.integers(0, 2, len(rows)).tolist(), LAB_VOCABULARY, 0)


class ReviewRows:
    """The reviews as regraft's loop reads them."""

    def __init__(self, reviews: Reviews) -> None:
        self.reviews = reviews
        self.lengths = np.array([len(row) for row in reviews.rows])

    def batch(self, numbers: np.ndarray) -> Batch:
        rows = [torch.tensor(self.reviews.rows[number]) for number in numbers]
        real = [torch.ones(len(row), dtype=torch.bool) for row in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        return Batch(
            pad(rows, batch_first=True, padding_value=self.reviews.pad_id),
            pad(real, batch_first=True),
            torch.tensor([self.reviews.targets[number] for number in numbers]),
        )


def regraft_turn(model: ModelSettings, *, reviews: Reviews) -> Turn:
    """Steps of regraft's own loop."""
    keep_memory()
    train = resolve(
        "finetune",
        preset="lab",
        overrides={
            "train.batch_size": BATCH,
            "train.optimizer": "adamw",
            "train.clip_norm": 1.0,
            "train.epochs": 1000,
        },
    ).train
    rows = ReviewRows(reviews)
    classifier = build_classifier(
        model, vocab_size=reviews.vocab_size, num_classes=2, pooling="mean"
    )
    state = build_state(classifier, settings=train, num_rows=len(rows.lengths))
    loop = steps(state, rows=rows, objective=classify(), settings=train)

    def turn() -> tuple[float, float]:
        return STEPS * BATCH, sum(next(loop).seconds for _ in range(STEPS))

    return turn


def main() -> None:
    """Take turns and publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="train.jsonl and a tokenizer")
    add_arguments(parser)
    arguments = parser.parse_args()
    reviews = read_reviews(arguments.data) if arguments.data else random_reviews()
    dropout = {"model.dropout": 0.1, "model.attention_dropout": 0.1}
    model = resolve("finetune", preset="lab", overrides=dropout).model
    contenders = []
    if has_transformers():
        build = partial(
            bert_trainer,
            model,
            vocab_size=reviews.vocab_size,
            pad_id=reviews.pad_id,
            rows=reviews.rows,
            targets=reviews.targets,
            batch_size=BATCH,
            num_steps=STEPS,
        )
        contenders.append(Contender("transformers Trainer, BERT", build, ("torch", "transformers")))
    contenders.append(Contender("regraft", partial(regraft_turn, model, reviews=reviews)))
    result = take_turns(
        contenders,
        title=f"Fine-tuning, lab shape, V = {reviews.vocab_size:,}, batches of {BATCH}",
        unit="reviews/s",
        rounds=arguments.rounds,
    )
    publish(result, arguments=arguments)


if __name__ == "__main__":
    main()
