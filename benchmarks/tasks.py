"""Do pairs of texts and several labels pay off against TF-IDF? Two tasks made of Reuters news wire.

    python benchmarks/tasks.py --json docs/benchmarks/tasks.json

pairs: are two wires about the same topic? sets: two wires in one text, which topics? The base is
pre-trained on all training wires, without labels; thresholds are chosen on valid, scores are on
test.
"""

import argparse
import dataclasses
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regraft.classifiers import SetEvaluation, evaluate, finetune, fit_linear
from regraft.config import resolve
from regraft.data import Example, corpora, labels_of, load_examples, split_examples
from regraft.stats import f1_thresholds, micro_f1_shares
from regraft.training import pretrain

TOPICS = ("acq", "crude", "earn", "interest", "money-fx", "ship", "trade")
MOST_WIRES, NUM_WORDS = 190, 30
VALID_SHARE = 0.2
SIZES = {"train": 1_000, "valid": 200, "test": 600}
SHAPE = {"model.width": 64, "model.num_layers": 2, "model.num_heads": 4, "train.threads": 1}


def make_examples(
    wires: Sequence[Example], num_examples: int, *, task: str, seed: int
) -> list[Example]:
    """Two wires each: of one topic in half of them, of two in the others."""
    source = random.Random(f"{task} {seed}")
    by_topic = {topic: [w.text for w in wires if w.label == topic] for topic in TOPICS}
    by_topic = {topic: texts[:MOST_WIRES] for topic, texts in by_topic.items()}
    examples = []
    for row in range(num_examples):
        first = source.choice(TOPICS)
        second = first if row % 2 else source.choice([t for t in TOPICS if t != first])
        texts = [" ".join(source.choice(by_topic[t]).split()[:NUM_WORDS]) for t in (first, second)]
        if task == "pairs":
            label = "same" if first == second else "other"
            examples.append(Example(texts[0], label, "reuters", row, texts[1]))
        else:
            names = tuple(sorted({first, second}))
            examples.append(Example(" ".join(texts), "|".join(names), "reuters", row, None, names))
    return examples


def write(path: Path, examples: Sequence[Example]) -> Path:
    """As JSON lines, which finetune reads."""
    rows = [{"text": e.text, "pair": e.pair, "label": e.label} for e in examples]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def linear(splits: dict[str, list[Example]], *, task: str) -> float:
    """TF-IDF and logistic regression: accuracy, or micro-F1 of one regression a label."""
    labels = labels_of(splits["train"])
    if task == "pairs":
        joined = {
            name: [dataclasses.replace(e, text=f"{e.text} {e.pair}", pair=None) for e in part]
            for name, part in splits.items()
        }
        model = fit_linear(joined["train"], joined["valid"], labels=labels)
        answers = model.predict_proba([e.text for e in joined["test"]]).argmax(axis=1)
        return float(np.mean(answers == labels.targets(joined["test"])))
    chances: dict[str, list[Any]] = {"valid": [], "test": []}
    for name in labels:
        asked = {
            split: [Example(e.text, str(name in e.names), "reuters", e.row) for e in part]
            for split, part in splits.items()
        }
        model = fit_linear(asked["train"], asked["valid"], labels=labels_of(asked["train"]))
        for split, columns in chances.items():
            columns.append(model.predict_proba([e.text for e in splits[split]])[:, 1])
    valid_NC, test_NC = (np.stack(chances[split], axis=1) for split in ("valid", "test"))
    thresholds_C = f1_thresholds(valid_NC, labels.targets(splits["valid"]))
    return float(micro_f1_shares(test_NC >= thresholds_C, labels.targets(splits["test"])).mean())


def network(base: Path | None, folder: Path, *, task: str, seed: int, epochs: int) -> float:
    """A classifier on the base, or from scratch; its score on test."""
    column = {"data.pair_column": "pair"} if task == "pairs" else {"data.label_separator": "|"}
    settings = resolve(
        "finetune",
        preset="bert",
        overrides={
            **SHAPE,
            **column,
            **{"train.epochs": epochs, "train.seed": seed, "data.max_length": 128},
            **{"train.lr": 5e-4, "train.patience": epochs, "train.average": "ema"},
        },
    )
    out = folder / f"{task}-{'scratch' if base is None else 'pretrained'}-{seed}"
    finetune(
        base=base,
        train=folder / "train.jsonl",
        valid=folder / "valid.jsonl",
        tokenizer_path=folder.parent / "base" / "tokenizer.json" if base is None else None,
        out=out,
        settings=settings,
    )
    found = evaluate(out, folder / "test.jsonl")
    return found.micro_f1.mean if isinstance(found, SetEvaluation) else found.accuracy.mean


def main() -> None:
    """Both tasks, three arms, every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=2.0, help="of pre-training")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = resolve("finetune").data
    files = corpora.fetch("reuters-r8").files
    wires = {name: load_examples(files[name], data=data) for name in ("train", "test")}
    # Examples of two splits share no wire: what is chosen on valid was not learned.
    wires["train"], wires["valid"] = split_examples(wires["train"], share=VALID_SHARE, seed=0)
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        shape = {**SHAPE, "train.minutes": options.minutes, "tokenizer.size": 4096}
        settings = resolve("pretrain", preset="bert", overrides={**shape, "data.max_length": 128})
        pretrain([files["train"]], out=work / "base", settings=settings)
        for task in ("pairs", "sets"):
            found[task] = {"linear": [], "scratch": [], "pretrained": []}
            for seed in range(options.seeds):
                splits = {
                    split: make_examples(
                        wires[split],
                        size,
                        task=task,
                        seed=10 * seed + place,
                    )
                    for place, (split, size) in enumerate(SIZES.items())
                }
                folder = work / f"{task}-{seed}"
                folder.mkdir()
                for split, examples in splits.items():
                    write(folder / f"{split}.jsonl", examples)
                found[task]["linear"].append(linear(splits, task=task))
                for arm, base in (("scratch", None), ("pretrained", work / "base")):
                    score = network(base, folder, task=task, seed=seed, epochs=options.epochs)
                    found[task][arm].append(score)
                print(task, seed, {arm: f"{row[-1]:.1%}" for arm, row in found[task].items()})
    for task, arms in found.items():
        for arm, scores in arms.items():
            print(
                f"{task:6} {arm:11} {np.mean(scores):.1%}  ({min(scores):.1%} to {max(scores):.1%})"
            )
    if options.json:
        summary = {"options": {**vars(options), "json": None}, "scores": found}
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
