"""Weighs the fitted members of a blend by their held-out predictions, and saves what that needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from regraft.classifiers.abstention import Abstention
from regraft.classifiers.blend import baselines_dir, member_dir
from regraft.classifiers.fit_result import Judged
from regraft.classifiers.held_out import ISSUES_NAME, HeldOut, find_label_issues
from regraft.classifiers.kept_examples import KeptExamples
from regraft.classifiers.learning_curve import label_curve
from regraft.classifiers.logistic import RegressionModel
from regraft.config import Settings
from regraft.data import Example, Labels, labels_of, write_label_issues
from regraft.runtime import Progress
from regraft.stats import CoveragePoint, coverage_curve, thinned


def judge(
    members: Mapping[str, RegressionModel],
    *,
    examples: Sequence[Example],
    valid_examples: Sequence[Example],
    run_dir: Path,
    settings: Settings,
    abstention: Abstention,
    progress: Progress,
) -> Judged:
    """Weigh the members; write them, the examples and the possible label errors to `run_dir`."""
    labels, judged = labels_of(examples), valid_examples or examples
    targets = labels.targets(examples)
    priors_C = None
    if settings.train.class_weight == "balanced":
        priors_C = np.bincount(targets) / len(targets)
    held_out = HeldOut(members, labels.targets(judged), seed=settings.train.seed, priors_C=priors_C)
    weights, temperature = held_out.weights()
    separator = settings.data.label_separator
    issues = find_label_issues(judged, held_out.blend_NC, labels=labels, separator=separator)
    write_label_issues(run_dir / ISSUES_NAME, issues)
    confidence = [] if held_out.has_label_sets else held_out.blend_NC.max(axis=1).tolist()
    KeptExamples(examples, valid_examples, _answers(held_out, labels), confidence).save(run_dir)
    curve = () if valid_examples else label_curve(held_out, weights=weights, progress=progress)
    coverage: tuple[CoveragePoint, ...] = ()
    if not held_out.has_label_sets:
        coverage = coverage_curve(held_out.blend_NC, held_out.targets)
    for name, member in members.items():
        # The table of the bases is kept at any weight: `fit --update` cannot make it again.
        is_kept = weights[name] > 0 or name == "features"
        member.save(member_dir(run_dir, name) if is_kept else baselines_dir(run_dir) / name)
    return Judged(
        labels=labels.names,
        num_train=len(examples),
        num_valid=len(valid_examples),
        scores=held_out.scores(weights),
        weights=weights,
        temperature=temperature,
        thresholds=held_out.thresholds(),
        priors=() if priors_C is None else tuple(priors_C.tolist()),
        num_label_issues=len(issues),
        abstain_below=abstention.threshold(coverage, num_examples=len(judged), progress=progress),
        coverage=thinned(coverage),
        label_curve=curve,
    )


def _answers(held_out: HeldOut, labels: Labels) -> list[tuple[str, ...]]:
    """What the blend predicts for each held-out example."""
    predicted = held_out.predicted(held_out.blend_NC)
    if held_out.has_label_sets:
        return [tuple(labels[at] for at in np.flatnonzero(row).tolist()) for row in predicted]
    return [(labels[target],) for target in predicted.tolist()]
