"""How close does the student of a fitted classifier come to its teacher?

`regraft fit` learns from 400 labelled film reviews and 45,000 without labels; `regraft distill`
makes a student of it from the same text. Both are scored on the same test reviews, next to TF-IDF.
A seed draws the labels. What is finished outlives an interruption: repeat the command to go on.

    .venv/bin/python benchmarks/students.py [--seeds 3] [--bases 8] [--minutes 10] [--work DIR]
        [--dev] [--set KEY=VALUE ...] [--json FILE]

Data and test set are those of recipes.py. With --dev, 4,000 reviews of the pool of labels are the
test set instead. Cost with the defaults: a quarter of an hour a seed on two quiet cores.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from recipes import CORPUS, split_corpus, write_corpus_text

from regraft.classifiers import fit_linear, load_classifier
from regraft.config import resolve
from regraft.data import Example, labels_of, load_examples, subset_examples
from regraft.runtime import environment, write_json, write_text
from regraft.stats import accuracy_interval, difference_interval

NUM_LABELS = 400
NUM_DEV = 4_000
ROWS = ("linear", "teacher", "student")


def regraft(*words: str) -> float:
    """One command of this environment; seconds."""
    program = [str(Path(sys.executable).with_name("regraft")), *words]
    print(f"$ {shlex.join(['regraft', *words])}", file=sys.stderr, flush=True)
    start = time.monotonic()
    subprocess.run(program, check=True, stdout=sys.stderr)
    return time.monotonic() - start


def right_answers(
    train: list[Example], test: list[Example], *, folders: dict[str, Path]
) -> dict[str, Any]:
    """Which test texts each is right about, and how often student and teacher agree."""
    labels = labels_of(train)
    texts, targets_N = [example.text for example in test], labels.targets(test)
    guesses = {"linear": fit_linear(train, None, labels=labels).predict_proba(texts).argmax(axis=1)}
    for name, folder in folders.items():
        guesses[name] = load_classifier(folder).predict_proba(texts).argmax(axis=1)
    found = {name: (guess_N == targets_N).tolist() for name, guess_N in guesses.items()}
    return {"right": found, "agreement": float((guesses["teacher"] == guesses["student"]).mean())}


def main() -> None:
    """Teacher and student of every seed, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--bases", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--work", type=Path, default=Path("runs/students"), metavar="DIR")
    parser.add_argument("--dev", action="store_true", help="score on a part of the pool")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="K=V")
    parser.add_argument("--name", default="student", help="of the folders of students")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    work = given.work
    work.mkdir(parents=True, exist_ok=True)
    data = resolve("finetune").data
    if not (work / "more.txt").exists():
        split_corpus(CORPUS, work=work)
        write_corpus_text(
            "imdb-25k", test=load_examples(work / "test.jsonl", data=data), path=work / "more.txt"
        )
    pool = load_examples(work / "train.jsonl", data=data)
    test = load_examples(work / "test.jsonl", data=data)
    if given.dev:
        pool, test = pool[NUM_DEV:], pool[:NUM_DEV]
    text = ["--text", str(work / "text.txt"), "--text", str(work / "more.txt")]
    answers = []
    for seed in range(given.seeds):
        train = subset_examples(pool, size=NUM_LABELS, seed=seed)
        part = "dev-" if given.dev else ""
        path = work / f"{part}train-{seed}.jsonl"
        lines = [json.dumps({"text": e.text, "label": e.label}) + "\n" for e in train]
        write_text(path, "".join(lines))
        teacher = work / f"{part}teacher-{seed}"
        student = work / f"{part}{given.name}-{seed}"
        if not (teacher / "run.json").exists():
            regraft(
                *("fit", *text, "--train", str(path), "--out", str(teacher)),
                *("--bases", str(given.bases), "--seed", str(seed)),
            )
        if not student.exists():
            sets = [word for override in given.overrides for word in ("--set", override)]
            regraft(
                *("distill", str(teacher), *text, "--out", str(student), *sets),
                *("--minutes", str(given.minutes), "--seed", str(seed)),
            )
        found = right_answers(train, test, folders={"teacher": teacher, "student": student})
        means = {name: f"{np.mean(right):.1%}" for name, right in found["right"].items()}
        print(seed, means, f"agreement {found['agreement']:.1%}", file=sys.stderr, flush=True)
        answers.append(found)
    right = {name: np.array([found["right"][name] for found in answers]) for name in ROWS}
    rows = {}
    print(f"| | accuracy on {len(test):,} texts | below its teacher, points |\n|---|---|---|")
    for name in ROWS:
        score, gap = (
            accuracy_interval(right[name]),
            difference_interval(right["teacher"], right[name]),
        )
        rows[name] = {"value": score.mean, "low": score.low, "high": score.high}
        rows[name]["below_teacher"] = [gap.mean, gap.low, gap.high]
        points = f"{100 * gap.mean:.1f} ({100 * gap.low:.1f} to {100 * gap.high:.1f})"
        print(f"| {name} | {score.mean:.1%} ({score.low:.1%} to {score.high:.1%}) | {points} |")
    agreement = [found["agreement"] for found in answers]
    print(f"agreement: {', '.join(f'{share:.1%}' for share in agreement)}")
    if given.json:
        kept = {"seeds": given.seeds, "minutes": given.minutes, "num_test": len(test)}
        write_json(
            given.json,
            {**kept, "environment": environment(), "agreement": agreement, "rows": rows},
        )


if __name__ == "__main__":
    main()
