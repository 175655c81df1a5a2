"""`regraft serve`: a classifier over HTTP."""

from typing import Annotated, Literal

import typer

from regraft.apps.cli import options, terminal
from regraft.apps.serve.limits import Limits
from regraft.runtime import optional


@options.grouped
def serve(
    run: options.RunFolder,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address to listen on; one that other machines can reach needs REGRAFT_API_KEY.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, options.Port] = 8000,
    runtime: Annotated[
        Literal["auto", "onnx", "torch"],
        typer.Option("--runtime", help="auto: onnxruntime where it is installed and exact."),
    ] = "auto",
    allowed_hosts: Annotated[
        str | None,
        typer.Option(
            "--allowed-hosts",
            metavar="A,B,...",
            help="Names that a proxy on this machine passes on as Host.",
        ),
    ] = None,
    *,
    limits: Limits,
    quiet: options.Quiet = False,
) -> None:
    """Classify texts over HTTP.

    POST /v1/classify and /v1/explain; GET /healthz, /readyz, /metrics and /openapi.json. When the
    run folder is replaced, the new model takes over without losing a request.

    \b
    Example:
      regraft serve runs/reviews
      REGRAFT_API_KEY=... regraft serve runs/reviews --host 0.0.0.0 --port 80
    """
    with optional("`regraft serve`", extra="serve"):
        from regraft.apps.serve.server import serve as run_serve
    with terminal.progress_on_stderr(quiet=quiet) as progress:
        run_serve(
            run,
            host=host,
            port=port,
            runtime=runtime,
            limits=limits,
            allowed_hosts=allowed_hosts.lower().split(",") if allowed_hosts else (),
            progress=progress,
        )
