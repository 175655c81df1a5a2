"""The routes: what can be asked over HTTP, and what is answered.

Comes in: a queue to the engine, limits, perhaps a key. Goes out: an ASGI application with its
OpenAPI description. No path, address or code is ever taken from a request: texts go in, and labels
come out. Every refusal has its status and the three parts of our errors.
"""

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response, Security
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from regraft.classifier import prediction
from regraft.errors import DataError
from regraft.serve.limits import (
    BodyReader,
    Limits,
    RefusedError,
    counted,
    failure,
    parse_text,
    parse_texts,
    text_schema,
    texts_schema,
)
from regraft.serve.metrics import CONTENT_TYPE, Counting, Metrics
from regraft.serve.queue import Answer, BatchQueue
from regraft.serve.reload import Reloader


class Prediction(BaseModel):
    """Of one text, as `regraft predict` says it."""

    label: str
    probability: float = Field(description="Of that label.")
    probabilities: dict[str, float] = Field(description="Of every label.")


class Classified(BaseModel):
    """The answer to /v1/classify."""

    model: str = Field(description="The run that answered: its name and fingerprint.")
    is_calibrated: bool = Field(description="Were the probabilities fitted to held-out texts?")
    predictions: list[Prediction] = Field(description="One a text, in the order given.")


class WordScore(BaseModel):
    """A word at text[start:stop]; above 0 it speaks for the label."""

    text: str
    start: int
    stop: int
    score: float


class Explained(BaseModel):
    """The answer to /v1/explain: what moved the decision, in log-odds of the label.

    The scores of all words + elsewhere = output - baseline + gap.
    """

    model: str = Field(description="The run that answered: its name and fingerprint.")
    label: str = Field(description="The most probable label, which is explained.")
    probability: float = Field(description="Of that label.")
    probabilities: dict[str, float] = Field(description="Of every label.")
    method: str = Field(description="How the scores were found.")
    words: list[WordScore] = Field(description="All words of the text, in its order.")
    elsewhere: float = Field(description="Score of what belongs to no word.")
    baseline: float = Field(description="Log-odds where no word has been read.")
    baseline_name: str = Field(description="What is read there, in words.")
    output: float = Field(description="Log-odds for this text.")
    gap: float = Field(
        description="Scores of words + elsewhere - (output - baseline): 0 if none is missing."
    )
    num_unread: int = Field(description="Words at the end that the model does not read.")


class Health(BaseModel):
    """The process is alive."""

    status: str


class Readiness(BaseModel):
    """What is served, and whether it is what lies in the run folder."""

    is_ready: bool
    model: str
    kind: str
    labels: list[str]
    runtime: str
    is_calibrated: bool
    num_waiting: int
    trouble: str | None = Field(description="Why the run folder is not what is served, if so.")


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
) -> FastAPI:
    """All routes over one queue, which lives as long as the application."""

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
        summary="A classifier of texts behind HTTP.",
        version=version("regraft"),
        lifespan=lifespan,
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    _answer_errors(app)
    guarded = [] if api_key is None else [Depends(_key_check(api_key))]
    key_refusals = {} if api_key is None else _refusals(401)

    @app.post(
        "/v1/classify",
        dependencies=guarded,
        openapi_extra=_body(texts_schema(limits), example={"texts": ["A charming book."]}),
        responses={
            200: {"model": Classified},
            **_refusals(400, 408, 413, 415, 422, 429, 503),
            **key_refusals,
        },
    )
    async def classify(request: Request) -> Response:
        """The label of one text or many, with the probability of each label."""
        texts = parse_texts(await _body_of(request, limits=limits), limits=limits)
        answer = await queue.classify(texts)
        return JSONResponse(
            {
                "model": answer.engine.model,
                "is_calibrated": answer.engine.is_calibrated,
                "predictions": answer.values,
            }
        )

    @app.post(
        "/v1/explain",
        dependencies=guarded,
        openapi_extra=_body(text_schema(limits), example={"text": "A charming book."}),
        responses={
            200: {"model": Explained},
            **_refusals(400, 408, 413, 415, 422, 429, 503),
            **key_refusals,
        },
    )
    async def explain(request: Request) -> Response:
        """Which words moved the decision about a text."""
        text = parse_text(await _body_of(request, limits=limits), limits=limits)
        answer = await queue.explain(text)
        return JSONResponse(_explained(answer).model_dump())

    # Those who watch servers ask by HEAD, too, and read the status alone.
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", responses={200: {"model": Health}})
    async def healthz() -> Response:
        """Is the process alive?"""
        return JSONResponse({"status": "ok"})

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz", responses={200: {"model": Readiness}, 503: {"model": Readiness}})
    async def readyz(request: Request) -> Response:
        """Can it answer, and with what? A run folder that is gone or damaged is told here."""
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

    @app.get(
        "/metrics",
        dependencies=guarded,
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **key_refusals},
    )
    async def read_metrics() -> Response:
        """Counts for Prometheus."""
        return Response(metrics.written(queue), media_type=CONTENT_TYPE)

    routes = ("/v1/classify", "/v1/explain", "/healthz", "/readyz", "/metrics", "/openapi.json")
    app.add_middleware(Counting, metrics=metrics, routes=routes)
    return app


def _explained(answer: Answer) -> Explained:
    """Probabilities are told as /v1/classify tells them; log-odds in full, so that they add up."""
    (found,) = answer.values
    told = prediction(answer.engine.labels, list(found["probabilities"].values()))
    return Explained.model_validate({**found, **told, "model": answer.engine.model})


def _body(schema: dict[str, Any], *, example: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def _refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": Problem} for code in codes}


async def _body_of(request: Request, *, limits: Limits) -> bytes:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RefusedError(
            415,
            f"The body is sent as {media_type[:60] or 'nothing in particular'!r}.",
            "It is JSON.",
            remedy="Send it with the header Content-Type: application/json.",
        )
    reader = BodyReader(limits=limits, announced=request.headers.get("content-length"))

    async def read() -> bytes:
        async for part in request.stream():
            reader.add(part)
        return reader.body()

    try:
        return await asyncio.wait_for(read(), limits.seconds)
    except asyncio.TimeoutError as error:
        raise RefusedError(
            408,
            f"The body did not arrive within {counted(limits.seconds, 'second')}.",
            remedy="Send it again.",
            headers={"Connection": "close"},
        ) from error


def _key_check(api_key: str) -> Callable[..., Awaitable[None]]:
    bearer = HTTPBearer(auto_error=False, description="The key in REGRAFT_API_KEY.")

    async def check(
        given: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)],
    ) -> None:
        # In constant time: how long a refusal takes must not tell how much of a key is right.
        key = "" if given is None else given.credentials
        if not hmac.compare_digest(key.encode(), api_key.encode()):
            raise RefusedError(
                401,
                "The key is missing." if given is None else "The key is wrong.",
                "This server answers those who know its key.",
                remedy="Send the header Authorization: Bearer KEY.",
                headers={"WWW-Authenticate": "Bearer"},
            )

    return check


def _answer_errors(app: FastAPI) -> None:
    """Each error as JSON in its three parts; what nobody foresaw is logged and told as 500."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        return JSONResponse(error.to_dict(), status_code=error.status, headers=error.headers)

    async def unread(request: Request, error: Exception) -> Response:
        assert isinstance(error, DataError)
        parts = error.problem, error.expected
        return await refused(request, RefusedError(422, *parts, remedy=error.remedy))

    async def unrouted(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = {
            404: f"There is no {request.url.path[:100]!r} here.",
            405: f"{request.url.path} does not take {request.method[:20]}.",
        }
        refusal = RefusedError(
            error.status_code,
            told.get(error.status_code, str(error.detail)),
            remedy="GET /openapi.json describes all that can be asked.",
            headers=error.headers,
        )
        return await refused(request, refusal)

    async def unforeseen(request: Request, error: Exception) -> Response:
        return await refused(request, failure())

    app.add_exception_handler(RefusedError, refused)
    app.add_exception_handler(DataError, unread)
    app.add_exception_handler(HTTPException, unrouted)
    app.add_exception_handler(Exception, unforeseen)
