"""Tables in, tables out: every column and row in order, in chunks, resumed and shared out."""

import csv
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow.parquet
import pytest
from clusters import local_cluster
from conftest import Recorder, make_examples
from tiny_classifiers import linear_dir

from regraft.classifiers import journal as journal_module
from regraft.classifiers import table_prediction
from regraft.classifiers.base import load_classifier
from regraft.classifiers.journal import ChunkAnswer, Journal, journal_folder
from regraft.classifiers.table_prediction import TableTask, predict_to_file, predict_to_stream
from regraft.data.text.table_rows import read_table_rows
from regraft.data.tokens.store import Part
from regraft.errors import ConfigError, DataError, DiskError
from regraft.runtime import SILENT

ADDED = ["predicted_label", "predicted_probability", "p(negative)", "p(positive)"]
FIVE = '''id,name,text,note,score
7,Ann,"a charming, vivid
book",=1+1,-3

8,Bob,dull and flat,"say ""hi""",+2
,,,,
9,"Ö",the ending is a bore,@x,0.5
10,Eve,,no text,1
'''
CELLS = [
    ["7", "Ann", "a charming, vivid\nbook", "=1+1", "-3"],
    ["", "", "", "", ""],
    ["8", "Bob", "dull and flat", 'say "hi"', "+2"],
    ["", "", "", "", ""],
    ["9", "Ö", "the ending is a bore", "@x", "0.5"],
    ["10", "Eve", "", "no text", "1"],
]
LABELS = ["positive", None, "negative", None, "negative", None]
ENDINGS = [".csv", ".tsv", ".jsonl", ".parquet", ".xlsx", ".csv.gz", ".parquet.gz"]


@pytest.fixture
def ask(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TableTask]:
    run_dir = linear_dir(tmp_path_factory)
    classifier = load_classifier(run_dir)

    def task(*paths: Path) -> TableTask:
        return TableTask(classifier, run_dir, paths, classifier.data)

    return task


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


def five(tmp_path: Path) -> Path:
    return write(tmp_path / "five.csv", FIVE)


def many(tmp_path: Path, num_rows: int = 40) -> Path:
    path = tmp_path / "many.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows((row, text) for row, (text, _) in enumerate(make_examples(num_rows)))
    return path


def records(path: Path) -> list[dict[str, Any]]:
    """A written table, read by another program than ours."""
    if path.suffix == ".gz":
        plain = path.with_suffix("")
        plain.write_bytes(gzip.decompress(path.read_bytes()))
        return records(plain)
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    if path.suffix == ".xlsx":
        head, *rows = openpyxl.load_workbook(path).active.iter_rows(values_only=True)
        return [dict(zip(head, row, strict=True)) for row in rows]
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file]
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


@pytest.mark.parametrize("ending", ENDINGS)
def test_all_columns_and_rows_come_back_in_order(
    ending: str, ask: Callable[..., TableTask], tmp_path: Path
) -> None:
    out = tmp_path / f"out{ending}"
    task = ask(five(tmp_path))
    found = predict_to_file(task, out)
    assert (found.num_rows, found.num_texts) == (6, 3)
    rows = records(out)
    assert [list(row) for row in rows] == [["id", "name", "text", "note", "score", *ADDED]] * 6
    is_guarded = ending.startswith((".csv", ".tsv"))
    for row, cells, label in zip(rows, CELLS, LABELS, strict=True):
        expected = [f"'{cell}" if is_guarded and cell[:1] in ("=", "@") else cell for cell in cells]
        assert [row[name] or "" for name in list(row)[:5]] == expected
        assert (row["predicted_label"] or None) == label
    texts = [cells[2] for cells in CELLS if cells[2]]
    expected_NC = task.classifier.predict_proba(texts)
    chances = [[float(row[name]) for name in ADDED[2:]] for row in rows if row[ADDED[0]]]
    assert np.array(chances) == pytest.approx(expected_NC, abs=1e-6)
    assert not journal_folder(out).exists()
    # The same table again gives the same bytes, and replaces the first one.
    before = out.read_bytes()
    predict_to_file(task, out)
    assert out.read_bytes() == before


def test_every_output_can_be_read_again(ask: Callable[..., TableTask], tmp_path: Path) -> None:
    first = tmp_path / "first.xlsx"
    predict_to_file(ask(five(tmp_path)), first)
    second = tmp_path / "second.jsonl"
    predict_to_file(ask(first), second)
    row = records(second)[0]
    assert list(row)[5:] == [*ADDED, *(f"{name}_2" for name in ADDED)]
    assert row["predicted_label"] == row["predicted_label_2"] == "positive"
    assert row["p(positive)"] == pytest.approx(row["p(positive)_2"])


def test_plain_lines_and_json_keep_their_rows(
    ask: Callable[..., TableTask], tmp_path: Path
) -> None:
    lines = write(tmp_path / "a.txt", "a charming book\n\ndull\n\n")
    objects = write(
        tmp_path / "b.jsonl",
        '{"text": "vivid", "n": 1}\n\n{"n": 2.5, "text": "flat", "tags": ["x"]}\n',
    )
    out = tmp_path / "out.jsonl"
    found = predict_to_file(ask(lines, objects), out)
    assert (found.num_rows, found.num_texts) == (7, 4)
    rows = records(out)
    assert [row["text"] for row in rows] == [
        *("a charming book", "", "dull", "", "vivid", None, "flat")
    ]
    assert [row["n"] for row in rows] == [None, None, None, None, 1, None, 2.5]
    assert rows[-1]["tags"] == ["x"]
    parquet = tmp_path / "out.parquet"
    predict_to_file(ask(objects), parquet)
    assert [row["n"] for row in records(parquet)] == [1.0, None, 2.5]
    assert records(parquet)[2]["tags"] == '["x"]'


def test_parquet_keeps_its_types(ask: Callable[..., TableTask], tmp_path: Path) -> None:
    schema = pyarrow.schema(
        [("id", pyarrow.int32()), ("text", pyarrow.large_string()), ("at", pyarrow.date32())]
    )
    table = pyarrow.Table.from_pylist([{"id": 1, "text": "vivid", "at": None}], schema=schema)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    out = tmp_path / "out.parquet"
    predict_to_file(ask(tmp_path / "a.parquet"), out)
    assert pyarrow.parquet.read_schema(out).types[:3] == schema.types


def test_folder_names_its_files(ask: Callable[..., TableTask], tmp_path: Path) -> None:
    (tmp_path / "texts" / "new").mkdir(parents=True)
    write(tmp_path / "texts" / "b.txt", "dull")
    write(tmp_path / "texts" / "new" / "a.txt", "vivid")
    predict_to_file(ask(tmp_path / "texts"), tmp_path / "out.csv")
    assert [row["file"] for row in records(tmp_path / "out.csv")] == ["b.txt", "new/a.txt"]


@pytest.mark.parametrize("num_parts", [2, 3, 50])
def test_parts_put_together_are_the_whole(
    num_parts: int, ask: Callable[..., TableTask], tmp_path: Path
) -> None:
    task = ask(many(tmp_path))
    for ending in (".csv", ".jsonl", ".tsv.gz"):
        predict_to_file(task, tmp_path / f"whole{ending}")
        parts = [tmp_path / f"part-{n}{ending}" for n in range(1, num_parts + 1)]
        for number, path in enumerate(parts, start=1):
            predict_to_file(task, path, part=Part(number, num_parts))
        predict_to_file(task, parts[0], part=Part(1, num_parts))  # a part can be written again
        contents = [path.read_bytes() for path in [tmp_path / f"whole{ending}", *parts]]
        if ending.endswith(".gz"):
            contents = [gzip.decompress(content) for content in contents]
        assert b"".join(contents[1:]) == contents[0]


class StopError(Exception):
    """Where a test stops a prediction."""


def stop_after(task: TableTask, num_calls: int) -> TableTask:
    """The same task, which fails when it is asked once too often."""

    class Stopping(type(task.classifier)):  # type: ignore[misc]
        num_left = num_calls

        def predict_proba(self, contents: Any, *, progress: Any = SILENT) -> Any:
            if not Stopping.num_left:
                raise StopError
            Stopping.num_left -= 1
            return super().predict_proba(contents, progress=progress)

    values = {name: getattr(task.classifier, name) for name in vars(task.classifier)}
    stopping = object.__new__(Stopping)
    stopping.__dict__.update(values)
    return replace(task, classifier=stopping)


@pytest.mark.parametrize("ending", ENDINGS)
def test_stopped_output_is_continued_byte_for_byte(
    ending: str, ask: Callable[..., TableTask], tmp_path: Path
) -> None:
    task = ask(many(tmp_path))
    predict_to_file(task, tmp_path / f"whole{ending}")
    out = tmp_path / f"out{ending}"
    with pytest.raises(StopError):
        predict_to_file(stop_after(task, 5), out)
    assert not out.exists()
    with (journal_folder(out) / "chunks").open("ab") as file:
        file.write(b"half a record")
    with pytest.raises(StopError):
        predict_to_file(stop_after(task, 3), out, resume=True)
    # 40 rows are 14 chunks, of which 8 are there.
    predict_to_file(stop_after(task, 6), out, resume=True)
    assert out.read_bytes() == (tmp_path / f"whole{ending}").read_bytes()
    assert not journal_folder(out).exists()


def test_other_input_or_part_is_not_continued(
    ask: Callable[..., TableTask], tmp_path: Path
) -> None:
    path, out = many(tmp_path), tmp_path / "out.csv"
    with pytest.raises(StopError):
        predict_to_file(stop_after(ask(path), 5), out)
    with pytest.raises(ConfigError, match="it has another shard"):
        predict_to_file(ask(path), out, part=Part(1, 2), resume=True)
    path.write_text(path.read_text() + "41,more\n")
    with pytest.raises(ConfigError, match="it has another input"):
        predict_to_file(ask(path), out, resume=True)
    assert journal_folder(out).exists()
    recorder = Recorder()
    predict_to_file(ask(path), out, progress=recorder)
    assert any("Starting over" in message for message in recorder.messages)
    assert len(records(out)) == 41


def test_output_of_a_live_process_is_left_alone(
    ask: Callable[..., TableTask], tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    task = ask(five(tmp_path))
    with Journal(out, about={}, num_labels=2) as journal:
        journal.open(resume=False)
        with pytest.raises(ConfigError, match="Another process"):
            predict_to_file(task, out)


def test_damaged_journal_counts_up_to_the_damage(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    answers = [ChunkAnswer(np.full((3, 2), value), 1) for value in (0.1, 0.2, 0.3)]
    with Journal(out, about={}, num_labels=2) as journal:
        journal.open(resume=False)
        for answer in answers:
            journal.append(answer)
    chunks = journal_folder(out) / "chunks"
    content = bytearray(chunks.read_bytes())
    content[-60] ^= 1
    chunks.write_bytes(bytes(content))
    with Journal(out, about={}, num_labels=2) as journal:
        journal.open(resume=True)
        assert (journal.num_chunks, journal.num_rows, journal.num_cut) == (2, 6, 2)
        journal.append(answers[0])
        last = [answer.probabilities_NC[0, 0] for answer in journal.answers()]
    assert last == [0.1, 0.2, 0.1]


@pytest.mark.parametrize("content", ["[]", "{}", "{"])
def test_journal_with_damaged_facts_is_not_continued(tmp_path: Path, content: str) -> None:
    out = tmp_path / "out.csv"
    with Journal(out, about={"input": "one"}, num_labels=2) as journal:
        journal.open(resume=False)
        journal.append(ChunkAnswer(np.full((3, 2), 0.5), 0))
    (journal_folder(out) / "about.json").write_text(content)
    with (
        Journal(out, about={"input": "one"}, num_labels=2) as journal,
        pytest.raises(ConfigError, match="it has another input"),
    ):
        journal.open(resume=True)


def test_journal_whose_removal_was_killed_has_no_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.csv"

    def killed(folder: Path, **options: Any) -> None:
        (folder / "about.json").unlink()

    monkeypatch.setattr(journal_module.shutil, "rmtree", killed)
    with Journal(out, about={"input": "one"}, num_labels=2) as journal:
        journal.open(resume=False)
        journal.append(ChunkAnswer(np.full((3, 2), 0.5), 0))
        journal.remove()
    with Journal(out, about={"input": "one"}, num_labels=2) as journal:
        assert not journal.open(resume=True)
        assert journal.num_rows == 0


def test_file_that_changes_while_it_is_read_is_refused(
    ask: Callable[..., TableTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = many(tmp_path), tmp_path / "out.csv"

    def growing(*arguments: Any, **options: Any) -> Any:
        yield from read_table_rows(*arguments, **options)
        with path.open("a") as file:
            file.write("41,more\n")

    with monkeypatch.context() as patch:
        patch.setattr(table_prediction, "read_table_rows", growing)
        with pytest.raises(DataError, match=r"many\.csv changed while it was read"):
            predict_to_file(ask(path), out)
    assert not out.exists()


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet", ".xlsx"])
def test_foreign_output_is_not_replaced(
    ending: str, ask: Callable[..., TableTask], tmp_path: Path
) -> None:
    out = write(tmp_path / f"notes{ending}", "my,own\nnotes,here\n")
    for part in (Part(1, 1), Part(2, 2)):
        with pytest.raises(DiskError, match="no `regraft predict` wrote it"):
            predict_to_file(ask(five(tmp_path)), out, part=part)
    assert out.read_text() == "my,own\nnotes,here\n"
    write(out, "")
    predict_to_file(ask(five(tmp_path)), out)
    assert len(records(out)) == 6


def test_cell_that_a_sheet_cannot_hold_is_found_before_the_work(
    ask: Callable[..., TableTask], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.csv", f"id,text\n1,vivid\n2,{'dull ' * 8000}\n")
    with pytest.raises(DataError, match="Row 3 has a cell of 40,000 characters"):
        predict_to_file(stop_after(ask(path), 0), tmp_path / "out.xlsx")


def test_two_columns_of_one_name_are_both_kept(
    ask: Callable[..., TableTask], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.csv", "x,text,x,,\n1,vivid,2,3,4\n")
    predict_to_file(ask(path), tmp_path / "out.csv")
    (row,) = records(tmp_path / "out.csv")
    assert list(row.items())[:5] == [
        *(("x", "1"), ("text", "vivid"), ("x_2", "2"), ("", "3"), ("_2", "4"))
    ]


@pytest.mark.slow
def test_killed_command_is_continued_byte_for_byte(
    ask: Callable[..., TableTask], tmp_path: Path
) -> None:
    path = many(tmp_path, num_rows=20_000)
    run_dir = ask(path).run_dir
    command = [sys.executable, "-m", "regraft", "predict", str(run_dir), str(path), "--out"]
    for ending in (".csv", ".parquet"):
        whole, out = tmp_path / f"whole{ending}", tmp_path / f"out{ending}"
        subprocess.run([*command, str(whole)], check=True, capture_output=True)
        chunks = journal_folder(out) / "chunks"
        # Killed as soon as its journal has grown, three times.
        for _ in range(3):
            before = chunks.stat().st_size if chunks.exists() else 0
            process = subprocess.Popen([*command, str(out), "--resume"], stderr=subprocess.DEVNULL)
            while process.poll() is None:
                if chunks.exists() and chunks.stat().st_size > before:
                    os.kill(process.pid, signal.SIGKILL)
                    break
            process.wait()
        done = subprocess.run([*command, str(out), "--resume"], check=True, capture_output=True)
        assert done.stdout == b""
        assert out.read_bytes() == whole.read_bytes()
        assert not journal_folder(out).exists()


@pytest.mark.slow
def test_cluster_with_a_killed_worker_writes_the_same_bytes(
    ask: Callable[..., TableTask], tmp_path: Path
) -> None:
    path = many(tmp_path, num_rows=20_000)
    task = ask(path)
    predict_to_file(task, tmp_path / "whole.csv")
    command = [sys.executable, "-m", "regraft", "predict", str(task.run_dir), str(path)]
    out, chunks = tmp_path / "out.csv", journal_folder(tmp_path / "out.csv") / "chunks"
    with local_cluster(tmp_path) as (address, workers):
        process = subprocess.Popen(
            [*command, "--out", str(out), "--cluster", address],
            stderr=subprocess.PIPE,
            text=True,
        )
        while process.poll() is None and not chunks.exists():
            time.sleep(0.01)
        workers[0].send_signal(signal.SIGKILL)
        _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_unsure_rows_have_no_label_and_top_k_replaces_the_other_columns(ask, tmp_path):
    path, out = tmp_path / "new.csv", tmp_path / "out.csv"
    path.write_text("text\ncharming vivid\n", encoding="utf-8")
    predict_to_file(replace(ask(path), abstain_below=1.0, top_k=1), out)
    header, row = csv.reader(out.read_text(encoding="utf-8").splitlines())
    assert header == ["text", "predicted_label", "predicted_probability", "top_1", "p(top_1)"]
    assert row[1] == ""
    assert row[3] in ("negative", "positive")
    assert row[2] == row[4]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("id,text\n7,a\n8,b\n,\n7,c\n", r"row 5 has the id '7' of .*t\.csv row 2"),
        ("id,text\n7,a\n,b\n", r"row 3 has a text, but nothing in the column 'id'"),
        ("key,text\n7,a\n", r"row 2 has no column 'id'\. It has key, text"),
    ],
)
def test_id_that_is_missing_or_not_unique_is_refused_before_the_work(ask, tmp_path, rows, message):
    task = replace(ask(write(tmp_path / "t.csv", rows)), id_column="id")
    with pytest.raises(DataError, match=message):
        predict_to_file(task, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_ids_of_its_own_in_every_row_pass(ask, tmp_path):
    task = replace(ask(five(tmp_path)), id_column="id")
    assert predict_to_file(task, tmp_path / "out.csv").num_rows == 6


def test_ids_of_a_stream_are_refused(ask):
    with pytest.raises(ConfigError, match="--id-column id cannot be checked in standard input"):
        predict_to_stream(replace(ask(Path("-")), id_column="id"), io.BytesIO(), ending=".csv")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_csv_keeps_delimiter_and_byte_order_mark(ask, tmp_path, delimiter, mark):
    rows = [f'{n}{delimiter}"{text}, a; b|c\nd"' for n, (text, _) in enumerate(make_examples(40))]
    source = write(tmp_path / "in.csv", mark + "\n".join([f"id{delimiter}text", *rows]) + "\n")
    task, whole = ask(source), tmp_path / "out.csv"
    for _ in range(2):  # the second replaces the first
        predict_to_file(task, whole)
    content = whole.read_text(encoding="utf-8")
    assert content.startswith(mark + delimiter.join(["id", "text", *ADDED]) + "\n")
    table = list(csv.reader(io.StringIO(content.removeprefix(mark)), delimiter=delimiter))
    assert [row[0] for row in table[1:]] == [str(n) for n in range(40)]
    parts = [tmp_path / f"part-{number}.csv" for number in (1, 2)]
    for number, part in enumerate(parts, start=1):
        predict_to_file(task, part, part=Part(number, 2))
        predict_to_file(task, part, part=Part(number, 2))
    assert b"".join(part.read_bytes() for part in parts) == whole.read_bytes()
    resumed = tmp_path / "resumed.csv"
    with pytest.raises(StopError):
        predict_to_file(stop_after(task, 3), resumed)
    predict_to_file(task, resumed, resume=True)
    assert resumed.read_bytes() == whole.read_bytes()
    predict_to_file(task, tmp_path / "out.tsv")
    assert (tmp_path / "out.tsv").read_text(encoding="utf-8").startswith("id\ttext\t")


def test_rows_left_without_a_label_are_counted(ask, tmp_path):
    task = replace(ask(five(tmp_path)), abstain_below=0.999)
    found = predict_to_file(task, tmp_path / "out.xlsx")
    assert (found.num_texts, found.num_abstained, found.abstain_below) == (3, 3, 0.999)
    sheet = openpyxl.load_workbook(tmp_path / "out.xlsx").active
    assert [cell.number_format for cell in sheet[2]][-3:] == ["0.000000"] * 3
    target = io.BytesIO()
    assert predict_to_stream(task, target, ending=".csv").num_abstained == 3
    assert predict_to_file(ask(five(tmp_path)), tmp_path / "out.csv").num_abstained == 0
