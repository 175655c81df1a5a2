"""What does it cost to fold the bases of `regraft fit` into one table of bytes?

Bases are made once per corpus, one pass over the text each. Then every number of labels and every
seed fits a regression on the bases' own vectors, concatenated, and one on the folded ones; both
answer the same test texts. What is finished outlives an interruption: repeat the command to go on.

    .venv/bin/python benchmarks/folding.py [--corpus NAME ...] [--labels 200 400] [--seeds 5]
        [--bases 4] [--dimensions 256] [--work DIR] [--json FILE]

Cost with the defaults: about 10 minutes on two cores.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from recipes import make_store, split_corpus

from regraft.classifiers import (
    FoldedModel,
    document_vectors,
    fit_regression,
    fold_bases,
    unit_length,
)
from regraft.classifiers.base_table_making import NUM_DIMENSIONS
from regraft.classifiers.fit_bases import BaseJob, side_by_side
from regraft.config import replace, resolve
from regraft.data import Example, Labels, labels_of, load_examples, open_store, subset_examples
from regraft.models import frequent_pair_keys
from regraft.runtime import environment, write_json
from regraft.stats import difference_interval
from regraft.training import load_run

CORPORA = ("imdb-25k", "bbc-news", "dutch-books")


def answers(
    vectors: dict[str, np.ndarray],
    test: Sequence[Example],
    *,
    subsets: Sequence[Sequence[Example]],
    labels: Labels,
) -> np.ndarray:
    """For every subset of labels, the class of every test text by a regression on these vectors."""
    test_ND = unit_length(np.stack([vectors[example.text] for example in test]))
    rows = []
    for train in subsets:
        train_ND = np.stack([vectors[example.text] for example in train])
        tuned = fit_regression(train_ND, labels.targets(train), labels=labels)
        rows.append(tuned.probabilities(test_ND).argmax(axis=1))
    return np.array(rows)


def measure(name: str, *, arguments: argparse.Namespace) -> dict[str, Any]:
    """Accuracy by vectors of the bases and of the table, bytes of both, time to read the texts."""
    work = arguments.work / name
    text, _ = split_corpus(name, work=work)
    settings = resolve("pretrain", preset="bag")
    pool = load_examples(work / "train.jsonl", data=settings.data)
    test = load_examples(work / "test.jsonl", data=settings.data)
    by_size = {
        size: [subset_examples(pool, size=size, seed=seed) for seed in range(arguments.seeds)]
        for size in arguments.labels
    }
    fewest = [example.text for example in by_size[min(by_size)][0]]
    store_dir, tokenizer, _ = make_store([text], fewest, settings=settings, work=work)
    store = open_store(store_dir, tokenizer=tokenizer)
    # As fit does: no larger than the text has pairs.
    num_pairs = len(frequent_pair_keys(store, settings=settings.model))
    settings = replace(settings, "model", num_pairs=num_pairs)
    run_dirs = [work / f"base-{number}" for number in range(arguments.bases)]
    jobs = [
        BaseJob(store_dir, run_dir, replace(settings, "train", seed=seed, epochs=1, threads=1))
        for seed, run_dir in enumerate(run_dirs)
    ]
    list(side_by_side(jobs))
    start = time.perf_counter()
    space = fold_bases(
        run_dirs,
        store=store,
        tokenizer=tokenizer,
        max_length=settings.data.max_length,
        num_dimensions=arguments.dimensions,
    )
    fold_seconds = time.perf_counter() - start
    bases = [load_run(run_dir) for run_dir in run_dirs]
    examples = [*test, *(e for subsets in by_size.values() for train in subsets for e in train)]
    texts = list({example.text: None for example in examples})
    start = time.perf_counter()
    unfolded_ND = document_vectors(bases, texts)
    middle = time.perf_counter()
    folded_NK = space.vectors(texts)
    seconds = middle - start, time.perf_counter() - middle
    labels, found = labels_of(pool), {}
    targets_N = labels.targets(test)
    for size, subsets in by_size.items():
        unfolded, folded = (
            answers(dict(zip(texts, vectors, strict=True)), test, subsets=subsets, labels=labels)
            for vectors in (unfolded_ND, folded_NK)
        )
        right = folded == targets_N, unfolded == targets_N
        change = difference_interval(*right)
        found[str(size)] = {
            "unfolded": right[1].mean(),
            "folded": right[0].mean(),
            "agreement": (folded == unfolded).mean(),
            "change": [change.mean, change.low, change.high],
        }
    tuned = fit_regression(folded_NK[: len(test)], labels.targets(test), labels=labels)
    with tempfile.TemporaryDirectory() as folder:
        FoldedModel(tuned, space).save(Path(folder))
        folded_bytes = sum(
            path.stat().st_size
            for path in Path(folder).rglob("*")
            if path.is_file() and path.name != "tokenizer.json"
        )
    return {
        "documents": store.num_documents,
        "test": len(test),
        "rows": space.index.num_rows,
        "base_bytes": (run_dirs[0] / "model.safetensors").stat().st_size,
        "folded_bytes": folded_bytes,
        "fold_seconds": fold_seconds,
        "texts": len(texts),
        "speed_ratio": seconds[0] / seconds[1],
        "accuracy": found,
    }


def main() -> None:
    """All corpora, as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", nargs="+", default=CORPORA, metavar="NAME")
    parser.add_argument("--labels", type=int, nargs="+", default=[200, 400])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--bases", type=int, default=4)
    parser.add_argument("--dimensions", type=int, default=NUM_DIMENSIONS)
    parser.add_argument("--work", type=Path, default=Path("runs/folding"), metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    arguments = parser.parse_args()
    results = {}
    heads = ["", "labels", "unfolded", "folded", "change, points", "same label"]
    heads += ["MB a base", "MB folded", "speed"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in arguments.corpus:
        (arguments.work / name).mkdir(parents=True, exist_ok=True)
        found = results[name] = measure(name, arguments=arguments)
        megabytes = [f"{found[key] / 1e6:.1f}" for key in ("base_bytes", "folded_bytes")]
        for size, score in found["accuracy"].items():
            mean, low, high = (f"{100 * value:+.2f}" for value in score["change"])
            cells = [
                *(name, size, f"{score['unfolded']:.1%}", f"{score['folded']:.1%}"),
                *(f"{mean} ({low} to {high})", f"{score['agreement']:.1%}"),
                *(*megabytes, f"{found['speed_ratio']:.1f}x"),
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
    if arguments.json:
        write_json(
            arguments.json,
            {
                "date": time.strftime("%Y-%m-%d", time.gmtime()),
                "environment": environment(),
                "bases": arguments.bases,
                "dimensions": arguments.dimensions,
                "seeds": arguments.seeds,
                "corpora": results,
            },
        )


if __name__ == "__main__":
    main()
