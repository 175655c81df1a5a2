"""What was found? The answers of every run and the opened test file become a Comparison.

Comes in: what was asked, the trained cells with their answers on disk, the test file after its seal
was broken, and which of its texts were seen before. Goes out: a `Comparison`, ready for report.
Decides on examples that were seen nowhere before, each text once. Trains nothing.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone

import numpy as np
from numpy.typing import NDArray

from regraft.arms import FIRST, Arm, Cell, Task, TrainedCell
from regraft.config import settings_to_dict
from regraft.evaluate import cut_share
from regraft.evidence import (
    ArmSummary,
    Comparison,
    LabelWorth,
    Outcomes,
    RunOutcomes,
    base_name,
    is_network,
    uses_base,
)
from regraft.presets import ARMS
from regraft.request import Request
from regraft.runtime import environment
from regraft.seal import Opened
from regraft.seen import Seen
from regraft.shards import source_fingerprint
from regraft.stages import Stage, load_answers
from regraft.subsets import rare_classes
from regraft.summaries import (
    Exam,
    SeedRun,
    arm_summary,
    correct,
    curve_point,
    deciding,
    doubting_arms,
    doubts,
    mistakes,
    paired_tests,
    split,
    split_warnings,
    warnings,
)
from regraft.verdict import easily_missed, judge
from regraft.worth import worth_in_labels


def build_comparison(
    request: Request,
    stage: Stage,
    trained: Mapping[Cell, TrainedCell],
    *,
    opened: Opened,
    seen: Seen,
    command: str,
) -> Comparison:
    """Everything the report tells, from the answers that lie in the stage's folder."""
    task = stage.task
    exam = Exam(
        examples=opened.examples,
        labels=task.labels,
        targets_N=task.labels.targets(opened.examples),
        valid_targets_N=task.labels.targets(task.valid),
        clean_N=seen.clean_N,
    )
    largest = max(cell.num_labels for cell in trained)

    def runs_of(name: str, num_labels: int) -> list[SeedRun]:
        """Read when asked for: no more than one arm's answers are in memory at a time."""
        runs = []
        for cell, run in trained.items():
            if (cell.arm, cell.num_labels) == (name, num_labels):
                answers = load_answers(stage.folder, cell, test=opened.fingerprint)
                runs.append(
                    SeedRun(
                        cell=cell,
                        valid_accuracy=run.valid_accuracy,
                        seconds=run.seconds,
                        chosen=run.chosen,
                        valid_NC=answers["valid"],
                        test_NC=answers["test"],
                    )
                )
        return runs

    names = _in_order(stage.arms)
    sizes = sorted({cell.num_labels for cell in trained})
    curve = tuple(
        curve_point(name, runs_of(name, size), exam=exam, num_labels=size)
        for name in stage.arms
        for size in (sizes if len(sizes) > 1 else ())
    )
    summaries = tuple(
        arm_summary(
            name,
            runs_of(name, largest),
            exam=exam,
            description=_description(arm, request),
        )
        for name, arm in stage.arms.items()
    )
    tests = paired_tests(
        {name: deciding(runs_of(name, largest), exam) for name in names},
        is_whole=largest == len(task.train),
    )
    deciding_arms = [_on_what_decides(arm) for arm in summaries]
    kind, verdict = judge(deciding_arms, tests)
    rows, valid_rows = task.rows[FIRST]
    test_rows = stage.rows_of([example.text for example in opened.examples])
    splits = (
        split("train", task.train, labels=task.labels, cut_share=cut_share(rows)),
        split("valid", task.valid, labels=task.labels, cut_share=cut_share(valid_rows)),
        split("test", opened.examples, labels=task.labels, cut_share=cut_share(test_rows)),
    )
    num_leaks = int(seen.labelled_N.sum())
    worths = _worths(names, sizes, lambda *of: deciding(runs_of(*of), exam))
    base = task.start.base
    assert base is not None
    return Comparison(
        verdict=" ".join([verdict, *_what_decided(seen)]),
        verdict_kind=kind,
        arms=summaries,
        tests=tests,
        labels=task.labels.names,
        num_train=len(task.train),
        num_valid=len(task.valid),
        num_test=len(opened.examples),
        num_test_leaks=num_leaks,
        cut_share=cut_share(rows),
        settings=settings_to_dict(task.start.settings),
        environment=environment(),
        fingerprints={
            **task.fingerprints,
            "test": opened.fingerprint,
            "text": base.info.fingerprints.get("text", ""),
        },
        command=command,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        base={"run_dir": str(request.bases[FIRST]), **base.info.result},
        mistakes=mistakes(runs_of(names[0], largest), exam=exam),
        warnings=(
            *warnings(summaries, curve, seeds=request.seeds, num_leaks=num_leaks),
            *_data_warnings(request, task=task, seen=seen, opened=opened, smallest=sizes[0]),
            *split_warnings(splits),
        ),
        curve=curve,
        worth=next(iter(worths), None),
        more_worths=worths[1:],
        smallest_difference=easily_missed(deciding_arms, tests),
        num_text_leaks=None if seen.text_N is None else int(seen.text_N.sum()),
        label_doubts=doubts(
            [run for name in doubting_arms(summaries) for run in runs_of(name, largest)], exam=exam
        ),
        splits=splits,
        openings=opened.openings,
        request=request.to_dict(),
        num_deciding=int(seen.clean_N.sum()),
        outcomes=Outcomes(
            test=opened.fingerprint,
            num_test=len(opened.examples),
            decides=_bits(seen.clean_N),
            in_labelled=_bits(seen.labelled_N),
            in_text=None if seen.text_N is None else _bits(seen.text_N),
            repeats=_bits(seen.repeat_N),
            runs=tuple(
                RunOutcomes(name, size, run.cell.seed, right=_bits(correct([run], exam)[0]))
                for name in stage.arms
                for size in sizes
                for run in runs_of(name, size)
            ),
        ),
    )


def _bits(shown_N: NDArray[np.bool_]) -> str:
    return "".join("1" if shown else "0" for shown in shown_N.tolist())


def _on_what_decides(arm: ArmSummary) -> ArmSummary:
    """The verdict quotes the scores that its tests are about."""
    return dataclasses.replace(arm, test_accuracy=arm.deciding)


def _what_decided(seen: Seen) -> list[str]:
    num_test, num_deciding = len(seen.clean_N), int(seen.clean_N.sum())
    if num_deciding == num_test:
        return []
    return [
        f"Decided by {num_deciding:,} of {num_test:,} test examples: the others were seen before, "
        "or repeat one."
    ]


def _in_order(arms: Mapping[str, Arm]) -> list[str]:
    """The base arm first, wherever it was named; if none is fine-tuned, one that uses a base."""
    names = sorted(arms, key=lambda name: (arms[name].kind != "pretrained", ":" in name))
    first = names[0] if arms[names[0]].kind == "pretrained" else next(filter(uses_base, names), "")
    return sorted(names, key=lambda name: name != first)


def _worths(
    names: Sequence[str],
    sizes: Sequence[int],
    correct_of: Callable[[str, int], NDArray[np.bool_]],
) -> tuple[LabelWorth, ...]:
    """What every arm that uses a base is worth in labels, in this order; none without a curve."""
    if len(sizes) < 2:
        return ()
    curves = {name: {size: correct_of(name, size) for size in sizes} for name in names}
    worths = (worth_in_labels(curves, arm=name) for name in names if uses_base(name))
    return tuple(worth for worth in worths if worth is not None)


def _description(arm: Arm, request: Request) -> str:
    told = ARMS[arm.kind]
    if arm.kind == "latent" and not request.texts:
        told = told.replace("text without labels", "the training texts")
    return f"{told}; the base is {arm.base}" if arm.base else told


def _data_warnings(
    request: Request, *, task: Task, seen: Seen, opened: Opened, smallest: int
) -> tuple[str, ...]:
    told = []
    if seen.text_N is not None and seen.text_N.any():
        what = "they decide nothing, and scores are given with and without them."
        if seen.num_read_deciding:
            what = (
                f"{seen.num_unread:,} others are too few to decide by, so {seen.num_read_deciding} "
                "of them decide, too. Arms that read that text may be flattered: give another "
                "--test, or text without these."
            )
        told.append(
            f"{int(seen.text_N.sum())} of the test examples are also, exactly or nearly, in the "
            f"text without labels; {what}"
        )
    if seen.repeat_N.any():
        told.append(
            f"{int(seen.repeat_N.sum())} of the test examples repeat the text of an earlier one: "
            "each text decides once."
        )
    if seen.valid_V.any():
        told.append(
            f"{int(seen.valid_V.sum())} of the valid examples are also in train, exactly or "
            "nearly: what was chosen on valid was chosen on what is known."
        )
    told += _unsearched(request, task=task)
    if request.grid == "none" and len({is_network(name) for name in request.arms}) == 2:
        told.append(
            "Networks kept the learning rate of their settings, while shallow arms chose their "
            "strength on valid: --grid small tunes both alike, at three times the cost."
        )
    if smallest < len(task.train):
        seed = task.start.settings.train.seed
        told += rare_classes(task.train, smallest=smallest, seed=seed)
    if len(opened.openings) > 1:
        told.append(
            f"The test file has been opened {len(opened.openings)} times. What was changed after "
            "a look at it fits it better than it fits new examples."
        )
    return tuple(told)


def _unsearched(request: Request, *, task: Task) -> list[str]:
    """The bases of which it is not known whether they have read test texts."""
    used = {base_name(arm) for arm in request.arms if uses_base(arm)}
    given = {source_fingerprint(paths) for paths in (request.texts, *([p] for p in request.texts))}
    told = []
    for name in (name for name in task.starts if name in used):
        base = task.starts[name].base
        assert base is not None
        text, who = base.info.fingerprints.get("text"), f"base {name}" if name else "base"
        if text is None:
            told.append(
                f"What the {who} was pre-trained on is not known here: it may have held test texts."
            )
        elif not request.texts:
            told.append(
                f"What the {who} was pre-trained on was not searched for test texts: give that "
                "text to --unlabelled."
            )
        elif text not in given:
            told.append(
                f"What the {who} was pre-trained on was not searched for test texts: --unlabelled "
                "is another text, by its fingerprint."
            )
        if "base" in base.info.fingerprints:
            told.append(f"The {who} went on from another base, whose text was not searched.")
    return told
