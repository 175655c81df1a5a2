"""`regraft fit --update`: more labels, or more classes, for a classifier that is already fitted.

Bases, tokenizer and latent space stay; members are fitted again on all labels. Needs neither the
unlabelled text nor the files of the earlier run, and never writes into its folder.
"""

import dataclasses
import functools
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regraft.classifiers.abstention import Abstention
from regraft.classifiers.base_table import FoldedModel
from regraft.classifiers.blend import Blend
from regraft.classifiers.embeddings import EmbeddingModel, KeptVectors
from regraft.classifiers.fit_members import FOREIGN_SHARE, VECTORS_NAME, token_coverage
from regraft.classifiers.fit_result import FitResult, ScoreChange, Update, read_finished
from regraft.classifiers.fitting import (
    check_examples,
    check_fit_task,
    remove_baselines,
)
from regraft.classifiers.judging import judge
from regraft.classifiers.kept_examples import KeptExamples, merged
from regraft.classifiers.logistic import RegressionModel, TextSpace, fit_in_space
from regraft.classifiers.tfidf import LatentModel, LinearModel, fit_linear
from regraft.config import DataSettings, check_task
from regraft.data import (
    Example,
    duplicate_key,
    examples_fingerprint,
    label_warnings,
    labels_of,
    load_examples,
    with_text,
)
from regraft.errors import RunFolderError
from regraft.runtime import SILENT, Progress
from regraft.stats import difference_interval, micro_f1_shares, score_interval
from regraft.training import RunFolder, RunInfo, open_run, read_settings

# More changed labels are counted, not listed.
_MOST_LISTED = 5
# Texts that tell whether the language is the same.
_READ = 100


def fit_update(
    run_dir: str | Path,
    *,
    train: str | Path,
    valid: str | Path | None = None,
    out: str | Path,
    data: DataSettings | None = None,
    abstain_below: float | None = None,
    target_accuracy: float | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> FitResult:
    """Fit the members of the run in `run_dir` again, on its examples and those in `train`.

    `data` says how the new files are read, by default as those of the run. The threshold below
    which there is no answer stays, unless another is asked for.
    """
    data = data or fitted_data(run_dir)
    load = functools.partial(load_examples, data=data, progress=progress)
    files = {"train": [str(train)], "valid": [] if valid is None else [str(valid)]}
    return update_examples(
        Path(run_dir),
        load(train),
        valid_examples=[] if valid is None else load(valid),
        out=out,
        data=data,
        files=files,
        abstention=Abstention(abstain_below, target_accuracy),
        resume=resume,
        progress=progress,
    )


def update_examples(
    run_dir: Path,
    added: Sequence[Example],
    *,
    valid_examples: Sequence[Example] = (),
    out: str | Path,
    data: DataSettings,
    files: Mapping[str, list[str]],
    abstention: Abstention,
    resume: bool = False,
    progress: Progress = SILENT,
) -> FitResult:
    """The same for examples in memory; `files` is where they come from."""
    start = time.perf_counter()
    added, valid_examples = (with_text(part, progress=progress) for part in (added, valid_examples))
    fitted_data(run_dir)  # refuses what is no such run
    blend = Blend.load(run_dir)
    check_task(data, supported=[blend.task], by=f"{run_dir} (--update)")
    abstention.check(blend.data)
    check_fit_task(blend.settings)
    if abstention == Abstention():
        abstention = Abstention(blend.abstain_below)
    before, kept = FitResult.from_dict(blend.info.result), KeptExamples.load(run_dir)
    examples, relabelled = merged(kept.train, added)
    all_valid, _ = merged(kept.valid, valid_examples)
    check_examples(examples, all_valid)
    for warning in _warnings(added, relabelled, kept=kept, blend=blend):
        progress.say(f"note: {warning}")
    fingerprints = {**blend.info.fingerprints, "train": examples_fingerprint(examples)}
    if all_valid:
        fingerprints["valid"] = examples_fingerprint(all_valid)
    info = RunInfo(
        kind="blend",
        status="training",
        labels=labels_of(examples).names,
        base={"run_dir": str(run_dir)},
        fingerprints=fingerprints,
    )
    with open_run(out, resume=resume) as (folder, resume):
        if files:  # else the folder is a temporary one
            progress.say(f"Run folder: {folder.run_dir}")
        folder.start(info, settings=blend.settings, tokenizer=blend.tokenizer, resume=resume)
        if (finished := read_finished(folder.run_dir)) is not None:
            progress.say(f"{folder.run_dir} is complete already.")
            return finished
        vectors_dir = folder.run_dir / VECTORS_NAME
        if (run_dir / VECTORS_NAME).exists() and not vectors_dir.exists():
            shutil.copytree(run_dir / VECTORS_NAME, vectors_dir)
        members = _refitted(blend, examples, all_valid, vectors_dir=vectors_dir, progress=progress)
        judged = judge(
            members,
            examples=examples,
            valid_examples=all_valid,
            run_dir=folder.run_dir,
            settings=blend.settings,
            abstention=abstention,
            progress=progress,
        )
        after = KeptExamples.load(folder.run_dir)
        known = {_key(example) for example in (*kept.train, *kept.valid)}
        update = Update(
            run_dir=str(run_dir),
            num_added=len({_key(example) for example in added} - known),
            num_relabelled=len(relabelled),
            new_labels=tuple(name for name in judged.labels if name not in blend.labels),
            changes=_changes(blend, kept, after, progress=progress),
        )
        result = replace(
            before,
            **vars(judged),
            run_dir=str(folder.run_dir),
            minutes=None,
            seconds=time.perf_counter() - start,
            files={name: [*paths, *files.get(name, ())] for name, paths in before.files.items()},
            update=update,
        )
        folder.complete(result.to_dict())
        remove_baselines(folder.run_dir)
        return result


def fitted_data(run_dir: str | Path) -> DataSettings:
    """How the files of a finished run of `regraft fit` were read."""
    path = Path(run_dir)
    if not RunFolder(path).exists or read_finished(path) is None:
        raise RunFolderError(
            f"{run_dir} is no finished run of `regraft fit`.",
            "Only the labels of such a run can be added to.",
            remedy="Check the path of --update; continue an unfinished run with --resume.",
        )
    return read_settings(path).data


def _warnings(
    added: Sequence[Example],
    relabelled: Sequence[tuple[Example, Example]],
    *,
    kept: KeptExamples,
    blend: Blend,
) -> list[str]:
    """What is odd about the new examples."""
    warnings = [f"{added[0].source}: {warning}" for warning in label_warnings(added)]
    if relabelled:
        listed = "; ".join(
            f"row {new.row} is {new.label!r}, was {old.label!r}"
            for old, new in relabelled[:_MOST_LISTED]
        )
        more = len(relabelled) - _MOST_LISTED
        also = f"; and {more:,} more" if more > 0 else ""
        warnings.append(
            f"{added[0].source}: texts that were labelled before have another label now, which "
            f"replaces the old one: {listed}{also}."
        )
    usual, here = (
        token_coverage(blend.tokenizer, [e.text for e in examples[:: -(-len(examples) // _READ)]])
        for examples in (kept.train, added)
    )
    if here < FOREIGN_SHARE * usual:
        warnings.append(
            f"A token of the new texts covers {here:.1f} known bytes, one of the earlier ones "
            f"{usual:.1f}: they look like another language or kind of text, which the bases have "
            "not seen. Fit again with such text."
        )
    return warnings


def _refitted(
    blend: Blend,
    examples: Sequence[Example],
    valid_examples: Sequence[Example],
    *,
    vectors_dir: Path,
    progress: Progress,
) -> dict[str, RegressionModel]:
    """The members on other examples, in the spaces they have."""
    labels, seed = labels_of(examples), blend.settings.train.seed
    members: dict[str, RegressionModel] = {}
    progress.say("Fitting the member linear.")
    members["linear"] = fit_linear(examples, valid_examples, labels=labels, seed=seed)
    for name, member in blend.members.items():
        if isinstance(member, LinearModel):
            continue
        progress.say(f"Fitting the member {name}.")
        assert isinstance(member, EmbeddingModel | LatentModel | FoldedModel), "fit made it"
        space: TextSpace = member.space
        if isinstance(member, EmbeddingModel):
            space = KeptVectors(member.space, vectors_dir)
        tuned = fit_in_space(
            space, examples, valid_examples, labels=labels, seed=seed, progress=progress
        )
        members[name] = dataclasses.replace(member, tuned=tuned)
    return members


def _changes(
    blend: Blend, before: KeptExamples, after: KeptExamples, *, progress: Progress
) -> tuple[ScoreChange, ...]:
    """The score on held-out texts, before and after the update.

    Texts of the earlier run were held out in both. The earlier classifier has not seen the others.
    """
    earlier = dict(zip(map(_key, before.judged), before.held_out, strict=True))
    new = [example for example in after.judged if _key(example) not in earlier]
    answers = earlier | dict(zip(map(_key, new), _predicted(blend, new, progress), strict=True))
    groups: dict[str, list[int]] = {"all": [], "earlier": [], "new": [], "new class": []}
    for place, example in enumerate(after.judged):
        kind = "earlier" if _key(example) in earlier else "new"
        is_known = set(example.names) <= set(blend.labels)
        groups["all"].append(place)
        groups[kind if is_known else "new class"].append(place)
    labels = labels_of([*before.train, *after.train])
    targets_NC, before_NC, after_NC = (
        np.array([[label in names for label in labels] for names in each])
        for each in (
            [example.names for example in after.judged],
            [answers[_key(example)] for example in after.judged],
            after.held_out,
        )
    )
    changes = []
    for texts, rows in groups.items():
        if rows:
            scores = (
                # With one label each, this is the accuracy.
                micro_f1_shares(each_NC[rows], targets_NC[rows].astype(np.int64))[None]
                for each_NC in (before_NC, after_NC)
            )
            changes.append(_change(texts, *scores))
    return tuple(changes)


def _predicted(
    blend: Blend, examples: Sequence[Example], progress: Progress
) -> list[tuple[str, ...]]:
    """The labels that a classifier gives to examples it has not seen."""
    answers = blend.predict([example.text for example in examples], progress=progress)
    if blend.task.has_label_sets:
        return [tuple(np.array(blend.labels)[row == 1].tolist()) for row in answers]
    return [(str(answer),) for answer in answers]


def _change(
    texts: str, before_1N: NDArray[np.float64], after_1N: NDArray[np.float64]
) -> ScoreChange:
    return ScoreChange(
        texts=texts,
        num_texts=before_1N.shape[1],
        before=score_interval(before_1N),
        after=score_interval(after_1N),
        difference=difference_interval(after_1N, before_1N),
    )


def _key(example: Example) -> str:
    return duplicate_key(example.text, example.pair)
