"""The type checker that pytest puts around every function of regraft (see addopts)."""

import contextlib
from collections.abc import Iterator

import jaxtyping
from beartype import BeartypeConf, beartype

# As for mypy, an int is a float: `total=len(rows)` must pass where a float is asked for.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Without these checks: a tracer's sizes are symbols, which a type checker takes for no int.

    Thousands of simulated comparisons take a tenth of the time.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
