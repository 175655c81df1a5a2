"""Explanations of a whole table: the words of each row, and the most important ones of each class.

A row is read, explained and written before the next one: memory stays flat.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from regraft.classifiers.attribution import Explainer
from regraft.classifiers.explanation import ClassWords, Explanation, Method, StrongWord, signed
from regraft.classifiers.kept_examples import KeptExamples
from regraft.config import DataSettings
from regraft.data import (
    Column,
    format_of,
    open_writer,
    read_table_rows,
    row_values,
    scan_tables,
    word_spans,
    zipped,
)
from regraft.runtime import SILENT, Progress, write_whole

# Of the labelled texts of a run: so many, so much of each. More hardly change the first words.
_MOST_TEXTS = 200
_MOST_CHARACTERS = 10_000

_COLUMNS = (
    Column("explained_label", "text"),
    Column("explained_probability", "probability"),
    Column("words_for", "text"),
    Column("words_against", "text"),
)


@dataclass(frozen=True)
class TableExplanation:
    """The words of each class over all rows of a table, of which `num_texts` have words."""

    out: str | None
    num_rows: int
    num_texts: int
    method: str
    classes: tuple[ClassWords, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "classes": [words.to_dict() for words in self.classes]}


@dataclass
class WordTotals:
    """Adds up explanations: what each word does to the log-odds of the class that is explained."""

    _texts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _words: defaultdict[str, dict[str, tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def add(self, explanation: Explanation) -> None:
        """One more text."""
        self._texts[explanation.label] += 1
        words = self._words[explanation.label]
        for word in explanation.distinct_words():
            score, count = words.get(word.text, (0.0, 0))
            words[word.text] = score + word.score, count + 1

    def by_class(self) -> tuple[ClassWords, ...]:
        """The classes that were explained, by name; a score is a mean over all texts of a class."""
        return tuple(
            ClassWords(
                label,
                num_texts,
                tuple(
                    StrongWord(text, score / num_texts, count)
                    for text, (score, count) in self._words[label].items()
                ),
            )
            for label, num_texts in sorted(self._texts.items())
        )


def class_words(run_dir: str | Path) -> tuple[ClassWords, ...]:
    """The words of each class in the labelled texts of a run of `regraft fit`.

    Empty if only leaving words out could find them, which takes long.
    """
    explainer, examples = Explainer.load(run_dir), KeptExamples.load(Path(run_dir)).train
    if not explainer.classifier.is_additive:
        return ()
    totals = WordTotals()
    for example in examples[:: -(-len(examples) // _MOST_TEXTS)]:
        if word_spans(text := example.text[:_MOST_CHARACTERS]):
            totals.add(explainer.explain(text))
    return totals.by_class()


def explain_table(
    explainer: Explainer,
    path: Path,
    *,
    data: DataSettings,
    label: str | None = None,
    method: Method | Literal["auto"] = "auto",
    out: Path | None = None,
    progress: Progress = SILENT,
) -> TableExplanation:
    """Explain every row that has words, by default for its predicted label.

    `out` is the table with the label, its probability and the strongest words of every row added.
    """
    ending = None if out is None else format_of(out)
    scan = scan_tables([path], data=data, for_sheet=ending == ".xlsx", progress=progress)
    totals, methods = WordTotals(), set()

    def rows() -> Iterator[list[Any]]:
        for row in read_table_rows([path], data=data):
            cells: Sequence[Any] = [None] * len(_COLUMNS)
            if word_spans(row.text):
                explanation = explainer.explain(row.text, label, method=method)
                totals.add(explanation)
                methods.add(explanation.method)
                pro, contra = explanation.strongest()
                listed = (", ".join(map(_with_score, words)) for words in (pro, contra))
                cells = [explanation.label, explanation.probability, *listed]
            progress.advance()
            yield [*row_values(row, scan.columns), *cells]

    def write(file: IO[bytes]) -> None:
        assert out is not None
        assert ending is not None
        is_gzip = out.suffix.lower() == ".gz"
        with zipped(file) if is_gzip else contextlib.nullcontext(file) as target:
            writer = open_writer(ending, target, columns=[*scan.columns, *_COLUMNS])
            for cells in rows():
                writer.write([cells])
            writer.close()

    progress.start("explain", total=scan.num_rows)
    if out is None:
        for _ in rows():
            pass
    else:
        write_whole(out, write, inputs=[path])
    progress.finish()
    classes = totals.by_class()
    return TableExplanation(
        out=None if out is None else str(out),
        num_rows=scan.num_rows,
        num_texts=sum(each.num_texts for each in classes),
        method=", ".join(sorted(methods)),
        classes=classes,
    )


def _with_score(word: StrongWord) -> str:
    return f"{word.text} {signed(word.score)}"
