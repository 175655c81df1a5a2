"""Not answering: given, chosen for an accuracy, refused, unreachable."""

import pytest
from conftest import Recorder

from regraft.classifiers.abstention import Abstention
from regraft.classifiers.base import prediction
from regraft.config.schema import DataSettings
from regraft.errors import ConfigError
from regraft.stats.selective import CoveragePoint

CURVE = (CoveragePoint(0.9, 0.5, 1.0), CoveragePoint(0.6, 1.0, 0.8))


def test_threshold_is_given_or_chosen_or_none() -> None:
    assert Abstention().threshold(CURVE, num_examples=100) is None
    assert Abstention(below=0.7).threshold(CURVE, num_examples=100) == 0.7
    assert Abstention(target_accuracy=0.95).threshold(CURVE, num_examples=100) == 0.9
    assert Abstention(target_accuracy=0.5).threshold(CURVE, num_examples=100) == 0.6


def test_unreachable_accuracy_names_the_best() -> None:
    recorder = Recorder()
    chosen = Abstention(target_accuracy=0.999).threshold(CURVE, num_examples=100, progress=recorder)
    assert chosen == 0.9
    (message,) = recorder.messages
    assert "99.9 %" in message
    assert "50 % of them, 100.0 % right" in message


@pytest.mark.parametrize(
    "wrong", [Abstention(below=2), Abstention(target_accuracy=95), Abstention(0.5, 0.5)]
)
def test_impossible_abstention_is_refused(wrong: Abstention) -> None:
    with pytest.raises(ConfigError):
        wrong.check(DataSettings())


def test_target_accuracy_needs_one_label_per_text() -> None:
    several = DataSettings(label_separator="|")
    Abstention(below=0.5).check(several)
    with pytest.raises(ConfigError, match="label_separator"):
        Abstention(target_accuracy=0.9).check(several)


def test_prediction_leaves_the_label_empty_below_the_threshold() -> None:
    labels, chances = ("a", "b", "c"), [0.2, 0.5, 0.3]
    assert prediction(labels, chances)["label"] == "b"
    unsure = prediction(labels, chances, abstain_below=0.6)
    assert (unsure["label"], unsure["probability"]) == (None, 0.5)
    assert prediction(labels, chances, abstain_below=0.5)["label"] == "b"
    sets = prediction(labels, chances, thresholds=(0.1, 0.1, 0.4), abstain_below=0.4)
    assert sets["label"] == ["b"]


def test_prediction_gives_the_most_probable_first_with_top_k() -> None:
    best = prediction(("a", "b", "c"), [0.2, 0.5, 0.3], top_k=2)
    assert list(best["probabilities"].items()) == [("b", 0.5), ("c", 0.3)]
