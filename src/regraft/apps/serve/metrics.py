"""Metrics of a server, for Prometheus to read at /metrics; they contain no text and no address."""

import time
from collections.abc import Collection
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from regraft.apps.serve.batching import BatchQueue

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


# As nginx calls it when a client has left; no client sees it.
UNANSWERED = 499


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "regraft_requests", "Requests answered.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "regraft_request_seconds",
            "From the first byte of a request to the last of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._batch_texts = Histogram(
            "regraft_batch_texts",
            "Texts computed at once.",
            buckets=_TEXTS,
            registry=self._registry,
        )
        self._batch_seconds = Histogram(
            "regraft_batch_seconds",
            "Time to compute a batch.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._waiting = Gauge(
            "regraft_waiting_texts", "Texts in the queue.", registry=self._registry
        )
        self._model = Gauge(
            "regraft_model",
            "The model that answers now.",
            ["model", "runtime"],
            registry=self._registry,
        )
        self.num_requests = 0

    def add_request(self, route: str, *, status: int, seconds: float) -> None:
        """One request has been answered."""
        self.num_requests += status != UNANSWERED
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def add_batch(self, num_texts: int, seconds: float) -> None:
        """One batch has been computed."""
        self._batch_texts.observe(num_texts)
        self._batch_seconds.observe(seconds)

    def written(self, queue: BatchQueue) -> bytes:
        """The current values in the text format of Prometheus."""
        self._waiting.set(queue.num_waiting)
        self._model.clear()
        self._model.labels(queue.engine.model, queue.engine.runtime).set(1)
        return prometheus_client.generate_latest(self._registry)


class Counting:
    """The outermost middleware: counts every request with its status."""

    def __init__(self, app: Any, *, metrics: Metrics, routes: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = frozenset(routes)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 500

        async def counted_send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, counted_send)
        finally:
            # A name for each unknown path would let anyone fill the memory.
            route = scope["path"] if scope["path"] in self._routes else "other"
            seconds = time.perf_counter() - start
            self._metrics.add_request(route, status=status, seconds=seconds)
