"""The studio over HTTP: what it answers, whom it answers, and what it refuses."""

import base64
import dataclasses
import itertools
import json
import random
import re
import shutil
import socket
import subprocess
import sys
from importlib.resources import files

import httpx2
import numpy as np
import pytest
from conftest import make_examples, write_examples
from pages import outline
from random_runs import LABELS, write_run
from studios import open_session, running
from tiny_blends import light_blend
from typer.testing import CliRunner

from regraft.apps.cli import app
from regraft.apps.serve.guard import check_caller
from regraft.apps.serve.limits import RefusedError
from regraft.apps.studio.inside import Shape, parameters, shapes
from regraft.apps.studio.models import Models
from regraft.classifiers.attribution import Explainer
from regraft.models.parameter_count import ledger
from regraft.training.generation import generate
from regraft.training.loaded_run import learned_positions

SCRIPT = "A charming book. <script>document.title = 'stolen'</script>"
TEXT = make_examples(1, seed=3)[0][0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studio")
    write_run(folder / "base", preset="lab", objective="causal")
    write_run(folder / "reviews", preset="modern", objective="masked", pooling="mean")
    (folder / "reviews" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    (folder / "report").mkdir()
    (folder / "report" / "report.html").write_text("<!doctype html><title>told</title>")
    return folder


@pytest.fixture(scope="module")
def studio(folder, tmp_path_factory):
    session = open_session(tmp_path_factory.mktemp("labels") / "labels.csv")
    with running(folder, session=session) as found:
        yield found


def assert_refused(answer: httpx2.Response, status: int, problem: str) -> None:
    assert answer.status_code == status
    parts = answer.json()
    assert set(parts) == {"problem", "expected", "remedy"}
    assert re.search(problem, parts["problem"]), parts
    assert parts["remedy"]


def test_the_page_loads_nothing_from_elsewhere(studio):
    answer = studio.client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    parts = [file.name for file in files("regraft.apps.studio").joinpath("static").iterdir()]
    assert "main.js" in parts
    for name in (*parts, "plotly.js", "explanation.css"):
        part = studio.client.get(f"/web/{name}")
        assert part.status_code == 200
        assert part.headers["x-content-type-options"] == "nosniff"
        if name not in ("plotly.js", "leaf.svg"):
            assert "://" not in part.text
    assert studio.client.get("/web/plotly.js").headers["content-type"].startswith("text/javascript")


def test_every_link_of_the_page_leads_somewhere_and_fields_have_labels(studio):
    page = re.sub(r"<(link|input)([^>]*)>", r"<\1\2/>", studio.client.get("/").text)
    found = outline(page)
    ids = [value for value in found.values("id") if value]
    assert len(ids) == len(set(ids))
    for link in (*found.values("href"), *found.values("src")):
        if link and link.startswith("/"):
            assert studio.client.get(link).status_code == 200
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "style"]
    named = set(found.values("for")) | {None}
    for tag, attributes in found.elements:
        if tag == "textarea":
            assert attributes["id"] in named


@pytest.mark.parametrize(
    "path",
    [
        "/web/../app.py",
        "/web/%2e%2e/pyproject.toml",
        "/web/nothing.js",
        "/api/runs/..%2f..%2fetc/curve",
        "/api/runs/base/report",
        "/api/nothing",
        "/docs",
        "/openapi.json",
    ],
)
def test_unknown_places_are_not_found(studio, path):
    answer = studio.client.get(path)
    assert answer.status_code == 404
    assert answer.json()["remedy"]


def test_runs_curve_and_report_are_served(studio):
    run = studio.run("reviews")
    assert run["can_classify"]
    assert run["has_curve"]
    found = studio.client.get(f"/api/runs/{run['id']}/curve").json()
    assert found["records"] == [{"step": 1, "loss": 2.5}]
    page = studio.client.get(f"/api/runs/{studio.run('report')['id']}/report")
    assert page.text == "<!doctype html><title>told</title>"
    policy = page.headers["content-security-policy"]
    assert policy.startswith("sandbox;")
    assert "script" not in policy


def test_differences_are_served_and_unknown_runs_refused(studio):
    ids = [studio.run(name)["id"] for name in ("base", "reviews")]
    found = studio.client.get("/api/differences", params={"run": ids}).json()
    assert found["settings"][0] == {"name": "kind", "values": ["base", "classifier"]}
    assert_refused(
        studio.client.get("/api/differences?run=base"), 404, "This run is not in the folder"
    )


def test_a_text_gets_the_label_that_explain_gives_it(studio, folder):
    run_id = studio.run("reviews")["id"]
    answer = studio.client.post(f"/api/runs/{run_id}/explain", json={"text": TEXT}).json()
    expected = Explainer.load(folder / "reviews").explain(TEXT)
    assert answer["label"] == expected.predicted
    assert answer["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
    assert "".join(piece["text"] for piece in answer["pieces"]) == TEXT
    scores = [piece["score"] for piece in answer["pieces"] if piece["score"] is not None]
    assert scores == pytest.approx([word.score for word in expected.words], abs=1e-3)
    for side, words in zip(("for", "against"), expected.strongest(), strict=True):
        assert [word["text"] for word in answer["strongest"][side]] == [word.text for word in words]


def test_a_text_below_the_threshold_is_said_to_have_no_answer(tmp_path):
    blend = light_blend()
    for below in (0.0, 1.0):
        info = dataclasses.replace(blend.info, result={**blend.info.result, "abstain_below": below})
        run_dir = tmp_path / f"run-{below:g}"
        dataclasses.replace(blend, info=info).save(run_dir)
        facts = Models().explained(run_dir, TEXT)["facts"]
        assert facts[0].startswith("Not sure enough to answer: that needs 100.0 %.") == (below == 1)


def test_words_that_are_not_read_are_told_apart_from_those_that_count_nothing(studio, folder):
    run_id, text = studio.run("reviews")["id"], " ".join([TEXT] * 12)
    answer = studio.client.post(f"/api/runs/{run_id}/explain", json={"text": text}).json()
    expected = Explainer.load(folder / "reviews").explain(text)
    unread = [piece["is_unread"] for piece in answer["pieces"] if piece["score"] is not None]
    assert expected.num_unread > 0
    assert unread == [expected.is_unread(word) for word in expected.words]
    assert not any(piece["is_unread"] for piece in answer["pieces"] if piece["score"] is None)


def test_attention_is_a_byte_for_each_weight(studio):
    run_id = studio.run("reviews")["id"]
    found = studio.client.post(f"/api/runs/{run_id}/attention", json={"text": TEXT}).json()
    length = len(found["tokens"])
    weights = np.frombuffer(base64.b64decode(found["weights"]), dtype=np.uint8)
    assert weights.size == found["num_layers"] * found["num_heads"] * length**2
    rows = ((weights.reshape(-1, length) / 255) ** 2).sum(axis=1)
    assert rows == pytest.approx(np.ones(len(rows)), abs=length**0.5 / 255)
    assert 0 < found["darkest"] <= 1


def test_attention_in_a_long_text_keeps_small_weights_apart(tmp_path):
    long = {"data.max_length": 90, "model.max_positions": 128}
    write_run(
        tmp_path / "long", preset="modern", objective="masked", pooling="mean", overrides=long
    )
    with running(tmp_path) as studio:
        run_id, text = studio.run("long")["id"], " ".join([TEXT] * 12)
        found = studio.client.post(f"/api/runs/{run_id}/attention", json={"text": text}).json()
    assert len(found["tokens"]) == 90
    shades = np.frombuffer(base64.b64decode(found["weights"]), dtype=np.uint8)
    # A 90th of all would be 3 of 255 shades, were they spread evenly from 0 to 1.
    assert np.median(shades) > 10
    assert len(np.unique(shades)) > 30


def test_a_base_continues_a_text_as_generate_does(studio, folder):
    run_id = studio.run("base")["id"]
    asked = {"prompt": "the story", "temperature": 0.7, "max_tokens": 5, "seed": 3}
    found = studio.client.post(f"/api/runs/{run_id}/generate", json=asked)
    expected = generate(folder / "base", "the story", temperature=0.7, max_tokens=5, seed=3)
    assert found.json()["text"].encode("utf-8", "replace") == expected.encode("utf-8", "replace")


@pytest.mark.parametrize(
    ("text", "status", "problem"),
    [
        ("", 422, "text: .* at least 1 "),
        ("a" * 20_001, 422, "text: .* at most 20000 "),
        ("a" * 1_000_000, 413, "The body has [0-9,]+ bytes or more"),
        (None, 422, "text: .* string"),
        (["a"] * 10, 422, "text: .* string"),
        ("\ud800", 400, "JSON"),
        (" \n\t", 422, "The text has no word"),
    ],
    ids=["empty", "long", "huge", "null", "list", "surrogate", "blank"],
)
def test_bad_texts_are_refused_in_three_parts(studio, text, status, problem):
    run_id = studio.run("reviews")["id"]
    body = json.dumps({"text": text})
    headers = {"content-type": "application/json"}
    answer = studio.client.post(f"/api/runs/{run_id}/explain", content=body, headers=headers)
    assert_refused(answer, status, problem)


@pytest.mark.parametrize(
    "text", [SCRIPT, "emoji 🙂", "עברית \u202e reversed", "a\x1b[31m", "é" * 99]
)
def test_odd_texts_get_an_answer_with_nothing_that_commands_a_page(studio, text):
    run_id = studio.run("reviews")["id"]
    answer = studio.client.post(f"/api/runs/{run_id}/explain", json={"text": text})
    assert answer.status_code == 200
    assert answer.json()["label"] in LABELS
    shown = "".join(piece["text"] for piece in answer.json()["pieces"])
    assert not {"\x00", "\x1b", "\u202e"} & set(shown)


def test_bodies_that_are_not_ours_are_refused(studio):
    place = f"/api/runs/{studio.run('reviews')['id']}/explain"
    json_type = {"content-type": "application/json"}
    post = studio.client.post
    assert_refused(post(place, content=b"text=a"), 415, "''")
    assert_refused(post(place, content=b"{", headers=json_type), 400, "JSON")
    assert_refused(post(place, content=b"\xff", headers=json_type), 400, "JSON")
    assert_refused(post(place, content=b"[" * 9_999, headers=json_type), 400, "JSON")
    assert_refused(post(place, content=b"[]", headers=json_type), 422, "The body")
    assert_refused(post(place, json={"text": "a", "path": "/etc"}), 422, "path: Extra inputs")
    assert_refused(studio.client.get(place), 405, "does not take GET")


def test_what_a_run_cannot_do_is_said(studio):
    base, reviews = studio.run("base")["id"], studio.run("reviews")["id"]
    answer = studio.client.post(f"/api/runs/{base}/explain", json={"text": "a"})
    assert_refused(answer, 422, "holds a language-model, not a classifier")
    asked = {"prompt": "a", "temperature": 0.0, "max_tokens": 5, "seed": 0}
    answer = studio.client.post(f"/api/runs/{reviews}/generate", json=asked)
    assert_refused(answer, 422, "holds a classifier, not a language-model")
    answer = studio.client.post(f"/api/runs/{base}/generate", json={**asked, "max_tokens": 9_999})
    assert_refused(answer, 422, "max_tokens")


def test_a_run_deleted_while_it_is_shown_is_told(tmp_path):
    write_run(tmp_path / "reviews", preset="bag", objective="contrast", pooling="mean")
    with running(tmp_path) as studio:
        run_id = studio.run("reviews")["id"]
        place = f"/api/runs/{run_id}/explain"
        assert studio.client.post(place, json={"text": "a b"}).status_code == 200
        shutil.rmtree(tmp_path / "reviews")
        assert_refused(studio.client.post(place, json={"text": "a b"}), 404, "no longer")
        assert studio.client.get("/api/runs").json() == {"runs": []}


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1:1", "evil.example:8420", "", "127.0.0.1.evil.example"]
)
def test_other_hosts_are_refused(studio, host):
    answer = studio.client.get("/api/runs", headers={"host": host})
    assert_refused(answer, 421, "which is not this machine")


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_writes_from_other_pages_are_refused(studio, headers):
    answer = studio.client.post("/api/label/undo", json={}, headers=headers)
    assert_refused(answer, 403, "not from our own page")


def test_our_own_page_and_plain_programs_are_let_in():
    ours = {"host": "localhost:8420", "origin": "http://localhost:8420"}
    check_caller({**ours, "sec-fetch-site": "same-origin"}, method="POST", port=8420)
    check_caller({"host": "127.0.0.1:8420"}, method="POST", port=8420)
    check_caller({"host": "[::1]:8420"}, method="GET", port=8420)
    with pytest.raises(RefusedError, match="is not this machine"):
        check_caller({"host": "[::1].evil.example:8420"}, method="GET", port=8420)


def test_labels_are_given_and_taken_back_over_http(studio):
    before = studio.client.get("/api/label").json()
    text = studio.client.get("/api/label/next").json()
    assert studio.client.get("/api/label/next").json()["number"] == text["number"]
    after = studio.label("give", number=text["number"], label="positive").json()
    assert after["num_labelled"] == before["num_labelled"] + 1
    assert after["last"][0]["label"] == "positive"
    assert_refused(
        studio.label("give", number=text["number"], label="positive"), 409, "is not the one"
    )
    assert studio.label("query", query="random").json()["query"] == "random"
    assert_refused(studio.label("query", query="best"), 422, "query")
    assert studio.label("undo").json()["num_labelled"] == before["num_labelled"]
    skipped = studio.client.get("/api/label/next").json()["number"]
    assert studio.label("skip", number=skipped).status_code == 200
    assert_refused(studio.label("burn"), 404, "There is no '/api/label/burn' here")


def test_without_texts_there_is_nothing_to_label(folder):
    with running(folder) as studio:
        assert_refused(studio.client.get("/api/label"), 404, "There are no texts to label")
        assert "--text FILE" in studio.client.get("/api/label").json()["remedy"]


def test_the_lab_has_21_018_401_parameters(studio):
    lab = next(shape for shape in shapes() if shape["name"] == "lab")
    asked = {name: lab[name] for name in ("V", "d", "L", "H")}
    found = studio.client.get("/api/inside/parameters", params={"preset": "lab", **asked}).json()
    assert found["total"] == 21_018_401
    assert sum(term["count"] for term in found["terms"]) == found["total"]


def test_parameters_are_those_that_the_models_room_counts():
    from regraft.config.resolution import resolve

    source = random.Random(0)
    for preset, num_classes in itertools.product(("lab", "bert", "modern", "bag"), (None, 3)):
        heads = source.randint(1, 4)
        shape = Shape(
            preset=preset, V=source.randint(300, 900), d=8 * heads, L=2, H=heads, C=num_classes
        )
        overrides = {"model.width": shape.d, "model.num_layers": 2, "model.num_heads": heads}
        if preset == "bag":
            shape = shape.model_copy(update={"L": 0})
            overrides["model.num_layers"] = 0
        settings = resolve("pretrain", preset=preset, overrides=overrides)
        expected = ledger(
            settings.model,
            vocab_size=shape.V,
            num_classes=num_classes,
            max_length=settings.data.max_length,
            batch_size=settings.train.batch_size,
            objective=settings.objective,
            pooling=settings.head.pooling,
        )
        assert parameters(shape)["total"] == expected.total


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("parameters?preset=lab&V=1&d=8&L=1&H=1", "V: .* greater"),
        ("parameters?preset=modern&V=100&d=8&L=0&H=1", "modern family cannot have 0 layers"),
        ("parameters?preset=nothing&V=100&d=8&L=1&H=1", "preset"),
        ("mask?causal=true&length=9999&padding=0&documents=1", "length"),
        ("mask?causal=true&length=4&padding=3&documents=3", "are left for 3 documents"),
        ("mask?causal=true&length=4&padding=9&documents=1", "0 are left for 1 document"),
        ("positions?kind=rotary&length=8&width=7", "width: .* multiple of 2"),
    ],
)
def test_shapes_that_nobody_can_draw_are_refused(studio, place, problem):
    assert_refused(studio.client.get(f"/api/inside/{place}"), 422, problem)


def test_masks_and_positions_are_those_of_the_model(studio):
    asked = "causal=true&length=4&padding=1&documents=1"
    mask = studio.client.get(f"/api/inside/mask?{asked}").json()
    assert [row[:3] for row in mask["allowed"][:3]] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert mask["real"] == [True, True, True, False]
    for kind in ("sinusoidal", "rotary", "learned"):
        found = studio.client.get(f"/api/inside/positions?kind={kind}&length=6&width=8").json()
        assert len(found["table"]) == 6
        assert found["caption"]


def test_positions_that_a_run_has_learned_are_drawn_and_others_refused(tmp_path):
    write_run(tmp_path / "bert", preset="bert", objective="masked")
    write_run(tmp_path / "lab", preset="lab", objective="causal")
    with running(tmp_path) as studio:
        run_id = studio.run("bert")["id"]
        found = studio.client.get(f"/api/runs/{run_id}/positions").json()
        assert np.shape(found["table"]) == (32, 24)
        assert found["caption"] == "A vector for each position that the run was trained on."
        expected = learned_positions(tmp_path / "bert")
        assert np.array(found["table"]) == pytest.approx(expected, abs=1e-4)
        lab = studio.client.get(f"/api/runs/{studio.run('lab')['id']}/positions")
        assert_refused(lab, 422, "is of the lab family")


def test_texts_of_a_file_are_labelled_by_vectors_of_a_base(tmp_path, folder):
    from regraft.apps.studio.server import build_session

    path = write_examples(tmp_path / "texts.csv", 12, seed=5)
    session = build_session(path, classes=("a", "b"), out=None, base=folder / "base")
    assert session.state()["file"] == "texts-labels.csv"
    assert session.state()["num_texts"] == 12
    assert session._vectors(["one text", "another"]).shape[0] == 2
    session.close()


def told(*words: object) -> str:
    """What the command says before it gives up."""
    result = CliRunner().invoke(app, ["studio", *map(str, words), "--no-open"])
    assert result.exit_code == 2
    return result.stderr


def test_mistakes_at_the_command_line_are_told_at_once(tmp_path):
    (tmp_path / "file").touch()
    assert f"{tmp_path / 'file'} is no folder." in told(tmp_path / "file")
    assert "--labels and --out" in told(tmp_path, "--labels", "a,b", "--out", "x.csv")
    missing = told(tmp_path, "--port", 0, "--text", tmp_path / "none.txt")
    assert "none.txt" in missing
    (tmp_path / "texts.txt").write_text("one\ntwo\n", encoding="utf-8")
    assert "There are 2 to 9, for each has a key." in told(
        tmp_path, "--port", 0, "--text", tmp_path / "texts.txt", "--labels", "only"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Cannot listen on port {port} of 127.0.0.1" in told(tmp_path, "--port", port)


def test_texts_that_are_refused_leave_no_file_of_labels(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "old.txt").write_bytes("très bien\n".encode("latin-1"))
    (texts / "empty.txt").touch()
    (texts / "good.txt").write_text("one\ntwo\n", encoding="utf-8")
    before = sorted(texts.iterdir())
    assert "pass the --encoding it was saved in" in told("--port", 0, "--text", texts / "old.txt")
    assert "empty.txt" in told("--port", 0, "--text", texts / "empty.txt")
    assert "none.txt" in told("--port", 0, "--text", texts / "none.txt")
    told("--port", 0, "--text", texts / "good.txt", "--labels", "only")
    told("--port", 0, "--text", texts / "good.txt", "--base", tmp_path / "none")
    assert sorted(texts.iterdir()) == before


def test_texts_of_another_encoding_and_column_can_be_labelled(tmp_path):
    from regraft.apps.studio.server import build_session
    from regraft.config.resolution import resolve

    path = tmp_path / "texts.csv"
    path.write_bytes("id,review\n1,très bien\n2,assez mal\n".encode("latin-1"))
    overrides = {"data.encoding": "latin-1", "data.text_column": "review"}
    data = resolve("pretrain", overrides=overrides).data
    session = build_session(path, classes=("a", "b"), out=None, base=None, data=data)
    assert session.next_text()["text"] in ("très bien", "assez mal")
    session.close()


def test_how_texts_are_read_is_refused_without_texts(tmp_path):
    given = ("--encoding", "latin-1", "--text-column", "review", "--documents", "line")
    assert "--text-column and --encoding and --documents" in told(tmp_path, *given)


@pytest.mark.slow
def test_a_folder_that_is_not_there_yet_is_an_empty_one(tmp_path, folder):
    (tmp_path / "texts.txt").write_text("one\ntwo\n", encoding="utf-8")
    command = [sys.executable, "-m", "regraft", "studio", "--port", "0", "--no-open"]
    with subprocess.Popen(
        [*command, "--text", "texts.txt", "--labels", "a,b"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr.readline().strip() == (
                "There is no folder runs yet; runs appear when something is in it."
            )
            assert "Ctrl-C stops it" in process.stderr.readline()
            address = process.stderr.readline().strip()
            with httpx2.Client(base_url=address, timeout=60, trust_env=False) as client:
                assert client.get("/api/runs").json() == {"runs": []}
                assert client.get("/api/label").json()["num_texts"] == 2
                shutil.copytree(folder / "base", tmp_path / "runs" / "base")
                assert [row["name"] for row in client.get("/api/runs").json()["runs"]] == ["base"]
            process.terminate()
            ended = process.communicate(timeout=60)[1]
            assert ended.strip() == "Stopped. All labels are in their file."
        finally:
            process.kill()  # else a failure above waits for ever
    assert process.returncode == 0


def test_missing_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert "`regraft studio` needs plotly, which is not installed." in told(tmp_path)
