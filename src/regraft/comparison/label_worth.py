"""The worth of a base in labels: how many more labels the best other arm needs to match it.

Computed from label curves on the same test examples, with a bootstrap interval. Letters: S seeds, N
examples, B resamples, K numbers of labels. docs/concepts/evidence.md explains the rules.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Shaped

from regraft.comparison.results import ArmInfo, LabelWorth, about
from regraft.runtime import in_percent
from regraft.stats import CONFIDENCE, Interval, block_sizes, draw_counts, seed_luck

Curves = Mapping[str, Mapping[int, Shaped[np.ndarray, "_ N"]]]

_TAIL = (1 - CONFIDENCE) / 2
_ROUNDING = 1e-12
_ONE_RUN = " This is from single runs: repeat it with three seeds or more."


def worth_in_labels(
    curves: Curves,
    *,
    arm: ArmInfo,
    others: Sequence[str],
    seed: int = 0,
    num_resamples: int = 2_000,
) -> LabelWorth | None:
    """How many more labels than the fewest of `arm` the best of the other arms needs.

    `curves` hold scores_SN by arm and number of labels; `others` are the arms without a base. In
    every resample the best of them counts. None without a curve or without other arms.
    """
    ours, rivals = arm.name, list(others)
    sizes = sorted(curves[ours])
    if len(sizes) < 2 or not rivals:
        return None
    for name in rivals:
        if sorted(curves[name]) != sizes:
            raise ValueError(
                f"arms must have the same numbers of labels: {ours} has {sizes}, "
                f"{name} has {sorted(curves[name])}"
            )
    names = [ours, *rivals]
    means = {name: np.array([[curves[name][size].mean() for size in sizes]]) for name in names}
    drawn = _resampled(curves, names, sizes, seed=seed, num_resamples=num_resamples)
    needs = {
        name: float(labels_needed(means[name], means[ours][:, 0], sizes)[0]) for name in rivals
    }
    needed_B = np.min(
        [labels_needed(drawn[name], drawn[ours][:, 0], sizes) for name in rivals], axis=0
    )
    low, high = np.quantile(np.minimum(needed_B, sizes[-1]), [_TAIL, 1 - _TAIL])
    # Subsets are drawn by the seed: with one run, the variance of every arm is unknown.
    is_of_runs = any(len(curves[name][size]) == 1 for name in names for size in sizes[:-1])
    if low <= sizes[0]:
        rival = max(rivals, key=lambda name: means[name][0, 0])
        return LabelWorth(
            arm=ours,
            rival=rival,
            num_labels=sizes[0],
            extra=None,
            is_bound=False,
            sentence=(
                f"No gain in labels was found: with {sizes[0]:,} of them {ours} reaches "
                f"{in_percent(means[ours][0, 0])}, {rival} {in_percent(means[rival][0, 0])}."
                + (_ONE_RUN if is_of_runs else "")
            ),
            is_of_runs=is_of_runs,
        )
    # The one that needs the fewest; if none gets there, the one that comes nearest.
    rival = min(rivals, key=lambda name: (needs[name], -means[name].max()))
    mean = float(min(needs[rival], sizes[-1]))
    worth = LabelWorth(
        arm=ours,
        rival=rival,
        num_labels=sizes[0],
        # In some resamples another rival is the best: the interval must still include the mean.
        extra=Interval(
            mean - sizes[0], min(float(low), mean) - sizes[0], max(float(high), mean) - sizes[0]
        ),
        is_bound=needs[rival] == np.inf,
        is_high_bound=bool(np.mean(needed_B == np.inf) > _TAIL),
        sentence="",
        is_of_runs=is_of_runs,
    )
    return dataclasses.replace(worth, sentence=_sentence(worth, arm))


def labels_needed(
    scores_BK: Float[np.ndarray, "B K"], wanted_B: Float[np.ndarray, " B"], sizes: Sequence[int]
) -> Float[np.ndarray, " B"]:
    """The fewest labels with which a curve reaches a score; infinite where it never does.

    The curve is made monotonic (isotonic regression) and interpolated on a logarithmic axis. One
    that starts above the score needs the smallest number.
    """
    # Sums of the same scores may differ in their last digit.
    rising_BK = _rising(scores_BK) + _ROUNDING
    logs_K = np.log(sizes)
    needed_B = np.full(len(wanted_B), np.inf)
    for place in range(len(sizes) - 1, 0, -1):
        left_B, right_B = rising_BK[:, place - 1], rising_BK[:, place]
        # Where the curve is flat, the left end is reached as well: any divisor will do.
        share_B = (wanted_B - left_B) / np.where(right_B > left_B, right_B - left_B, 1)
        between_B = logs_K[place - 1] + np.clip(share_B, 0, 1) * (logs_K[place] - logs_K[place - 1])
        needed_B = np.where(right_B >= wanted_B, np.exp(between_B), needed_B)
    return np.where(rising_BK[:, 0] >= wanted_B, float(sizes[0]), needed_B)


def _rising(scores_BK: Float[np.ndarray, "B K"]) -> Float[np.ndarray, "B K"]:
    """The nearest monotonic curves, in closed form (Barlow et al. 1972).

    At each place: of the means from a start before it to an end after it, the smallest over ends,
    and of these the largest over starts.
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
    """B resampled curves: the same examples for all arms and sizes, seed noise for each."""
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
    """The deviation of a normal whose 95 % interval is as wide as that of the seed noise.

    At the smallest size the degrees of freedom are those of the interval of a difference, so that
    both agree on whether there is a gain.
    """
    from scipy.stats import norm

    luck = [seed_luck(curves[name][size]) for size in sizes]
    base = curves[names[0]][sizes[0]]
    pairs = [seed_luck(base, curves[rival][sizes[0]]) for rival in names[1:]]
    freedoms = [pair.freedom for pair in pairs if pair.variance > 0]
    if freedoms:
        luck[0] = dataclasses.replace(luck[0], freedom=min(freedoms))
    return np.array([one.reach(_TAIL) for one in luck]) / norm.isf(_TAIL)


def _sentence(worth: LabelWorth, arm: ArmInfo) -> str:
    assert worth.extra is not None
    ours = arm.title if not worth.is_of_runs else f"in these runs, {arm.title}"
    ours = ours[0].upper() + ours[1:]
    extra, fewest = worth.extra, worth.num_labels
    low, high = about(extra.low), about(extra.high)
    if worth.is_bound:
        sentence = (
            f"{ours} is worth more than {extra.mean:,.0f} labels (95 % interval: {low} or more): "
            f"{worth.rival} with {extra.mean + fewest:,.0f} does not reach its score with "
            f"{fewest:,}."
        )
    else:
        more = "more than " if worth.is_high_bound else ""
        sentence = (
            f"{ours} is worth about {about(extra.mean)} labels (95 % interval: {low} to "
            f"{more}{high}): {worth.rival} needs about {about(extra.mean + fewest)} to match its "
            f"score with {fewest:,}."
        )
    return sentence + (_ONE_RUN if worth.is_of_runs else "")
