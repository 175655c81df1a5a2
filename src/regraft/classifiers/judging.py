"""Weighs the fitted members of a blend by their held-out predictions, and saves what that needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from regraft.classifiers.abstention import Abstention
from regraft.classifiers.blend import baselines_dir, member_dir
from regraft.classifiers.fit_result import Judged
from regraft.classifiers.held_out import ISSUES_NAME, HeldOut, find_label_issues
from regraft.classifiers.kept_examples import KeptExamples
from regraft.classifiers.learning_curve import label_curve
from regraft.classifiers.logistic import RegressionModel
from regraft.data import Example, labels_of, write_label_issues
from regraft.runtime import Progress
from regraft.stats import coverage_curve, thinned


def judge(
    members: Mapping[str, RegressionModel],
    *,
    examples: Sequence[Example],
    watched: Sequence[Example],
    run_dir: Path,
    seed: int,
    abstention: Abstention,
    progress: Progress,
) -> Judged:
    """Weigh the members; write them, the examples and the possible label errors to `run_dir`."""
    labels, judged = labels_of(examples), watched or examples
    held_out = HeldOut(members, labels.targets(judged), seed=seed)
    weights, temperature = held_out.weights()
    issues = find_label_issues(judged, held_out.blend_NC, labels=labels)
    write_label_issues(run_dir / ISSUES_NAME, issues)
    answers = [(labels[target],) for target in held_out.blend_NC.argmax(axis=1).tolist()]
    KeptExamples(examples, watched, answers).save(run_dir)
    progress.say("Measuring how the score grows with the number of labels.")
    curve = () if watched else label_curve(held_out, [e.text for e in examples], weights=weights)
    coverage = coverage_curve(held_out.blend_NC, held_out.targets_N)
    for name, member in members.items():
        # The table of the bases is kept at any weight: `fit --update` cannot make it again.
        is_kept = weights[name] > 0 or name == "features"
        member.save(member_dir(run_dir, name) if is_kept else baselines_dir(run_dir) / name)
    return Judged(
        labels=labels.names,
        num_train=len(examples),
        num_valid=len(watched),
        scores=held_out.scores(weights),
        weights=weights,
        temperature=temperature,
        num_label_issues=len(issues),
        abstain_below=abstention.threshold(coverage, num_examples=len(judged), progress=progress),
        coverage=thinned(coverage),
        label_curve=curve,
    )
