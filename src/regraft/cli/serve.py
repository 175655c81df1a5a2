"""The command that puts a classifier behind HTTP: `regraft serve`."""

import dataclasses
from typing import Annotated, Any, Literal

import typer

from regraft.cli import options, terminal
from regraft.errors import ConfigError
from regraft.serve.limits import Limits

_LIBRARIES = ("fastapi", "starlette", "uvicorn", "prometheus_client")
_HELPS = {limit.name: limit.metadata["help"] for limit in dataclasses.fields(Limits)}


def _limit(name: str, flag: str, metavar: str = "N") -> Any:
    """An option that is a limit: its help is the limit's own."""
    return typer.Option(flag, metavar=metavar, min=1, help=_HELPS[name])


def serve(
    run: options.RunFolder,
    host: Annotated[
        str,
        typer.Option(
            "--host", help="Address to listen on; others than this machine's need REGRAFT_API_KEY."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes one that is free.")
    ] = 8000,
    runtime: Annotated[
        Literal["auto", "onnx", "torch"],
        typer.Option("--runtime", help="auto is onnxruntime where it is installed and exact."),
    ] = "auto",
    max_texts: Annotated[int, _limit("max_texts", "--max-texts")] = Limits.max_texts,
    max_characters: Annotated[
        int, _limit("max_characters", "--max-characters")
    ] = Limits.max_characters,
    max_explained: Annotated[
        int, _limit("max_explained", "--max-explained")
    ] = Limits.max_explained,
    max_body_bytes: Annotated[
        int, _limit("max_body_bytes", "--max-body-bytes")
    ] = Limits.max_body_bytes,
    max_waiting: Annotated[int, _limit("max_waiting", "--max-waiting")] = Limits.max_waiting,
    max_batch: Annotated[int, _limit("max_batch", "--max-batch")] = Limits.max_batch,
    seconds: Annotated[float, _limit("seconds", "--seconds", "S")] = Limits.seconds,
    quiet: options.Quiet = False,
) -> None:
    """Answer over HTTP what a classifier says of texts.

    POST /v1/classify and /v1/explain; GET /healthz, /readyz, /metrics and /openapi.json. A run that
    is written anew at the same place takes over without a request lost.

    \b
    Example:
      regraft serve runs/reviews
      REGRAFT_API_KEY=... regraft serve runs/reviews --host 0.0.0.0 --port 80
    """
    from regraft.bases import check_run_folder

    check_run_folder(
        run,
        expected="A model from elsewhere knows no labels yet.",
        remedy=f"Run `regraft finetune --base {run} --train FILE --out RUN`, and give RUN.",
    )
    try:
        from regraft.serve.server import serve as run_serve
    except ImportError as error:
        if error.name not in _LIBRARIES:
            raise
        raise ConfigError(
            f"`regraft serve` needs {error.name}, which is not installed.",
            remedy="Run `pip install 'regraft[serve]'`.",
        ) from error
    limits = Limits(
        max_texts=max_texts,
        max_characters=max_characters,
        max_explained=max_explained,
        max_body_bytes=max_body_bytes,
        max_waiting=max_waiting,
        max_batch=max_batch,
        seconds=seconds,
    )
    with terminal.progress_on_stderr(quiet=quiet) as progress:
        run_serve(run, host=host, port=port, runtime=runtime, limits=limits, progress=progress)
