"""Words of any script, the text without some of them, and shares of pieces."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.data.words import spread_over_words, without_words, word_spans


def words(text: str) -> list[str]:
    return [text[start:stop] for start, stop in word_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It isn't well-made -- no!!", ["It", "isn't", "well-made", "--", "no", "!!"]),
        ("l\u2019été n'est pas fini", ["l\u2019été", "n'est", "pas", "fini"]),
        ("e\u0301te\u0301", ["e\u0301te\u0301"]),
        ("\u6211\u559c\u6b22 film", ["\u6211", "\u559c", "\u6b22", "film"]),
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940 \u092b\u093f\u0932\u094d\u092e",
            [
                "\u0939\u093f\u0928\u094d\u0926\u0940",
                "\u092b\u093f\u0932\u094d\u092e",
            ],
        ),
        ("\u05e1\u05e8\u05d8 \u05d8\u05d5\u05d1", ["\u05e1\u05e8\u05d8", "\u05d8\u05d5\u05d1"]),
        ("so\U0001f44d\U0001f3fd good", ["so", "\U0001f44d\U0001f3fd", "good"]),
        (
            "\U0001f468\u200d\U0001f469\u200d\U0001f467",
            ["\U0001f468\u200d\U0001f469\u200d\U0001f467"],
        ),
        ("a\x00b\x1b[31m", ["a", "b", "[", "31m"]),
        (" \n\t\x00", []),
        ("", []),
    ],
)
def test_words_are_what_a_person_would_point_at(text, expected):
    assert words(text) == expected


@given(st.text())
def test_words_are_in_order_and_hold_every_letter(text):
    spans = word_spans(text)
    assert all(start < stop for start, stop in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    inside = {place for start, stop in spans for place in range(start, stop)}
    assert all(place in inside for place, letter in enumerate(text) if letter.isalnum())
    assert not any(text[place].isspace() for place in inside)


@pytest.mark.parametrize(
    ("text", "left_out", "expected"),
    [
        ("a dull film", [1], "a film"),
        ("a dull film", [0], "dull film"),
        ("a dull film", [2], "a dull"),
        ("a very dull film", [1, 2], "a film"),
        ("a dull film.", [2], "a dull ."),
        ("good\n\nbad end", [1], "good\n\nend"),
        ("a dull film", [0, 1, 2], ""),
        (" a b ", [1], " a "),
        ("a b", [], "a b"),
    ],
)
def test_word_left_out_takes_its_blank_along(text, left_out, expected):
    spans = word_spans(text)
    assert without_words(text, [spans[number] for number in left_out]) == expected


@given(st.text(alphabet="ab ,\n", max_size=40), st.data())
def test_words_that_stay_are_the_same(text, data):
    spans = word_spans(text)
    out = data.draw(st.sets(st.sampled_from(range(len(spans))))) if spans else set()
    rest = without_words(text, [spans[number] for number in sorted(out)])
    kept = [text[a:b] for number, (a, b) in enumerate(spans) if number not in out]
    # Signs and letters that stood apart may meet, but no character comes or goes.
    assert "".join(words(rest)) == "".join(kept)


def test_pieces_are_shared_by_the_words_they_touch():
    # "so good ! ": "so", " go", "od !", the blank before "good", the last one, a token nowhere.
    values = np.array([[1.0, 0.0], [2.0, 1.0], [4.0, -2.0], [0.5, 0.0], [8.0, 0.5], [1.0, 0.0]])
    found, rest = spread_over_words(
        values,
        starts_N=np.array([0, 2, 5, 2, 9, 0]),
        stops_N=np.array([2, 5, 9, 3, 10, 0]),
        spans=[(0, 2), (3, 7), (8, 9)],
    )
    np.testing.assert_allclose(found, [[1, 0], [4.5, 0], [2, -1]])
    np.testing.assert_allclose(rest, [9, 0.5])


def test_pieces_without_any_word_are_the_rest():
    places = np.array([0])
    found, rest = spread_over_words(np.ones((1, 3)), starts_N=places, stops_N=places, spans=[])
    assert found.shape == (0, 3)
    assert rest.tolist() == [1, 1, 1]


def test_word_that_no_piece_touches_has_exactly_nothing():
    # 0.1 + 0.2 - 0.1 - 0.2 is not 0 in floats.
    starts, stops = np.array([0, 0, 0]), np.array([7, 3, 3])
    values_NC = np.array([[0.1], [0.2], [0.3]])
    spans = word_spans("one two three four")
    words_WC, _ = spread_over_words(values_NC, starts_N=starts, stops_N=stops, spans=spans)
    assert words_WC[:, 0].tolist()[2:] == [0.0, 0.0]
    assert words_WC.sum() == pytest.approx(0.6)
