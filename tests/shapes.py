"""The type checker that pytest puts around every function of regraft (see addopts)."""

from beartype import BeartypeConf, beartype

# As for mypy, an int is a float: `total=len(rows)` must pass where a float is asked for.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
