"""Which objective makes the best base? Same backbone, same text, same time; then few labels.

Every objective trains a model of size `mini` on the text for the same time, then a classifier is
grafted onto each base with several numbers of labels and seeds, all by one recipe. Beside them: the
same backbone from scratch, and TF-IDF + logistic regression. Equal time is made of steps: the pace
of each objective is measured in turns, step by step, so that other work on the machine favours
none; then two bases train side by side on one thread each. Finished parts survive an interruption:
repeat the command to continue. Cost with the defaults: 80 minutes on two cores.

    .venv/bin/python benchmarks/objectives.py [--text FILE --data FOLDER] [--work DIR] [--json FILE]

FOLDER holds train.jsonl, valid.jsonl and test.jsonl; without both, the corpus imdb-25k is split.
DIR keeps what is half done.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed, parallel_config

from regraft.classifiers import Start, fit_linear, start_from_base, train_classifier
from regraft.config import Settings, resolve
from regraft.data import (
    Tokenizer,
    TokenStore,
    example_rows,
    fetch,
    labels_of,
    load_examples,
    load_tokenizer,
    open_store,
    pretraining_rows,
    read_documents,
    split_examples,
    subset_examples,
    train_tokenizer,
    without_duplicates,
    write_store,
)
from regraft.models import build_language_model
from regraft.runtime import environment, write_json, write_text
from regraft.stats import accuracy_interval, difference_interval
from regraft.training import (
    build_objective,
    build_state,
    class_probabilities,
    load_run,
    pretrain,
    read_settings,
    steps,
)

# Every base: its family and its objective. Pairs of sentences need the bert family, which is also
# trained without them, to tell what they add.
BASES = {
    "causal": ("modern", "causal"),
    "masked": ("modern", "masked"),
    "replaced": ("modern", "replaced"),
    "hybrid": ("modern", "hybrid"),
    "bert": ("bert", "bert"),
    "sop": ("bert", "sop"),
    "masked, bert family": ("bert", "masked"),
}
SCRATCH, LINEAR = "scratch", "linear"
# Epochs for so many labels: few labels are read more often.
EPOCHS = {100: 12, 400: 6, 1600: 3}
PACE_STEPS = 12
CORPUS = "imdb-25k"
JOBS = 2


def pretraining_settings(name: str, *, num_steps: int) -> Settings:
    """One recipe for all: family and objective alone differ."""
    preset, kind = BASES[name]
    return resolve(
        "pretrain",
        preset=preset,
        size="mini",
        overrides={
            "objective.kind": kind,
            "objective.stages": "language",
            "data.max_length": 128,
            "train.batch_size": 32,
            "train.lr": 3e-3,
            "train.steps": num_steps,
            "train.threads": 1,
        },
    )


def finetuning_settings(base: Settings, *, num_labels: int, seed: int) -> Settings:
    """One recipe for all: the base alone differs."""
    return resolve(
        "finetune",
        base=base,
        overrides={
            "head.pooling": "mean",
            "data.max_length": 160,
            "train.batch_size": 16,
            "train.epochs": EPOCHS[num_labels],
            "train.seed": seed,
            "train.threads": 1,
        },
    )


def seconds_per_step(store: TokenStore, *, tokenizer: Tokenizer) -> dict[str, float]:
    """All objectives in turn, step by step, on one thread: by each one's fastest turn.

    Rows of some objectives are shorter than those of others: the time of a token is measured.
    """
    torch.set_num_threads(1)
    loops, tokens_per_step = {}, {}
    for name in BASES:
        settings = pretraining_settings(name, num_steps=PACE_STEPS)
        model = build_language_model(
            settings.model, vocab_size=tokenizer.vocab_size, objective=settings.objective
        )
        rows = pretraining_rows(store, tokenizer=tokenizer, settings=settings)
        tokens_per_step[name] = float(rows.lengths.mean()) * settings.train.batch_size
        state = build_state(model, settings=settings.train, num_rows=len(rows.lengths))
        objective = build_objective(settings, tokenizer=tokenizer)
        loops[name] = steps(state, rows=rows, objective=objective, settings=settings.train)
    fastest = dict.fromkeys(BASES, float("inf"))
    for _ in range(PACE_STEPS):
        for name, loop in loops.items():
            record = next(loop)
            fastest[name] = min(fastest[name], record.seconds / record.num_tokens)
    # A hybrid's step is of one kind or of the other; a few of them would not show the mean.
    share = resolve("pretrain").objective.causal_share
    fastest["hybrid"] = share * fastest["causal"] + (1 - share) * fastest["masked"]
    return {name: fastest[name] * tokens_per_step[name] for name in BASES}


def split_corpus(work: Path) -> tuple[Path, Path]:
    """Film reviews that anyone can get: text without labels, and three labelled files."""
    settings = resolve("finetune")
    found = load_examples(fetch(CORPUS).files["all"], data=settings.data)
    rest, test = split_examples(without_duplicates(found), share=0.08, seed=0)
    rest, valid = split_examples(rest, share=0.02, seed=1)
    train = subset_examples(rest, size=max(EPOCHS), seed=0)
    for name, examples in (("train", train), ("valid", valid), ("test", test)):
        lines = [json.dumps({"text": e.text, "label": e.label}) + "\n" for e in examples]
        write_text(work / f"{name}.jsonl", "".join(lines))
    write_text(work / "text.txt", "".join(" ".join(e.text.split()) + "\n" for e in rest))
    return work / "text.txt", work


def write_tokens(text: Path, *, work: Path) -> Path:
    """The text as a token store, made once."""
    store_dir = work / "store"
    settings = pretraining_settings("masked", num_steps=1)
    if not (store_dir / "store.json").exists():
        documents = read_documents([text], data=settings.data)
        texts = (document.text for document in documents)
        train_tokenizer(texts, settings=settings.tokenizer).save(work / "tokenizer.json")
        tokenizer = load_tokenizer(work / "tokenizer.json")
        write_store([text], data=settings.data, tokenizer=tokenizer, store_dir=store_dir)
    return store_dir


def make_base(name: str, *, num_steps: int, work: Path) -> None:
    """Pre-train one base; a finished one is left as it is."""
    settings = pretraining_settings(name, num_steps=num_steps)
    result = pretrain([work / "store"], out=work / name, settings=settings, resume=True)
    print(f"{name:20} {result.num_steps:6,} steps, {result.readings}", file=sys.stderr)


def answers(name: str, num_labels: int, seed: int, *, data: Path, work: Path) -> None:
    """Train one classifier and keep which test texts it gets right."""
    path = work / "answers" / f"{name}-{num_labels}-{seed}.json"
    if path.exists():
        return
    start_seconds = time.perf_counter()
    # Scratch has the shape of the masked base.
    base_dir = work / ("masked" if name in (SCRATCH, LINEAR) else name)
    settings = finetuning_settings(read_settings(base_dir), num_labels=num_labels, seed=seed)
    splits = {
        split: load_examples(data / f"{split}.jsonl", data=settings.data)
        for split in ("train", "valid", "test")
    }
    # Nested: with one seed, the 100 are among the 400.
    train = subset_examples(splits["train"], size=num_labels, seed=seed)
    labels = labels_of(train)
    targets_N = labels.targets(splits["test"])
    if name == LINEAR:
        linear = fit_linear(train, splits["valid"], labels=labels)
        texts = [example.text for example in splits["test"]]
        predicted_N = linear.predict_proba(texts).argmax(axis=1)
    else:
        start = start_from_base(base_dir, settings=settings)
        if name == SCRATCH:
            start = Start(start.tokenizer, start.settings, None)
        tokenizer, read = start.tokenizer, start.settings.data
        rows = {
            split: example_rows(examples, labels=labels, tokenizer=tokenizer, data=read)
            for split, examples in {"train": train, "test": splits["test"]}.items()
        }
        model, _ = start.build_model(num_classes=len(labels), seed=seed)
        # Nothing is chosen by valid: a few of its texts follow the training, that is all.
        valid_rows = example_rows(
            splits["valid"][:20], labels=labels, tokenizer=tokenizer, data=read
        )
        for _ in train_classifier(
            model, rows=rows["train"], valid_rows=valid_rows, settings=start.settings
        ):
            pass
        predicted_N = class_probabilities(model, rows["test"]).argmax(axis=1)
    is_right_N = (predicted_N == targets_N).tolist()
    seconds = time.perf_counter() - start_seconds
    path.parent.mkdir(exist_ok=True)
    write_json(path, {"accuracy": float(np.mean(is_right_N)), "right": is_right_N})
    summary = f"{np.mean(is_right_N):.1%} ({seconds:.0f} s)"
    print(f"{name:20} {num_labels:5} labels, seed {seed}: {summary}", file=sys.stderr)


def right_of(name: str, num_labels: int, *, seeds: int, work: Path) -> np.ndarray:
    """Seeds x test texts: which were right."""
    paths = [work / "answers" / f"{name}-{num_labels}-{seed}.json" for seed in range(seeds)]
    return np.array([json.loads(path.read_text())["right"] for path in paths])


def table(
    names: Sequence[str], *, labels: list[int], seeds: int, minutes: float, work: Path
) -> dict[str, Any]:
    """All numbers of the comparison."""
    rows: dict[str, Any] = {}
    for name in names:
        row: dict[str, Any] = {"accuracy": {}, "over_scratch": {}}
        for num_labels in labels:
            right = right_of(name, num_labels, seeds=seeds, work=work)
            scratch = right_of(SCRATCH, num_labels, seeds=seeds, work=work)
            for key, interval in (
                ("accuracy", accuracy_interval(right)),
                ("over_scratch", difference_interval(right, scratch)),
            ):
                row[key][str(num_labels)] = {
                    "value": interval.mean,
                    "low": interval.low,
                    "high": interval.high,
                }
        if name in BASES:
            result = load_run(work / name).info.result
            wanted = ("num_steps", "num_tokens", "unigram_entropy", "readings")
            row["base"] = {key: result[key] for key in wanted}
        rows[name] = row
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "environment": environment(),
        "minutes": minutes,
        "seeds": seeds,
        "epochs": {str(n): EPOCHS[n] for n in labels},
        "rows": rows,
    }


def show(result: dict[str, Any]) -> None:
    """As Markdown."""
    labels = list(result["epochs"])
    heads = " | ".join(f"{n} labels" for n in labels)
    print(f"| base | tokens read | valid loss | {heads} |\n|---|---|---|{'---|' * len(labels)}")
    for name, row in result["rows"].items():
        cells = []
        for n in labels:
            accuracy = row["accuracy"][n]
            span = f"{accuracy['low']:.1%} - {accuracy['high']:.1%}"
            cells.append(f"{accuracy['value']:.1%} ({span})")
        base = row.get("base")
        read = f"{base['num_tokens'] / 1e6:.1f} M" if base else ""
        loss = f"{base['readings']['valid_loss']:.2f}" if base else ""
        print(f"| {name} | {read} | {loss} | {' | '.join(cells)} |")


def draw(result: dict[str, Any], *, path: Path) -> None:
    """Accuracy against labels, a line a base, with its interval."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    colors = pyplot.get_cmap("tab10").colors
    labels = [int(n) for n in result["epochs"]]
    for place, (name, row) in enumerate(result["rows"].items()):
        values = [row["accuracy"][str(n)] for n in labels]
        # Side by side, so that no interval hides another.
        shifted = [n * 1.03 ** (place - len(result["rows"]) / 2) for n in labels]
        mean = np.array([v["value"] for v in values])
        bars = [mean - [v["low"] for v in values], [v["high"] for v in values] - mean]
        style = {SCRATCH: ":", LINEAR: "--"}.get(name, "-")
        axes.errorbar(
            shifted, mean, yerr=bars, label=name, color=colors[place], linestyle=style, capsize=2
        )
    axes.set_xscale("log")
    axes.set_xticks(labels, [f"{n:,}" for n in labels])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("labels")
    axes.set_ylabel("accuracy on test")
    title = f"Bases pre-trained for {result['minutes']:g} minutes, by objective"
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=150)


def main() -> None:
    """Pace, bases, classifiers, table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, metavar="FILE")
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--work", type=Path, metavar="DIR", default=Path("runs/objectives"))
    parser.add_argument("--bases", nargs="+", default=list(BASES), choices=BASES, metavar="NAME")
    parser.add_argument("--minutes", type=float, default=5.0, help="of two cores, for each base")
    parser.add_argument("--labels", type=int, nargs="+", default=list(EPOCHS), choices=EPOCHS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them into FILE.png")
    arguments = parser.parse_args()
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    if arguments.text is None or arguments.data is None:
        arguments.text, arguments.data = split_corpus(work)
    write_tokens(arguments.text, work=work)
    pace_path = work / "pace.json"
    if not pace_path.exists():
        tokenizer = load_tokenizer(work / "tokenizer.json")
        store = open_store(work / "store", tokenizer=tokenizer)
        write_json(pace_path, seconds_per_step(store, tokenizer=tokenizer))
    pace = json.loads(pace_path.read_text())
    print({name: f"{seconds:.3f} s a step" for name, seconds in pace.items()}, file=sys.stderr)
    names = (*arguments.bases, SCRATCH, LINEAR)
    wanted = itertools.product(range(arguments.seeds), arguments.labels, names)
    with parallel_config(backend="loky", inner_max_num_threads=1):
        Parallel(n_jobs=JOBS)(
            delayed(make_base)(
                name, num_steps=int(JOBS * arguments.minutes * 60 / pace[name]), work=work
            )
            for name in arguments.bases
        )
        Parallel(n_jobs=JOBS)(
            delayed(answers)(name, num_labels, seed, data=arguments.data, work=work)
            for seed, num_labels, name in wanted
        )
    result = table(
        names, labels=arguments.labels, seeds=arguments.seeds, minutes=arguments.minutes, work=work
    )
    show(result)
    if arguments.json:
        write_json(arguments.json, result)
    if arguments.plot:
        draw(result, path=arguments.plot)


if __name__ == "__main__":
    main()
