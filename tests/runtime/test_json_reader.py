"""The one JSON reader: what Python's own reads it reads alike, or refuses with a reason."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.runtime.json_reader import parse_json, read_json, read_object
from regraft.runtime.limits import ReadLimits

MAX_JSON_DEPTH = ReadLimits().json_depth

REFUSED = {
    "NaN": ("[NaN]", "NaN is not JSON"),
    "infinity": ('{"a": -Infinity}', "-Infinity is not JSON"),
    "number too large": ("1e999", "1e999 is too large"),
    "long integer": ("1" * 10_000, "a number has 10,000 digits"),
    "key twice": ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' occurs twice"),
    "deep": ("[" * 100_000 + "]" * 100_000, "nested deeper than"),
    "a little too deep": ("[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1), "nested"),
    "deep objects": ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested deeper than"),
    "never closed": ("[" * 100_000, "nested deeper than"),
    "nothing": ("", "Expecting value"),
    "more than one": ("1 2", "Extra data"),
    "trailing comma": ("[1,]", "Expecting value|Illegal trailing comma"),
    "single quotes": ("{'a': 1}", "Expecting property name"),
    "control character": ('"\t"', "Invalid control character"),
    "leading zero": ("01", "Extra data"),
    "hexadecimal": ("0x1", "Extra data"),
    "comment": ("[1] // one", "Extra data"),
    "unknown escape": (r'"\x41"', "escape"),
    "bare word": ("nul", "Expecting value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_json_is_refused_with_a_reason(name):
    text, reason = REFUSED[name]
    for form in (text, text.encode()):
        with pytest.raises(ValueError, match=reason):
            parse_json(form)


def test_bytes_that_are_not_utf8_are_refused():
    with pytest.raises(ValueError, match="utf-8"):
        parse_json(b'"\xff"')


def test_depth_up_to_the_limit_is_read():
    text = "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH
    assert parse_json(text) == json.loads(text)


def test_endless_file_is_refused(monkeypatch):
    from pathlib import Path

    monkeypatch.setenv("REGRAFT_LIMITS", "whole_bytes=10000")
    with pytest.raises(ValueError, match="more than 10,000 bytes"):
        read_json(Path("/dev/zero"))


@pytest.mark.parametrize("text", ["[]", "null", '"{}"'])
def test_file_without_an_object_is_refused_where_one_is_needed(tmp_path, text):
    path = tmp_path / "values.json"
    path.write_text('{"a": 1}')
    assert read_object(path) == {"a": 1}
    path.write_text(text)
    with pytest.raises(ValueError, match="it holds no JSON object"):
        read_object(path)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts),
)


@given(json_values)
def test_any_value_that_was_written_is_read_again(value):
    assert parse_json(json.dumps(value)) == value


@given(st.text() | st.binary())
def test_any_text_is_read_as_python_reads_it_or_refused(text):
    try:
        value = parse_json(text)
    except ValueError:
        return
    assert value == json.loads(text)
    assert not (isinstance(value, float) and math.isnan(value))


@given(json_values, st.data())
def test_damaged_json_never_raises_anything_else(value, data):
    text = json.dumps(value)
    place = data.draw(st.integers(0, len(text)))
    damaged = text[:place] + data.draw(st.text(max_size=3)) + text[place + 1 :]
    try:
        parse_json(damaged)
    except ValueError as error:
        assert str(error)  # noqa: PT017 # either outcome is right; a reason is not empty
