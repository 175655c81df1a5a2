"""The queue of requests, answered in order, one batch at a time.

While one batch is computed in a thread, the next one gathers. There is no timer: a single request
never waits, and a short one is computed at once. A full queue refuses instead of growing.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from regraft.apps.serve.engine import Engine
from regraft.apps.serve.limits import Limits, RefusedError, failure
from regraft.errors import RegraftError
from regraft.runtime import counted

_LOGGER = logging.getLogger(__name__)
# An explanation counts as this many texts: the model reads its text about as often.
EXPLANATION_COST = 32
# The event loop may be blocked for this long, or a few times longer for an unusually long text.
_QUICK_SECONDS = 0.001
# Weight of the latest batch in the running mean of the time per text.
_NEWEST_SHARE = 0.2


@dataclass(frozen=True)
class Answer:
    """The result, and the engine that computed it, which may have been replaced since."""

    engine: Engine
    values: list[dict[str, Any]]


@dataclass(frozen=True)
class _Job:
    texts: Sequence[str]
    is_explained: bool
    future: "asyncio.Future[Answer]"

    @property
    def cost(self) -> int:
        return EXPLANATION_COST if self.is_explained else len(self.texts)


class BatchQueue:
    """The only access to the engine. `engine` may be replaced at any time, for the next batch."""

    def __init__(
        self,
        engine: Engine,
        *,
        limits: Limits,
        on_batch: Callable[[int, float], None] = lambda num_texts, seconds: None,
    ) -> None:
        self.engine = engine
        self._limits = limits
        self._on_batch = on_batch
        self._jobs: deque[_Job] = deque()
        self._cost_waiting = 0
        self._seconds_each = 0.0
        self._arrived = asyncio.Event()
        # One thread: explanations hang hooks into the model that classifies.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="regraft-serve")

    @property
    def num_waiting(self) -> int:
        """Texts that no batch has taken yet; an explanation counts as several."""
        return self._cost_waiting

    async def classify(self, texts: Sequence[str]) -> Answer:
        """The predictions of texts, in their order."""
        return await self._answer_to(texts, is_explained=False)

    async def explain(self, text: str) -> Answer:
        """What moved the decision about a text."""
        return await self._answer_to([text], is_explained=True)

    async def run(self) -> None:
        """Answer until cancelled; what is left then is never answered."""
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._jobs:
                    await self._compute(self._take())
        finally:
            self._thread.shutdown(wait=False)

    async def _answer_to(self, texts: Sequence[str], *, is_explained: bool) -> Answer:
        job = _Job(texts, is_explained, asyncio.get_running_loop().create_future())
        # What is larger than the whole queue is let in when nothing waits.
        if self._jobs and self._cost_waiting + job.cost > self._limits.max_waiting:
            raise self._full()
        self._jobs.append(job)
        self._cost_waiting += job.cost
        self._arrived.set()
        try:
            return await asyncio.wait_for(job.future, self._limits.seconds)
        except asyncio.TimeoutError as error:
            raise RefusedError(
                503,
                f"There was no answer within {counted(self._limits.seconds, 'second')}.",
                "The request was dropped.",
                remedy="Try again later, or send fewer and shorter texts.",
                headers={"Retry-After": str(self._retry_seconds())},
            ) from error

    def _full(self) -> RefusedError:
        seconds = self._retry_seconds()
        return RefusedError(
            429,
            f"Waiting already: as much as {counted(self._cost_waiting, 'text')}.",
            f"At most {self._limits.max_waiting:,} may wait.",
            remedy=f"Try again in {counted(seconds, 'second')}.",
            headers={"Retry-After": str(seconds)},
        )

    def _retry_seconds(self) -> int:
        return max(math.ceil(self._cost_waiting * self._seconds_each), 1)

    def _take(self) -> list[_Job]:
        """The first request and those after it that fit; explanations are computed alone."""
        taken: list[_Job] = []
        room = self._limits.max_batch
        while self._jobs:
            job = self._jobs[0]
            if taken and (job.is_explained or taken[0].is_explained or job.cost > room):
                break
            self._jobs.popleft()
            self._cost_waiting -= job.cost
            if not job.future.done():  # a late one has been given up
                taken.append(job)
                room -= job.cost
        return taken

    async def _compute(self, jobs: list[_Job]) -> None:
        if not jobs:
            return
        engine, loop = self.engine, asyncio.get_running_loop()
        cost, start = sum(job.cost for job in jobs), loop.time()
        try:
            if not self._jobs and _is_quick(engine, jobs):
                # A thread would first have to be woken up, and then this one again: for a sentence
                # a tenth of all the time until the answer (2026-11-18).
                values = _values(engine, jobs)
            else:
                values = await loop.run_in_executor(self._thread, _values, engine, jobs)
        except Exception as error:
            await self._single_out(jobs, error)
            return
        seconds = loop.time() - start
        self._seconds_each += _NEWEST_SHARE * (seconds / cost - self._seconds_each)
        self._on_batch(sum(len(job.texts) for job in jobs), seconds)
        place = 0
        for job in jobs:
            if not job.future.done():
                result = values[place : place + len(job.texts)]
                job.future.set_result(Answer(engine, result))
            place += len(job.texts)

    async def _single_out(self, jobs: list[_Job], error: Exception) -> None:
        """One request must not spoil the answers to its neighbours: each is computed again."""
        if len(jobs) > 1:
            for job in jobs:
                await self._compute([job])
            return
        if not isinstance(error, RegraftError):
            # Not raised on: the connection would be closed over it.
            _LOGGER.error("a request failed", exc_info=error)
            error = failure()
        if not jobs[0].future.done():
            jobs[0].future.set_exception(error)


def _is_quick(engine: Engine, jobs: Sequence[_Job]) -> bool:
    """A lone short text? By its bytes: a sign of few or no words may be a token for each."""
    texts = [text for job in jobs for text in job.texts]
    if len(texts) > 1 or jobs[0].is_explained:
        return False
    return len(texts[0].encode()) * engine.seconds_a_byte <= _QUICK_SECONDS


def _values(engine: Engine, jobs: Sequence[_Job]) -> list[dict[str, Any]]:
    """One value for every text of the jobs, in order."""
    if jobs[0].is_explained:
        return [engine.explain(jobs[0].texts[0])]
    return engine.classify([text for job in jobs for text in job.texts])
