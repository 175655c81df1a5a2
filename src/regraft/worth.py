"""What is a base worth in labels? How many more of them the best other arm needs for its score.

Comes in: for each arm and number of labels, the scores of its seeds on the same test examples. Goes
out: a `LabelWorth` with its interval and its sentence. Letters: S seeds, N examples, B resamples, K
numbers of labels. The rules stand in docs/concepts/evidence.md.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Shaped

from regraft.evidence import LabelWorth, about, base_name, in_percent, uses_base
from regraft.statistics import CONFIDENCE, Interval, block_sizes, draw_counts, seed_luck

Curves = Mapping[str, Mapping[int, Shaped[np.ndarray, "_ N"]]]

_TAIL = (1 - CONFIDENCE) / 2
_ROUNDING = 1e-12
_ONE_RUN = " That is of single runs, whose luck is not in it: repeat it with three seeds or more."


def worth_in_labels(
    curves: Curves, *, arm: str, seed: int = 0, num_resamples: int = 2_000
) -> LabelWorth | None:
    """How many labels more than the base arm `arm` with its fewest the best other arm needs.

    `curves` hold scores_SN by arm and number of labels. Rivals are arms that make no use of a
    base; in every resample the best of them counts. None where there is no curve or no rival.
    """
    sizes = sorted(curves[arm])
    rivals = [name for name in curves if not uses_base(name)]
    if len(sizes) < 2 or not rivals:
        return None
    for name in rivals:
        if sorted(curves[name]) != sizes:
            raise ValueError(
                f"arms must have the same numbers of labels: {arm} has {sizes}, "
                f"{name} has {sorted(curves[name])}"
            )
    names = [arm, *rivals]
    means = {name: np.array([[curves[name][size].mean() for size in sizes]]) for name in names}
    drawn = _resampled(curves, names, sizes, seed=seed, num_resamples=num_resamples)
    needs = {name: float(labels_needed(means[name], means[arm][:, 0], sizes)[0]) for name in rivals}
    needed_B = np.min(
        [labels_needed(drawn[name], drawn[arm][:, 0], sizes) for name in rivals], axis=0
    )
    low, high = np.quantile(np.minimum(needed_B, sizes[-1]), [_TAIL, 1 - _TAIL])
    # A subset is drawn by the seed: of one run, no arm's luck is seen.
    is_of_runs = any(len(curves[name][size]) == 1 for name in names for size in sizes[:-1])
    if low <= sizes[0]:
        rival = max(rivals, key=lambda name: means[name][0, 0])
        return LabelWorth(
            arm=arm,
            rival=rival,
            num_labels=sizes[0],
            extra=None,
            is_bound=False,
            sentence=(
                f"No gain in labels was found: with {sizes[0]:,} of them {arm} reaches "
                f"{in_percent(means[arm][0, 0])}, {rival} {in_percent(means[rival][0, 0])}."
                + _ONE_RUN
                * is_of_runs
            ),
            is_of_runs=is_of_runs,
        )
    # The one that needs the fewest; of those that never get there, the one that comes nearest.
    rival = min(rivals, key=lambda name: (needs[name], -means[name].max()))
    mean = float(min(needs[rival], sizes[-1]))
    worth = LabelWorth(
        arm=arm,
        rival=rival,
        num_labels=sizes[0],
        # In some resamples another rival is the best: see that the ends enclose the mean.
        extra=Interval(
            mean - sizes[0], min(float(low), mean) - sizes[0], max(float(high), mean) - sizes[0]
        ),
        is_bound=needs[rival] == np.inf,
        is_high_bound=bool(np.mean(needed_B == np.inf) > _TAIL),
        sentence="",
        is_of_runs=is_of_runs,
    )
    return dataclasses.replace(worth, sentence=_sentence(worth))


def labels_needed(
    scores_BK: Float[np.ndarray, "B K"], wanted_B: Float[np.ndarray, " B"], sizes: Sequence[int]
) -> Float[np.ndarray, " B"]:
    """The fewest labels with which a curve reaches a score; infinite where it never does.

    The curve is made to rise (isotonic regression) and runs straight on a logarithmic axis. One
    that begins above the score needs the smallest number.
    """
    # Sums of the same scores may differ in their last digit.
    rising_BK = _rising(scores_BK) + _ROUNDING
    logs_K = np.log(sizes)
    needed_B = np.full(len(wanted_B), np.inf)
    for place in range(len(sizes) - 1, 0, -1):
        left_B, right_B = rising_BK[:, place - 1], rising_BK[:, place]
        # Nothing is divided by a rise of zero: there the end on the left is reached as well.
        share_B = (wanted_B - left_B) / np.where(right_B > left_B, right_B - left_B, 1)
        between_B = logs_K[place - 1] + np.clip(share_B, 0, 1) * (logs_K[place] - logs_K[place - 1])
        needed_B = np.where(right_B >= wanted_B, np.exp(between_B), needed_B)
    return np.where(rising_BK[:, 0] >= wanted_B, float(sizes[0]), needed_B)


def _rising(scores_BK: Float[np.ndarray, "B K"]) -> Float[np.ndarray, "B K"]:
    """The rising curves nearest to these, in closed form (Barlow et al. 1972).

    At each place: of means from a start before it to an end behind it, the smallest by end, and of
    these the largest by start.
    """
    num_places: int = scores_BK.shape[1]
    sums = np.cumsum(np.pad(scores_BK, ((0, 0), (1, 0))), axis=1)
    rising = np.empty_like(scores_BK)
    for place in range(num_places):
        by_start = [
            np.min(
                [
                    (sums[:, end + 1] - sums[:, start]) / (end + 1 - start)
                    for end in range(place, num_places)
                ],
                axis=0,
            )
            for start in range(place + 1)
        ]
        rising[:, place] = np.max(by_start, axis=0)
    return rising


def _resampled(
    curves: Curves, names: Sequence[str], sizes: Sequence[int], *, seed: int, num_resamples: int
) -> dict[str, Float[np.ndarray, "B K"]]:
    """Curves of B draws: the same examples for all arms and sizes, the luck of its own for each."""
    generator = np.random.default_rng(seed)
    num_examples: int = curves[names[0]][sizes[0]].shape[1]
    luck = {name: _luck_by_size(curves, name, names, sizes) for name in names}
    drawn: dict[str, list[Float[np.ndarray, "B K"]]] = {name: [] for name in names}
    for count in block_sizes(num_resamples, num_examples):
        weights_BN = draw_counts(generator, num_draws=count, num_items=num_examples)
        for name in names:
            scores_NK = np.stack([curves[name][size].mean(axis=0) for size in sizes], axis=1)
            luck_BK = generator.normal(size=(count, len(sizes))) * luck[name]
            drawn[name].append(weights_BN @ scores_NK / num_examples + luck_BK)
    return {name: np.concatenate(blocks) for name, blocks in drawn.items()}


def _luck_by_size(
    curves: Curves, name: str, names: Sequence[str], sizes: Sequence[int]
) -> Float[np.ndarray, " K"]:
    """The deviation of a normal whose 95 % reach as far as the luck of seeds does.

    At the smallest size it has the freedom that it has in the interval of a difference there, so
    that both agree on whether there is a gain.
    """
    from scipy.stats import norm

    luck = [seed_luck(curves[name][size]) for size in sizes]
    base = curves[names[0]][sizes[0]]
    pairs = [seed_luck(base, curves[rival][sizes[0]]) for rival in names[1:]]
    freedoms = [pair.freedom for pair in pairs if pair.variance > 0]
    if freedoms:
        luck[0] = dataclasses.replace(luck[0], freedom=min(freedoms))
    return np.array([one.reach(_TAIL) for one in luck]) / norm.isf(_TAIL)


def _sentence(worth: LabelWorth) -> str:
    assert worth.extra is not None
    base = base_name(worth.arm)
    ours = f"Your base {base}" if base else "Your base"
    if worth.is_of_runs:
        ours = f"In these runs, {ours[0].lower()}{ours[1:]}"
    extra, fewest = worth.extra, worth.num_labels
    low, high = about(extra.low), about(extra.high)
    if worth.is_bound:
        told = (
            f"{ours} is worth more than {extra.mean:,.0f} labels (95 % interval from {low} on): "
            f"{worth.rival} does not reach with {extra.mean + fewest:,.0f} what it reaches with "
            f"{fewest:,}."
        )
    else:
        more = "more than " if worth.is_high_bound else ""
        told = (
            f"{ours} is worth about {about(extra.mean)} labels (95 % interval {low} to "
            f"{more}{high}): {worth.rival} needs about {about(extra.mean + fewest)} to reach what "
            f"it reaches with {fewest:,}."
        )
    return told + _ONE_RUN * worth.is_of_runs
