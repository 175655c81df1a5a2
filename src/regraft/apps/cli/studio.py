"""`regraft studio`: a page over the run folders."""

import functools
from pathlib import Path
from typing import Annotated

import typer

from regraft.apps.cli import options, terminal
from regraft.apps.cli.options import flag, option, settings_from
from regraft.errors import ConfigError
from regraft.runtime import optional


class Labelling(options.Group):
    """How texts are labelled."""

    labels: Annotated[
        str | None, option("--labels", "The classes (default: the page asks for them).", "A,B,...")
    ] = None
    out: Annotated[
        Path | None, option("--out", "File of the labels (default: next to --text).", "FILE.csv")
    ] = None
    base: Annotated[
        Path | None,
        option(
            "--base", "Base whose embeddings are used (default: latent space of the texts).", "RUN"
        ),
    ] = None
    run: Annotated[
        Path | None,
        option(
            "--run",
            "Classifier of `regraft fit` that guesses labels; the first training updates it.",
            "RUN",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        option("--minutes", "Time budget of the first training in minutes (default 5).", "M"),
    ] = None


@options.grouped
def studio(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Folder of run folders.")
    ] = Path("runs"),
    text: Annotated[Path | None, option("--text", "Unlabelled texts to label.", "FILE")] = None,
    port: Annotated[int, options.Port] = 8420,
    no_open: Annotated[bool, flag("--no-open", "Do not open a browser.")] = False,
    *,
    labelling: Labelling,
    reading: options.TextReading,
    quiet: options.Quiet = False,
) -> None:
    """Open a page over the run folders, on this machine only.

    Shows runs with live curves, reports, predictions with their words in colour, the inside of a
    model, and generated text. With --text you can label by keyboard: each label is saved at once,
    a model picks the next text to label, and the page trains on the labels when you ask it to.

    \b
    Example:
      regraft studio
      regraft studio runs --text reviews.txt --labels negative,positive
    """
    given = {**vars(labelling), **vars(reading)}
    unused = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if text is None and unused:
        raise ConfigError(
            f"No texts to label for {' and '.join(unused)}.", remedy="Add --text FILE."
        )
    data = settings_from("pretrain", reading).data
    with optional("`regraft studio`", extra="studio"):
        import plotly as _plotly  # type: ignore[import-untyped] # noqa: F401 # its script draws

        from regraft.apps.studio.server import build_session
        from regraft.apps.studio.server import studio as run_studio
    session = None
    if text is not None:
        session = functools.partial(
            build_session,
            text,
            folder=folder,
            classes=() if labelling.labels is None else labelling.labels.split(","),
            out=labelling.out,
            base=labelling.base,
            run=labelling.run,
            minutes=labelling.minutes,
            data=data,
        )
    with terminal.progress_on_stderr(quiet=quiet) as progress:
        run_studio(
            folder,
            port=port,
            opens_browser=not no_open,
            labelling=session,
            progress=progress,
        )
