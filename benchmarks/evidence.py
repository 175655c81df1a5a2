"""How often does the rule of a comparison find what is not there, and what is?

Arms are simulated, so that the truth is known: a test example is answered rightly if skill +
difficulty of the example (the same for both arms) + the arm's own view of it + luck of the seed +
noise is above zero. Prints the tables of docs/concepts/evidence.md:

    python benchmarks/evidence.py [--tables level power verdict] [--comparisons NUMBER]

Estimated at five minutes of one quiet core.
"""

import argparse
import itertools

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from regraft.comparison.analysis import paired_tests
from regraft.comparison.arms import parse_arms
from regraft.comparison.results import questions
from regraft.stats import (
    SIGNIFICANCE,
    draw_counts,
    paired_permutation_test,
    significance,
    smallest_difference,
)

ACCURACY = 0.8
# Standard deviations: difficulty, own view, noise.
DIFFICULTY, VIEW, NOISE = 1.0, 0.5, 1.0
NUM_RESAMPLES = 200
# The smallest difference is the mean of so many.
NUM_GAPS = 500
# Seeds of both arms, test examples; then how far seeds differ in accuracy, in points.
CASES = (((3, 3), 500), ((3, 1), 500), ((5, 5), 500), ((3, 3), 1_000), ((2, 2), 500))
LUCK_POINTS = (0.0, 1.0, 3.0)
# Whole verdicts: three uses of a base, scratch and three rivals, with their seeds.
VERDICT_SEEDS = {
    "pretrained": 3,
    "scratch": 3,
    "frozen": 3,
    "embedding": 1,
    "linear": 1,
    "nbsvm": 1,
    "lstm": 3,
}
# What is better in truth than the rest, by VERDICT_GAP.
VERDICT_CASES = {
    "nothing": (),
    "pretrained": ("pretrained",),
    "embedding": ("embedding",),
    "linear": ("linear",),
}
VERDICT_GAP = 0.06


def simulated_arm(
    generator: np.random.Generator,
    *,
    difficulty_N: NDArray[np.float64],
    accuracy: float,
    luck_points: float,
    num_seeds: int,
) -> NDArray[np.bool_]:
    """S x N right answers; seeds of the arm differ in accuracy by `luck_points` (deviation)."""
    size = (num_seeds, len(difficulty_N))
    still = np.sqrt(DIFFICULTY**2 + VIEW**2 + NOISE**2)
    # The slope of accuracy in skill, at this accuracy.
    luck = luck_points / 100 * still / norm.pdf(norm.ppf(accuracy))
    skill = norm.ppf(accuracy) * np.hypot(still, luck)
    return np.asarray(
        skill
        + difficulty_N
        + VIEW * generator.normal(size=size[1])
        + luck * generator.normal(size=(num_seeds, 1))
        + NOISE * generator.normal(size=size)
        > 0
    )


def simulated_pair(
    generator: np.random.Generator,
    *,
    num_examples: int,
    seeds: tuple[int, int],
    luck_points: float,
    gap: float = 0.0,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Two arms on the same examples; one with a single seed has no luck, like the linear arm."""
    difficulty_N = DIFFICULTY * generator.normal(size=num_examples)
    arms = [
        simulated_arm(
            generator,
            difficulty_N=difficulty_N,
            accuracy=ACCURACY + side * gap / 2,
            luck_points=luck_points if num_seeds > 1 else 0.0,
            num_seeds=num_seeds,
        )
        for side, num_seeds in zip((1, -1), seeds, strict=True)
    ]
    return arms[0], arms[1]


def found_differences(
    a_SN: NDArray[np.bool_], b_RN: NDArray[np.bool_], *, seed: int
) -> tuple[bool, bool, bool]:
    """What permutation, a bootstrap of both seeds and examples, and our rule say."""
    permutation = paired_permutation_test(a_SN, b_RN, seed=seed, num_resamples=NUM_RESAMPLES)
    is_outside = _is_outside_bootstrap(a_SN, b_RN, seed=seed)
    return permutation < 0.05, is_outside, is_found(a_SN, b_RN)


def is_found(a_SN: NDArray[np.bool_], b_RN: NDArray[np.bool_]) -> bool:
    """What our rule says of one question."""
    return significance.difference(a_SN, b_RN).p < SIGNIFICANCE


def _is_outside_bootstrap(a_SN: NDArray[np.bool_], b_RN: NDArray[np.bool_], *, seed: int) -> bool:
    """Whether the plain hierarchical bootstrap, which resamples the few seeds, leaves out zero."""
    generator = np.random.default_rng(seed)
    num_examples = a_SN.shape[1]
    weights_BN = draw_counts(generator, num_draws=NUM_RESAMPLES, num_items=num_examples)
    means = []
    for scores_SN in (a_SN, b_RN):
        draws_BS = draw_counts(generator, num_draws=NUM_RESAMPLES, num_items=len(scores_SN))
        means.append((draws_BS * (weights_BN @ scores_SN.T)).mean(axis=1) / num_examples)
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975])
    return bool(low > 0 or high < 0)


def print_level(num_comparisons: int) -> None:
    """How often a difference is found between arms that have none."""
    generator = np.random.default_rng(0)
    print("| seeds | examples | luck | permutation | bootstrap | rule |")
    print("|---|---|---|---|---|---|")
    for (seeds, num_examples), luck_points in itertools.product(CASES, LUCK_POINTS):
        found = [
            found_differences(
                *simulated_pair(
                    generator, num_examples=num_examples, seeds=seeds, luck_points=luck_points
                ),
                seed=number,
            )
            for number in range(num_comparisons)
        ]
        shares = " | ".join(f"{share:.1%}" for share in np.mean(found, axis=0))
        summary = f"{seeds[0]} and {seeds[1]} | {num_examples:,} | {luck_points:g}"
        print(f"| {summary} | {shares} |", flush=True)


def print_power(num_comparisons: int) -> None:
    """How often the gap is found that such arms, without one, say would be found."""
    generator = np.random.default_rng(1)
    print("| seeds | examples | luck | smallest difference | found |")
    print("|---|---|---|---|---|")
    single = ((1, 1), 500), 0.0
    for (seeds, num_examples), luck_points in (single, *itertools.product(CASES, LUCK_POINTS)):
        case = {"num_examples": num_examples, "seeds": seeds, "luck_points": luck_points}
        gaps = [smallest_difference(*simulated_pair(generator, **case)) for _ in range(NUM_GAPS)]
        gap = float(np.mean(gaps))
        summary = (
            f"{seeds[0]} and {seeds[1]} | {num_examples:,} | {luck_points:g} | {100 * gap:.1f}"
        )
        if gap >= 2 * (1 - ACCURACY):  # one arm would be right more often than always
            print(f"| {summary} | - |", flush=True)
            continue
        found = [
            is_found(*simulated_pair(generator, **case, gap=gap)) for _ in range(num_comparisons)
        ]
        print(f"| {summary} | {np.mean(found):.1%} |", flush=True)


def print_verdicts(num_comparisons: int) -> None:
    """How often any answer of a whole verdict is false, and how often the true ones are found."""
    generator = np.random.default_rng(2)
    names = tuple(VERDICT_SEEDS)
    print("| better in truth | luck | any false answer | true answers found |")
    print("|---|---|---|---|")
    for (summary, better), luck_points in itertools.product(VERDICT_CASES.items(), LUCK_POINTS):
        truth = {name: ACCURACY + VERDICT_GAP * (name in better) for name in names}
        found = [
            _answers(generator, truth=truth, luck_points=luck_points)
            for _ in range(num_comparisons)
        ]
        false = np.mean([is_false for is_false, _ in found])
        power = f"{np.mean([share for _, share in found]):.1%}" if better else "-"
        print(f"| {summary} | {luck_points:g} | {false:.1%} | {power} |", flush=True)


def _answers(
    generator: np.random.Generator, *, truth: dict[str, float], luck_points: float
) -> tuple[bool, float]:
    """Is any answer of a verdict false? Which share of those that are true was found?"""
    difficulty_N = DIFFICULTY * generator.normal(size=500)
    arms = {
        name: simulated_arm(
            generator,
            difficulty_N=difficulty_N,
            accuracy=truth[name],
            luck_points=luck_points if num_seeds > 1 else 0.0,
            num_seeds=num_seeds,
        )
        for name, num_seeds in VERDICT_SEEDS.items()
    }
    infos = [arm.info() for arm in parse_arms(tuple(truth))]
    outcomes = {
        (test.first, test.second): test.outcome
        for test in paired_tests(
            {info: arms[info.name] for info in infos}, is_whole=True, num_resamples=1
        )
    }
    summary, true = [], []
    for pairs in questions(infos):
        first, best = pairs[0][0], max(truth[second] for _, second in pairs)
        true.append(_compared(truth[first], best))
        seen = {outcomes[pair] for pair in pairs}
        summary.append(
            "worse" if "worse" in seen else "better" if seen == {"better"} else "unclear"
        )
    shown = [a == b for a, b in zip(summary, true, strict=True) if b != "unclear"]
    is_false = any(a not in ("unclear", b) for a, b in zip(summary, true, strict=True))
    return is_false, float(np.mean(shown)) if shown else 0.0


def _compared(ours: float, theirs: float) -> str:
    return "unclear" if ours == theirs else "better" if ours > theirs else "worse"


def main() -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--comparisons", type=int, default=1_000)
    parser.add_argument("--tables", choices=[*TABLES], nargs="+", default=[*TABLES])
    asked = parser.parse_args()
    for name in asked.tables:
        TABLES[name](asked.comparisons)
        print()


TABLES = {"level": print_level, "power": print_power, "verdict": print_verdicts}


if __name__ == "__main__":
    main()
