"""The process of the studio: address, session, start and shutdown."""

import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import uvicorn
from jaxtyping import Float

from regraft.apps.serve.connections import limited_server, quiet_signals
from regraft.apps.serve.server import bound_socket
from regraft.apps.studio.app import LIMITS, Studio, build_app
from regraft.apps.studio.fit_process import TRAINING_MINUTES, Trainer
from regraft.apps.studio.labelfile import COLUMNS, LabelFile
from regraft.apps.studio.labelling import Place, Session, Vectors, checked_classes
from regraft.apps.studio.models import Models
from regraft.apps.studio.runs import RunsFolder
from regraft.classifiers import document_vectors, fit_space, load_classifier
from regraft.config import DataSettings, resolve
from regraft.data import Document, read_table_rows
from regraft.errors import ConfigError
from regraft.runtime import SILENT, Progress
from regraft.training import load_run

_HOST = "127.0.0.1"


def studio(
    folder: Path,
    *,
    port: int = 8420,
    opens_browser: bool = True,
    labelling: Callable[[], Session] | None = None,
    progress: Progress = SILENT,
) -> None:
    """Serve the page until SIGTERM or Ctrl-C; `labelling` builds the session, if there is one."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"{folder} is no folder.",
            "The studio shows the runs in a folder.",
            remedy="Give the folder that your --out options point into, such as runs.",
        )
    with bound_socket(_HOST, port, has_key=False) as listener:
        session = None if labelling is None else labelling()
        listener.listen()
        address = f"http://{_HOST}:{listener.getsockname()[1]}"
        server = build_server(Studio(RunsFolder(folder.resolve()), Models(), session))
        if not folder.exists():
            progress.say(f"There is no folder {folder} yet; runs appear when something is in it.")
        progress.say(f"The studio is open; Ctrl-C stops it:\n  {address}")
        if opens_browser:
            # Later: a fast browser would find no server yet.
            threading.Timer(0.5, webbrowser.open, [address]).start()
        with quiet_signals():
            server.run(sockets=[listener])
    progress.say("Stopped. All labels are in their file." if session else "Stopped.")


def build_server(parts: Studio) -> uvicorn.Server:
    """All parts put together, not yet running."""
    return limited_server(build_app(parts), limits=LIMITS, stop_seconds=5)


def build_session(
    text: Path,
    *,
    folder: Path = Path("runs"),
    classes: Sequence[str] = (),
    out: Path | None = None,
    base: Path | None = None,
    run: Path | None = None,
    minutes: float | None = None,
    data: DataSettings | None = None,
) -> Session:
    """The texts of a file, the labels given before, the vectors to learn from, and how to train.

    Trainings go into `folder`. `run` is a classifier whose predictions are shown until there is
    one. All that may be refused is looked at before a file of labels is begun.
    """
    data = data or resolve("pretrain").data
    documents, cells = _read(text, data)
    vectors = _latent_vectors if base is None else _base_vectors(base)
    if run is not None and not classes:
        classes = load_classifier(run).labels
    if classes:
        checked_classes(classes)
    more = list(dict.fromkeys(name for row in cells.values() for name in row))
    path = out or text.with_name(f"{text.name.partition('.')[0]}-labels.csv")
    file = LabelFile(path, text_column=_text_column(data), more=more)
    flags = fit_text_flags(text, data)
    columns = ["--text-column", _text_column(data)]
    trainer = Trainer(
        folder,
        labels_path=path,
        flags=flags,
        column_flags=[] if columns[1] == "text" else columns,
        minutes=TRAINING_MINUTES if minutes is None else minutes,
        first_run=run,
    )
    try:
        return Session(
            documents,
            file=file,
            vectors=vectors,
            cells=cells,
            classes=classes,
            trainer=trainer if flags else None,
        )
    except BaseException:
        file.close()
        raise


def _read(text: Path, data: DataSettings) -> tuple[list[Document], dict[Place, dict[str, str]]]:
    """The texts, and what else is in their rows; a column that is named as one of ours has
    another name."""
    documents: list[Document] = []
    cells: dict[Place, dict[str, str]] = {}
    for row in read_table_rows([text], data=data):
        documents.append(Document(row.text, row.source, row.row, row.pair))
        others = {
            f"source_{name}" if name in COLUMNS else name: "" if value is None else str(value)
            for name, value in (row.cells or {}).items()
            if name != data.text_column
        }
        if others:
            cells[row.source, row.row] = others
    return documents, cells


def _text_column(data: DataSettings) -> str:
    """The text column of the labels: that of the texts, so that fit reads both in one way."""
    return "text" if data.text_column in COLUMNS else data.text_column


def fit_text_flags(text: Path, data: DataSettings) -> list[str]:
    """The flags by which `regraft fit` reads these texts.

    It reads all files in one way: empty where that cannot be both theirs and that of the labels,
    which are UTF-8.
    """
    is_utf8 = data.encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")
    if not is_utf8 or data.text_column != _text_column(data):
        return []
    is_default = data.documents == resolve("pretrain").data.documents
    return ["--text", str(text), *([] if is_default else ["--documents", data.documents])]


def _latent_vectors(texts: Sequence[str]) -> Float[np.ndarray, "N D"]:
    """Where the texts lie in a latent space of themselves: no base and no label is needed."""
    return fit_space(texts).vectors(texts)


def _base_vectors(base: Path) -> Vectors:
    run = load_run(base)

    def vectors(texts: Sequence[str]) -> Float[np.ndarray, "N D"]:
        return document_vectors([run], texts)

    return vectors
