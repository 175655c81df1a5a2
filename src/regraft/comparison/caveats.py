"""What weakens a result: leaks, single seeds, collapsed runs, unsearched text, repeated openings.

Each function returns sentences for the report, none where nothing is wrong.
"""

from collections.abc import Sequence

from regraft.comparison.arm import Arm
from regraft.comparison.network_arms import NetworkArm
from regraft.comparison.plan import Request, Setup
from regraft.comparison.results import ArmSummary, CurvePoint, Opening, Split
from regraft.comparison.test_set import Seen
from regraft.data import rare_classes, source_fingerprint


def run_caveats(
    arms: Sequence[ArmSummary], curve: Sequence[CurvePoint], *, num_seeds: int | None
) -> list[str]:
    """Single seeds, and runs that collapsed."""
    caveats = []
    if num_seeds == 1:
        caveats.append(
            "One seed: intervals cover the choice of test examples only, not the variance between "
            "training runs."
        )
    caveats += [
        f"{arm.num_collapsed} of {arm.num_seeds} runs of the {arm.name} arm collapsed: they "
        "predict one class almost always."
        for arm in arms
        if arm.num_collapsed
    ]
    smaller = [point for point in curve if point.num_labels < max(p.num_labels for p in curve)]
    num_collapsed = sum(point.num_collapsed for point in smaller)
    if num_collapsed:
        num_runs = sum(point.num_seeds for point in smaller)
        caveats.append(
            f"{num_collapsed} of {num_runs} runs with fewer labels collapsed; the label curve "
            "includes them."
        )
    return caveats


def leak_caveats(seen: Seen) -> list[str]:
    """Test texts that were seen during training, repeats, and texts of valid in train."""
    excluded = (
        "they are excluded from the significance tests, and scores are shown with and without them."
    )
    caveats = []
    if num_leaks := int(seen.labelled_N.sum()):
        caveats.append(
            f"{num_leaks:,} of the test examples also occur, exactly or nearly, in train or valid; "
            f"{excluded}"
        )
    if seen.text_N is not None and seen.text_N.any():
        ending = excluded
        if seen.num_read_deciding:
            ending = (
                f"the {seen.num_unread:,} others are too few to decide, so "
                f"{seen.num_read_deciding:,} of them are included. Arms that read that text may "
                "look better than they are: use another --test, or remove these from the text."
            )
        caveats.append(
            f"{int(seen.text_N.sum()):,} of the test examples also occur, exactly or nearly, in "
            f"the unlabelled text; {ending}"
        )
    if num_repeats := int(seen.repeat_N.sum()):
        caveats.append(
            f"{num_repeats:,} of the test examples repeat an earlier text: each text counts once."
        )
    if num_copies := int(seen.valid_V.sum()):
        caveats.append(
            f"{num_copies:,} of the valid examples also occur, exactly or nearly, in train: "
            "choices made on valid reward memorisation."
        )
    return caveats


def opening_caveats(openings: Sequence[Opening]) -> list[str]:
    """A test file that was used before."""
    if len(openings) < 2:
        return []
    return [
        f"The test file has been opened {len(openings)} times. Choices made after looking at it "
        "fit it better than they fit new examples."
    ]


def split_caveats(splits: Sequence[Split]) -> list[str]:
    """Missing classes and contradicting labels."""
    caveats = []
    for split in splits:
        missing = [label for label, count in split.counts.items() if not count]
        if missing:
            names = ", ".join(map(repr, missing[:5])) + (" and more" if len(missing) > 5 else "")
            use = "choose by" if split.name == "valid" else "be scored on"
            caveats.append(f"{split.name} has no example of {names}: there is none to {use}.")
        if split.num_contradictions:
            caveats.append(
                f"{split.num_contradictions} texts of {split.name} have contradicting labels: no "
                "model can be right on all of them."
            )
    return caveats


def setup_caveats(
    request: Request, *, setup: Setup, arms: Sequence[Arm], smallest: int
) -> list[str]:
    """What was requested: tuning, time budgets, rare classes, text that was not searched."""
    caveats = _unsearched(request, setup=setup, arms=arms)
    if request.grid == "none" and len({isinstance(arm, NetworkArm) for arm in arms}) == 2:
        caveats.append(
            "Networks kept the learning rate of their settings, while shallow arms chose their "
            "regularisation on valid: --grid small tunes both alike, at three times the cost."
        )
    caveats += [
        f"The {arm.name} arm trains for a time, {request.fit_minutes:g} minutes per run: repeated, "
        "its scores may differ slightly."
        for arm in arms
        if arm.runs_alone
    ]
    if smallest < len(setup.train):
        seed = setup.start.settings.train.seed
        caveats += rare_classes(setup.train, smallest=smallest, seed=seed)
    return caveats


def _unsearched(request: Request, *, setup: Setup, arms: Sequence[Arm]) -> list[str]:
    """Bases that may have been pre-trained on test texts."""
    used = {arm.base for arm in arms if arm.role == "base" and arm.takes_base}
    given = {source_fingerprint(paths) for paths in (request.texts, *([p] for p in request.texts))}
    caveats = []
    for name in (name for name in setup.starts if name in used):
        base = setup.starts[name].base
        assert base is not None
        text, which = base.info.fingerprints.get("text"), f"base {name}" if name else "base"
        searched = f"The pre-training text of the {which} was not searched for test texts: "
        if text is None:
            caveats.append(
                f"The pre-training text of the {which} is unknown: it may include test texts."
            )
        elif not request.texts:
            caveats.append(f"{searched}pass it with --text.")
        elif text not in given:
            caveats.append(f"{searched}--text is another text, by its fingerprint.")
        if "base" in base.info.fingerprints:
            caveats.append(
                f"The {which} was adapted from another base, whose text was not searched."
            )
    return caveats
