"""Tiny blends: folders of `regraft fit` with four bases, made once a session, and one of none."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from regraft.classifiers.base_table import FoldedModel, FoldedSpace, row_index
from regraft.classifiers.blend import Blend
from regraft.classifiers.fitting import fit
from regraft.classifiers.logistic import fit_in_space
from regraft.classifiers.tfidf import fit_latent, fit_linear
from regraft.config.resolution import resolve
from regraft.data.synthetic import synthetic_reviews
from regraft.data.text.records import labels_of
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.training.run_folder import RunInfo

TINY_BAG = {
    "model.width": 16,
    "model.num_pairs": 200,
    "tokenizer.size": 400,
    "data.max_length": 64,
    "train.batch_size": 2,
}


def blend_dir(factory: pytest.TempPathFactory, *, num_labels: int) -> Path:
    """Of reviews that are good or bad; with three labels every third one is `so so`."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of all workers: one of them makes it
    folder = root / f"blend-{num_labels}"
    with FileLock(f"{folder}.lock"):
        if not (folder / "run" / "run.json").exists():
            _make_blend(folder, num_labels=num_labels)
    return folder / "run"


def _make_blend(folder: Path, *, num_labels: int) -> None:
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


def light_blend(num_labels: int = 2) -> Blend:
    """Members that count words, one with a table of random rows: read without torch."""
    reviews = synthetic_reviews(num_documents=90, seed=3)
    examples = [
        replace(review, label=review.label if num_labels == 2 or row % 3 else "so so")
        for row, review in enumerate(reviews)
    ]
    labels = labels_of(examples)
    weights = {"linear": 0.5, "latent": 0.3, "features": 0.2}
    result = {
        "labels": list(labels.names),
        "weights": weights,
        "temperature": 1.25,
        "abstain_below": None,
        "thresholds": [],
        "priors": [],
    }
    settings = resolve("pretrain", preset="bag", overrides=TINY_BAG)
    texts = [review.text for review in reviews]
    tokenizer = train_tokenizer(texts, settings=settings.tokenizer)
    space = random_space(tokenizer, max_length=settings.data.max_length)
    return Blend(
        info=RunInfo(kind="blend", status="complete", labels=labels.names, result=result),
        settings=settings,
        tokenizer=tokenizer,
        by_name={
            "linear": fit_linear(examples, None, labels=labels),
            "latent": fit_latent(examples, None, labels=labels, texts=texts),
            "features": FoldedModel(fit_in_space(space, examples, None, labels=labels), space),
        },
    )


def random_space(tokenizer: Tokenizer, *, max_length: int) -> FoldedSpace:
    """A row for every token, none for pairs."""
    index = row_index(
        tokenizer,
        token_ids=np.arange(tokenizer.vocab_size, dtype=np.int32),
        pair_keys=np.zeros(0, dtype=np.int64),
        max_length=max_length,
    )
    table_RK = np.random.default_rng(5).integers(-127, 128, (index.num_rows, 24)).astype(np.int8)
    return FoldedSpace(tokenizer, index, table_RK, np.full(index.num_rows, 0.01, dtype=np.float32))
