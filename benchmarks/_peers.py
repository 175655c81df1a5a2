"""The peers of the benchmarks, each as the turn of a contender.

The plain lab is torch's own encoder as the founding notebooks use it; the others are the Trainer of
transformers as its documentation uses it. Nothing is slowed down or omitted.
"""

import math
import tempfile
import time
from typing import Any

import torch
from _turns import Turn
from torch import nn

from regraft.config import ModelSettings
from regraft.models import sinusoidal_positions, square_mask


class PlainLab(nn.Module):
    """torch's own encoder with scores over the whole vocabulary at every position."""

    def __init__(self, settings: ModelSettings, *, vocab_size: int, length: int) -> None:
        super().__init__()
        width = settings.width
        self.encoder = nn.Embedding(vocab_size, width)
        layer = nn.TransformerEncoderLayer(width, settings.num_heads, width, settings.dropout)
        self.layers = nn.TransformerEncoder(layer, settings.num_layers, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, vocab_size)
        self.dropout = nn.Dropout(settings.dropout)
        self.register_buffer("positions", sinusoidal_positions(length, width=width).unsqueeze(1))
        mask = torch.zeros(length, length).masked_fill(~square_mask(length), -math.inf)
        self.register_buffer("mask", mask)

    def forward(self, ids_TB: torch.Tensor) -> torch.Tensor:
        x = self.encoder(ids_TB) * math.sqrt(self.encoder.embedding_dim) + self.positions
        return self.decoder(self.layers(self.dropout(x), self.mask))


def plain_lab(
    settings: ModelSettings, *, vocab_size: int, batch_size: int, length: int, num_steps: int
) -> Turn:
    """Pre-training steps of the plain lab: full scores, cross-entropy, Adam. Units are tokens."""
    model = PlainLab(settings, vocab_size=vocab_size, length=length).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def turn() -> tuple[float, float]:
        start = time.perf_counter()
        for _ in range(num_steps):
            rows = torch.randint(vocab_size, (batch_size, length + 1))
            scores = model(rows[:, :-1].T)
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].T.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return num_steps * batch_size * length, time.perf_counter() - start

    return turn


def gpt2_trainer(
    settings: ModelSettings, *, vocab_size: int, batch_size: int, length: int, num_steps: int
) -> Turn:
    """Pre-training steps of a GPT-2 of the same shape under transformers' Trainer."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=vocab_size,
        n_positions=length,
        n_embd=settings.width,
        n_layer=settings.num_layers,
        n_head=settings.num_heads,
        n_inner=settings.width,
        resid_pdrop=settings.dropout,
        embd_pdrop=settings.dropout,
        attn_pdrop=settings.dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    rows = torch.randint(vocab_size, ((num_steps + 1) * batch_size, length))
    data = [{"input_ids": row, "labels": row} for row in rows]
    return _trainer_turn(
        transformers.GPT2LMHeadModel(config),
        data=data,
        units_per_step=batch_size * length,
        batch_size=batch_size,
        num_steps=num_steps,
    )


def masked_trainer(
    settings: ModelSettings,
    *,
    vocab_size: int,
    mask_rate: float,
    batch_size: int,
    length: int,
    num_steps: int,
) -> Turn:
    """Masked pre-training steps of a BERT of the same shape under transformers' Trainer."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=vocab_size,
        hidden_size=settings.width,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        intermediate_size=settings.feedforward_width,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.attention_dropout,
        max_position_embeddings=settings.max_positions,
    )
    rows = torch.randint(vocab_size, ((num_steps + 1) * batch_size, length))
    is_hidden = torch.rand(rows.shape) < mask_rate
    labels = rows.where(is_hidden, -100)
    ids = rows.masked_fill(is_hidden, 4)
    data = [{"input_ids": i, "labels": t} for i, t in zip(ids, labels, strict=True)]
    return _trainer_turn(
        transformers.BertForMaskedLM(config),
        data=data,
        units_per_step=batch_size * length,
        batch_size=batch_size,
        num_steps=num_steps,
    )


def bert_trainer(
    settings: ModelSettings,
    *,
    vocab_size: int,
    pad_id: int,
    rows: list[list[int]],
    targets: list[int],
    batch_size: int,
    num_steps: int,
) -> Turn:
    """Fine-tuning steps of a BERT of the same shape, padded to the longest row of a batch."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=vocab_size,
        hidden_size=settings.width,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        intermediate_size=settings.width,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.attention_dropout,
        max_position_embeddings=max(map(len, rows)),
        num_labels=len(set(targets)),
        pad_token_id=pad_id,
    )

    def collate(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = [torch.tensor(example["ids"]) for example in examples]
        real = [torch.ones(len(row), dtype=torch.int64) for row in ids]
        pad = nn.utils.rnn.pad_sequence
        return {
            "input_ids": pad(ids, batch_first=True, padding_value=pad_id),
            "attention_mask": pad(real, batch_first=True),
            "labels": torch.tensor([example["label"] for example in examples]),
        }

    data = [{"ids": row, "label": target} for row, target in zip(rows, targets, strict=True)]
    return _trainer_turn(
        transformers.BertForSequenceClassification(config),
        data=data,
        units_per_step=batch_size,
        batch_size=batch_size,
        num_steps=num_steps,
        collate=collate,
    )


def _trainer_turn(
    model: nn.Module,
    *,
    data: list[dict[str, Any]],
    units_per_step: int,
    batch_size: int,
    num_steps: int,
    collate: Any = None,
) -> Turn:
    """Timed from the end of a first step, so that the Trainer's set-up does not count."""
    import transformers

    transformers.logging.set_verbosity_error()

    class Clock(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.step_ends: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.step_ends.append(time.perf_counter())

    numbers = iter(range(10**6))

    def turn() -> tuple[float, float]:
        clock = Clock()
        with tempfile.TemporaryDirectory() as folder:
            options = transformers.TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=batch_size,
                max_steps=num_steps + 1,
                data_seed=next(numbers),
                use_cpu=True,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                remove_unused_columns=False,
            )
            trainer = transformers.Trainer(
                model, options, train_dataset=data, data_collator=collate, callbacks=[clock]
            )
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
        return num_steps * units_per_step, clock.step_ends[-1] - clock.step_ends[0]

    return turn
