"""The bodies of requests: how much is read, what is taken and what is refused."""

import json
from dataclasses import replace

import pytest

from regraft.apps.serve.bodies import (
    AnyBody,
    BodyReader,
    parse_body,
    text_body,
    texts_body,
)
from regraft.apps.serve.limits import Limits, RefusedError

SMALL = Limits(max_body_bytes=100, max_texts=3, max_characters=10, max_explained=5)


def body(value: object) -> bytes:
    return json.dumps(value).encode()


def parse_texts(data: bytes, *, limits: Limits = SMALL) -> list[str]:
    return parse_body(data, texts_body(limits)).texts


def refused(data: bytes, kind: type[AnyBody]) -> tuple[int, str]:
    with pytest.raises(RefusedError) as caught:
        parse_body(data, kind)
    return caught.value.status, str(caught.value)


def test_one_text_or_many_are_taken():
    assert parse_texts(body({"texts": "a"})) == ["a"]
    assert parse_texts(body({"texts": ["a", "b", "c"]})) == ["a", "b", "c"]
    assert parse_body(body({"text": "a"}), text_body(SMALL)).text == "a"


@pytest.mark.parametrize("text", ["\U0001f600", "كتاب", "a\x1b[1m", "<script>1</script>"])
def test_any_characters_are_taken_as_they_are(text):
    limits = replace(SMALL, max_characters=100)
    for data in (body({"texts": text}), json.dumps({"texts": text}, ensure_ascii=False).encode()):
        assert parse_texts(data, limits=limits) == [text]


@pytest.mark.parametrize(
    ("value", "place", "fact"),
    [
        ({"texts": []}, "texts", "not 0"),
        ({"texts": list("abcd")}, "texts", "at most 3"),
        ({"texts": ""}, "texts[0]", "blank"),
        ({"texts": ["a", ""]}, "texts[1]", "blank"),
        ({"texts": ["a", " \n\u3000"]}, "texts[1]", "blank"),
        ({"texts": ["a" * 11]}, "texts[0]", "at most 10"),
        ({"texts": ["a", "b\0"]}, "texts[1]", "NUL"),
        ({"texts": [1]}, "texts[0]", "string"),
        ({"texts": [None]}, "texts[0]", "string"),
        ({"texts": [["a"]]}, "texts[0]", "string"),
        ({"texts": {"a": 1}}, "texts", "array"),
        ({"text": "a"}, "texts", "text: "),
        ({}, "texts", "required"),
        (True, "The body", "object"),
    ],
)
def test_wrong_texts_are_refused_with_their_place(value, place, fact):
    status, message = refused(body(value), texts_body(SMALL))
    assert status == 422
    assert message.startswith(f"{place}: ")
    assert fact in message


@pytest.mark.parametrize(
    "data",
    [
        b'{"texts": "\xff"}',
        b"",
        b'{"texts": "a\x00"}',
        b'{"texts": "\\ud800"}',
        b"[" * 100_000,
        b"1" * 5_000,
    ],
)
def test_what_is_no_json_is_refused(data):
    status, message = refused(data, texts_body(SMALL))
    assert status == 400
    assert "line 1 column" in message


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (b'{"texts": "a", "texts": "b"}', "the key 'texts' occurs twice"),
        (b'{"texts": "a", "top_k": 1, "t\\u006fp_k": 2}', "the key 'top_k' occurs twice"),
    ],
)
def test_key_given_twice_is_refused(data, fact):
    status, message = refused(data, texts_body(SMALL))
    assert status == 400
    assert fact in message


def test_text_to_explain_has_a_limit_of_its_own():
    status, message = refused(body({"text": "abcdef"}), text_body(SMALL))
    assert (status, "at most 5" in message) == (422, True)


def test_body_up_to_the_limit_is_kept():
    reader = BodyReader(limits=SMALL, announced="100")
    for _ in range(2):
        reader.add(b"x" * 50)
    assert reader.body() == b"x" * 100


def test_body_above_the_limit_is_refused_when_all_of_it_has_come():
    reader = BodyReader(limits=SMALL, announced=None)
    for _ in range(3):
        reader.add(b"x" * 50)
    with pytest.raises(RefusedError, match=r"150 bytes .* 100 bytes"):
        reader.body()


def test_endless_body_is_refused_before_its_end():
    reader = BodyReader(limits=SMALL, announced=None)
    reader.add(bytes(10_000_000))
    with pytest.raises(RefusedError) as caught:
        reader.add(bytes(10_000_000))
    assert caught.value.status == 413
    assert caught.value.headers == {"Connection": "close"}


def test_body_announced_as_huge_is_not_read():
    with pytest.raises(RefusedError, match=r"999,999,999,999 bytes"):
        BodyReader(limits=SMALL, announced="999999999999")


def test_schema_tells_the_limits():
    one, many = texts_body(SMALL).model_json_schema()["properties"]["texts"]["anyOf"]
    assert one == {
        "type": "string",
        "pattern": r"^[^\x00]*[^\s\x00][^\x00]*$",
        "minLength": 1,
        "maxLength": 10,
    }
    assert (many["minItems"], many["maxItems"]) == (1, 3)
    assert text_body(SMALL).model_json_schema()["properties"]["text"]["maxLength"] == 5


@pytest.mark.parametrize(
    ("sent", "kind", "expected", "remedy"),
    [
        ({"text": "a"}, texts_body(SMALL), "takes texts", "Send texts, a list:"),
        ({"texts": ["a", " "]}, texts_body(SMALL), "no blank", "Omit blank texts."),
        ({"texts": ["a"]}, text_body(SMALL), "takes one text", "Send text, a string:"),
        ({"texts": ["a"], "top_k": 0}, texts_body(SMALL), "openapi", "Correct the request."),
    ],
)
def test_refusal_says_what_would_be_right_and_what_to_do(sent, kind, expected, remedy) -> None:
    with pytest.raises(RefusedError) as caught:
        parse_body(body(sent), kind)
    assert caught.value.status == 422
    assert expected in caught.value.expected
    assert remedy in caught.value.remedy
