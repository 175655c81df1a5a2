"""Comparisons small enough to read, and one with everything that a report can tell."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from regraft.comparison.arms import parse_arms
from regraft.comparison.results import (
    ArmInfo,
    ArmSummary,
    Comparison,
    CurvePoint,
    LabelDoubt,
    LabelWorth,
    Mistake,
    Opening,
    PairedTest,
    Split,
)
from regraft.report.tables import comparison_to_dict
from regraft.stats.calibration import ConfidenceBin
from regraft.stats.metrics import LengthBin
from regraft.stats.significance import Interval

SCRIPT = 'A <script>alert("x")</script> & a | pipe\nin two lines'


def interval(mean: float, margin: float) -> Interval:
    return Interval(mean, mean - margin, mean + margin)


def info(name: str) -> ArmInfo:
    """What the analysis knows of a built-in arm."""
    (arm,) = parse_arms([name], bases=[name.partition(":")[2]])
    return arm.info()


def arm(name: str, *, curves: tuple[tuple[float, ...], ...], test: float) -> ArmSummary:
    return ArmSummary(
        **{**dataclasses.asdict(info(name)), "description": f"the {name} arm"},
        num_seeds=len(curves),
        valid_accuracy=interval(test, 0.03),
        test_accuracy=interval(test, 0.02),
        test_accuracy_without_leaks=interval(test - 0.01, 0.02),
        macro_f1=test - 0.005,
        calibration_error=0.0625,
        seconds=754.0,
        num_collapsed=0,
        valid_curves=curves,
        confusion=[[30, 10], [8, 32]],
    )


ARMS = (
    arm("pretrained", curves=((0.66, 0.75, 0.80), (0.64, 0.77, 0.82)), test=0.79),
    arm("scratch", curves=((0.50, 0.70, 0.79), (0.48, 0.72, 0.81)), test=0.785),
    arm("frozen", curves=((0.66, 0.70, 0.71), (0.64, 0.68, 0.73)), test=0.71),
    arm("linear", curves=((0.85,),), test=0.852),
)
TESTS = (
    PairedTest("pretrained", "scratch", Interval(0.005, -0.012, 0.023), 0.41, 0.5),
    PairedTest("pretrained", "linear", Interval(-0.062, -0.08, -0.04), 0.0001, 0.002),
)


def comparison(**changes: object) -> Comparison:
    """As comparisons were before there were label curves: every later part is empty."""
    whole = Comparison(
        verdict="Pre-training did not pay: linear is 6.2 points better.",
        verdict_kind="loses-to-linear",
        arms=ARMS,
        tests=TESTS,
        labels=("negative", "positive"),
        num_train=1600,
        num_valid=400,
        num_test=80,
        num_test_leaks=3,
        cut_share=0.125,
        settings={"train": {"lr": 1e-4, "minutes": None}, "model": {"width": 12}},
        environment={"python": "3.11"},
        fingerprints={"train": "00ff"},
        command="regraft compare --base runs/base",
        created="2025-01-02 03:04 UTC",
        base={"name": "runs/base", "loss": 5.25},
        mistakes=(Mistake(SCRIPT, "positive", "negative", 0.987),),
        warnings=(),
    )
    return dataclasses.replace(whole, **changes)


SIZES = (50, 100, 200, 400, 800, 1600)
# Name, score with the most labels, score with the fewest, cost in seconds, what it is.
_MANY_ARMS = (
    ("pretrained", 0.874, 0.742, 412.0, "the base with a new head, everything trained"),
    ("pretrained:wide", 0.868, 0.731, 655.0, "the base runs/wide with a new head"),
    ("scratch", 0.781, 0.534, 408.0, "the same model with new random weights"),
    ("frozen", 0.829, 0.738, 96.0, "the base untouched, only its new head trained"),
    ("linear", 0.846, 0.655, 3.2, "TF-IDF of words and characters + logistic regression"),
    ("latent", 0.852, 0.701, 8.9, "TF-IDF and SVD of all text + logistic regression"),
    ("nbsvm", 0.849, 0.640, 2.1, "naive Bayes weights of words + logistic regression"),
    ("lstm", 0.772, 0.523, 531.0, "bidirectional LSTM"),
    ("cnn", 0.803, 0.561, 118.0, "convolutions over words"),
    ("embedding", 0.861, 0.755, 44.0, "sentence vectors of a foreign base + logistic regression"),
    ("fit", 0.883, 0.768, 380.0, "the blend that `regraft fit` makes"),
)
_NEURAL = {"pretrained", "pretrained:wide", "scratch", "frozen", "lstm", "cnn"}


def full_comparison(**changes: object) -> Comparison:
    """All arms with all that a comparison may find."""
    arms = tuple(_full_arm(*values) for values in _MANY_ARMS)
    tests = tuple(
        PairedTest(
            "pretrained",
            other.name,
            interval(0.874 - other.test_accuracy.mean, 0.011),
            p_permutation=max(0.0001, 0.05 - abs(0.874 - other.test_accuracy.mean)),
            p_mcnemar=0.02,
            p_difference=0.02,
            smallest_difference=0.019,
            p_holm=max(0.001, min(1.0, 0.5 - 20 * abs(0.874 - other.test_accuracy.mean))),
        )
        for other in arms[1:]
    )
    whole = comparison(
        verdict="Pre-training helped, and the fine-tuned base beats every rival. "
        "The fine-tuned base reaches 87.4 %: +9.3 points (+8.2 to +10.4) against scratch (78.1 %), "
        "+2.2 points (+1.1 to +3.3) against TF-IDF + SVD + logistic regression (85.2 %). "
        "Intervals are widened for all that was asked at once.",
        verdict_kind="pays",
        arms=arms,
        tests=tests,
        num_test=2000,
        curve=tuple(point for values in _MANY_ARMS for point in _curve(*values)),
        worth=LabelWorth(
            arm="pretrained",
            rival="latent",
            num_labels=400,
            extra=Interval(700.0, 520.0, 1010.0),
            is_bound=False,
            sentence="Your base is worth about 700 labels (95 % interval 520 to 1,010): with 400 "
            "labels it scores as latent, the best other arm, does with 1,100.",
        ),
        more_worths=(
            LabelWorth("pretrained:wide", "latent", 400, None, False, "No gain in labels."),
            LabelWorth(
                *("embedding", "latent", 400, Interval(1200.0, 900.0, 1200.0), True),
                "Your base is worth more than 1,200 labels.",
            ),
        ),
        smallest_difference=0.019,
        num_text_leaks=12,
        label_doubts=(
            LabelDoubt(
                17, "Not a word of this is true, and I loved it.", "negative", "positive", 0.97, 33
            ),
            LabelDoubt(1204, "Broke on the second day.", "positive", "negative", 0.95, 33),
        ),
        mistakes=(
            Mistake(
                "It does what it says, if you can call that doing.", "negative", "positive", 0.991
            ),
            Mistake("لا بأس به على الإطلاق", "positive", "negative", 0.973),
            Mistake("Ten pages in I wanted to stop. " * 40, "positive", "negative", 0.958),
        ),
        splits=(
            Split("train", 1600, {"negative": 790, "positive": 810}, 0.125, 2),
            Split("valid", 400, {"negative": 201, "positive": 199}, 0.11, 0),
            Split("test", 2000, {"negative": 1000, "positive": 1000}, 0.12, 0),
        ),
        openings=(
            Opening(
                "test.csv", "9f" * 32, "2025-01-01T10:00:00+00:00", "regraft compare --seeds 1"
            ),
            Opening("test.csv", "9f" * 32, "2025-01-02T03:04:00+00:00", "regraft compare"),
        ),
        warnings=("1 of 3 runs of the lstm arm collapsed: they predict one class almost always.",),
        request={
            "bases": {"": "runs/base", "wide": "runs/wide"},
            "settings": {
                "": {"train": {"lr": 1e-4, "minutes": None}, "model": {"width": 12}},
                "wide": {"train": {"lr": 1e-4, "minutes": None}, "model": {"width": 24}},
            },
            "train": "train.csv",
            "arms": ["pretrained", "scratch"],
            "seeds": 3,
        },
    )
    return dataclasses.replace(whole, **changes)


def _full_arm(name: str, best: float, worst: float, seconds: float, description: str) -> ArmSummary:
    num_seeds = 3 if name in _NEURAL else 1
    steps = range(9) if name in _NEURAL else range(1)
    curves = tuple(
        tuple(best - 0.3 * (len(steps) > 1) * math.exp(-0.6 * e) + 0.006 * (s - 1) for e in steps)
        for s in range(num_seeds)
    )
    wrong = round(500 * (1 - best))
    return dataclasses.replace(
        arm(name, curves=curves, test=best),
        description=description,
        seconds=seconds,
        num_collapsed=int(name == "lstm"),
        confusion=[[1000 - wrong, wrong], [2 * wrong, 1000 - 2 * wrong]],
        temperature=1.4 if name in _NEURAL else 0.9,
        calibrated_error=0.021,
        reliability=tuple(
            ConfidenceBin(c, min(1.0, 0.5 + (c - 0.5) * best), round(60 + 900 * (c - 0.5) ** 2))
            for c in (0.53, 0.6, 0.67, 0.73, 0.8, 0.87, 0.93, 0.98)
        ),
        by_length=tuple(
            LengthBin(low, high, 400, best - drop)
            for low, high, drop in (
                (1, 40, 0.06),
                (41, 90, 0.01),
                (91, 160, -0.02),
                (161, 300, -0.01),
                (301, 1544, 0.03),
            )
        ),
        chosen=({"C": 1.0}, {"C": 1.0}, {"C": 10.0}) if name == "linear" else (),
    )


def _curve(
    name: str, best: float, worst: float, seconds: float, description: str
) -> list[CurvePoint]:
    points = []
    for place, size in enumerate(SIZES):
        done = place / (len(SIZES) - 1)
        score = worst + (best - worst) * done
        points.append(
            CurvePoint(
                arm=name,
                num_labels=size,
                num_seeds=3,
                accuracy=interval(score, 0.035 - 0.02 * done),
                macro_f1=interval(score - 0.004, 0.035 - 0.02 * done),
                seconds=seconds * (0.2 + 0.8 * done),
                num_collapsed=int(name == "lstm" and place < 2),
            )
        )
    return points


def told(out: Path) -> dict[str, Any]:
    """What a report says and its outcomes, without times and the name of its folder."""
    values = json.loads((out / "report.json").read_text(encoding="utf-8"))
    values["outcomes"] = (out / "outcomes.json").read_text(encoding="utf-8")
    for name in ("created", "command"):
        del values[name]
    for part in (*values["arms"], *values["curve"]):
        del part["seconds"]
    assert len(values["openings"]) == 1
    del values["openings"]
    return values


def without_times(comparison: Comparison) -> dict[str, Any]:
    plain = comparison_to_dict(comparison)
    del plain["created"]
    for part in (*plain["arms"], *plain["curve"]):
        del part["seconds"]
    for opening in plain["openings"]:
        del opening["when"]
    return plain
