"""How much a server takes on, and how it says no.

Comes in: bytes of a request. Goes out: texts within the limits, or a `RefusedError` with a status
and the three parts of every error of ours. Light: the command line reads its defaults from here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regraft.errors import RegraftError

# Read and thrown away after a body has become too large, so that its sender hears why.
_THROWN_AWAY_BYTES = 16 << 20
_TEXTS_EXPECTED = 'The body is {"texts": "..."} or {"texts": ["...", "..."]}.'
_TEXT_EXPECTED = 'The body is {"text": "..."}.'


@dataclass(frozen=True)
class Limits:
    """What one request may bring, and how many may wait. The help is the command line's."""

    max_body_bytes: int = field(default=1 << 20, metadata={"help": "Bytes in a request."})
    max_texts: int = field(default=256, metadata={"help": "Texts in a request."})
    max_characters: int = field(default=100_000, metadata={"help": "Characters in a text."})
    max_explained: int = field(
        default=5_000, metadata={"help": "Characters in a text that is to be explained."}
    )
    max_waiting: int = field(
        default=1024, metadata={"help": "Texts that wait; with more, requests get 429."}
    )
    max_batch: int = field(default=64, metadata={"help": "Texts computed at once."})
    seconds: float = field(default=30.0, metadata={"help": "Longest time for an answer."})


class RefusedError(RegraftError):
    """A request that is not answered, with the status that says why."""

    def __init__(
        self,
        status: int,
        problem: str,
        expected: str = "",
        *,
        remedy: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(problem, expected, remedy=remedy)
        self.status = status
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, str]:
        """Plain values, ready for JSON."""
        return {"problem": self.problem, "expected": self.expected, "remedy": self.remedy}


def counted(number: float, noun: str) -> str:
    """`1 second`, `0.5 seconds`, `1,024 texts`."""
    told = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{told} {noun}{'' if number == 1 else 's'}"


def failure() -> RefusedError:
    """A fault of ours: what it was stands in the log, and is nobody else's business."""
    return RefusedError(
        500,
        "The server failed at this request.",
        remedy="Please report this with the message in the server's log.",
    )


class BodyReader:
    """The bytes of a request as they arrive, never more than the limit of them in memory."""

    def __init__(self, *, limits: Limits, announced: str | None) -> None:
        """`announced` is the header Content-Length, which a client may leave out or get wrong."""
        self._limits = limits
        self._parts: list[bytes] = []
        self._num_bytes = 0
        if announced is not None and announced.isdecimal():
            self._refuse_above(int(announced), most=limits.max_body_bytes + _THROWN_AWAY_BYTES)

    def add(self, part: bytes) -> None:
        """The next bytes."""
        self._num_bytes += len(part)
        if self._num_bytes <= self._limits.max_body_bytes:
            self._parts.append(part)
        else:
            self._parts.clear()
        self._refuse_above(self._num_bytes, most=self._limits.max_body_bytes + _THROWN_AWAY_BYTES)

    def body(self) -> bytes:
        """All of them, when the last has come."""
        self._refuse_above(self._num_bytes, most=self._limits.max_body_bytes)
        return b"".join(self._parts)

    def _refuse_above(self, num_bytes: int, *, most: int) -> None:
        if num_bytes > most:
            raise RefusedError(
                413,
                f"The body has {num_bytes:,} bytes or more.",
                f"At most {self._limits.max_body_bytes:,} are read.",
                remedy="Send fewer or shorter texts in one request.",
                headers={"Connection": "close"},
            )


def parse_texts(body: bytes, *, limits: Limits) -> list[str]:
    """The texts of a request to classify; one text may stand without a list."""
    given = _parse_field(body, "texts", expected=_TEXTS_EXPECTED)
    if isinstance(given, str):
        return [_checked(given, place="texts", most=limits.max_characters)]
    if not isinstance(given, list):
        raise RefusedError(
            422,
            f"texts is {_json_name(given)}.",
            "It is one string, or a list of strings.",
            remedy=_TEXTS_EXPECTED,
        )
    if not 1 <= len(given) <= limits.max_texts:
        raise RefusedError(
            422,
            f"texts holds {len(given):,} texts.",
            f"A request has 1 to {limits.max_texts:,}.",
            remedy="Send them in several requests." if given else "Send at least one text.",
        )
    return [
        _checked(text, place=f"texts[{number}]", most=limits.max_characters)
        for number, text in enumerate(given)
    ]


def parse_text(body: bytes, *, limits: Limits) -> str:
    """The text of a request to explain."""
    given = _parse_field(body, "text", expected=_TEXT_EXPECTED)
    return _checked(given, place="text", most=limits.max_explained)


def texts_schema(limits: Limits) -> dict[str, Any]:
    """What `parse_texts` takes, as a JSON schema."""
    text = _text_schema(limits.max_characters)
    many = {"type": "array", "items": text, "minItems": 1, "maxItems": limits.max_texts}
    return _body_schema("texts", {"anyOf": [text, many]})


def text_schema(limits: Limits) -> dict[str, Any]:
    """What `parse_text` takes, as a JSON schema."""
    return _body_schema("text", _text_schema(limits.max_explained))


def _text_schema(most: int) -> dict[str, Any]:
    return {"type": "string", "pattern": r"\S", "minLength": 1, "maxLength": most}


def _body_schema(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [name],
        "properties": {name: schema},
        "additionalProperties": False,
    }


def _parse_field(body: bytes, name: str, *, expected: str) -> Any:
    values = _parse_json(body, expected=expected)
    if not isinstance(values, dict):
        raise RefusedError(
            422, f"The body is {_json_name(values)}.", "It is an object.", remedy=expected
        )
    unknown = sorted(values.keys() - {name})
    if unknown:
        named = ", ".join(f"{key!r:.40}" for key in unknown[:3])
        raise RefusedError(
            422, f"Unknown in the body: {named}.", f"Only {name!r} is read.", remedy=expected
        )
    if name not in values:
        raise RefusedError(422, f"The body has no {name!r}.", remedy=expected)
    return values[name]


def _parse_json(body: bytes, *, expected: str) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedError(
            400,
            f"The body is not UTF-8: byte {error.start:,} is {body[error.start]:#04x}.",
            "JSON is sent as UTF-8.",
            remedy="Encode the text as UTF-8.",
        ) from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise RefusedError(
            400, f"The body is not JSON: {where}.", expected, remedy="Check it."
        ) from error
    # A number of thousands of digits; lists in lists without end.
    except (ValueError, RecursionError) as error:
        raise RefusedError(
            400, "The body is JSON that nobody can read.", expected, remedy="Check it."
        ) from error


def _checked(text: object, *, place: str, most: int) -> str:
    if not isinstance(text, str):
        raise RefusedError(
            422, f"{place} is {_json_name(text)}.", "It is a string.", remedy="Put it in quotes."
        )
    if len(text) > most:
        raise RefusedError(
            422,
            f"{place} has {len(text):,} characters.",
            f"A text has at most {counted(most, 'character')}.",
            remedy="Shorten it, or cut it into several.",
        )
    if not text.strip():
        raise RefusedError(
            422,
            f"{place} is {'blank' if text else 'empty'}.",
            "A text has at least one character that is not blank.",
            remedy="Send some text, or leave this one out of the list."
            if place.endswith("]")
            else "Send some text.",
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RefusedError(
            422,
            f"{place} holds half a surrogate pair at character {error.start:,}.",
            "A text consists of Unicode characters.",
            remedy="Send the character itself, or both halves.",
        ) from error
    return text


def _json_name(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
