"""A TF-IDF classifier of good and bad reviews, saved once a session: for reading only."""

from pathlib import Path

import pytest
from conftest import make_records

from regraft.classifiers.tfidf import fit_linear
from regraft.data.text.records import Labels


def linear_dir(factory: pytest.TempPathFactory) -> Path:
    """Its folder; it knows the labels negative and positive."""
    folder = factory.getbasetemp() / "linear"
    if not folder.exists():
        labels = Labels(("negative", "positive"))
        model = fit_linear(make_records(40, seed=1), make_records(20, seed=2), labels=labels)
        model.save(folder)
    return folder
