"""Folders of `regraft fit` with four tiny bases, made once a session: for reading only."""

import json
from pathlib import Path

import pytest

from regraft.classifiers.fitting import fit
from regraft.config.resolution import resolve
from regraft.data.synthetic import synthetic_reviews

TINY_BAG = {
    "model.width": 16,
    "model.num_pairs": 200,
    "tokenizer.size": 400,
    "data.max_length": 64,
    "train.batch_size": 2,
}


def blend_dir(factory: pytest.TempPathFactory, *, num_labels: int) -> Path:
    """Of reviews that are good or bad; with three labels every third one is `so so`."""
    folder = factory.getbasetemp() / f"blend-{num_labels}"
    if not folder.exists():
        folder.mkdir()
        texts = synthetic_reviews(num_documents=200, seed=1)
        lines = [" ".join(review.text.split()) + "\n" for review in texts]
        (folder / "text.txt").write_text("".join(lines), encoding="utf-8")
        rows = [
            {"text": review.text, "label": review.label if num_labels == 2 or row % 3 else "so so"}
            for row, review in enumerate(synthetic_reviews(num_documents=45, seed=2))
        ]
        train = folder / "train.jsonl"
        train.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        settings = resolve("pretrain", preset="bag", overrides=TINY_BAG)
        out = folder / "run"
        fit([folder / "text.txt"], train=train, out=out, settings=settings, bases=2)
    return folder / "run"
