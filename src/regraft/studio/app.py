"""The routes of the studio: the page, and what it asks for.

Comes in: a folder of runs, models, perhaps a session of labelling. Goes out: an ASGI application.
No path is ever taken from a request: runs have ids, and files of the page a fixed list of names.
Every refusal has its status and the three parts of our errors.
"""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from regraft.errors import RegraftError
from regraft.explanation import explanation_css
from regraft.serve.limits import BodyReader, Limits, RefusedError, failure
from regraft.studio import inside, runs
from regraft.studio.differences import differences
from regraft.studio.guard import REPORT_POLICY, Guard
from regraft.studio.labelling import MOST_CLASSES, Session
from regraft.studio.models import MOST_NEW_TOKENS, Models
from regraft.studio.queries import Query

# A text that is typed, with room for the escapes of JSON.
LIMITS = Limits(max_body_bytes=256_000)
MOST_CHARACTERS = 20_000
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_Fields = TypeVar("_Fields", bound=BaseModel)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Typed(_Asked):
    """A text to classify, or to look at."""

    text: str = Field(min_length=1, max_length=MOST_CHARACTERS)


class Prompt(_Asked):
    """A text to continue."""

    prompt: str = Field(max_length=MOST_CHARACTERS)
    temperature: float = Field(ge=0, le=5)
    max_tokens: int = Field(ge=1, le=MOST_NEW_TOKENS)
    seed: int = Field(ge=0, le=1_000_000)


class Given(_Asked):
    """A label for the text that is shown."""

    number: int = Field(ge=0)
    label: str = Field(max_length=200)


class Skipped(_Asked):
    """A text to leave aside."""

    number: int = Field(ge=0)


class Classes(_Asked):
    """The names of the classes."""

    classes: list[str] = Field(max_length=MOST_CLASSES)


class ChosenQuery(_Asked):
    """How texts are chosen."""

    query: Query


class Nothing(_Asked):
    """An empty object."""


@dataclass(frozen=True)
class Studio:
    """What the page is about. Without a session there is nothing to label."""

    folder: runs.RunsFolder
    models: Models
    session: Session | None = None

    @property
    def labelling(self) -> Session:
        """The session; 404 if the studio was started without texts."""
        if self.session is None:
            raise RefusedError(
                404,
                "There are no texts to label.",
                "They are named when the studio starts.",
                remedy="Start it with `regraft studio --text FILE --labels A,B`.",
            )
        return self.session


def build_app(studio: Studio) -> Starlette:
    """All routes; session and models live as long as the application."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if studio.session is not None:
            studio.session.start()
        yield
        studio.models.close()
        if studio.session is not None:
            await run_in_threadpool(studio.session.close)

    app = Starlette(
        routes=[*_page_routes(), *_run_routes(studio), *_inside_routes(), *_label_routes(studio)],
        middleware=[Middleware(Guard)],
        exception_handlers={
            RegraftError: _refused,
            HTTPException: _unrouted,
            Exception: _unforeseen,
        },
        lifespan=lifespan,
    )
    return app


def _page_routes() -> list[Route]:
    web = files("regraft").joinpath("web")
    content = {file.name: file.read_bytes() for file in web.iterdir() if file.is_file()}
    content["explanation.css"] = explanation_css().encode()
    # Its own licence lies beside it in the package; nothing of it is kept here.
    plotly = files("plotly").joinpath("package_data/plotly.min.js").read_bytes()

    async def page(request: Request) -> Response:
        return Response(content["index.html"], media_type=_MEDIA_TYPES[".html"])

    async def part(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in content:
            raise HTTPException(404)
        kind = _MEDIA_TYPES.get(f".{name.rpartition('.')[2]}", "application/octet-stream")
        return Response(content[name], media_type=kind)

    async def plots(request: Request) -> Response:
        # Five megabytes that change with an installation only.
        headers = {"Cache-Control": "private, max-age=86400"}
        return Response(plotly, media_type=_MEDIA_TYPES[".js"], headers=headers)

    return [
        Route("/", page),
        Route(f"/web/plotly-{version('plotly')}.js", plots),
        Route("/web/plotly.js", plots),
        Route("/web/{name}", part),
    ]


def _run_routes(studio: Studio) -> list[Route]:
    folder, models = studio.folder, studio.models

    async def rows(request: Request) -> Response:
        found = await run_in_threadpool(folder.rows)
        return JSONResponse({"runs": [row.to_dict() for row in found]})

    async def compared(request: Request) -> Response:
        asked = dict.fromkeys(request.query_params.getlist("run"))

        def found() -> dict[str, Any]:
            return differences([(folder.row(run), folder.path(run)) for run in asked])

        return JSONResponse(await run_in_threadpool(found))

    async def curve(request: Request) -> Response:
        run_dir, cursor = (
            folder.path(request.path_params["run"]),
            request.query_params.get("cursor"),
        )
        return JSONResponse(await run_in_threadpool(runs.curve, run_dir, cursor=cursor or ""))

    async def report(request: Request) -> Response:
        page = await run_in_threadpool(runs.report, folder.path(request.path_params["run"]))
        headers = {"Content-Security-Policy": REPORT_POLICY}
        return Response(page, media_type=_MEDIA_TYPES[".html"], headers=headers)

    async def explained(request: Request) -> Response:
        asked = await _body(request, Typed)
        run_dir = folder.path(request.path_params["run"])
        return JSONResponse(await models.ask(partial(models.explained, run_dir, asked.text)))

    async def attention(request: Request) -> Response:
        asked = await _body(request, Typed)
        run_dir = folder.path(request.path_params["run"])
        return JSONResponse(await models.ask(partial(models.attention, run_dir, asked.text)))

    async def positions(request: Request) -> Response:
        run_dir = folder.path(request.path_params["run"])
        return JSONResponse(await models.ask(partial(models.positions, run_dir)))

    async def continued(request: Request) -> Response:
        asked = await _body(request, Prompt)
        run_dir = folder.path(request.path_params["run"])
        work = partial(
            models.continued,
            run_dir,
            asked.prompt,
            temperature=asked.temperature,
            max_tokens=asked.max_tokens,
            seed=asked.seed,
        )
        return JSONResponse(await models.ask(work))

    return [
        Route("/api/runs", rows),
        Route("/api/differences", compared),
        Route("/api/runs/{run}/curve", curve),
        Route("/api/runs/{run}/report", report),
        Route("/api/runs/{run}/explain", explained, methods=["POST"]),
        Route("/api/runs/{run}/attention", attention, methods=["POST"]),
        Route("/api/runs/{run}/positions", positions),
        Route("/api/runs/{run}/generate", continued, methods=["POST"]),
    ]


def _inside_routes() -> list[Route]:
    async def shapes(request: Request) -> Response:
        return JSONResponse(inside.shapes())

    async def counted(request: Request) -> Response:
        return JSONResponse(inside.counted(_asked(request, inside.Shape)))

    async def mask(request: Request) -> Response:
        asked = _asked(request, inside.MaskShape)
        return JSONResponse(await run_in_threadpool(inside.mask, asked))

    async def positions(request: Request) -> Response:
        asked = _asked(request, inside.PositionsShape)
        return JSONResponse(await run_in_threadpool(inside.positions, asked))

    return [
        Route("/api/inside/shapes", shapes),
        Route("/api/inside/ledger", counted),
        Route("/api/inside/mask", mask),
        Route("/api/inside/positions", positions),
    ]


def _label_routes(studio: Studio) -> list[Route]:
    async def state(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(studio.labelling.state))

    async def next_text(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(studio.labelling.next_text))

    async def write(request: Request) -> Response:
        session = studio.labelling
        action: Literal["give", "skip", "undo", "classes", "query"]
        action = request.path_params["action"]
        if action == "give":
            given = await _body(request, Given)
            await run_in_threadpool(session.label, given.number, given.label)
        elif action == "skip":
            await run_in_threadpool(session.skip, (await _body(request, Skipped)).number)
        elif action == "undo":
            await _body(request, Nothing)
            await run_in_threadpool(session.undo)
        elif action == "classes":
            await run_in_threadpool(session.choose_classes, (await _body(request, Classes)).classes)
        elif action == "query":
            await run_in_threadpool(session.choose_query, (await _body(request, ChosenQuery)).query)
        else:
            raise HTTPException(404)
        return JSONResponse(await run_in_threadpool(session.state))

    return [
        Route("/api/label", state),
        Route("/api/label/next", next_text),
        Route("/api/label/{action}", write, methods=["POST"]),
    ]


async def _body(request: Request, kind: type[_Fields]) -> _Fields:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RefusedError(
            415, f"The body is sent as {media_type[:60]!r}.", remedy="Send application/json."
        )
    reader = BodyReader(limits=LIMITS, announced=request.headers.get("content-length"))
    async for part in request.stream():
        reader.add(part)
    try:
        values = json.loads(reader.body())
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "The body is not JSON.", remedy="Check it.") from error
    return _validated(values, kind)


def _asked(request: Request, kind: type[_Fields]) -> _Fields:
    return _validated(dict(request.query_params), kind)


def _validated(values: Any, kind: type[_Fields]) -> _Fields:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "The body"
        raise RefusedError(
            422, f"{place[:80]}: {first['msg'].lower()}.", remedy="Change it and try again."
        ) from error


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RegraftError)
    if isinstance(error, RefusedError):
        return JSONResponse(error.to_dict(), status_code=error.status, headers=error.headers)
    parts = {"problem": error.problem, "expected": error.expected, "remedy": error.remedy}
    return JSONResponse(parts, status_code=422)


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = {405: f"{request.url.path[:100]} does not take {request.method[:20]}."}
    missing = f"There is no {request.url.path[:100]!r} here."
    refusal = RefusedError(
        error.status_code, told.get(error.status_code, missing), remedy="Open / for the page."
    )
    return JSONResponse(refusal.to_dict(), status_code=error.status_code, headers=error.headers)


async def _unforeseen(request: Request, error: Exception) -> Response:
    return await _refused(request, failure())
