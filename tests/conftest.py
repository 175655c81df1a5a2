"""Fixtures shared by every test: tiny generated text, tiny settings, golden files.

No network, no files from elsewhere: the text is made here, from a fixed seed.
"""

import csv
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Before anything imports torch: tiny matrices run slower on many threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

# A shell that starts us in the background ignores Ctrl-C for us; some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402
from browsers import careful_page, chromium  # noqa: E402

from regraft.config.resolution import resolve  # noqa: E402
from regraft.config.schema import Settings  # noqa: E402
from regraft.data.text.records import Example  # noqa: E402

GOLDEN_DIR = Path(__file__).parent / "golden"

_SUBJECTS = ("the story", "this book", "the second chapter", "her style", "the ending", "the plot")
_PRAISE = ("charming", "moving", "brilliant", "a delight", "vivid", "wonderful")
_BLAME = ("dull", "tedious", "clumsy", "a bore", "flat", "dreadful")
_TAILS = ("from the first page", "in every way", "as my sister said", "to my surprise", "again")


def make_sentence(source: random.Random, *, label: str) -> str:
    """One sentence whose adjective gives its label away."""
    adjective = source.choice(_PRAISE if label == "positive" else _BLAME)
    return f"{source.choice(_SUBJECTS)} is {adjective} {source.choice(_TAILS)}"


def make_examples(num_examples: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Distinct (text, label) pairs, the two labels in turn."""
    source = random.Random(seed)
    examples = []
    for row in range(num_examples):
        label = ("positive", "negative")[row % 2]
        sentences = [make_sentence(source, label=label) for _ in range(source.randint(1, 3))]
        examples.append((f"{'. '.join(sentences)}. (note {seed}-{row})", label))
    return examples


def make_records(num_examples: int, *, seed: int = 0) -> list[Example]:
    """The same pairs as examples of train.csv."""
    made = make_examples(num_examples, seed=seed)
    return [Example(text, label, "train.csv", row) for row, (text, label) in enumerate(made, 2)]


def write_examples(path: Path, num_examples: int, *, seed: int = 0) -> Path:
    """A csv file with the columns text and label."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        writer.writerows(make_examples(num_examples, seed=seed))
    return path


@pytest.fixture
def documents() -> list[str]:
    """Sixty short texts without labels."""
    return [text for text, _ in make_examples(60, seed=1)]


@pytest.fixture
def documents_path(tmp_path: Path, documents: list[str]) -> Path:
    """The same texts in a plain text file, a document per line."""
    path = tmp_path / "documents.txt"
    path.write_text("\n".join(documents) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def examples_path(tmp_path: Path) -> Path:
    """Forty labelled texts as csv."""
    return write_examples(tmp_path / "examples.csv", 40, seed=2)


@pytest.fixture
def index_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index, and a cache of our own: no network."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("REGRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def splits(tmp_path: Path) -> dict[str, Path]:
    """Three csv files without a text in common: train, valid, test."""
    sizes = {"train": 32, "valid": 16, "test": 16}
    return {
        name: write_examples(tmp_path / f"{name}.csv", size, seed=seed)
        for seed, (name, size) in enumerate(sizes.items(), start=3)
    }


TINY = {
    "model.width": 12,
    "model.num_layers": 2,
    "model.num_heads": 3,
    "model.dropout": 0.1,
    "model.max_positions": 64,
    "tokenizer.size": 300,
    "data.max_length": 24,
    "train.batch_size": 4,
    "train.warmup_steps": 1,
}


@pytest.fixture
def tiny_pretrain() -> Settings:
    """Settings under which pre-training takes a second."""
    return resolve("pretrain", overrides={**TINY, "train.steps": 6, "train.valid_share": 0.1})


@pytest.fixture
def tiny_finetune() -> Settings:
    """Settings under which fine-tuning takes a second."""
    return resolve("finetune", overrides={**TINY, "train.epochs": 2})


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """`golden("surface.txt", text)` fails when text differs from the file in tests/golden/.

    REGRAFT_UPDATE_GOLDEN=1 (`make golden`) writes the file instead.
    """

    def compare(name: str, text: str) -> None:
        path = GOLDEN_DIR / name
        if os.environ.get("REGRAFT_UPDATE_GOLDEN") == "1":
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        assert text == expected, f"tests/golden/{name} differs; if on purpose, run `make golden`"

    return compare


class Recorder:
    """A Progress that remembers what a recipe tells, and presses Ctrl-C at a step of training."""

    def __init__(self, *, interrupt_at: int | None = None) -> None:
        self.tasks: list[str] = []
        self.messages: list[str] = []
        self._interrupt_at = interrupt_at
        self._done = 0.0

    def start(self, name: str, *, total: float | None) -> None:
        self.tasks.append(name)
        self._done = 0

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        self._done += amount
        is_training = self.tasks[-1].startswith(("pre-train", "fine-tune"))
        if is_training and self._done == self._interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)

    def finish(self) -> None: ...

    def say(self, message: str) -> None:
        self.messages.append(message)


@pytest.fixture(scope="session")
def shared_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained run folder that fills in and continues texts, made once: for reading only."""
    from regraft.training.pretraining import pretrain

    folder = tmp_path_factory.mktemp("base")
    text = folder / "documents.txt"
    text.write_text("".join(f"{text}\n" for text, _ in make_examples(60, seed=1)), encoding="utf-8")
    more = {"objective.kind": "hybrid", "train.steps": 20, "train.valid_share": 0.1}
    settings = resolve("pretrain", overrides={**TINY, **more})
    pretrain([text], out=folder / "run", settings=settings)
    return folder / "run"


@pytest.fixture(scope="session")
def shared_classifier(shared_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a classifier grafted onto the shared base, made once: for reading only."""
    from regraft.classifiers.finetuning import finetune

    folder = tmp_path_factory.mktemp("classifier")
    train = write_examples(folder / "train.csv", 32, seed=3)
    settings = resolve("finetune", overrides={**TINY, "train.epochs": 1})
    finetune(base=shared_base, train=train, out=folder / "run", settings=settings)
    return folder / "run"


# Of the module: while it lives, an event loop runs, which tests of other modules cannot have.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The Chromium that is installed here."""
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must not fail while a test uses it."""
    with careful_page(browser) as found:
        yield found
