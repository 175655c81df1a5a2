"""One reader for all JSON that regraft did not make a moment ago: bounded, strict, no surprises.

Refuses what Python's own reader accepts: NaN and infinite numbers, a key given twice, nesting
without end, integers of thousands of digits. Errors are ValueErrors with a reason in plain words.
"""

import json
import math
from pathlib import Path
from typing import Any

from regraft.runtime.limits import read_limits

# Digits of 64 bits: a number that is no longer needs no look at the limits.
_USUAL_DIGITS = 20
_NESTED = {dict, list}


def read_json(path: Path) -> Any:
    """The value in a file; OSError or ValueError if it cannot be read."""
    with path.open("rb") as file:
        return parse_json(file.read(read_limits().whole_bytes + 1))


def read_object(path: Path) -> dict[str, Any]:
    """The same for a file that must hold an object."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError("it holds no JSON object")
    return values


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError says what is wrong with it."""
    limits = read_limits()
    if len(text) > limits.whole_bytes:
        raise ValueError(f"it has more than {limits.whole_bytes:,} bytes")
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        value, depth = None, limits.json_depth + 1
    else:
        depth = _depth(value, most=limits.json_depth)
    if depth > limits.json_depth:
        raise ValueError(f"it is nested deeper than {limits.json_depth} levels")
    return value


def _depth(value: Any, *, most: int) -> int:
    """How many lists and objects contain each other, without recursion; stops above `most`."""
    depth, level = 0, [value] if type(value) in _NESTED else []
    while level and depth <= most:
        depth += 1
        parts = [part.values() if type(part) is dict else part for part in level]
        # Most parts are long and flat, such as a vocabulary: their types are few, and found fast.
        parts = [part for part in parts if not _NESTED.isdisjoint(map(type, part))]
        level = [child for part in parts for child in part if type(child) in _NESTED]
    return depth


def _integer(digits: str) -> int:
    if len(digits) > _USUAL_DIGITS and len(digits) > read_limits().json_digits:
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
