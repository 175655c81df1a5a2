"""Do the words that `regraft explain` names matter? They are removed, and so are random ones.

Test texts are explained, then lose their top 5 to 50 % of words, by each method that fits the
classifier, or as many at random. What falls is the probability of the label that was predicted, and
the accuracy. All arms lose the same number of words of the same texts, so differences are paired.

    .venv/bin/python benchmarks/deletion.py --run RUN --test test.csv [--texts 200]
        [--json FILE] [--plot FILE.png]

Cost with a blend and 200 film reviews: 10 minutes, most of it leaving one word out at a time.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regraft.classifiers import Explainer, Explanation
from regraft.classifiers.attribution import rank_correlation
from regraft.config import resolve
from regraft.data import Example, load_examples, subset_examples, without_words
from regraft.runtime import environment, write_json
from regraft.training import read_info

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
NUM_RANDOM = 5
NUM_RESAMPLES = 2_000
RANDOM = "random"


def without_share(found: Explanation, order: Sequence[int], share: float) -> str:
    """The text without the first words of an order, at least one."""
    num_read = len(found.words) - found.num_unread
    gone = sorted(order[: max(round(share * num_read), 1)])
    return without_words(found.text, [(found.words[i].start, found.words[i].stop) for i in gone])


def orders(found: dict[str, Explanation], generator: np.random.Generator) -> dict[str, list[Any]]:
    """In which order each method would remove the words that are read; random has several."""
    any_one = next(iter(found.values()))
    num_read = len(any_one.words) - any_one.num_unread
    by_method: dict[str, list[Any]] = {
        name: [np.argsort([-word.score for word in one.words[:num_read]], kind="stable")]
        for name, one in found.items()
    }
    return {**by_method, RANDOM: [generator.permutation(num_read) for _ in range(NUM_RANDOM)]}


def measure(
    explainer: Explainer, examples: Sequence[Example], *, methods: Sequence[Any], seed: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    """N x shares: probability of the first prediction, and is the answer right? By arm.

    The first column is the whole text. Beside them what the explanations said of themselves.
    """
    generator = np.random.default_rng(seed)
    arms = [*methods, RANDOM]
    size = (len(examples), len(SHARES) + 1)
    chances, right = ({arm: np.zeros(size) for arm in arms} for _ in range(2))
    gaps: dict[str, list[float]] = {method: [] for method in methods}
    agreements: list[float] = []
    for number, example in enumerate(examples):
        found = {method: explainer.explain(example.text, method=method) for method in methods}
        for method, one in found.items():
            gaps[method].append(abs(one.gap))
        first, last = (found[method] for method in (methods[0], methods[-1]))
        agreement = rank_correlation(
            *(np.array([word.score for word in one.words]) for one in (first, last))
        )
        agreements += [] if agreement is None else [agreement]
        target = explainer.labels.index(first.predicted)
        is_right = [label == example.label for label in explainer.labels]
        tried = orders(found, generator)
        texts = [
            without_share(first, order, share)
            for arm in arms
            for order in tried[arm]
            for share in SHARES
        ]
        answers = explainer.classifier.predict_proba([first.text, *texts])
        whole, rest = answers[0], answers[1:].reshape(-1, len(SHARES), len(explainer.labels))
        for arm in arms:
            mine, rest = rest[: len(tried[arm])], rest[len(tried[arm]) :]
            chances[arm][number] = [whole[target], *mine[:, :, target].mean(axis=0)]
            correct = np.array(is_right)[mine.argmax(axis=2)].mean(axis=0)
            right[arm][number] = [is_right[int(whole.argmax())], *correct]
        if number % 20 == 19:
            print(f"{number + 1} of {len(examples)} texts", file=sys.stderr, flush=True)
    summary = {
        "median_gap": {method: float(np.median(values)) for method, values in gaps.items()},
        "median_agreement": float(np.median(agreements)) if len(methods) > 1 else None,
    }
    return chances, right, summary


def interval(values_RN: np.ndarray) -> list[float]:
    """The mean of the first row, and its 95 % interval over the others."""
    low, high = np.quantile(values_RN[1:], [0.025, 0.975])
    return [float(values_RN[0]), float(low), float(high)]


def table(
    chances: dict[str, np.ndarray], right: dict[str, np.ndarray], *, seed: int
) -> dict[str, Any]:
    """Every arm at every share, and each method beside random words on the same texts."""
    num_texts = len(chances[RANDOM])
    generator = np.random.default_rng(seed)
    # The texts themselves, then resamples of them: the same for all arms.
    draws = np.concatenate(
        [np.arange(num_texts)[None], generator.integers(num_texts, size=(NUM_RESAMPLES, num_texts))]
    )
    rows: dict[str, Any] = {}
    for arm in chances:
        rows[arm] = {"probability": {}, "accuracy": {}, "below_random": {}, "times_random": {}}
        for column, share in enumerate((0.0, *SHARES)):
            name = f"{share:g}"
            rows[arm]["probability"][name] = interval(chances[arm][draws, column].mean(axis=1))
            rows[arm]["accuracy"][name] = interval(right[arm][draws, column].mean(axis=1))
            if arm == RANDOM or column == 0:
                continue
            fall, random_fall = (
                (chances[a][draws, 0] - chances[a][draws, column]).mean(axis=1)
                for a in (arm, RANDOM)
            )
            rows[arm]["below_random"][name] = interval(fall - random_fall)
            rows[arm]["times_random"][name] = interval(fall / random_fall)
    return rows


def show(rows: dict[str, Any]) -> None:
    """As Markdown: what is left of the probability, and the accuracy."""
    names = [f"{share:g}" for share in (0.0, *SHARES)]
    print("| removed | " + " | ".join(f"{float(name):.0%}" for name in names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for arm, row in rows.items():
        for what in ("probability", "accuracy"):
            cells = [f"{row[what][name][0]:.1%}" for name in names]
            print(f"| {arm}, {what} | {' | '.join(cells)} |")
        if row["below_random"]:
            for what, unit in (("below_random", "points below random"), ("times_random", "ratio")):
                cells = [
                    f"{100 * a:.1f} ({100 * b:.1f} to {100 * c:.1f})"
                    if what == "below_random"
                    else f"{a:.1f}x ({b:.1f} to {c:.1f})"
                    for a, b, c in row[what].values()
                ]
                print(f"| {arm}, {unit} | | {' | '.join(cells)} |")


def draw(rows: dict[str, Any], *, title: str, path: Path) -> None:
    """Probability and accuracy against the share of words removed, a line an arm."""
    from matplotlib.figure import Figure

    colours = {RANDOM: "#8a8d94", "leave-one-out": "#c65300"}
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, what in zip(panels, ("probability", "accuracy"), strict=True):
        for arm, row in rows.items():
            shares = [float(name) for name in row[what]]
            mean, low, high = zip(*row[what].values(), strict=True)
            colour = colours.get(arm, "#0072b2")
            style = "--" if arm == RANDOM else "-"
            axes.plot(shares, mean, marker="o", color=colour, linestyle=style, label=arm)
            axes.fill_between(shares, low, high, color=colour, alpha=0.13, linewidth=0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlabel("words removed, the strongest first")
        axes.set_ylabel("accuracy" if what == "accuracy" else "probability of the first prediction")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e3e4e8", linewidth=0.7)
    panels[0].legend(frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Explain, remove, ask again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, metavar="RUN")
    parser.add_argument("--test", type=Path, required=True, metavar="FILE")
    parser.add_argument("--texts", type=int, default=200, metavar="N")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="by default all that fit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them into FILE.png")
    arguments = parser.parse_args()
    start = time.perf_counter()
    explainer = Explainer.load(arguments.run)
    methods = arguments.methods or explainer.methods
    examples = load_examples(arguments.test, data=resolve("finetune").data)
    chosen = subset_examples(
        examples, size=min(arguments.texts, len(examples)), seed=arguments.seed
    )
    chances, right, summary = measure(explainer, chosen, methods=methods, seed=arguments.seed)
    rows = table(chances, right, seed=arguments.seed)
    show(rows)
    print(summary)
    if arguments.json:
        write_json(
            arguments.json,
            {
                "date": time.strftime("%Y-%m-%d", time.gmtime()),
                "environment": environment(),
                "kind": read_info(arguments.run).kind,
                "num_texts": len(chosen),
                "num_random": NUM_RANDOM,
                "seed": arguments.seed,
                "seconds": time.perf_counter() - start,
                **summary,
                "rows": rows,
            },
        )
    if arguments.plot:
        draw(rows, title=f"{len(chosen)} test texts lose words", path=arguments.plot)


if __name__ == "__main__":
    main()
