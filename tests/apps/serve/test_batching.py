"""The queue: batches gather, a full queue refuses, one bad text spoils nobody else's answer."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from servers import Gated, engine_of

from regraft.apps.serve.batching import BatchQueue
from regraft.apps.serve.limits import Limits, RefusedError


def run_with_queue(queue: BatchQueue, work: Coroutine[Any, Any, Any]) -> Any:
    async def main() -> Any:
        answering = asyncio.create_task(queue.run())
        try:
            return await asyncio.wait_for(work, 60)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    return asyncio.run(main())


async def started(classifier: Gated) -> None:
    while not classifier.batches:
        await asyncio.sleep(0.001)


def test_each_request_gets_its_own_answers():
    classifier = Gated()
    queue = BatchQueue(engine_of(classifier), limits=Limits())
    requests = [["a" * length] * (1 + length % 3) for length in range(1, 11)]

    async def work() -> list[Any]:
        return await asyncio.gather(*(queue.classify(texts) for texts in requests))

    for texts, answer in zip(requests, run_with_queue(queue, work()), strict=True):
        assert [value["probabilities"]["long"] for value in answer.values] == [
            len(text) / 10 for text in texts
        ]


def test_requests_that_wait_are_computed_together():
    classifier = Gated()
    sizes: list[int] = []
    limits = Limits(max_batch=4)
    queue = BatchQueue(
        engine_of(classifier), limits=limits, on_batch=lambda num, seconds: sizes.append(num)
    )

    async def work() -> None:
        classifier.gate.clear()
        first = asyncio.create_task(queue.classify(["first"]))
        await started(classifier)
        rest = [asyncio.create_task(queue.classify(texts)) for texts in (["b"], ["c"] * 3, ["d"])]
        await asyncio.sleep(0)
        assert queue.num_waiting == 5
        classifier.gate.set()
        await asyncio.gather(first, *rest)

    run_with_queue(queue, work())
    assert classifier.batches == [["first"], ["b", "c", "c", "c"], ["d"]]
    assert sizes == [1, 4, 1]
    assert queue.num_waiting == 0


def test_full_queue_refuses_and_recovers():
    classifier = Gated()
    queue = BatchQueue(engine_of(classifier), limits=Limits(max_waiting=4))

    async def work() -> None:
        classifier.gate.clear()
        first = asyncio.create_task(queue.classify(["first"]))
        await started(classifier)
        waiting = [asyncio.create_task(queue.classify(["b", "c"])) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RefusedError) as caught:
            await queue.classify(["one too many"])
        assert caught.value.status == 429
        assert caught.value.headers == {"Retry-After": "1"}
        assert str(caught.value) == (
            "Waiting already: as much as 4 texts. At most 4 may wait. Try again in 1 second."
        )
        classifier.gate.set()
        await asyncio.gather(first, *waiting)
        assert (await queue.classify(["again"])).values[0]["label"] == "short"

    run_with_queue(queue, work())


def test_request_larger_than_the_queue_is_let_in_when_nothing_waits():
    queue = BatchQueue(engine_of(Gated()), limits=Limits(max_waiting=2))
    answer = run_with_queue(queue, queue.classify(["a"] * 5))
    assert len(answer.values) == 5


def test_late_answer_is_refused_and_not_computed():
    classifier = Gated()
    queue = BatchQueue(engine_of(classifier), limits=Limits(seconds=0.05))

    async def work() -> None:
        classifier.gate.clear()
        first = asyncio.create_task(queue.classify(["a"]))
        await started(classifier)
        second = asyncio.create_task(queue.classify(["b"]))
        for task in (first, second):
            with pytest.raises(RefusedError, match=r"There was no answer within 0\.05 seconds\."):
                await task
        assert task.exception().status == 503
        classifier.gate.set()
        while queue.num_waiting:
            await asyncio.sleep(0.001)

    run_with_queue(queue, work())
    assert classifier.batches == [["a"]]


def test_bad_text_spoils_no_other_answer():
    classifier = Gated()
    queue = BatchQueue(engine_of(classifier), limits=Limits())

    async def work() -> list[Any]:
        requests = (["good"], ["bad"], ["good", "too"])
        found = (queue.classify(texts) for texts in requests)
        return await asyncio.gather(*found, return_exceptions=True)

    good, bad, more = run_with_queue(queue, work())
    assert isinstance(bad, RefusedError)
    assert bad.status == 500
    assert (len(good.values), len(more.values)) == (1, 2)


def test_new_engine_answers_the_next_batch():
    old, new = Gated(), Gated()
    queue = BatchQueue(engine_of(old, model="run@1"), limits=Limits())

    async def work() -> list[str]:
        old.gate.clear()
        first = asyncio.create_task(queue.classify(["a"]))
        await started(old)
        queue.engine = engine_of(new, model="run@2")
        second = asyncio.create_task(queue.classify(["b"]))
        await asyncio.sleep(0)
        old.gate.set()
        return [(await task).engine.model for task in (first, second)]

    assert run_with_queue(queue, work()) == ["run@1", "run@2"]
    assert (old.batches, new.batches) == ([["a"]], [["b"]])


def test_short_text_is_computed_on_the_spot_and_a_long_one_in_the_thread():
    classifier = Gated()
    engine = engine_of(classifier, seconds_a_byte=1e-4)
    queue = BatchQueue(engine, limits=Limits())

    async def ask() -> int:
        for texts in (["a" * 10], ["a" * 11], ["\u672c" * 4], ["a", "a"]):
            await queue.classify(texts)
        return threading.get_ident()

    here = run_with_queue(queue, ask())
    assert [thread == here for thread in classifier.threads] == [True, False, False, False]


def test_short_texts_behind_others_leave_the_server_free_to_listen():
    classifier = Gated()
    engine = engine_of(classifier, seconds_a_byte=1e-4)
    queue = BatchQueue(engine, limits=Limits(max_batch=1))

    async def ask() -> int:
        await asyncio.gather(*(queue.classify(["a"]) for _ in range(3)))
        return threading.get_ident()

    here = run_with_queue(queue, ask())
    # Only the last has nobody behind it.
    assert [thread == here for thread in classifier.threads] == [False, False, True]
