"""The process of the studio: address, session, start and shutdown."""

import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import uvicorn
from jaxtyping import Float

from regraft.apps.serve.connections import limited_server, quiet_signals
from regraft.apps.serve.server import bound_socket
from regraft.apps.studio.app import LIMITS, Studio, build_app
from regraft.apps.studio.labelfile import COLUMNS, LabelFile
from regraft.apps.studio.labelling import Session, Vectors, checked_classes
from regraft.apps.studio.models import Models
from regraft.apps.studio.runs import RunsFolder
from regraft.classifiers import document_vectors, fit_space
from regraft.config import DataSettings, resolve
from regraft.data import read_documents
from regraft.errors import ConfigError
from regraft.runtime import SILENT, Progress
from regraft.training import load_run

_HOST = "127.0.0.1"


def studio(
    folder: Path,
    *,
    port: int = 8420,
    opens_browser: bool = True,
    text: Path | None = None,
    classes: Sequence[str] = (),
    out: Path | None = None,
    base: Path | None = None,
    data: DataSettings | None = None,
    progress: Progress = SILENT,
) -> None:
    """Serve the page until SIGTERM or Ctrl-C. `data` are the settings for reading the texts."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"{folder} is no folder.",
            "The studio shows the runs in a folder.",
            remedy="Give the folder that your --out options point into, such as runs.",
        )
    with bound_socket(_HOST, port, has_key=False) as listener:
        session = None
        if text is not None:
            session = build_session(text, classes=classes, out=out, base=base, data=data)
        listener.listen()
        address = f"http://{_HOST}:{listener.getsockname()[1]}"
        server = build_server(Studio(RunsFolder(folder.resolve()), Models(), session))
        if not folder.exists():
            progress.say(f"There is no folder {folder} yet; runs appear when something is in it.")
        progress.say(f"The studio is on {address}; Ctrl-C stops it.")
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
    classes: Sequence[str],
    out: Path | None,
    base: Path | None,
    data: DataSettings | None = None,
) -> Session:
    """The texts of a file, the labels given before, and the vectors to learn from.

    All that may be refused is looked at before a file of labels is begun.
    """
    data = data or resolve("pretrain").data
    documents = list(read_documents([text], data=data))
    vectors = _latent_vectors if base is None else _base_vectors(base)
    if classes:
        checked_classes(classes)
    file = LabelFile(out or text.with_name(f"{text.name.partition('.')[0]}-labels.csv"))
    try:
        return Session(
            documents,
            file=file,
            vectors=vectors,
            classes=classes,
            text_flags=fit_text_flags(text, data),
        )
    except BaseException:
        file.close()
        raise


def fit_text_flags(text: Path, data: DataSettings) -> list[str]:
    """By which `regraft fit` reads these texts, and the file of labels as well.

    It reads both files in one way. Labels are written as UTF-8 with a column `text`: where the
    texts are not, there are no such flags.
    """
    is_utf8 = data.encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")
    if not is_utf8 or data.text_column != COLUMNS[0]:
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
