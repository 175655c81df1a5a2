"""The command that opens a page over the run folders: `regraft studio`."""

from pathlib import Path
from typing import Annotated

import typer

from regraft.cli import options, terminal
from regraft.cli.options import data_flags, settings_from
from regraft.errors import ConfigError

_LIBRARIES = ("fastapi", "starlette", "uvicorn", "plotly", "prometheus_client")


def studio(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Folder of run folders.")
    ] = Path("runs"),
    text: Annotated[
        Path | None,
        typer.Option(
            "--text", metavar="FILE", help="Texts without labels, to label.", show_default=False
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="A,B,...",
            help="The classes; else the page asks for them.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE.csv",
            help="Where labels are saved; by default beside --text.",
            show_default=False,
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            "--base",
            metavar="RUN",
            help="A base whose vectors are learned from; else the texts' own latent space.",
            show_default=False,
        ),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(
            "--text-column", metavar="NAME", help="Column of the text.", show_default=False
        ),
    ] = None,
    encoding: options.Encoding = None,
    documents: options.Documents = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes one that is free.")
    ] = 8420,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Open a page over the run folders, for this machine alone.

    Runs and their live curves, reports, a text to try with its words in colours, what is inside a
    model, generated text. With --text, a place to label by keyboard: each label is in the csv at
    once, and a model learns meanwhile which text to show next.

    \b
    Example:
      regraft studio
      regraft studio runs --text reviews.txt --labels negative,positive
    """
    given = {
        "--labels": labels,
        "--out": out,
        "--base": base,
        "--text-column": text_column,
        "--encoding": encoding,
        "--documents": documents,
    }
    alone = [name for name, value in given.items() if value is not None]
    if text is None and alone:
        raise ConfigError(
            f"{' and '.join(alone)} {'says' if len(alone) == 1 else 'say'} how texts are labelled, "
            "but there are none.",
            remedy="Name a file of texts with --text, or leave it away.",
        )
    flags = data_flags(text=text_column, encoding=encoding, documents=documents)
    data = settings_from("pretrain", flags=flags).data
    try:
        import plotly as _plotly  # type: ignore[import-untyped] # noqa: F401 # its script draws

        from regraft.studio.server import studio as run_studio
    except ImportError as error:
        if error.name not in _LIBRARIES:
            raise
        raise ConfigError(
            f"`regraft studio` needs {error.name}, which is not installed.",
            remedy="Run `pip install 'regraft[studio]'`.",
        ) from error
    with terminal.progress_on_stderr(quiet=quiet) as progress:
        run_studio(
            folder,
            port=port,
            opens_browser=not no_open,
            text=text,
            classes=labels.split(",") if labels is not None else (),
            out=out,
            base=base,
            data=data,
            progress=progress,
        )
