"""What held-out predictions say: weights, scores, and labels that are probably wrong."""

import random

import numpy as np
import pytest

from regraft.classifiers.held_out import HeldOut, find_label_issues
from regraft.classifiers.tfidf import fit_latent, fit_linear
from regraft.data.text.records import Example, labels_of

FLIPPED = {5, 40, 77}


def examples_with_errors() -> list[Example]:
    """Reviews of ten words, seven of them of their class; three have the label of the other."""
    generator = random.Random(5)
    words = {
        "bad": ["awful", "dull", "poor", "weak", "sad"],
        "good": ["fine", "great", "superb", "fun", "nice"],
    }
    examples = []
    for row in range(120):
        truth, other = ("good", "bad") if row % 2 else ("bad", "good")
        chosen = generator.choices(words[truth], k=7) + generator.choices(words[other], k=3)
        label = other if row in FLIPPED else truth
        text = " ".join(generator.sample(chosen, k=10))
        examples.append(Example(text, label, "train.csv", row=row + 2, id=f"r{row}"))
    return examples


@pytest.fixture(scope="module")
def held_out() -> HeldOut:
    examples = examples_with_errors()
    labels = labels_of(examples)
    members = {
        "linear": fit_linear(examples, [], labels=labels),
        "latent": fit_latent(examples, [], labels=labels, texts=[e.text for e in examples]),
    }
    return HeldOut(members, labels.targets(examples), seed=0)


def test_flipped_labels_are_found_with_their_rows_and_ids(held_out: HeldOut) -> None:
    examples = examples_with_errors()
    issues = find_label_issues(examples, held_out.blend_NC, labels=labels_of(examples))
    assert {issue.row - 2 for issue in issues[:3]} == FLIPPED
    for issue in issues[:3]:
        example = examples[issue.row - 2]
        assert (issue.id, issue.text, issue.label) == (example.id, example.text, example.label)
        assert issue.proposal != issue.label
    confidences = [issue.confidence for issue in issues]
    assert confidences == sorted(confidences, reverse=True)


def test_blend_is_a_distribution_scored_like_its_members(held_out: HeldOut) -> None:
    assert held_out.blend_NC.sum(axis=1) == pytest.approx(np.ones(120))
    weights, temperature = held_out.weights()
    assert sum(weights.values()) == pytest.approx(1)
    assert temperature > 0
    scores = held_out.scores(weights)
    assert scores.keys() == {"blend", "linear", "latent"}
    # Those that predictions use.
    assert {name: scores[name].weight for name in weights} == weights
    right_N = held_out.blend_NC.argmax(axis=1) == held_out.targets
    assert scores["blend"].accuracy.mean == pytest.approx(right_N.mean())


def test_priors_move_errors_from_the_rare_class(held_out: HeldOut) -> None:
    """As if all classes were equally frequent: a class of few examples is predicted more often."""
    targets = held_out.targets.copy()
    priors = np.array([0.9, 0.1])
    balanced = HeldOut(held_out.members, targets, seed=0, priors_C=priors)
    ratios = balanced.blend_NC / held_out.blend_NC * priors
    assert np.ptp(ratios, axis=1) == pytest.approx(np.zeros(120), abs=1e-9)
    assert balanced.blend_NC.sum(axis=1) == pytest.approx(np.ones(120))
    assert (balanced.blend_NC[:, 1] > held_out.blend_NC[:, 1]).all()
