"""What is each part of `regraft fit` worth, with few labels?

Bases are pre-trained once on all text, then every number of labels and every seed fits the members
on its own subset: linear, latent, the vectors of one base, the vectors of all of them, and blends.
Everything is chosen by cross-validation on the labels; test is only scored. What is finished
outlives an interruption: repeat the command to go on.

    .venv/bin/python benchmarks/recipes.py [--corpus NAME | --data FOLDER] [--text FILE ...]
        [--more-text CORPUS] [--test FILE] [--labels 100 400 1600] [--bases N] [--work DIR]
        [--json FILE] [--plot FILE.png]

FOLDER holds train.jsonl and test.jsonl, unless FILE is the test. Without it a corpus is split, by
default the half of imdb-50k that is not in imdb-25k, which the recipe was made with: four in five
reviews are the pool of labels, the rest is the test. The text is that of the pool, of --text and of
the corpus of --more-text, less the test's. As in `regraft fit`, the vectors of bases are those of
one folded table. As bases are made once, what is like the labelled texts is asked with the fewest
of them. Cost with the defaults: 40 minutes.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regraft.classifiers import (
    LatentModel,
    LatentSpace,
    blended,
    fit_in_space,
    fit_linear,
    fit_regression,
    fit_space,
    fold_bases,
    unit_length,
)
from regraft.classifiers.fit_bases import BaseJob, side_by_side
from regraft.classifiers.fit_members import LATENT_TEXTS
from regraft.classifiers.fit_plan import wanted_passes
from regraft.classifiers.weights import choose_weights
from regraft.config import Settings, replace, resolve
from regraft.data import (
    Domain,
    Example,
    Labels,
    Tokenizer,
    examples_fingerprint,
    fetch,
    find_domain,
    labels_of,
    load_examples,
    load_tokenizer,
    normalised,
    open_store,
    read_documents,
    split_examples,
    subset_examples,
    train_tokenizer,
    without_duplicates,
    write_store,
    write_view,
)
from regraft.runtime import environment, write_json, write_text
from regraft.stats import accuracy_interval, difference_interval
from regraft.training import read_info

CORPUS = "imdb-50k"
# Reviews that were looked at while the recipe was made: no test may hold them.
LOOKED_AT = {"imdb-50k": "imdb-25k"}
TEST_SHARE = 0.2
# As many as `fit` makes of 20,000 reviews in ten minutes on two cores.
NUM_BASES = 16
BLENDS = {
    "blend of linear and latent": ("linear", "latent"),
    "blend of all three": ("linear", "latent", "features"),
    "blend, as fit": ("linear", "features"),
}
ROWS = ("linear", "latent", "features of one base", "features", *BLENDS)


def split_corpus(name: str, *, work: Path) -> tuple[Path, Path]:
    """Texts that anyone can get: a pool, which is the text as well, and a test file."""
    data, files = resolve("finetune").data, fetch(name).files
    if "test" in files:
        pool = without_duplicates(load_examples(files["train"], data=data))
        known = {example.text for example in pool}
        test = [e for e in load_examples(files["test"], data=data) if e.text not in known]
    else:
        found = without_duplicates(load_examples(files["all"], data=data))
        if name in LOOKED_AT:
            before = load_examples(fetch(LOOKED_AT[name]).files["all"], data=data)
            known = {normalised(example.text) for example in before}
            found = [example for example in found if normalised(example.text) not in known]
        pool, test = split_examples(found, share=TEST_SHARE, seed=0)
    for name, examples in (("train", pool), ("test", test)):
        lines = [json.dumps({"text": e.text, "label": e.label}) + "\n" for e in examples]
        write_text(work / f"{name}.jsonl", "".join(lines))
    write_lines(pool, path=work / "text.txt")
    return work / "text.txt", work


def write_corpus_text(name: str, *, test: Sequence[Example], path: Path) -> None:
    """The texts of a corpus that are not in the test, a line each."""
    known = {normalised(example.text) for example in test}
    files = fetch(name).files
    file = files["train"] if "train" in files else files["all"]
    found = load_examples(file, data=resolve("finetune").data)
    write_lines([e for e in found if normalised(e.text) not in known], path=path)


def write_lines(examples: Sequence[Example], *, path: Path) -> None:
    """Their texts, a line each."""
    write_text(path, "".join(" ".join(example.text.split()) + "\n" for example in examples))


def make_store(
    texts: Sequence[Path], labelled: Sequence[str], *, settings: Settings, work: Path
) -> tuple[Path, Tokenizer, Domain | None]:
    """The store that bases learn from: all text, or the part of it that is like the labelled."""
    if not (work / "tokenizer.json").exists():
        documents = (document.text for document in read_documents(texts, data=settings.data))
        train_tokenizer(documents, settings=settings.tokenizer).save(work / "tokenizer.json")
    tokenizer = load_tokenizer(work / "tokenizer.json")
    write_store(texts, data=settings.data, tokenizer=tokenizer, store_dir=work / "store")
    store = open_store(work / "store", tokenizer=tokenizer)
    found = find_domain(store, labelled, tokenizer=tokenizer, seed=0)
    if found is None:
        return work / "store", tokenizer, None
    domain, alike = found
    print(f"{alike.num_documents:,} documents, {alike.num_tokens:,} tokens", file=sys.stderr)
    write_view(alike, tokenizer=tokenizer, store_dir=work / "alike")
    return work / "alike", tokenizer, domain


def make_bases(
    store_dir: Path, tokenizer: Tokenizer, *, settings: Settings, num_bases: int, work: Path
) -> list[float]:
    """The bases of the recipe, each made once, one a core; returns the seconds of each."""
    passes = wanted_passes(open_store(store_dir, tokenizer=tokenizer).num_tokens)
    run_dirs = [work / f"base-{number}" for number in range(num_bases)]
    jobs = [
        BaseJob(
            store_dir, run_dir, replace(settings, "train", seed=number, epochs=passes, threads=1)
        )
        for number, run_dir in enumerate(run_dirs)
    ]
    for made in side_by_side(jobs):
        print(made.name, file=sys.stderr, flush=True)
    return [read_info(run_dir).result["seconds"] for run_dir in run_dirs]


def some(
    texts: Sequence[Path], *, settings: Settings, tokenizer: Tokenizer, domain: Domain | None
) -> Iterable[str]:
    """As many documents as the recipe's latent member reads, spread evenly."""
    documents = [document.text for document in read_documents(texts, data=settings.data)]
    if domain is not None:
        documents = list(domain.texts(documents, tokenizer=tokenizer))
    return documents[:: -(-len(documents) // LATENT_TEXTS)]


def answers(
    train: Sequence[Example],
    test: Sequence[Example],
    *,
    labels: Labels,
    space: LatentSpace,
    vectors: dict[str, tuple[np.ndarray, np.ndarray]],
    rows: np.ndarray,
) -> dict[str, Any]:
    """Which test texts each row of the table gets right, and the weights of the blends."""
    targets, test_targets = labels.targets(train), labels.targets(test)
    texts = [example.text for example in test]
    members: dict[str, Any] = {
        "linear": fit_linear(train, None, labels=labels),
        "latent": LatentModel(fit_in_space(space, train, None, labels=labels), space),
    }
    chances = {name: member.predict_proba(texts) for name, member in members.items()}
    for name, (train_vectors, test_vectors) in vectors.items():
        members[name] = fit_regression(train_vectors[rows], targets, labels=labels)
        chances[name] = members[name].probabilities(unit_length(test_vectors))
    weights = {}
    for name, parts in BLENDS.items():
        judged = np.stack([members[part].judged_NC for part in parts])
        weights[name] = choose_weights(judged, targets)
        chances[name] = blended(np.stack([chances[part] for part in parts]), weights[name])
    return {
        "right": {name: (chances[name].argmax(axis=1) == test_targets).tolist() for name in ROWS},
        "weights": {name: value.tolist() for name, value in weights.items()},
        "seconds": {name: member.seconds for name, member in members.items()},
    }


def table(answers_dir: Path, *, labels: Sequence[int], seeds: int) -> dict[str, Any]:
    """All numbers, with the difference from the linear row."""
    rows: dict[str, Any] = {name: {} for name in ROWS}
    for num_labels in labels:
        found = [
            json.loads((answers_dir / f"{num_labels}-{seed}.json").read_text())["right"]
            for seed in range(seeds)
        ]
        linear = np.array([right["linear"] for right in found])
        for name in ROWS:
            right = np.array([one[name] for one in found])
            accuracy = accuracy_interval(right)
            over = difference_interval(right, linear)
            rows[name][str(num_labels)] = {
                "value": accuracy.mean,
                "low": accuracy.low,
                "high": accuracy.high,
                "over_linear": [over.mean, over.low, over.high],
            }
    return rows


def show(rows: dict[str, Any]) -> None:
    """As Markdown."""
    labels = list(rows[ROWS[0]])
    print(f"| | {' | '.join(f'{int(n):,} labels' for n in labels)} |\n|---|{'---|' * len(labels)}")
    for name, row in rows.items():
        cells = [
            f"{row[n]['value']:.1%} ({row[n]['low']:.1%} - {row[n]['high']:.1%})" for n in labels
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def draw(rows: dict[str, Any], *, path: Path) -> None:
    """Accuracy against labels, a line a row."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MultipleLocator

    figure, axes = pyplot.subplots(figsize=(8, 4.6), layout="constrained")
    styles = {
        "linear": ("#8a8d94", "--"),
        "latent": ("#b08d57", "--"),
        "blend, as fit": ("#2f6f4f", "-"),
    }
    for name, row in rows.items():
        color, style = styles.get(name, (None, ":"))
        labels = [int(n) for n in row]
        mean = [row[n]["value"] for n in row]
        (line,) = axes.plot(labels, mean, marker="o", label=name, color=color, linestyle=style)
        if name in styles:
            axes.fill_between(
                labels,
                [row[n]["low"] for n in row],
                [row[n]["high"] for n in row],
                color=line.get_color(),
                alpha=0.12,
                linewidth=0,
            )
    axes.set_xscale("log")
    axes.set_xticks(labels, [f"{n:,}" for n in labels])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(MultipleLocator(0.02))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("labels")
    axes.set_ylabel("accuracy on test")
    axes.set_title("What `regraft fit` is made of", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=150)


def main() -> None:
    """Bases, space and vectors once; then every subset of labels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", default=CORPUS, metavar="NAME")
    parser.add_argument("--text", type=Path, nargs="+", default=[], metavar="FILE")
    parser.add_argument("--more-text", metavar="CORPUS")
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--test", type=Path, metavar="FILE", help="instead of FOLDER/test.jsonl")
    parser.add_argument("--labels", type=int, nargs="+", default=[200, 500, 2000])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--bases", type=int, default=NUM_BASES)
    parser.add_argument("--work", type=Path, metavar="DIR", help="by default runs/recipes/NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them into FILE.png")
    arguments = parser.parse_args()
    work = arguments.work or Path("runs/recipes") / (arguments.data or Path(arguments.corpus)).name
    work.mkdir(parents=True, exist_ok=True)
    if arguments.data is None:
        _, arguments.data = split_corpus(arguments.corpus, work=work)
    else:
        arguments.corpus = arguments.data.name
    settings = resolve("pretrain", preset="bag")
    pool = load_examples(arguments.data / "train.jsonl", data=settings.data)
    test_path = arguments.test or arguments.data / "test.jsonl"
    test = load_examples(test_path, data=settings.data)
    known = {example.text for example in pool}
    test = [example for example in test if example.text not in known]
    write_lines(pool, path=work / "text.txt")
    texts = [*arguments.text, work / "text.txt"]
    if arguments.more_text:
        texts.append(work / "more.txt")
        write_corpus_text(arguments.more_text, test=test, path=texts[-1])
    labels = labels_of(pool)
    wanted = {
        (num_labels, seed): subset_examples(pool, size=min(num_labels, len(pool)), seed=seed)
        for num_labels in arguments.labels
        for seed in range(arguments.seeds)
    }
    fewest = [example.text for example in wanted[min(arguments.labels), 0]]
    store_dir, tokenizer, domain = make_store(texts, fewest, settings=settings, work=work)
    base_seconds = make_bases(
        store_dir, tokenizer, settings=settings, num_bases=arguments.bases, work=work
    )
    run_dirs = [work / f"base-{number}" for number in range(arguments.bases)]
    used = {example.text: None for subset in wanted.values() for example in subset}
    place = {text: number for number, text in enumerate(used)}
    test_texts = [example.text for example in test]
    vectors = {}
    for name, some_dirs in (("features of one base", run_dirs[:1]), ("features", run_dirs)):
        folded = fold_bases(
            some_dirs,
            store=open_store(store_dir, tokenizer=tokenizer),
            tokenizer=tokenizer,
            max_length=settings.data.max_length,
        )
        vectors[name] = folded.vectors(list(used)), folded.vectors(test_texts)
    space_start = time.perf_counter()
    space = fit_space(some(texts, settings=settings, tokenizer=tokenizer, domain=domain))
    space_seconds = time.perf_counter() - space_start
    # By all that they were asked and fitted on: other answers are not ours.
    asked = examples_fingerprint([*pool, *test])
    answers_dir = work / "answers" / f"{asked}-{arguments.bases}"
    answers_dir.mkdir(parents=True, exist_ok=True)
    for (num_labels, seed), train in wanted.items():
        path = answers_dir / f"{num_labels}-{seed}.json"
        if path.exists():
            continue
        found = answers(
            train,
            test,
            labels=labels,
            space=space,
            vectors=vectors,
            rows=np.array([place[example.text] for example in train]),
        )
        write_json(path, found)
        summary = {name: f"{np.mean(right):.1%}" for name, right in found["right"].items()}
        print(num_labels, seed, summary, file=sys.stderr, flush=True)
    rows = table(answers_dir, labels=arguments.labels, seeds=arguments.seeds)
    show(rows)
    if arguments.json:
        write_json(
            arguments.json,
            {
                "date": time.strftime("%Y-%m-%d", time.gmtime()),
                "environment": environment(),
                "corpus": arguments.corpus,
                "seeds": arguments.seeds,
                "num_bases": arguments.bases,
                "test": test_path.name,
                "num_test": len(test),
                "seconds": {"base": base_seconds, "latent space": space_seconds},
                "rows": rows,
            },
        )
    if arguments.plot:
        draw(rows, path=arguments.plot)


if __name__ == "__main__":
    main()
