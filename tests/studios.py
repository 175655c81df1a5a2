"""A studio in a thread of this process, for tests of its routes and of its page."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from conftest import make_examples
from servers import listening

from regraft.apps.studio.app import Studio
from regraft.apps.studio.fit_process import Trainer
from regraft.apps.studio.labelfile import LabelFile
from regraft.apps.studio.labelling import Session
from regraft.apps.studio.models import Models
from regraft.apps.studio.runs import RunsFolder
from regraft.apps.studio.server import build_server
from regraft.data.text.records import Document

CLASSES = ("negative", "positive")


@dataclass(frozen=True)
class Running:
    """A running studio, and a client to ask it."""

    client: httpx2.Client
    url: str

    def run(self, name: str) -> dict[str, Any]:
        """The row of a run."""
        rows = self.client.get("/api/runs").json()["runs"]
        return next(row for row in rows if row["name"] == name)

    def label(self, action: str, **body: Any) -> httpx2.Response:
        return self.client.post(f"/api/label/{action}", json=body)


@contextlib.contextmanager
def running(folder: Path, *, session: Session | None = None) -> Iterator[Running]:
    server = build_server(Studio(RunsFolder(folder), Models(), session))
    with listening(server) as served:
        yield Running(served.client, served.url)


def documents(num: int = 40) -> list[Document]:
    """Texts whose adjectives give their labels away."""
    examples = make_examples(num, seed=11)
    return [Document(text, "texts.txt", row) for row, (text, _) in enumerate(examples, start=1)]


def true_label(text: str) -> str:
    """The label of one of those texts."""
    return dict(make_examples(40, seed=11))[text]


def word_vectors(texts: list[str]) -> np.ndarray:
    """How often each word occurs."""
    words = sorted({word for text in texts for word in text.split()})
    return np.array([[text.split().count(word) for word in words] for text in texts], dtype=float)


def open_session(path: Path, *, classes: tuple[str, ...] = CLASSES) -> Session:
    """A session over `documents`, not yet learning."""
    return Session(
        documents(),
        file=LabelFile(path),
        vectors=word_vectors,
        classes=classes,
        trainer=Trainer(path.parent / "runs", labels_path=path, flags=("--text", "texts.txt")),
    )
