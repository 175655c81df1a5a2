"""Predictions for whole tables: read, predicted and written in chunks, in memory that stays flat.

A table on disk is scanned first, so that an error in its last row shows before anything is
computed. Probabilities go into a journal, from which `resume` continues; the output is written at
the end, whole. A stream is read once, and its predictions are written as they come.
"""

import contextlib
import csv
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from regraft.classifiers.base import Classifier, load_classifier, prediction, run_fingerprint
from regraft.classifiers.journal import ChunkAnswer, Journal
from regraft.config import DataSettings
from regraft.data import (
    DELIMITERS,
    BinaryFile,
    Column,
    Content,
    Part,
    Row,
    TableScan,
    Writer,
    check_ids,
    check_state,
    first_cells,
    format_of,
    is_stream,
    open_writer,
    read_table_rows,
    row_columns,
    row_values,
    scan_tables,
    source_fingerprint,
    zipped,
)
from regraft.errors import ConfigError, DataError, DiskError
from regraft.runtime import SILENT, Plain, Progress, in_percent, results, write_whole

# A chunk is what is in memory at once; a small table has several, so that it can be shared out.
CHUNK_ROWS = 2048
CHUNK_CHARACTERS = 8_000_000
FEWEST_CHUNKS = 16

LABEL_COLUMN = "predicted_label"
PROBABILITY_COLUMN = "predicted_probability"


@dataclass(frozen=True)
class TablePrediction(Plain):
    """What was predicted: `num_rows` rows, of which `num_texts` have a text.

    Of these, `num_abstained` have no label, as their confidence is below `abstain_below`.
    """

    out: str | None
    num_rows: int
    num_texts: int
    num_cut: int
    num_abstained: int = 0
    abstain_below: float | None = None


@dataclass(frozen=True)
class Answers:
    """The columns that a prediction adds to a table; a `separator` joins the labels of a set.

    With `top_k`, the most probable labels with their probabilities replace those of all labels.
    """

    labels: tuple[str, ...]
    thresholds: tuple[float, ...]
    separator: str | None
    abstain_below: float | None = None
    top_k: int | None = None

    def columns(self, taken: Sequence[Column]) -> tuple[Column, ...]:
        """Their names are new: if the table has one of them, all get a number, such as `_2`."""
        is_set = bool(self.thresholds)
        columns = [Column(LABEL_COLUMN, "list" if is_set and self.separator is None else "text")]
        if not is_set:
            columns.append(Column(PROBABILITY_COLUMN, "probability"))
        if self.top_k is None:
            columns += [Column(f"p({label})", "probability") for label in self.labels]
        for place in range(1, min(self.top_k or 0, len(self.labels)) + 1):
            columns += [Column(f"top_{place}", "text"), Column(f"p(top_{place})", "probability")]
        names = {column.name for column in taken}
        for number in itertools.count(1):
            suffix = "" if number == 1 else f"_{number}"
            if names.isdisjoint(column.name + suffix for column in columns):
                return tuple(Column(column.name + suffix, column.kind) for column in columns)
        raise AssertionError("there is always a free number")

    @property
    def least_confidence(self) -> float | None:
        """The confidence below which a text gets no label; a set of labels may be empty anyway."""
        return None if self.thresholds else self.abstain_below

    def num_abstained(self, answer: ChunkAnswer) -> int:
        """How many texts of a chunk get no label."""
        least = self.least_confidence
        return 0 if least is None else int((answer.probabilities_NC.max(axis=1) < least).sum())

    def cells(self, probabilities: Sequence[float]) -> list[Any]:
        """The cells of one row; all None for a row without text."""
        if np.isnan(probabilities[0]):
            return [None] * len(self.columns([]))
        answer = prediction(
            self.labels,
            probabilities,
            thresholds=self.thresholds,
            abstain_below=self.abstain_below,
            top_k=self.top_k,
        )
        label = answer["label"]
        if isinstance(label, list) and self.separator is not None:
            label = self.separator.join(label)
        first = [label] if self.thresholds else [label, answer["probability"]]
        by_label = answer["probabilities"]
        if self.top_k is not None:
            return [*first, *itertools.chain.from_iterable(by_label.items())]
        return [*first, *by_label.values()]


@dataclass(frozen=True)
class TableTask:
    """A classifier in a folder, and the tables it is asked about."""

    classifier: Classifier
    run_dir: Path
    paths: tuple[Path, ...]
    data: DataSettings
    cluster: str | None = None
    # None: as the classifier was fitted to answer.
    abstain_below: float | None = None
    top_k: int | None = None
    # Names every row, which is checked.
    id_column: str | None = None

    @property
    def has_stream(self) -> bool:
        """Whether something can be read only once."""
        return any(map(is_stream, self.paths))

    @property
    def inputs(self) -> tuple[Path, ...]:
        """What an output must not replace."""
        return (self.run_dir, *self.paths)

    def answers(self, ending: str) -> Answers:
        """The columns to add, in this format."""
        has_lists = ending in (".json", ".jsonl", ".parquet")
        separator = None if has_lists else self.data.label_separator or "|"
        below = self.abstain_below
        return Answers(
            self.classifier.labels,
            self.classifier.thresholds,
            separator,
            abstain_below=self.classifier.abstain_below if below is None else below,
            top_k=self.top_k,
        )


def predict_to_stream(
    task: TableTask, file: BinaryFile, *, ending: str, progress: Progress = SILENT
) -> TablePrediction:
    """Write predictions as they come. What is on disk is checked to its end before the first."""
    if task.has_stream and task.id_column is not None:
        raise ConfigError(
            f"--id-column {task.id_column} cannot be checked in standard input, read once.",
            "Ids are compared before anything is predicted.",
            remedy="Save it to a file and pass that, or omit --id-column.",
        )
    scan = None if task.has_stream else _scan(task, ending=ending, progress=progress)
    chunk_rows = CHUNK_ROWS if scan is None else _chunk_rows(scan)
    rows, answers = read_table_rows(task.paths, data=task.data), task.answers(ending)
    writer: Writer | None = None
    num_rows = num_texts = num_cut = num_abstained = 0
    is_shown = scan is not None
    if scan is not None:
        progress.start("predict", total=scan.num_rows)
    for chunk, answer in _answered(task, _chunks(rows, chunk_rows)):
        if writer is None:
            columns = row_columns(chunk) if scan is None else scan.columns
            all_columns = [*columns, *answers.columns(columns)]
            writer = open_writer(ending, file, columns=all_columns)
        elif not is_shown:  # more than a chunk from a stream: it takes a while
            progress.start("predict", total=None)
            is_shown = True
        writer.write(_table_rows(chunk, answer, columns=columns, answers=answers))
        file.flush()
        num_rows, num_cut = num_rows + len(chunk), num_cut + answer.num_cut
        num_texts += sum(map(_has_text, chunk))
        num_abstained += answers.num_abstained(answer)
        if is_shown:
            progress.advance(len(chunk), note=f"{num_rows:,} rows")
    if is_shown:
        progress.finish()
    assert writer is not None, "a table without rows was refused"
    writer.close()
    counts = (num_rows, num_texts, num_cut, num_abstained)
    summary = TablePrediction(None, *counts, answers.least_confidence)
    return _ended(task, summary, progress=progress)


def predict_to_file(
    task: TableTask,
    out: Path,
    *,
    part: Part | None = None,
    resume: bool = False,
    progress: Progress = SILENT,
) -> TablePrediction:
    """Write a file whose name decides its format: csv, tsv, jsonl, parquet or xlsx.

    `part` is one of several jobs; their outputs one after the other are the whole, so only the
    first has a header in csv and tsv.
    """
    part, ending = part or Part(), format_of(out)
    if task.has_stream:
        if resume or part.of > 1 or ending in (".parquet", ".xlsx"):
            raise ConfigError(
                "Standard input is read once, as it comes.",
                "--resume, --shard, and parquet and xlsx outputs need the table as a file.",
                remedy="Save it to a file and pass that.",
            )
        found: list[TablePrediction] = []

        def write(file: IO[bytes]) -> None:
            with _compressed(file, out) as target:
                found.append(predict_to_stream(task, target, ending=ending, progress=progress))

        write_whole(out, write, inputs=task.inputs)
        return replace(found[0], out=str(out))
    scan = _scan(task, ending=ending, progress=progress)
    columns = (*scan.columns, *task.answers(ending).columns(scan.columns))
    _check_ours(out, ending=ending, num_columns=len(columns), has_header=part.number == 1)
    job = _FileJob(task, out, ending, part, scan, columns)
    about = {
        "input": source_fingerprint(task.paths),
        "classifier": run_fingerprint(task.run_dir),
        "reading": asdict(task.data),
        "shard": f"{part.number}/{part.of}",
    }
    with Journal(out, about=about, num_labels=len(task.classifier.labels)) as journal:
        if journal.open(resume=resume):
            progress.say("Starting over; --resume would have continued the unfinished output.")
        job.predict(journal, progress=progress)
        num_texts, num_abstained = job.write(journal, progress=progress)
        journal.remove()
    summary = TablePrediction(
        str(out),
        journal.num_rows,
        num_texts,
        journal.num_cut,
        num_abstained,
        task.answers(ending).least_confidence,
    )
    return _ended(task, summary, progress=progress)


@dataclass(frozen=True)
class _FileJob:
    """One output file: its part of the chunks of a table."""

    task: TableTask
    out: Path
    ending: str
    part: Part
    scan: TableScan
    columns: tuple[Column, ...]

    @property
    def chunk_numbers(self) -> range:
        """The chunks of this part, from one end to the other: parts are joined in order."""
        num_chunks = -(-self.scan.num_rows // _chunk_rows(self.scan))
        first, last = (
            num_chunks * n // self.part.of for n in (self.part.number - 1, self.part.number)
        )
        return range(first, last)

    def chunks(self, *, skipped: int = 0) -> Iterator[list[Row]]:
        """The chunks of this part without some at the beginning."""
        size, numbers = _chunk_rows(self.scan), self.chunk_numbers[skipped:]
        rows = read_table_rows(self.task.paths, data=self.task.data)
        return _chunks(itertools.islice(rows, numbers.start * size, numbers.stop * size), size)

    def predict(self, journal: Journal, *, progress: Progress) -> None:
        """Fill the journal up to the end of the part."""
        if journal.num_chunks < len(self.chunk_numbers):
            size = _chunk_rows(self.scan)
            total = min(len(self.chunk_numbers) * size, self.scan.num_rows)
            progress.start("predict", total=total)
            progress.advance(journal.num_rows)
            for chunk, answer in _answered(self.task, self.chunks(skipped=journal.num_chunks)):
                journal.append(answer)
                progress.advance(len(chunk), note=f"{journal.num_rows:,} rows")
            progress.finish()
        check_state(self.task.paths, self.scan.state)

    def write(self, journal: Journal, *, progress: Progress) -> tuple[int, int]:
        """Write the output; the number of rows with text, and of those without a label."""
        num_texts = num_abstained = 0

        def write(file: IO[bytes]) -> None:
            nonlocal num_texts, num_abstained
            with _compressed(file, self.out) as target:
                has_header = self.part.number == 1
                writer = open_writer(
                    self.ending,
                    target,
                    columns=self.columns,
                    has_header=has_header,
                    dialect=self.scan.dialect,
                )
                answers = self.task.answers(self.ending)
                for chunk, answer in zip(self.chunks(), journal.answers(), strict=True):
                    rows = _table_rows(chunk, answer, columns=self.scan.columns, answers=answers)
                    writer.write(rows)
                    num_texts += sum(map(_has_text, chunk))
                    num_abstained += answers.num_abstained(answer)
                    progress.advance(len(chunk))
                writer.close()
            check_state(self.task.paths, self.scan.state)

        progress.start("write", total=journal.num_rows)
        write_whole(self.out, write, inputs=self.task.inputs)
        progress.finish()
        return num_texts, num_abstained


def _scan(task: TableTask, *, ending: str, progress: Progress) -> TableScan:
    if task.id_column is not None:
        check_ids(task.paths, data=task.data, column=task.id_column)
    scan = scan_tables(task.paths, data=task.data, for_sheet=ending == ".xlsx", progress=progress)
    for note in scan.notes:
        progress.say(note)
    return scan


def _chunk_rows(scan: TableScan) -> int:
    """Rows of a chunk: it depends on the table alone, so that parts and resumed runs agree."""
    affordable = CHUNK_CHARACTERS * scan.num_rows // max(scan.num_characters, 1)
    return max(1, min(CHUNK_ROWS, affordable, -(-scan.num_rows // FEWEST_CHUNKS)))


def _chunks(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def _has_text(row: Row) -> bool:
    return bool(row.text.strip())


def _answered(
    task: TableTask, chunks: Iterator[list[Row]]
) -> Iterator[tuple[list[Row], ChunkAnswer]]:
    """Each chunk with its answer, in order."""
    if task.cluster is None:
        for chunk in chunks:
            yield chunk, _with_gaps(chunk, _ask(task.classifier, _contents(chunk)))
        return
    version = run_fingerprint(task.run_dir)
    waiting: dict[int, list[Row]] = {}

    def jobs() -> Iterator[_ChunkJob]:
        for number, chunk in enumerate(chunks):
            waiting[number] = chunk
            yield _ChunkJob(task.run_dir.absolute(), version, number, tuple(_contents(chunk)))

    ready: dict[int, ChunkAnswer] = {}
    following = 0
    for number, answer in results(
        jobs(), num_jobs=1, num_threads=1, cluster=task.cluster, progress_of=lambda _: SILENT
    ):
        ready[number] = answer
        while following in ready:
            chunk = waiting.pop(following)
            yield chunk, _with_gaps(chunk, ready.pop(following))
            following += 1


@dataclass(frozen=True)
class _ChunkJob:
    """A chunk for a machine of a cluster, which has the run folder under the same path."""

    run_dir: Path
    version: str
    number: int
    contents: tuple[Content, ...]

    def run(self, *, progress: Progress = SILENT) -> tuple[int, ChunkAnswer]:
        return self.number, _ask(_loaded(self.run_dir, self.version), self.contents)


@functools.lru_cache(maxsize=1)
def _loaded(run_dir: Path, version: str) -> Classifier:
    if run_fingerprint(run_dir) != version:
        raise DataError(
            f"A machine of the cluster has another classifier in {run_dir}.",
            "All machines read the run folder, under one path.",
            remedy="Put it on a shared file system, and start over.",
        )
    return load_classifier(run_dir)


def _contents(chunk: Sequence[Row]) -> list[Content]:
    rows = filter(_has_text, chunk)
    return [row.text if row.pair is None else (row.text, row.pair) for row in rows]


def _ask(classifier: Classifier, contents: Sequence[Content]) -> ChunkAnswer:
    """The answers to all texts of a chunk."""
    if not contents:
        return ChunkAnswer(np.zeros((0, len(classifier.labels))), 0)
    probabilities_NC = classifier.predict_proba(contents)
    return ChunkAnswer(probabilities_NC, round(classifier.cut_share(contents) * len(contents)))


def _with_gaps(chunk: Sequence[Row], answer: ChunkAnswer) -> ChunkAnswer:
    """A row for every row of the chunk: NaN where there is no text."""
    has_text_N = np.array([_has_text(row) for row in chunk])
    probabilities_NC: NDArray[np.float64] = np.full(
        (len(chunk), answer.probabilities_NC.shape[1]), np.nan
    )
    probabilities_NC[has_text_N] = answer.probabilities_NC
    return ChunkAnswer(probabilities_NC, answer.num_cut)


def _table_rows(
    chunk: Sequence[Row], answer: ChunkAnswer, *, columns: Sequence[Column], answers: Answers
) -> list[list[Any]]:
    return [
        [*row_values(row, columns), *answers.cells(probabilities)]
        for row, probabilities in zip(chunk, answer.probabilities_NC.tolist(), strict=True)
    ]


def _ended(task: TableTask, summary: TablePrediction, *, progress: Progress) -> TablePrediction:
    if summary.num_cut:
        progress.say(
            f"{in_percent(summary.num_cut / summary.num_texts)} of the texts are longer than "
            f"{task.data.max_length} tokens and were cut."
        )
    return summary


def _compressed(file: IO[bytes], out: Path) -> Any:
    """The file itself, or a gzip stream into it."""
    return zipped(file) if out.suffix.lower() == ".gz" else contextlib.nullcontext(file)


def _check_ours(out: Path, *, ending: str, num_columns: int, has_header: bool) -> None:
    """Raise DiskError if there is a file that no `regraft predict` wrote."""
    if not out.is_file() or not out.stat().st_size:
        return
    try:
        is_ours = any(
            _is_ours(first_cells(out, ending=ending, delimiter=sign), num_columns, has_header)
            for sign in (DELIMITERS if ending == ".csv" else ",")
        )
    except (DataError, OSError, UnicodeDecodeError, csv.Error):
        is_ours = False
    if not is_ours:
        raise DiskError(
            f"{out} exists, and no `regraft predict` wrote it: it has no column {LABEL_COLUMN!r}.",
            "Only earlier predictions are replaced.",
            remedy="Choose another --out, or delete the file.",
        )


def _is_ours(cells: Sequence[str] | None, num_columns: int, has_header: bool) -> bool:
    if cells is None or any(cell.startswith(LABEL_COLUMN) for cell in cells):
        return True
    # The second of several parts has no header, but probabilities in its last column.
    return not has_header and len(cells) == num_columns and bool(_SIX_DIGITS.fullmatch(cells[-1]))


_SIX_DIGITS = re.compile(r"([01]\.\d{6})?")
