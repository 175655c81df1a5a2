"""Optional dependencies: the error that names the extra to install where a library is missing."""

import contextlib
import importlib.util
from collections.abc import Iterator

from regraft.errors import ConfigError

_SERVE = ("fastapi", "httptools", "prometheus_client", "starlette", "uvicorn")
# What each extra brings that the core does without.
_LIBRARIES = {
    "train": ("joblib", "matplotlib", "sklearn", "threadpoolctl", "torch"),
    "cluster": ("distributed",),
    "hf": ("transformers",),
    "lora": ("peft",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "parquet": ("pyarrow",),
    "serve": _SERVE,
    "xlsx": ("openpyxl",),
    "studio": (*_SERVE, "plotly"),
}


def install_command(extra: str) -> str:
    """The command that installs an extra, in a clone: regraft is in no package registry."""
    return f"pip install '.[{extra}]'"


@contextlib.contextmanager
def optional(what: str, *, extra: str) -> Iterator[None]:
    """Inside, import what only this extra brings; ConfigError, naming it, where it is missing."""
    try:
        yield
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _LIBRARIES[extra]:
            raise
        raise _missing(what, name, extra=extra) from error


def check_training(what: str) -> None:
    """ConfigError where the extra `train` is not installed; imports nothing."""
    with optional(what, extra="train"):
        if importlib.util.find_spec("torch") is None:
            raise _missing(what, "torch", extra="train")


def check_library(what: str, *, extra: str) -> None:
    """ConfigError where a library of this extra is not installed; imports nothing."""
    for name in _LIBRARIES[extra]:
        with optional(what, extra=extra):
            if importlib.util.find_spec(name) is None:
                raise _missing(what, name, extra=extra)


def _missing(what: str, name: str, *, extra: str) -> ConfigError:
    return ConfigError(
        f"{what} needs {name}, which is not installed.",
        f"The extra `{extra}` brings it.",
        remedy=f"In your clone of regraft, run `{install_command(extra)}`.",
    )
