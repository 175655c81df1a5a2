"""The routes of the server and their responses.

No path, address or code is ever taken from a request: texts go in, labels come out. Every refusal
has a status and the three parts of our errors.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response, Security
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from regraft.apps.serve.batching import Answer, BatchQueue
from regraft.apps.serve.bodies import Body, Texts, read_body, text_body, texts_body
from regraft.apps.serve.guard import Guard
from regraft.apps.serve.limits import Limits, RefusedError, failure
from regraft.apps.serve.metrics import CONTENT_TYPE, UNANSWERED, Counting, Metrics
from regraft.apps.serve.reload import Reloader
from regraft.classifiers import prediction
from regraft.errors import DataError


class Prediction(BaseModel):
    """The prediction for one text, as `regraft predict` writes it."""

    label: str | list[str] | None = Field(
        description="Null if its probability is below `abstain_below`; a list if the classifier "
        "gives a text any number of labels."
    )
    probability: float = Field(description="Probability of the most probable label.")
    probabilities: dict[str, float] = Field(
        description="Probability of every label, or of the `top_k` most probable ones."
    )


class Classified(BaseModel):
    """The response of /v1/classify."""

    model: str = Field(description="Name and fingerprint of the run.")
    is_calibrated: bool = Field(description="Were the probabilities calibrated on held-out texts?")
    predictions: list[Prediction] = Field(description="One per text, in the order of the request.")


class WordScore(BaseModel):
    """A word at text[start:stop]; a score above 0 is evidence for the label."""

    text: str
    start: int
    stop: int
    score: float


class Explained(BaseModel):
    """The response of /v1/explain: the words that moved the decision, in log-odds of the label.

    The scores of all words + elsewhere = output - baseline + gap.
    """

    model: str = Field(description="Name and fingerprint of the run.")
    label: str = Field(description="The most probable label, which is explained.")
    probability: float = Field(description="Probability of that label.")
    probabilities: dict[str, float] = Field(description="Probability of every label.")
    method: str = Field(description="Method of attribution.")
    words: list[WordScore] = Field(description="All words of the text, in order.")
    elsewhere: float = Field(description="Score that belongs to no word.")
    baseline: float = Field(description="Log-odds without any word.")
    baseline_name: str = Field(description="Name of the baseline.")
    output: float = Field(description="Log-odds for this text.")
    gap: float = Field(
        description="Scores of words + elsewhere - (output - baseline): the unexplained part."
    )
    num_unread: int = Field(description="Words at the end that were cut.")


class Health(BaseModel):
    """The process is alive."""

    status: str


class Readiness(BaseModel):
    """The model that is served, and whether it is the one in the run folder."""

    is_ready: bool
    model: str
    kind: str
    labels: list[str]
    runtime: str
    is_calibrated: bool
    num_waiting: int
    trouble: str | None = Field(description="Why the run folder could not be loaded, if so.")


class Problem(BaseModel):
    """Why a request was refused."""

    problem: str
    expected: str
    remedy: str


def build_app(
    queue: BatchQueue,
    *,
    limits: Limits,
    metrics: Metrics,
    reloader: Reloader | None = None,
    api_key: str | None = None,
    hosts: Sequence[str] | None = None,
) -> FastAPI:
    """All routes over one queue, which lives as long as the application.

    `hosts` are the names it answers to; None is any, for a server that other machines reach.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        works = [queue.run()] if reloader is None else [queue.run(), reloader.run()]
        tasks = [asyncio.create_task(work) for work in works]
        app.state.answering = tasks[0]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    app = FastAPI(
        title="regraft",
        summary="A text classifier over HTTP.",
        version=version("regraft"),
        lifespan=lifespan,
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    _answer_errors(app)
    guarded: dict[str, Any] = (
        {} if api_key is None else {"dependencies": [Depends(_key_check(api_key))]}
    )
    key_refusals = {} if api_key is None else _refusals(401)
    app.include_router(_text_routes(queue, limits=limits, more=key_refusals), **guarded)
    app.include_router(_state_routes(queue, reloader=reloader))
    app.include_router(_page_route())

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **key_refusals},
        **guarded,
    )
    async def read_metrics() -> Response:
        """Counts for Prometheus."""
        return Response(metrics.written(queue), media_type=CONTENT_TYPE)

    routes = (
        "/",
        "/v1/classify",
        "/v1/explain",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
    )
    if hosts is not None:
        app.add_middleware(Guard, hosts=hosts, headers={"X-Content-Type-Options": "nosniff"})
    app.add_middleware(Counting, metrics=metrics, routes=routes)
    return app


def _text_routes(queue: BatchQueue, *, limits: Limits, more: dict[int | str, Any]) -> APIRouter:
    """/v1/classify and /v1/explain; `more` are responses that both can give."""
    router = APIRouter()
    texts_kind, text_kind = texts_body(limits), text_body(limits)
    refusals = {**_refusals(400, 408, 413, 415, 422, 429, 503), **more}

    @router.post(
        "/v1/classify",
        openapi_extra=_described(texts_kind, example={"texts": ["A charming book."]}),
        responses={200: {"model": Classified}, **refusals},
    )
    async def classify(request: Request) -> Response:
        """The label of one or more texts, with the probability of every label."""
        body = await read_body(request, texts_kind, limits=limits)
        answer = await queue.classify(body.texts)
        return JSONResponse(
            {
                "model": answer.engine.model,
                "is_calibrated": answer.engine.is_calibrated,
                "predictions": _predictions(answer, body),
            }
        )

    @router.post(
        "/v1/explain",
        openapi_extra=_described(text_kind, example={"text": "A charming book."}),
        responses={200: {"model": Explained}, **refusals},
    )
    async def explain(request: Request) -> Response:
        """The words that moved the decision about a text."""
        body = await read_body(request, text_kind, limits=limits)
        return JSONResponse(_explained(await queue.explain(body.text)).model_dump())

    return router


def _state_routes(queue: BatchQueue, *, reloader: Reloader | None) -> APIRouter:
    """/healthz and /readyz; monitors also ask by HEAD, and read the status only."""
    router = APIRouter()

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", responses={200: {"model": Health}})
    async def healthz() -> Response:
        """Is the process alive?"""
        return JSONResponse({"status": "ok"})

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", responses={200: {"model": Readiness}, 503: {"model": Readiness}})
    async def readyz(request: Request) -> Response:
        """Can it answer, and with which model? Reports a missing or damaged run folder."""
        engine = queue.engine
        state = Readiness(
            is_ready=not request.app.state.answering.done(),
            model=engine.model,
            kind=engine.kind,
            labels=list(engine.labels),
            runtime=engine.runtime,
            is_calibrated=engine.is_calibrated,
            num_waiting=queue.num_waiting,
            trouble=None if reloader is None else reloader.trouble,
        )
        return JSONResponse(state.model_dump(), status_code=200 if state.is_ready else 503)

    return router


def _page_route() -> APIRouter:
    """A page to try texts on. It asks this server only: its policy allows nothing else."""
    router = APIRouter()
    page = (files("regraft.apps.serve") / "static" / "index.html").read_text(encoding="utf-8")
    hashes = [
        "'sha256-" + base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() + "'"
        for name in ("style", "script")
        for part in re.findall(f"<{name}>(.*?)</{name}>", page, re.DOTALL)
    ]
    policy = "default-src 'none'; connect-src 'self'; style-src {}; script-src {}"
    headers = {
        "Content-Security-Policy": policy.format(*hashes) + "; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
    }

    @router.get("/", include_in_schema=False)
    async def read_page() -> Response:
        return HTMLResponse(page, headers=headers)

    return router


def _predictions(answer: Answer, body: Texts) -> list[dict[str, Any]]:
    """As the request asks, else as the classifier was fitted to answer."""
    engine, below = answer.engine, body.abstain_below
    found = []
    for value in answer.values:
        probabilities = list(value["probabilities"].values())
        given = prediction(
            engine.labels,
            probabilities,
            thresholds=engine.original.thresholds,
            abstain_below=engine.original.abstain_below if below is None else below,
            top_k=body.top_k,
        )
        found.append({"probability": max(probabilities), **given})
    return found


def _explained(answer: Answer) -> Explained:
    """Probabilities are rounded as in /v1/classify; log-odds are not, so that they add up."""
    (explanation,) = answer.values
    probabilities = list(explanation["probabilities"].values())
    rounded = prediction(answer.engine.labels, probabilities)
    return Explained.model_validate({**explanation, **rounded, "model": answer.engine.model})


def _described(kind: type[Body], *, example: dict[str, Any]) -> dict[str, Any]:
    """A body that is not an argument of its route, for openapi.json."""
    content = {"application/json": {"schema": kind.model_json_schema(), "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def _refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": Problem} for code in codes}


def _key_check(api_key: str) -> Callable[..., Awaitable[None]]:
    bearer = HTTPBearer(auto_error=False, description="The key in REGRAFT_API_KEY.")

    async def check(
        given: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
    ) -> None:
        # In constant time: the duration of a refusal must not reveal how much of a key is right.
        key = "" if given is None else given.credentials
        if not hmac.compare_digest(key.encode(), api_key.encode()):
            raise RefusedError(
                401,
                "The key is missing." if given is None else "The key is wrong.",
                "This server requires a key.",
                remedy="Send the header Authorization: Bearer KEY.",
                headers={"WWW-Authenticate": "Bearer"},
            )

    return check


async def unanswered(request: Request, error: Exception) -> Response:
    """A client has left before its request was whole: nobody gets this."""
    return Response(status_code=UNANSWERED)


def _answer_errors(app: FastAPI) -> None:
    """Every error as JSON in its three parts; unexpected ones are logged and become a 500."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        return JSONResponse(error.to_dict(), status_code=error.status, headers=error.headers)

    async def unread(request: Request, error: Exception) -> Response:
        assert isinstance(error, DataError)
        parts = error.problem, error.expected
        return await refused(request, RefusedError(422, *parts, remedy=error.remedy))

    async def unrouted(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        problems = {
            404: f"There is no {request.url.path[:100]!r} here.",
            405: f"{request.url.path} does not take {request.method[:20]}.",
        }
        refusal = RefusedError(
            error.status_code,
            problems.get(error.status_code, str(error.detail)),
            remedy="GET /openapi.json describes all routes.",
            headers=error.headers,
        )
        return await refused(request, refusal)

    async def unforeseen(request: Request, error: Exception) -> Response:
        return await refused(request, failure())

    app.add_exception_handler(RefusedError, refused)
    app.add_exception_handler(ClientDisconnect, unanswered)
    app.add_exception_handler(DataError, unread)
    app.add_exception_handler(HTTPException, unrouted)
    app.add_exception_handler(Exception, unforeseen)
