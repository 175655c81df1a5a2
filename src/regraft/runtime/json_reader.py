"""One reader for all JSON that regraft did not make a moment ago: bounded, strict, no surprises.

Refuses what Python's own reader accepts: NaN and infinite numbers, a key given twice, nesting
without end, integers of thousands of digits. Errors are ValueErrors with a reason in plain words.
"""

import json
import math
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 1 << 28
MAX_JSON_DEPTH = 64
# Of integers; 64 bits have 20.
MAX_JSON_DIGITS = 40
_NESTED = {dict, list}


def read_json(path: Path) -> Any:
    """The value in a file; OSError or ValueError if it cannot be read."""
    with path.open("rb") as file:
        return parse_json(file.read(MAX_JSON_BYTES + 1))


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError says what is wrong with it."""
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"it has more than {MAX_JSON_BYTES:,} bytes")
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        value, depth = None, MAX_JSON_DEPTH + 1
    else:
        depth = _depth(value)
    if depth > MAX_JSON_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_JSON_DEPTH} levels")
    return value


def _depth(value: Any) -> int:
    """How many lists and objects contain each other, without recursion."""
    depth, level = 0, [value] if type(value) in _NESTED else []
    while level and depth <= MAX_JSON_DEPTH:
        depth += 1
        parts = [part.values() if type(part) is dict else part for part in level]
        # Most parts are long and flat, such as a vocabulary: their types are few, and found fast.
        parts = [part for part in parts if not _NESTED.isdisjoint(map(type, part))]
        level = [child for part in parts for child in part if type(child) in _NESTED]
    return depth


def _integer(digits: str) -> int:
    if len(digits) > MAX_JSON_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)


def _number(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return number


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"the key {twice!r:.80} occurs twice")
    return values


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
