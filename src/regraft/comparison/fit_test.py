"""The comparison of `fit --test`: the blend, its members and the baselines on one test file.

The classifier is trained already, so nothing is trained here. Tests, leak rule and verdict are
those of every comparison.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from regraft.classifiers import (
    Blend,
    Classifier,
    FitResult,
    KeptExamples,
    baselines_dir,
    fit_linear,
    load_classifier,
)
from regraft.comparison.analysis import Evidence, Provenance, SeedRun, build_comparison, split
from regraft.comparison.arms import LatentArm, LinearArm
from regraft.comparison.plan import Cell
from regraft.comparison.results import ArmInfo, Comparison
from regraft.comparison.test_set import LEDGER_NAME, find_seen, open_sealed, refuse_seen
from regraft.config import FIT_MEMBERS, check_task, settings_to_dict
from regraft.data import Labels, check_labels_known, read_documents
from regraft.runtime import SILENT, Progress

# This very classifier is tested, not the recipe: no arm has a seed whose variance would count.
MEMBER_ARMS = {
    info.name: info
    for info in (
        ArmInfo("blend", "the blend", FIT_MEMBERS["blend"], "base", is_random=False),
        ArmInfo("linear", LinearArm.title, FIT_MEMBERS["linear"], "rival", is_random=False),
        ArmInfo("latent", LatentArm.title, FIT_MEMBERS["latent"], "rival", is_random=False),
        ArmInfo(
            "features", "the bases as vectors", FIT_MEMBERS["features"], "base", is_random=False
        ),
        ArmInfo(
            "encoder", "the encoder's vectors", FIT_MEMBERS["encoder"], "base", is_random=False
        ),
    )
}


def compare_fitted(
    run_dir: str | Path,
    *,
    test: str | Path,
    texts: Sequence[str | Path] = (),
    command: str = "",
    progress: Progress = SILENT,
) -> Comparison:
    """Open the test file of a finished `fit`, and compare the blend with its members.

    `texts` are the files of unlabelled text that it learned from. Members of weight 0 are compared
    if `fit` has kept them; *linear* always, fitted again if need be.
    """
    run_dir = Path(run_dir)
    blend = Blend.load(run_dir)
    data, labels = blend.settings.data, Labels(blend.labels)
    check_task(data, by="--test of `regraft fit`")
    kept = KeptExamples.load(run_dir)
    learned = {"train": kept.train, **({"valid": kept.valid} if kept.valid else {})}
    opened = open_sealed(
        test,
        data=data,
        # The same weights on the same labels reveal nothing new.
        choices=blend.info.weights_digest or blend.info.created,
        command=command,
        ledger_path=run_dir.absolute().parent / LEDGER_NAME,
        must_record=False,
        progress=progress,
    )
    check_labels_known(opened.examples, labels)
    seen = find_seen(
        opened.examples,
        train=learned["train"],
        valid=learned.get("valid", []),
        documents=read_documents(texts, data=data) if texts else None,
        progress=progress,
    )
    refuse_seen(seen, test, remedy="Use another --test; with --resume nothing is trained again.")
    runs = _runs(
        blend,
        {**blend.members, **_baselines(blend, run_dir, kept)},
        [example.text for example in opened.examples],
        progress=progress,
    )
    evidence = Evidence(
        arms=[MEMBER_ARMS[name] for name in runs],
        opened=opened,
        seen=seen,
        labels=labels,
        sizes=[len(learned["train"])],
        runs_of=lambda name, num_labels: [runs[name]],
        is_whole=True,
        # Nothing is cut: words are counted, and bases read long texts in windows.
        splits=[
            split(name, examples, labels=labels, cut_share=0.0)
            for name, examples in (*learned.items(), ("test", opened.examples))
        ],
    )
    return build_comparison(
        evidence,
        Provenance(
            settings=settings_to_dict(blend.settings),
            fingerprints=dict(blend.info.fingerprints),
            command=command,
            base={"run_dir": str(run_dir)},
            tuned_on="valid" if kept.valid else "cross-validation",
        ),
    )


def _baselines(blend: Blend, run_dir: Path, kept: KeptExamples) -> dict[str, Classifier]:
    """Members of weight 0 that are not part of the blend."""
    folder = baselines_dir(run_dir)
    paths = {name: folder / name for name in blend.weights if (folder / name).exists()}
    baselines = {name: load_classifier(path) for name, path in paths.items()}
    if "linear" not in {*blend.members, *baselines}:
        seed, labels = blend.settings.train.seed, Labels(blend.labels)
        baselines["linear"] = fit_linear(kept.train, kept.valid, labels=labels, seed=seed)
    return baselines


def _runs(
    blend: Blend, members: Mapping[str, Classifier], texts: Sequence[str], *, progress: Progress
) -> dict[str, SeedRun]:
    """The blend and every member as runs."""
    result = FitResult.from_dict(blend.info.result)
    answers = {
        name: member.predict_proba(texts, progress=progress) for name, member in members.items()
    }
    answers["blend"] = blend.combined(answers)
    runs = {}
    for name in (name for name in MEMBER_ARMS if name in answers):
        score = result.scores[name]
        runs[name] = SeedRun(
            cell=Cell(name, result.num_train, blend.settings.train.seed),
            valid_accuracy=(score.accuracy.mean,),
            # The blend costs all of it, bases included.
            seconds=result.seconds if score.weight is None else score.seconds,
            chosen={} if score.weight is None else {"weight": round(score.weight, 3)},
            test_NC=answers[name],
        )
    return runs
