"""The values of an explanation."""

import json

import pytest
from explanations import explanation

from regraft.classifiers.explanation import harmless, signed, trust_facts


def test_gap_is_what_the_scores_leave_unexplained():
    found = explanation("good film", [1.0, 0.25], elsewhere=-0.05, baseline=0.1)
    assert found.gap == pytest.approx(0.2)
    assert found.probability == 0.75


def test_levels_are_relative_to_the_strongest():
    assert explanation("a b c d", [2.0, -1.0, 0.01, 0.0]).levels() == [9, -4, 0, 0]
    assert explanation("a b", [0.0, 0.0]).levels() == [0, 0]


def test_strongest_words_are_summed_and_sorted():
    found = explanation("Good good bad fine so", [1.0, 0.5, -2.0, 0.25, 0.0])
    pro, contra = found.strongest()
    assert [(word.text, word.score, word.count) for word in pro] == [
        ("good", 1.5, 2),
        ("fine", 0.25, 1),
    ]
    assert [word.text for word in contra] == ["bad"]
    assert [word.text for word in found.strongest(1)[0]] == ["good"]


def test_strongest_words_count_only_what_is_read_and_shown():
    found = explanation("good so never good good", [1.0, -0.001, 0.004, 0.0, 0.0], num_unread=2)
    pro, contra = found.strongest()
    assert [(word.text, word.count) for word in pro] == [("good", 1)]
    assert contra == []


def test_unread_words_are_the_last():
    found = explanation("good so bad", [1.0, 0.0, 0.0], num_unread=2)
    assert [found.is_unread(word) for word in found.words] == [False, True, True]
    assert not any(map(explanation("good", [1.0]).is_unread, explanation("good", [1.0]).words))
    assert "The model does not read the last word." in trust_facts(
        explanation("good so", [1.0, 0.0], num_unread=1)
    )


def test_pieces_are_the_whole_text():
    text = "  one, two\n three "
    found = explanation(text, [1.0, 0.0, -1.0, 0.5])
    assert "".join(piece for piece, _, _ in found.pieces()) == text
    assert [(piece, level) for piece, word, level in found.pieces() if word] == [
        ("one", 9),
        (",", 0),
        ("two", -9),
        ("three", 4),
    ]


def test_dictionary_is_json():
    told = json.loads(json.dumps(explanation("good film", [1.0, 0.1]).to_dict()))
    assert told["words"][0] == {"text": "good", "start": 0, "stop": 4, "score": 1.0}
    assert told["gap"] == pytest.approx(0)
    assert told["probability"] == 0.75


def test_facts_tell_what_limits_the_scores():
    found = explanation(
        "good film", [1.0, 0.1], label="bad", num_unread=3, num_together=5, agreement=0.5
    )
    told = " ".join(trust_facts(found))
    assert "The prediction is good (75.0 %)." in told
    assert "does not read the last 3 words" in told
    assert "5 neighbours at a time" in told
    assert "Rank correlation with leave-one-out: +0.50." in told
    assert "completeness gap +0.000" in told


def test_nothing_has_no_minus():
    assert [signed(score) for score in (-0.001, 0.0, 0.126, -0.5)] == [
        *("+0.00", "+0.00", "+0.13", "-0.50")
    ]
    assert signed(-0.0001, digits=3) == "+0.000"


def test_commands_to_a_terminal_are_made_visible():
    assert harmless("a\x1b[31mb\x00\x07\n\tc") == "a\u241b[31mb\u2400\u2407\n\tc"
    assert harmless("x\u202ey\u2066z\x85\ud800") == "x\ufffdy\ufffdz\ufffd\ufffd"
    assert harmless("\U0001f468\u200d\U0001f469 \u05e1\u05e8\u05d8") == (
        "\U0001f468\u200d\U0001f469 \u05e1\u05e8\u05d8"
    )
