"""The labelled examples that a fitted run keeps, so that `fit --update` can add others to them.

`fit --test` searches the test file for them. Predicting needs none of it.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regraft.data import Example, duplicate_key
from regraft.errors import RunFolderError
from regraft.runtime import FORMAT_VERSION, check_format, parse_json, sha256, write_text

EXAMPLES_NAME = "examples.jsonl"


@dataclass(frozen=True)
class KeptExamples:
    """Examples of train and valid, and what the blend predicted for those that were held out.

    `held_out` are the labels predicted for the examples of valid or, without valid, of train;
    `confidence` is the probability of each, if a text has one label.
    """

    train: Sequence[Example]
    valid: Sequence[Example]
    held_out: Sequence[tuple[str, ...]]
    confidence: Sequence[float] = ()

    @property
    def judged(self) -> Sequence[Example]:
        """The examples that `held_out` is about."""
        return self.valid or self.train

    def renamed(self, names: Mapping[str, str], *, separator: str | None) -> "KeptExamples":
        """The same examples with other names for their labels."""

        def example(old: Example) -> Example:
            labels = tuple(names[name] for name in old.names)
            label = labels[0] if old.labels is None else (separator or "").join(labels)
            return dataclasses.replace(
                old, label=label, labels=None if old.labels is None else labels
            )

        return KeptExamples(
            train=[example(old) for old in self.train],
            valid=[example(old) for old in self.valid],
            held_out=[tuple(names[name] for name in each) for each in self.held_out],
            confidence=self.confidence,
        )

    def save(self, run_dir: Path) -> None:
        """Write one JSON object a line, after a first one with the checksum of the others."""
        answers, confidence = iter(self.held_out), iter(self.confidence)
        lines = []
        for split, examples in (("train", self.train), ("valid", self.valid)):
            for example in examples:
                row = {"split": split, **dataclasses.asdict(example)}
                is_judged = examples is self.judged
                row["held_out"] = next(answers) if is_judged else None
                row["confidence"] = next(confidence, None) if is_judged else None
                lines.append(json.dumps(row) + "\n")
        body = "".join(lines)
        head = {"format_version": FORMAT_VERSION, "sha256": sha256([body.encode("ascii")])}
        write_text(run_dir / EXAMPLES_NAME, json.dumps(head) + "\n" + body)

    @classmethod
    def load(cls, run_dir: Path) -> "KeptExamples":
        """Read what `save` wrote; RunFolderError if it has gone or was changed."""
        path = run_dir / EXAMPLES_NAME
        try:
            head, _, body = path.read_text(encoding="ascii").partition("\n")
            facts = parse_json(head)
            check_format(facts, path=path)
            if facts["sha256"] != sha256([body.encode("ascii")]):
                raise ValueError("it changed since it was written")
            rows = [parse_json(line) for line in body.splitlines()]
            return cls._of_rows(rows)
        except FileNotFoundError as error:
            raise RunFolderError(
                f"{run_dir} no longer has its labelled examples, {EXAMPLES_NAME}.",
                "--update adds to them, and --test is searched for them.",
                remedy="Restore the file, or fit again on all examples.",
            ) from error
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunFolderError(
                f"{path} is damaged: {error}.",
                remedy="Restore the file, or fit again on all examples.",
            ) from error

    @classmethod
    def _of_rows(cls, rows: Sequence[dict[str, Any]]) -> "KeptExamples":
        return cls(
            train=[_example(row) for row in rows if row["split"] == "train"],
            valid=[_example(row) for row in rows if row["split"] == "valid"],
            held_out=[tuple(row["held_out"]) for row in rows if row["held_out"] is not None],
            confidence=[float(row["confidence"]) for row in rows if row["confidence"] is not None],
        )


def _example(row: dict[str, Any]) -> Example:
    values = {name: row[name] for name in (field.name for field in dataclasses.fields(Example))}
    labels = None if row["labels"] is None else tuple(row["labels"])
    return Example(**{**values, "labels": labels})


def merged(
    old: Sequence[Example], new: Sequence[Example]
) -> tuple[list[Example], list[tuple[Example, Example]]]:
    """Both as one list, and which of the old ones got another label: (old, new).

    A text that was labelled before has the label it is given now, and occurs once.
    """
    by_text = {duplicate_key(example.text, example.pair): example for example in new}
    kept, relabelled = [], []
    for example in old:
        other = by_text.get(duplicate_key(example.text, example.pair))
        if other is None:
            kept.append(example)
        elif set(other.names) != set(example.names):
            relabelled.append((example, other))
    return [*kept, *new], relabelled
