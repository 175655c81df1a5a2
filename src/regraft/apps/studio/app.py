"""The routes of the studio: the page, and its requests.

No path is ever taken from a request: runs have ids, and the files of the page a fixed list of
names. Every refusal has a status and the three parts of our errors.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from regraft.apps.serve.app import unanswered
from regraft.apps.serve.bodies import AnyBody, Body, PlainText, read_body, refusal
from regraft.apps.serve.guard import LOCAL_NAMES, Guard
from regraft.apps.serve.limits import Limits, RefusedError, failure
from regraft.apps.studio import inside, runs
from regraft.apps.studio.differences import differences
from regraft.apps.studio.labelling import MOST_CLASSES, Session
from regraft.apps.studio.models import MOST_NEW_TOKENS, Models
from regraft.apps.studio.next_text import Query
from regraft.errors import RegraftError
from regraft.report import explanation_css

# A text that is typed, with room for the escapes of JSON.
LIMITS = Limits(max_body_bytes=256_000, max_connections=100, max_client_connections=100)
MOST_CHARACTERS = 20_000
# The page runs our own scripts and styles only, and connects to nothing else. data: and blob: are
# for the heat maps of plotly.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
# A report has inline styles, runs no script and has no origin.
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Typed(Body):
    """A text to classify, or to look at."""

    text: PlainText = Field(min_length=1, max_length=MOST_CHARACTERS)


class Prompt(Body):
    """A text to continue."""

    prompt: PlainText = Field(max_length=MOST_CHARACTERS)
    temperature: float = Field(ge=0, le=5)
    max_tokens: int = Field(ge=1, le=MOST_NEW_TOKENS)
    seed: int = Field(ge=0, le=1_000_000)


class Given(Body):
    """A label for the text that is shown."""

    number: int = Field(ge=0)
    label: PlainText = Field(max_length=200)


class Skipped(Body):
    """A text to leave aside."""

    number: int = Field(ge=0)


class Classes(Body):
    """The names of the classes."""

    classes: list[PlainText] = Field(max_length=MOST_CLASSES)


class ChosenQuery(Body):
    """How texts are chosen."""

    query: Query


class Nothing(Body):
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
        middleware=[Middleware(Guard, hosts=LOCAL_NAMES, headers=_HEADERS)],
        exception_handlers={
            RegraftError: _refused,
            ClientDisconnect: unanswered,
            HTTPException: _unrouted,
            Exception: _unforeseen,
        },
        lifespan=lifespan,
    )
    return app


def _page_routes() -> list[Route]:
    web = files("regraft.apps.studio").joinpath("static")
    content = {file.name: file.read_bytes() for file in web.iterdir() if file.is_file()}
    content["explanation.css"] = explanation_css().encode()
    # plotly ships its own licence; no copy is kept here.
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
        # Five megabytes that change only with the installation.
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
        listed = await run_in_threadpool(folder.rows)
        return JSONResponse({"runs": [row.to_dict() for row in listed]})

    async def compared(request: Request) -> Response:
        chosen = dict.fromkeys(request.query_params.getlist("run"))

        def table() -> dict[str, Any]:
            return differences([(folder.row(run), folder.path(run)) for run in chosen])

        return JSONResponse(await run_in_threadpool(table))

    async def curve(request: Request) -> Response:
        run_dir = folder.path(request.path_params["run"])
        cursor = request.query_params.get("cursor", "")
        return JSONResponse(await run_in_threadpool(runs.curve, run_dir, cursor=cursor))

    async def report(request: Request) -> Response:
        page = await run_in_threadpool(runs.report, folder.path(request.path_params["run"]))
        headers = {"Content-Security-Policy": REPORT_POLICY}
        return Response(page, media_type=_MEDIA_TYPES[".html"], headers=headers)

    def about_text(answer: Callable[[Path, str], dict[str, Any]]) -> Callable[..., Any]:
        async def answered(request: Request) -> Response:
            body = await read_body(request, Typed, limits=LIMITS)
            run_dir = folder.path(request.path_params["run"])
            return JSONResponse(await models.ask(partial(answer, run_dir, body.text)))

        return answered

    async def positions(request: Request) -> Response:
        run_dir = folder.path(request.path_params["run"])
        return JSONResponse(await models.ask(partial(models.positions, run_dir)))

    async def continued(request: Request) -> Response:
        body = await read_body(request, Prompt, limits=LIMITS)
        run_dir = folder.path(request.path_params["run"])
        work = partial(
            models.continued,
            run_dir,
            body.prompt,
            temperature=body.temperature,
            max_tokens=body.max_tokens,
            seed=body.seed,
        )
        return JSONResponse(await models.ask(work))

    return [
        Route("/api/runs", rows),
        Route("/api/differences", compared),
        Route("/api/runs/{run}/curve", curve),
        Route("/api/runs/{run}/report", report),
        Route("/api/runs/{run}/explain", about_text(models.explained), methods=["POST"]),
        Route("/api/runs/{run}/attention", about_text(models.attention), methods=["POST"]),
        Route("/api/runs/{run}/positions", positions),
        Route("/api/runs/{run}/generate", continued, methods=["POST"]),
    ]


def _inside_routes() -> list[Route]:
    async def shapes(request: Request) -> Response:
        return JSONResponse(inside.shapes())

    def of_query(kind: type[AnyBody], answer: Callable[[AnyBody], Any]) -> Callable[..., Any]:
        async def answered(request: Request) -> Response:
            return JSONResponse(await run_in_threadpool(answer, _asked(request, kind)))

        return answered

    return [
        Route("/api/inside/shapes", shapes),
        Route("/api/inside/parameters", of_query(inside.Shape, inside.parameters)),
        Route("/api/inside/mask", of_query(inside.MaskShape, inside.mask)),
        Route("/api/inside/positions", of_query(inside.PositionsShape, inside.positions)),
    ]


# What a session can be asked to do: the body of the request, and what is done with it.
_LABEL_ACTIONS: dict[str, tuple[type[Body], Callable[[Session, Any], object]]] = {
    "give": (Given, lambda session, body: session.label(body.number, body.label)),
    "skip": (Skipped, lambda session, body: session.skip(body.number)),
    "undo": (Nothing, lambda session, body: session.undo()),
    "train": (Nothing, lambda session, body: session.train()),
    "stop": (Nothing, lambda session, body: session.stop_training()),
    "classes": (Classes, lambda session, body: session.choose_classes(body.classes)),
    "query": (ChosenQuery, lambda session, body: session.choose_query(body.query)),
}


def _label_routes(studio: Studio) -> list[Route]:
    async def state(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(studio.labelling.state))

    async def next_text(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(studio.labelling.next_text))

    async def write(request: Request) -> Response:
        session, action = studio.labelling, request.path_params["action"]
        if action not in _LABEL_ACTIONS:
            raise HTTPException(404)
        kind, act = _LABEL_ACTIONS[action]
        body = await read_body(request, kind, limits=LIMITS)
        await run_in_threadpool(act, session, body)
        return JSONResponse(await run_in_threadpool(session.state))

    return [
        Route("/api/label", state),
        Route("/api/label/next", next_text),
        Route("/api/label/{action}", write, methods=["POST"]),
    ]


def _asked(request: Request, kind: type[AnyBody]) -> AnyBody:
    """The parameters of a query, validated."""
    try:
        return kind.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise refusal(error) from error


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RegraftError)
    if isinstance(error, RefusedError):
        return JSONResponse(error.to_dict(), status_code=error.status, headers=error.headers)
    parts = {"problem": error.problem, "expected": error.expected, "remedy": error.remedy}
    return JSONResponse(parts, status_code=422)


async def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problems = {405: f"{request.url.path[:100]} does not take {request.method[:20]}."}
    missing = f"There is no {request.url.path[:100]!r} here."
    refusal = RefusedError(
        error.status_code, problems.get(error.status_code, missing), remedy="Open / for the page."
    )
    return JSONResponse(refusal.to_dict(), status_code=error.status_code, headers=error.headers)


async def _unforeseen(request: Request, error: Exception) -> Response:
    return await _refused(request, failure())
