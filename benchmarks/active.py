"""Which text should be labelled next? The three queries of the studio, label by label.

20,000 IMDB reviews teach a base, without their labels. Each seed draws a pool of 5,000 of them;
every query chooses from that pool by the studio's own functions and learns with the studio's own
regression after every few labels. Uncertainty begins as the studio does: with texts that differ,
until something was learned. Accuracy is that on 5,000 reviews nobody chose from. What is finished
outlives an interruption: repeat the command to go on.

    .venv/bin/python benchmarks/active.py [--seeds 5] [--work DIR] [--json FILE] [--plot FILE.png]

Cost with the defaults: ten minutes on one core, three of them for the base.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from recipes import make_bases, make_store, split_corpus

from regraft.apps.studio.next_text import QUERIES, Query, any_open, least_like, least_sure
from regraft.classifiers import document_vectors, fit_regression, unit_length
from regraft.config import resolve
from regraft.data import Labels, labels_of, load_examples, subset_examples
from regraft.runtime import environment, write_json
from regraft.stats import accuracy_interval, difference_interval
from regraft.training import load_run

CORPUS = "imdb-25k"
POOL_SIZE = 5_000
SHOWN = (10, 20, 50, 100, 200, 300)
RANDOM: Query = "random"


def chosen(
    query: Query,
    seen: Sequence[int],
    *,
    vectors_ND: np.ndarray,
    chances_NC: np.ndarray | None,
    generator: np.random.Generator,
    num: int,
) -> np.ndarray:
    """What the studio would show next, `num` texts at once."""
    is_open_N = np.ones(len(vectors_ND), dtype=bool)
    is_open_N[list(seen)] = False
    if query == "uncertainty" and chances_NC is not None:
        return least_sure(chances_NC, is_open_N=is_open_N, num=num)
    if query != RANDOM:
        return least_like(vectors_ND, seen, is_open_N=is_open_N, num=num)
    return any_open(generator, is_open_N=is_open_N, num=num)


def session(
    query: Query,
    *,
    pool: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    labels: Labels,
    seed: int,
    sizes: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """One session of labelling: which test texts are right after each size, and what was chosen.

    Until two classes are known, every answer is the first label.
    """
    generator = np.random.default_rng(seed)
    (vectors_ND, targets_N), (test_vectors, test_targets) = pool, test
    seen: list[int] = []
    chances_NC = None
    right = []
    for size in sizes:
        more = chosen(
            query,
            seen,
            vectors_ND=vectors_ND,
            chances_NC=chances_NC,
            generator=generator,
            num=size - len(seen),
        )
        seen += more.tolist()
        said = np.zeros(len(test_targets), dtype=np.int64)
        if len(set(targets_N[seen].tolist())) > 1:
            model = fit_regression(vectors_ND[seen], targets_N[seen], labels=labels, seed=seed)
            chances_NC = model.probabilities(unit_length(vectors_ND))
            said = model.probabilities(unit_length(test_vectors)).argmax(axis=1)
        right.append(said == test_targets)
    return np.array(right), np.array(seen)


def run_all(work: Path, *, seeds: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Every query with every seed: test texts right (seeds x sizes x texts) and numbers chosen."""
    settings = resolve("pretrain", preset="bag")
    text, _ = split_corpus(CORPUS, work=work)
    everything = load_examples(work / "train.jsonl", data=settings.data)
    examples = load_examples(work / "test.jsonl", data=settings.data)
    labels = labels_of(everything)
    some = [example.text for example in subset_examples(everything, size=200, seed=0)]
    store_dir, tokenizer, _ = make_store([text], some, settings=settings, work=work)
    make_bases(store_dir, tokenizer, settings=settings, num_bases=1, work=work)
    base = load_run(work / "base-0")
    test = document_vectors([base], [e.text for e in examples]), labels.targets(examples)
    found: dict[str, Any] = {query: [] for query in QUERIES}
    balance: dict[str, list[float]] = {query: [] for query in QUERIES}
    whole = []
    for seed in range(seeds):
        drawn = subset_examples(everything, size=POOL_SIZE, seed=seed)
        vectors_ND = unit_length(document_vectors([base], [e.text for e in drawn]))
        pool = vectors_ND, labels.targets(drawn)
        model = fit_regression(*pool, labels=labels, seed=seed)
        whole.append(model.probabilities(unit_length(test[0])).argmax(axis=1) == test[1])
        for query in QUERIES:
            path = work / "sessions" / f"{query}-{seed}-{sizes[0]}-{len(sizes)}.npz"
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                right, seen = session(
                    query, pool=pool, test=test, labels=labels, seed=seed, sizes=sizes
                )
                np.savez_compressed(path, right=right, seen=seen)
            stored = np.load(path)
            found[query].append(stored["right"])
            balance[query].append(float(pool[1][stored["seen"]].mean()))
            summary = f"{stored['right'][-1].mean():.1%} with {sizes[-1]} labels"
            print(f"seed {seed}, {query}: {summary}", file=sys.stderr, flush=True)
    return {
        "right": {query: np.array(right) for query, right in found.items()},
        "whole": np.array(whole),
        "share_positive": {query: float(np.mean(shares)) for query, shares in balance.items()},
        "num_test": len(examples),
    }


def table(right: dict[str, np.ndarray], sizes: Sequence[int]) -> dict[str, Any]:
    """Each query at each size, compared with random on the same test texts."""
    rows: dict[str, Any] = {}
    random = right[RANDOM].mean(axis=(0, 2))
    for query, right_SKN in right.items():
        rows[query] = {}
        for place, size in enumerate(sizes):
            accuracy = accuracy_interval(right_SKN[:, place])
            over = difference_interval(right_SKN[:, place], right[RANDOM][:, place])
            enough = np.flatnonzero(random >= accuracy.mean)
            rows[query][str(size)] = {
                "value": accuracy.mean,
                "low": accuracy.low,
                "high": accuracy.high,
                "over_random": [over.mean, over.low, over.high],
                "by_seed": right_SKN[:, place].mean(axis=1).tolist(),
                # The first size at which random is as good; None if it never is.
                "random_needs": int(sizes[enough[0]]) if len(enough) else None,
            }
    return rows


def show(rows: dict[str, Any]) -> None:
    """As Markdown."""
    sizes = [size for size in rows[RANDOM] if int(size) in SHOWN]
    print(f"| | {' | '.join(f'{size} labels' for size in sizes)} |\n|---|{'---|' * len(sizes)}")
    for query, row in rows.items():
        cells = [
            f"{row[n]['value']:.1%} ({row[n]['low']:.1%} - {row[n]['high']:.1%})" for n in sizes
        ]
        print(f"| {query} | {' | '.join(cells)} |")
        if query != RANDOM:
            over = [[100 * value for value in row[n]["over_random"]] for n in sizes]
            cells = [f"{mean:+.1f} ({low:+.1f} to {high:+.1f})" for mean, low, high in over]
            print(f"| over random, points | {' | '.join(cells)} |")
            needs = [row[n]["random_needs"] for n in sizes]
            cells = [str(need) if need else f"over {list(row)[-1]}" for need in needs]
            print(f"| random needs | {' | '.join(cells)} |")


def draw(rows: dict[str, Any], *, whole: float, title: str, path: Path) -> None:
    """Accuracy against labels, one line per query; and the gap to random."""
    from matplotlib.figure import Figure

    colours = {"uncertainty": "#0072b2", "diversity": "#c65300", RANDOM: "#8a8d94"}
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for query, row in rows.items():
        sizes = [int(size) for size in row]
        style = "--" if query == RANDOM else "-"
        mean, low, high = (
            [point[key] for point in row.values()] for key in ("value", "low", "high")
        )
        left.plot(sizes, mean, color=colours[query], linestyle=style, label=query)
        left.fill_between(sizes, low, high, color=colours[query], alpha=0.12, linewidth=0)
        if query != RANDOM:
            gaps = np.array([point["over_random"] for point in row.values()]) * 100
            right.plot(sizes, gaps[:, 0], color=colours[query], label=query)
            right.fill_between(
                sizes, gaps[:, 1], gaps[:, 2], color=colours[query], alpha=0.12, linewidth=0
            )
    left.axhline(whole, color="#2f6f4f", linewidth=0.8, linestyle=":")
    left.text(
        sizes[-1], whole, f"all {POOL_SIZE:,} labels", ha="right", va="bottom", color="#2f6f4f"
    )
    left.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    left.set_ylabel("accuracy on test")
    # With ten or twenty labels all depends on luck; intervals reach beyond the picture there.
    left.set_ylim(0.6, 0.92)
    right.set_ylim(-8, 12)
    left.legend(frameon=False, loc="lower right")
    right.axhline(0, color=colours[RANDOM], linewidth=0.8, linestyle="--")
    right.set_ylabel("points over random, on the same test texts")
    for axes in (left, right):
        axes.set_xlabel("labels")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e3e4e8", linewidth=0.7)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=150)


def main() -> None:
    """All sessions, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", type=int, default=SHOWN[-1], metavar="N")
    parser.add_argument("--step", type=int, default=5, metavar="N", help="labels between two fits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--work", type=Path, metavar="DIR", default=Path("runs/active"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them into FILE.png")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    sizes = list(range(arguments.step, arguments.labels + 1, arguments.step))
    start = time.perf_counter()
    found = run_all(arguments.work, seeds=arguments.seeds, sizes=sizes)
    rows = table(found["right"], sizes)
    show(rows)
    whole = accuracy_interval(found["whole"])
    print(f"all {POOL_SIZE:,} labels: {whole.mean:.1%}; positive: {found['share_positive']}")
    if arguments.json:
        write_json(
            arguments.json,
            {
                "date": time.strftime("%Y-%m-%d", time.gmtime()),
                "environment": environment(),
                "corpus": CORPUS,
                "seeds": arguments.seeds,
                "step": arguments.step,
                "pool": POOL_SIZE,
                "num_test": found["num_test"],
                "seconds": time.perf_counter() - start,
                "all_labels": {"value": whole.mean, "low": whole.low, "high": whole.high},
                "share_positive": found["share_positive"],
                "rows": rows,
            },
        )
    if arguments.plot:
        title = f"Film reviews, {arguments.seeds} pools of {POOL_SIZE:,}: which are labelled first?"
        draw(rows, whole=whole.mean, title=title, path=arguments.plot)


if __name__ == "__main__":
    main()
