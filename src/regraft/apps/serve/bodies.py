"""The bodies of requests: read up to a limit, then validated by pydantic.

A body holds texts and numbers, never a path.
"""

import asyncio
from collections.abc import Set
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticCustomError
from starlette.requests import Request

from regraft.apps.serve.limits import Limits, RefusedError
from regraft.runtime import counted, parse_json

# Read and discarded after a body has become too large, so that its sender gets the answer.
_DISCARDED_BYTES = 16 << 20


class Body(BaseModel):
    """A JSON object without unknown fields; types are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "Text contains a NUL character")
    return text


# As in files, where a NUL is refused as well.
PlainText = Annotated[str, AfterValidator(_without_nul)]
AnyBody = TypeVar("AnyBody", bound=BaseModel)


def _whole(value: Any) -> Any:
    """3.0 is a whole number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Texts(Body):
    """The body of /v1/classify: one text, or a list of texts, and how to answer."""

    texts: list[str]
    abstain_below: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1), BeforeValidator(_whole)] | None = None


class Text(Body):
    """The body of /v1/explain."""

    text: str


def texts_body(limits: Limits) -> type[Texts]:
    """`Texts` within the limits."""
    text = _text_type(limits.max_characters)
    texts: Any = Annotated[list[text], Field(min_length=1, max_length=limits.max_texts)]  # type: ignore[valid-type]
    one_or_many = BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value,
        json_schema_input_type=text | texts,
    )
    return create_model("Texts", __base__=Texts, texts=(Annotated[texts, one_or_many], ...))


def text_body(limits: Limits) -> type[Text]:
    """`Text` within the limits."""
    return create_model("Text", __base__=Text, text=(_text_type(limits.max_explained), ...))


def _text_type(max_characters: int) -> Any:
    schema: dict[str, Any] = {"minLength": 1, "pattern": r"^[^\x00]*[^\s\x00][^\x00]*$"}
    bounds = Field(max_length=max_characters, json_schema_extra=schema)
    return Annotated[PlainText, bounds, AfterValidator(_not_blank)]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "Text is blank")
    return text


class BodyReader:
    """The bytes of a request as they arrive, with no more than the limit in memory."""

    def __init__(self, *, limits: Limits, announced: str | None) -> None:
        """`announced` is the Content-Length header, which may be missing or wrong."""
        self._limits = limits
        self._parts: list[bytes] = []
        self._num_bytes = 0
        if announced is not None and announced.isdecimal():
            self._refuse_above(int(announced), most=limits.max_body_bytes + _DISCARDED_BYTES)

    def add(self, part: bytes) -> None:
        """Add the next bytes."""
        self._num_bytes += len(part)
        if self._num_bytes <= self._limits.max_body_bytes:
            self._parts.append(part)
        else:
            self._parts.clear()
        self._refuse_above(self._num_bytes, most=self._limits.max_body_bytes + _DISCARDED_BYTES)

    def body(self) -> bytes:
        """The whole body."""
        self._refuse_above(self._num_bytes, most=self._limits.max_body_bytes)
        return b"".join(self._parts)

    def _refuse_above(self, num_bytes: int, *, most: int) -> None:
        if num_bytes > most:
            raise RefusedError(
                413,
                f"The body has {num_bytes:,} bytes or more.",
                f"The limit is {self._limits.max_body_bytes:,} bytes.",
                remedy="Send fewer or shorter texts in one request.",
                headers={"Connection": "close"},
            )


async def read_body(request: Request, kind: type[AnyBody], *, limits: Limits) -> AnyBody:
    """The validated body of a request."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RefusedError(
            415,
            f"The content type is {media_type[:60]!r}.",
            "The body must be JSON.",
            remedy="Send it with the header Content-Type: application/json.",
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise RefusedError(
            415,
            f"The body is encoded as {encoding[:60]!r}.",
            "Bodies are not compressed.",
            remedy="Send it without the header Content-Encoding.",
            headers={"Accept-Encoding": "identity"},
        )
    reader = BodyReader(limits=limits, announced=request.headers.get("content-length"))

    async def read() -> bytes:
        async for part in request.stream():
            reader.add(part)
        return reader.body()

    try:
        body = await asyncio.wait_for(read(), limits.seconds)
    except asyncio.TimeoutError as error:
        raise RefusedError(
            408,
            f"The body did not arrive within {counted(limits.seconds, 'second')}.",
            remedy="Send it again.",
            headers={"Connection": "close"},
        ) from error
    return parse_body(body, kind)


def parse_body(body: bytes, kind: type[AnyBody]) -> AnyBody:
    """A body from its bytes; 400 if it is no JSON, 422 if it is not of this kind."""
    try:
        parsed = kind.model_validate_json(body)
    except ValidationError as error:
        raise refusal(error) from error
    try:
        parse_json(body)  # pydantic takes the last of two equal keys
    except ValueError as error:
        raise RefusedError(400, f"The body: {error}.", remedy="Correct the request.") from error
    return parsed


def refusal(error: ValidationError) -> RefusedError:
    """The first mistakes with their places: `texts[1]: String should have ...`."""
    mistakes = error.errors(include_url=False, include_context=False, include_input=False)
    problem = "; ".join(f"{_place(mistake['loc'])}: {mistake['msg']}" for mistake in mistakes[:3])
    status = 400 if mistakes[0]["type"] == "json_invalid" else 422
    if status == 400:
        return RefusedError(
            status, f"{problem}.", "The body is a JSON object.", remedy="Correct its JSON."
        )
    expected, remedy = _advice({mistake["type"] for mistake in mistakes}, title=error.title)
    return RefusedError(status, f"{problem}.", expected, remedy=remedy)


def _advice(kinds: Set[str], *, title: str) -> tuple[str, str]:
    """(what would be right, what to do) for the body that is described by `title`."""
    if "blank" in kinds:
        return "A text has a character that is no blank.", "Omit blank texts."
    if title in _SHAPES and kinds & {"missing", "extra_forbidden", "string_type", "list_type"}:
        return _SHAPES[title]
    return "GET /openapi.json describes the body.", "Correct the request."


_SHAPES = {
    "Texts": ("/v1/classify takes texts.", 'Send texts, a list: {"texts": ["..."]}.'),
    "Text": ("/v1/explain takes one text.", 'Send text, a string: {"text": "..."}.'),
}


def _place(parts: tuple[int | str, ...]) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else part for part in parts)
    return place[:80] or "The body"
