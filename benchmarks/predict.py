"""Predicting with a fitted classifier: texts per second, against its peers.

A classifier of eight bases answers 20,000 IMDB reviews that it has not seen. Peers: the code before
predictions were made fast (commit 2e871fe, fitted on the same files), a scikit-learn pipeline of
TF-IDF words + characters + logistic regression on the same labels, and fastText, if it is there
(`pip install fasttext`). Every turn starts with a classifier that has seen no text; loading is not
timed. The code before keeps nothing between texts and reads every tenth review.

    .venv/bin/python benchmarks/predict.py [--texts 20000] [--processor-time] [--work DIR]
        [--json FILE] [--plot FILE]

--processor-time counts the seconds of all threads instead of those on the clock: on a busy machine
the ratios hold, on two idle cores they leave out what the second one gains. The weights of the
members are set, so that both are asked whatever the fit has found. Cost: half an hour on two cores,
most of it the two fits, which are kept in DIR.
"""

import argparse
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from _turns import Contender, Turn, add_arguments, publish, take_turns

from regraft.classifiers import Blend, fit_linear
from regraft.config import resolve
from regraft.data import Example, fetch, labels_of, load_examples
from regraft.runtime import write_text

BEFORE = "2e871fe"
SAMPLED = 10
NUM_LABELS, NUM_DOCUMENTS, NUM_BASES = 400, 8_000, 8
# As README's fit has them.
WEIGHTS = {"linear": 0.31, "latent": 0.0, "features": 0.69}
ROOT = Path(__file__).parents[1]
# Runs with the code before: (folder, file of texts, weights, clock) -> seconds and memory a turn.
PEER = """
import json, resource, sys, time
from dataclasses import replace
from regraft.classifiers import load_classifier
texts, clock = json.load(open(sys.argv[2])), getattr(time, sys.argv[4])
for _ in sys.stdin:
    blend = load_classifier(sys.argv[1])
    result = {**blend.info.result, "weights": json.loads(sys.argv[3])}
    blend = replace(blend, info=replace(blend.info, result=result))
    start = clock()
    blend.predict_proba(texts)
    seconds = clock() - start
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
"""


def write_reviews(work: Path, *, num_texts: int) -> list[str]:
    """Labels, unlabelled text, and the texts to answer: three parts of one corpus."""
    data = resolve("finetune").data
    by_text: dict[str, Example] = {}
    for review in load_examples(fetch("imdb-50k").files["all"], data=data):
        by_text.setdefault(review.text, review)
    reviews = list(by_text.values())
    random.Random(0).shuffle(reviews)
    train, rest = reviews[:NUM_LABELS], reviews[NUM_LABELS:]
    rows = [json.dumps({"text": e.text, "label": e.label}) + "\n" for e in train]
    write_text(work / "train.jsonl", "".join(rows))
    lines = [" ".join(e.text.split()) + "\n" for e in rest[:NUM_DOCUMENTS]]
    write_text(work / "text.txt", "".join(lines))
    asked = [e.text for e in rest[NUM_DOCUMENTS : NUM_DOCUMENTS + num_texts]]
    write_text(work / "sample.json", json.dumps(asked[::SAMPLED]))
    return asked


def extract_before(work: Path) -> Path:
    """The source of the code before."""
    folder = work / f"src-{BEFORE}"
    if not folder.exists():
        command = ["git", "-C", str(ROOT), "archive", BEFORE, "src"]
        archive = subprocess.run(command, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
    return folder / "src"


def fit(out: Path, *, work: Path, source: Path) -> Path:
    """A classifier of eight bases by the code in `source`; made once."""
    if not (out / "report").exists():
        words = ["--text", work / "text.txt", "--train", work / "train.jsonl", "--out", out]
        command = [sys.executable, "-m", "regraft", "fit", *map(str, words), "--resume"]
        subprocess.run(
            [*command, "--bases", str(NUM_BASES), "--seed", "0"],
            check=True,
            env={**os.environ, "PYTHONPATH": str(source)},
        )
    return out


def seconds_of(work: Callable[[], object], *, clock: str) -> float:
    """How long it takes by this clock of the module time."""
    now = getattr(time, clock)
    start = now()
    work()
    return float(now() - start)


def before_turn(run_dir: Path, *, work: Path, source: Path, num_texts: int, clock: str) -> Turn:
    """The code before, in a process of its own for its imports."""
    command = [sys.executable, "-c", PEER, str(run_dir), str(work / "sample.json")]
    peer = subprocess.Popen(
        [*command, json.dumps(WEIGHTS), clock],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )

    def turn() -> tuple[float, float]:
        assert peer.stdin is not None
        assert peer.stdout is not None
        peer.stdin.write("\n")
        peer.stdin.flush()
        seconds, kilobytes = peer.stdout.readline().split()
        write_text(work / "peer-memory.txt", kilobytes)
        return num_texts, float(seconds)

    return turn


def regraft_turn(run_dir: Path, *, train: Path, texts: Sequence[str], clock: str) -> Turn:
    """The code of today."""
    examples = load_examples(train, data=resolve("finetune").data)
    linear = fit_linear(examples, None, labels=labels_of(examples))
    linear.save(run_dir.with_name("linear"))

    def turn() -> tuple[float, float]:
        blend = Blend.load(run_dir)
        members = {"linear": type(linear).load(run_dir.with_name("linear")), **blend.members}
        result = {**blend.info.result, "weights": WEIGHTS}
        blend = replace(blend, by_name=members, info=replace(blend.info, result=result))
        return len(texts), seconds_of(partial(blend.predict_proba, texts), clock=clock)

    return turn


def sklearn_turn(*, train: Path, texts: Sequence[str], clock: str) -> Turn:
    """Words and characters by scikit-learn, as its guide does it."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    examples = load_examples(train, data=resolve("finetune").data)
    pipeline = make_pipeline(
        make_union(
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True),
        ),
        LogisticRegression(C=10, max_iter=1_000),
    )
    pipeline.fit([e.text for e in examples], [e.label for e in examples])

    def turn() -> tuple[float, float]:
        return len(texts), seconds_of(partial(pipeline.predict_proba, texts), clock=clock)

    return turn


def fasttext_turn(*, train: Path, work: Path, texts: Sequence[str], clock: str) -> Turn:
    """fastText with pairs of words, one text a line."""
    import fasttext

    def line(text: str) -> str:
        return " ".join(text.lower().split())

    examples = load_examples(train, data=resolve("finetune").data)
    rows = [f"__label__{e.label} {line(e.text)}\n" for e in examples]
    write_text(work / "fasttext.txt", "".join(rows))
    model = fasttext.train_supervised(
        str(work / "fasttext.txt"), wordNgrams=2, epoch=25, lr=0.5, thread=1, verbose=0
    )

    def turn() -> tuple[float, float]:
        return len(texts), seconds_of(
            lambda: model.predict([line(text) for text in texts], k=2), clock=clock
        )

    return turn


def main() -> None:
    """Fit, take turns and publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=20_000, metavar="N")
    parser.add_argument("--work", type=Path, default=Path("runs/predict"), metavar="DIR")
    parser.add_argument("--processor-time", action="store_true")
    add_arguments(parser)
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    texts = write_reviews(work, num_texts=arguments.texts)
    source, train = extract_before(work), work / "train.jsonl"
    now = fit(work / "now", work=work, source=ROOT / "src")
    before = fit(work / "before", work=work, source=source)
    num_sampled = len(texts[::SAMPLED])
    clock = "process_time" if arguments.processor_time else "perf_counter"
    asked = {"train": train, "texts": texts, "clock": clock}
    contenders = [
        Contender(
            f"regraft before ({BEFORE})",
            partial(
                before_turn, before, work=work, source=source, num_texts=num_sampled, clock=clock
            ),
            imports=(),
        ),
        Contender("scikit-learn", partial(sklearn_turn, **asked), ("sklearn",)),
    ]
    if find_spec("fasttext"):
        build = partial(fasttext_turn, work=work, **asked)
        contenders.append(Contender("fastText", build, ("fasttext",)))
    else:
        print("Without fastText. To see this peer: pip install fasttext", file=sys.stderr)
    build = partial(regraft_turn, now, **asked)
    contenders.append(Contender("regraft", build, imports=()))
    result = take_turns(
        contenders,
        title=f"{len(texts):,} film reviews, a classifier of {NUM_BASES} bases",
        unit="texts/s" + (" of processor" if arguments.processor_time else ""),
        rounds=arguments.rounds,
    )
    # Of a process that the contender started; torch and other imports included.
    kilobytes = int((work / "peer-memory.txt").read_text(encoding="utf-8"))
    memory = {**result.memory_bytes, contenders[0].name: 1024 * kilobytes}
    publish(replace(result, memory_bytes=memory), arguments=arguments)


if __name__ == "__main__":
    main()
