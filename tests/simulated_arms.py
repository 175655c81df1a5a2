"""Arms whose truth is known: right if skill + difficulty + luck of the seed + noise is above 0."""

import numpy as np
from scipy.stats import norm


def simulated_arms(
    *,
    accuracies: tuple[float, ...],
    num_seeds: tuple[int, ...],
    num_examples: int,
    luck_points: float,
    seed: int,
) -> list[np.ndarray]:
    """S x N right answers for each arm, on the same examples.

    Over seeds the accuracy deviates by `luck_points`; an arm with one seed has no luck.
    """
    generator = np.random.default_rng(seed)
    difficulty = generator.normal(size=num_examples)
    arms = []
    for accuracy, seeds in zip(accuracies, num_seeds, strict=True):
        skill = norm.ppf(accuracy)
        luck = luck_points / 100 * np.sqrt(2) / norm.pdf(skill) if seeds > 1 else 0.0
        scores = (
            skill * np.sqrt(2 + luck**2)
            + difficulty
            + luck * generator.normal(size=(seeds, 1))
            + generator.normal(size=(seeds, num_examples))
        )
        arms.append(scores > 0)
    return arms
