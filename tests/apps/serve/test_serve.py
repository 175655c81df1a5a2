"""The server over HTTP: right answers, right refusals, nothing lost.

Neither when its run changes, nor when it is stopped, nor under ten thousand requests: for these
two, marked slow, it is a process of its own.
"""

import http.client
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from conftest import make_examples
from hypothesis import HealthCheck, given, settings
from random_runs import LABELS, write_run
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from servers import Gated, Running, engine_of, running, served
from tampering import change_facts
from tiny_blends import blend_dir

from regraft.apps.serve.engine import load_engine
from regraft.apps.serve.limits import Limits
from regraft.classifiers.base import load_classifier, prediction, run_fingerprint

TEXTS = [text for text, _ in make_examples(200, seed=6)]
KEY = "a key that nobody knows"
# What an interrupted connection looks like when no byte of an answer has come.
NOT_ACCEPTED = (http.client.RemoteDisconnected, ConnectionError)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "reviews"
    return write_run(folder, preset="modern", objective="masked", pooling="mean")


@pytest.fixture(scope="module")
def server(run_dir) -> Iterator[Running]:
    limits = Limits(max_body_bytes=500_000, max_texts=20, max_characters=500, max_explained=200)
    engine = load_engine(run_dir, runtime="torch")
    with running(engine, run_dir=run_dir, limits=limits) as running_server:
        yield running_server


@pytest.fixture(scope="module")
def expected(run_dir) -> dict[str, dict[str, Any]]:
    """What `regraft predict` says of each text."""
    rows = load_classifier(run_dir).predict_proba(TEXTS).tolist()
    return {text: prediction(LABELS, row) for text, row in zip(TEXTS, rows, strict=True)}


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The same label and probabilities; digits beyond the fifth depend on a text's neighbours."""
    assert found["label"] == expected["label"]
    assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
    assert found["probability"] == found["probabilities"][found["label"]]


# schemathesis draws from `random` inside its strategies, which hypothesis now warns about.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_any_request_gets_an_answer_that_the_schema_describes(server, mode):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    checked = []
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # what takes nothing cannot be asked wrongly

        @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def answers(case):
            # That a text has no words to be explained is more than a schema can tell.
            is_explain = case.path == "/v1/explain"
            case.call_and_validate(excluded_checks=[positive_data_acceptance] * is_explain)

        answers()
        checked.append(operation.path)
    assert {"/v1/classify", "/v1/explain"} <= set(checked)


def test_request_may_ask_for_confident_answers_and_few_labels(server, expected):
    (text,) = TEXTS[:1]
    asked = {"texts": text, "abstain_below": 1.0, "top_k": 1}
    (found,) = server.client.post("/v1/classify", json=asked).json()["predictions"]
    assert found["label"] is None
    assert list(found["probabilities"]) == [expected[text]["label"]]
    for wrong in ({"abstain_below": 2}, {"top_k": 0}, {"top_k": "all"}):
        refusal = server.client.post("/v1/classify", json={"texts": text, **wrong})
        assert refusal.status_code == 422
        assert next(iter(wrong)) in refusal.json()["problem"]


def test_answers_are_those_of_predict(server, expected, run_dir):
    answer = server.classify(TEXTS[:20]).json()
    assert answer["model"] == f"reviews@{run_fingerprint(run_dir)[:12]}"
    assert answer["is_calibrated"] is False
    for text, found in zip(TEXTS[:20], answer["predictions"], strict=True):
        assert_equal(found, expected[text])
    assert_equal(server.classify(TEXTS[0]).json()["predictions"][0], expected[TEXTS[0]])


def test_many_clients_get_their_own_answers(server, expected):
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(server.classify, TEXTS))
    for text, answer in zip(TEXTS, answers, strict=True):
        assert_equal(answer.json()["predictions"][0], expected[text])


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f600\U0001f3f3\ufe0f\u200d\U0001f308",
        "كتاب رائع \u202e",
        "\x07\x1b[31m",
        "<script>1</script>",
    ],
)
def test_odd_characters_are_text(server, run_dir, text):
    row = load_classifier(run_dir).predict_proba([text]).tolist()[0]
    assert_equal(server.classify(text).json()["predictions"][0], prediction(LABELS, row))


@pytest.mark.parametrize(
    ("texts", "status", "fact"),
    [
        ("", 422, "texts[0]"),
        (["a", " \n"], 422, "texts[1]"),
        ("a" * 1_000_000, 413, "1,000,012 bytes"),
        (["a"] * 10_000, 422, "10000"),
        (17, 422, "texts"),
    ],
    ids=["empty", "blank", "megabyte", "ten thousand", "number"],
)
def test_wrong_texts_are_refused(server, texts, status, fact):
    answer = server.classify(texts)
    assert answer.status_code == status
    assert fact in answer.json()["problem"]
    assert answer.json().keys() == {"problem", "expected", "remedy"}


def test_invalid_utf8_is_refused(server):
    headers = {"Content-Type": "application/json"}
    answer = server.client.post("/v1/classify", content=b'{"texts": "\xe9"}', headers=headers)
    assert answer.status_code == 400
    assert "column 12" in answer.json()["problem"]


def test_other_than_json_is_refused(server):
    answer = server.client.post("/v1/classify", data={"texts": "a"})
    assert answer.status_code == 415
    assert "'application/x-www-form-urlencoded'" in answer.json()["problem"]


def test_unknown_route_and_method_are_refused(server):
    answer = server.client.get("/v2/classify")
    assert answer.status_code == 404
    assert "'/v2/classify'" in answer.json()["problem"]
    assert "/openapi.json" in answer.json()["remedy"]
    answer = server.client.get("/v1/classify")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["problem"] == "/v1/classify does not take GET."


def test_explanation_names_the_words(server, expected):
    text = TEXTS[1]
    answer = server.client.post("/v1/explain", json={"text": text}).json()
    assert answer["label"] == expected[text]["label"]
    assert answer["words"][0] | {"score": 0} == {"text": "the", "start": 0, "stop": 3, "score": 0}
    answer = server.client.post("/v1/explain", json={"text": "a" * 201})
    assert answer.status_code == 422
    assert "at most 200" in answer.json()["problem"]
    for text in (" \n", "\x00"):
        assert server.client.post("/v1/explain", json={"text": text}).status_code == 422


def test_explanation_adds_up_as_the_schema_says(server, tmp_path_factory):
    blend = blend_dir(tmp_path_factory, num_labels=3)
    with running(load_engine(blend), run_dir=blend) as other:
        for asked in (server, other):
            text = "A superb camera, I love it, but the lid broke after a day."
            told = asked.client.post("/v1/explain", json={"text": text}).json()
            explained = sum(word["score"] for word in told["words"]) + told["elsewhere"]
            assert explained - (told["output"] - told["baseline"]) == pytest.approx(told["gap"])
            assert abs(told["gap"]) < 0.02
            # The same text has the same probabilities, to the same digits, on both routes.
            classified = asked.classify(text).json()["predictions"][0]
            assert {name: told[name] for name in classified} == classified
    # Without what belongs to no word, a blend's scores would miss the difference.
    assert abs(told["elsewhere"]) > 1e-3
    assert told["baseline_name"] == "all labels equally likely"


def test_metrics_count_requests_and_batches(server):
    server.classify("a")
    server.client.get("/nowhere")
    answer = server.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    for name in (
        'regraft_requests_total{route="/v1/classify",status="200"}',
        'regraft_requests_total{route="other",status="404"}',
        "regraft_batch_texts_count",
        "regraft_waiting_texts 0.0",
        'regraft_model{model="reviews@',
    ):
        assert name in answer.text


def test_health_and_readiness(server):
    assert server.client.get("/healthz").json() == {"status": "ok"}
    told = server.ready()
    assert (told["is_ready"], told["labels"], told["trouble"]) == (True, list(LABELS), None)
    for route in ("/healthz", "/readyz"):
        answer = server.client.head(route)
        assert (answer.status_code, answer.content) == (200, b"")


def test_key_is_asked_for(run_dir):
    engine = load_engine(run_dir, runtime="torch")
    with running(engine, run_dir=run_dir, api_key=KEY) as server:
        missing = server.classify("a")
        wrong = server.classify("a", headers={"Authorization": "Bearer wrong"})
        right = server.classify("a", headers={"Authorization": f"Bearer {KEY}"})
        assert (missing.status_code, missing.json()["problem"]) == (401, "The key is missing.")
        assert (wrong.status_code, wrong.json()["problem"]) == (401, "The key is wrong.")
        assert missing.headers["www-authenticate"] == "Bearer"
        assert right.status_code == 200
        assert server.client.get("/metrics").status_code == 401
        assert server.client.get("/readyz").status_code == 200


def test_overload_gets_429_and_recovers(tmp_path):
    classifier = Gated()
    engine = engine_of(classifier)
    limits = Limits(max_waiting=3)
    with running(engine, run_dir=tmp_path, limits=limits, watch_seconds=60) as server:
        classifier.gate.clear()
        with ThreadPoolExecutor(8) as threads:
            first = threads.submit(server.classify, "first")
            while not classifier.batches:
                time.sleep(0.001)
            waiting = [threads.submit(server.classify, "b") for _ in range(3)]
            server.wait_until(num_waiting=3)
            refused = server.classify("one too many")
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["problem"] == "Waiting already: as much as 3 texts."
            classifier.gate.set()
            assert [done.result().status_code for done in (first, *waiting)] == [200] * 4
        assert server.classify("again").status_code == 200


def test_answer_that_takes_too_long_is_refused(tmp_path):
    classifier = Gated()
    limits = Limits(seconds=0.2)
    with running(
        engine_of(classifier), run_dir=tmp_path, limits=limits, watch_seconds=60
    ) as server:
        classifier.gate.clear()
        late = server.classify("a")
        classifier.gate.set()
        assert (late.status_code, late.json()["problem"]) == (
            503,
            "There was no answer within 0.2 seconds.",
        )
        assert "retry-after" in late.headers


def test_failure_of_ours_is_told_without_its_insides(tmp_path):
    with running(engine_of(Gated()), run_dir=tmp_path, watch_seconds=60) as server:
        answer = server.classify("bad")
        assert answer.status_code == 500
        assert "bad" not in str(answer.json())
        assert server.classify("good").status_code == 200


def test_new_run_takes_over_without_a_request_lost(run_dir, tmp_path):
    other = write_run(tmp_path / "other", preset="lab", objective="causal", pooling="last")
    link = tmp_path / "current"
    link.symlink_to(run_dir, target_is_directory=True)
    texts = TEXTS[:30]
    engines = [load_engine(path, runtime="torch") for path in (run_dir, other)]
    expected = {engine.model: engine.classify(texts) for engine in engines}
    assert expected[engines[0].model] != expected[engines[1].model]
    answers = []
    with running(engines[0], run_dir=link) as server, ThreadPoolExecutor(4) as threads:
        is_over = threading.Event()

        def ask() -> None:
            is_last = False
            while not is_last:
                is_last = is_over.is_set()  # one more then, which only the new run can answer
                answers.append(server.classify(texts))

        answers.append(server.classify(texts))
        asking = [threads.submit(ask) for _ in range(3)]
        try:
            beside = tmp_path / "beside"
            beside.symlink_to(other, target_is_directory=True)
            beside.replace(link)
            server.wait_until(model=engines[1].model)
        finally:
            is_over.set()
        for done in asking:
            done.result()
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["model"] for answer in answers} == expected.keys()
    for answer in answers:
        for found, right in zip(
            answer.json()["predictions"], expected[answer.json()["model"]], strict=True
        ):
            assert_equal(found, right)


def test_deleted_or_damaged_run_is_served_on_and_told(run_dir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    with running(load_engine(copy, runtime="torch"), run_dir=copy) as server:
        model = server.ready()["model"]
        shutil.rmtree(copy)
        server.wait_until(trouble="There is no run folder copy.")
        assert server.classify("a").json()["model"] == model
        shutil.copytree(run_dir, copy)
        server.wait_until(trouble=None)
        change_facts(copy / "run.json", status="training")
        server.wait_until(
            trouble="The run in copy is not finished: there are no final weights yet."
        )
        assert server.classify("a").json()["model"] == model
        change_facts(copy / "run.json", status="complete", launch="again")
        server.wait_until(trouble=None)
        assert server.ready()["model"] != model


@pytest.mark.slow
def test_ten_thousand_requests_are_all_answered_right(run_dir, expected):
    num_requests, num_clients = 10_000, 64
    with served(run_dir, "--runtime", "auto") as server:

        def ask(first: int) -> list[tuple[str, int, dict[str, Any]]]:
            client = server.client()
            asked = [TEXTS[number % len(TEXTS)] for number in range(first, last, num_clients)]
            answers = [(text, *client.classify(text)) for text in asked]
            client.close()
            return answers

        def ask_all() -> list[tuple[str, int, dict[str, Any]]]:
            with ThreadPoolExecutor(num_clients) as threads:
                parts = threads.map(ask, range(num_clients))
            return [answer for part in parts for answer in part]

        last = 1_000
        ask_all()  # what a process of torch and its libraries needs, it has by then
        before = server.resident_bytes()
        last = num_requests
        answers = ask_all()
        grown = server.resident_bytes() - before
        said = server.end()
    assert len(answers) == num_requests
    for text, status, answer in answers:
        assert status == 200
        assert_equal(answer["predictions"][0], expected[text])
    assert grown < 64 << 20
    assert "Stopped after 11,000 requests, all of them answered." in said


@pytest.mark.slow
def test_sigterm_under_load_loses_no_accepted_request(run_dir, expected):
    num_clients = 8
    num_answered = [0] * num_clients
    has_begun = threading.Event()
    with served(run_dir, "--runtime", "torch") as server:

        def ask(number: int) -> None:
            client = server.client()
            for place in range(1_000_000):
                text = TEXTS[(number + place) % len(TEXTS)]
                try:
                    status, answer = client.classify(text)
                except NOT_ACCEPTED:
                    client.close()
                    return
                assert status == 200
                assert_equal(answer["predictions"][0], expected[text])
                num_answered[number] += 1
                if place == 20:
                    has_begun.set()

        with ThreadPoolExecutor(num_clients) as threads:
            asking = [threads.submit(ask, number) for number in range(num_clients)]
            assert has_begun.wait(120)
            said = server.end()
        for done in asking:
            done.result()
    # An answer that was begun and broken off would have raised; the server counts the same.
    assert f"Stopped after {sum(num_answered):,} requests, all of them answered." in said
