"""What a request may bring: bodies as they arrive, texts as they are checked, words of refusal."""

import json
from dataclasses import replace

import pytest

from regraft.serve.limits import (
    BodyReader,
    Limits,
    RefusedError,
    counted,
    parse_text,
    parse_texts,
    text_schema,
    texts_schema,
)

SMALL = Limits(max_body_bytes=100, max_texts=3, max_characters=10, max_explained=5)


def body(value: object) -> bytes:
    return json.dumps(value).encode()


def refused(data: bytes, *, limits: Limits = SMALL) -> tuple[int, str]:
    with pytest.raises(RefusedError) as caught:
        parse_texts(data, limits=limits)
    return caught.value.status, str(caught.value)


def test_one_text_or_many_are_taken():
    assert parse_texts(body({"texts": "a"}), limits=SMALL) == ["a"]
    assert parse_texts(body({"texts": ["a", "b", "c"]}), limits=SMALL) == ["a", "b", "c"]
    assert parse_text(body({"text": "a"}), limits=SMALL) == "a"


@pytest.mark.parametrize("text", ["\U0001f600", "كتاب", "a\x00b\x1b[1m", "<script>1</script>"])
def test_any_characters_are_taken_as_they_are(text):
    limits = replace(SMALL, max_characters=100)
    for data in (body({"texts": text}), json.dumps({"texts": text}, ensure_ascii=False).encode()):
        assert parse_texts(data, limits=limits) == [text]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"texts": []},
            "texts holds 0 texts. A request has 1 to 3. Send at least one text.",
        ),
        (
            {"texts": list("abcd")},
            "texts holds 4 texts. A request has 1 to 3. Send them in several requests.",
        ),
        (
            {"texts": ""},
            "texts is empty. A text has at least one character that is not blank. Send some text.",
        ),
        (
            {"texts": ["a", ""]},
            "texts[1] is empty. A text has at least one character that is not blank. Send some "
            "text, or leave this one out of the list.",
        ),
        (
            {"texts": ["a", " \n\u3000"]},
            "texts[1] is blank. A text has at least one character that is not blank. Send some "
            "text, or leave this one out of the list.",
        ),
        (
            {"texts": ["a" * 11]},
            "texts[0] has 11 characters. A text has at most 10 characters. Shorten it, or cut it "
            "into several.",
        ),
        ({"texts": [1]}, "texts[0] is a number. It is a string. Put it in quotes."),
        ({"texts": [None]}, "texts[0] is null. It is a string. Put it in quotes."),
        ({"texts": [["a"]]}, "texts[0] is a list. It is a string. Put it in quotes."),
        (
            {"texts": {"a": 1}},
            "texts is an object. It is one string, or a list of strings. "
            'The body is {"texts": "..."} or {"texts": ["...", "..."]}.',
        ),
        (
            {"texts": ["\ud800"]},
            "texts[0] holds half a surrogate pair at character 0. A text consists of Unicode "
            "characters. Send the character itself, or both halves.",
        ),
        (
            {"text": "a"},
            "Unknown in the body: 'text'. Only 'texts' is read. "
            'The body is {"texts": "..."} or {"texts": ["...", "..."]}.',
        ),
        (
            {},
            'The body has no \'texts\'. The body is {"texts": "..."} or {"texts": ["...", "..."]}.',
        ),
        (
            True,
            "The body is true or false. It is an object. "
            'The body is {"texts": "..."} or {"texts": ["...", "..."]}.',
        ),
    ],
)
def test_wrong_texts_are_refused_with_their_place(value, message):
    assert refused(body(value)) == (422, message)


@pytest.mark.parametrize(
    ("data", "beginning"),
    [
        (b'{"texts": "\xff"}', "The body is not UTF-8: byte 11 is 0xff. JSON is sent as UTF-8."),
        (b"", "The body is not JSON: Expecting value at line 1, column 1."),
        (b'{"texts": "a\x00"}', "The body is not JSON: Invalid control character"),
        (b"[" * 100_000, "The body is JSON that nobody can read."),
        (b"1" * 5_000, "The body is JSON that nobody can read."),
    ],
)
def test_what_is_no_json_is_refused(data, beginning):
    status, message = refused(data)
    assert status == 400
    assert message.startswith(beginning)


def test_text_to_explain_has_a_limit_of_its_own():
    with pytest.raises(RefusedError, match=r"text has 6 characters\. A text has at most 5 char"):
        parse_text(body({"text": "abcdef"}), limits=SMALL)


def test_numbers_go_with_their_nouns():
    told = [counted(1, "text"), counted(1024, "text"), counted(1.0, "second"), counted(0.5, "hour")]
    assert told == ["1 text", "1,024 texts", "1 second", "0.5 hours"]


def test_body_up_to_the_limit_is_kept():
    reader = BodyReader(limits=SMALL, announced="100")
    for _ in range(2):
        reader.add(b"x" * 50)
    assert reader.body() == b"x" * 100


def test_body_above_the_limit_is_refused_when_all_of_it_has_come():
    reader = BodyReader(limits=SMALL, announced=None)
    for _ in range(3):
        reader.add(b"x" * 50)
    with pytest.raises(RefusedError, match=r"The body has 150 bytes or more\. At most 100 are"):
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
    one, many = texts_schema(SMALL)["properties"]["texts"]["anyOf"]
    assert one == {"type": "string", "pattern": r"\S", "minLength": 1, "maxLength": 10}
    assert (many["minItems"], many["maxItems"]) == (1, 3)
    assert text_schema(SMALL)["properties"]["text"]["maxLength"] == 5
