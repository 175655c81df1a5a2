"""Every format read, and every bad input refused with its place."""

import gzip
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Recorder

from regraft.config.schema import DataSettings
from regraft.data.text.readers import (
    READERS,
    Row,
    check_readable,
    load_examples,
    read_documents,
    read_examples,
    register_reader,
)
from regraft.errors import ConfigError, DataError

DATA = DataSettings()


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def pairs(path: Path | str, data: DataSettings = DATA) -> list[tuple[str, str, int]]:
    return [(e.text, e.label, e.row) for e in load_examples(path, data=data)]


def texts(path: Path | str, data: DataSettings = DATA) -> list[tuple[str, int]]:
    return [(d.text, d.row) for d in read_documents([path], data=data)]


def refusal(path: Path | str, data: DataSettings = DATA) -> str:
    with pytest.raises(DataError) as caught:
        load_examples(path, data=data)
    assert caught.value.problem
    assert caught.value.remedy
    return str(caught.value)


def test_check_readable_leaves_the_content_unread(tmp_path: Path) -> None:
    for path in (write(tmp_path / "a.csv", b"\0\xff"), tmp_path, Path("-")):
        check_readable(path)
    with pytest.raises(DataError, match=r"unknown extension '\.doc'"):
        check_readable(write(tmp_path / "a.doc", "text"))
    with pytest.raises(DataError, match="There is no file or folder"):
        check_readable(tmp_path / "b.csv")


@pytest.mark.parametrize("zipped", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text,label\nfine,1\nbad,0\n"),
        ("a.csv", "label;text\r\n1;fine\r\n0;bad\r\n"),
        ("a.tsv", "text\tlabel\nfine\t1\nbad\t0\n"),
        ("a.jsonl", '\n{"text": "fine", "label": 1}\n{"text": "bad", "label": "0"}\n'),
        ("a.ndjson", '\n{"text": "fine", "label": 1}\n{"text": "bad", "label": "0"}'),
        ("a.txt", "\n__label__1 fine\n__label__0\tbad\n"),
    ],
)
def test_readers_give_the_same_examples(
    tmp_path: Path, name: str, content: str, zipped: str
) -> None:
    path = write(tmp_path / f"{name}{zipped}", content)
    assert pairs(path) == [("fine", "1", 2), ("bad", "0", 3)]
    assert texts(path) == [("fine", 2), ("bad", 3)]


def test_csv_row_is_a_record_however_many_lines(tmp_path: Path) -> None:
    content = 'label,text\na,"two\nlines, ""quoted"""\n\nb,"' + "long " * 60_000 + '"\n'
    read = pairs(write(tmp_path / "a.csv", content))
    assert read[0] == ('two\nlines, "quoted"', "a", 2)
    assert (read[1][1], read[1][2], len(read[1][0])) == ("b", 4, 300_000)


def test_columns_are_named_by_settings(tmp_path: Path) -> None:
    data = DataSettings(text_column="review", label_column="stars")
    path = write(tmp_path / "a.csv", "id,review,stars\n7,fine,5\n8,bad,1\n")
    assert pairs(path, data) == [("fine", "5", 2), ("bad", "1", 3)]


@pytest.mark.parametrize("zipped", [False, True])
def test_parquet_reads_numbers_and_names(tmp_path: Path, zipped: bool) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": ["fine", None, "bad"], "label": [1, 0, 0]})
    target = io.BytesIO()
    parquet.write_table(table, target)
    path = tmp_path / ("a.parquet.gz" if zipped else "a.parquet")
    write(path, target.getvalue())
    assert pairs(path) == [("fine", "1", 1), ("bad", "0", 3)]


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = write(tmp_path / "a.parquet", b"PAR1")
    with pytest.raises(ConfigError, match=r"pip install '\.\[parquet\]'"):
        pairs(path)


def test_parquet_refuses_another_format(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = write(tmp_path / "a.parquet", b"text,label\n")
    assert refusal(path).startswith(f"{path} is not a parquet file: ")


def test_rows_of_a_csv_are_those_of_a_spreadsheet(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '\ufefftext;label\n"a\n\nb";x\n\nc;y\n"d";z\n')
    assert pairs(path) == [("a\n\nb", "x", 2), ("c", "y", 4), ("d", "z", 5)]
    write(path, 'text;label\n"a\nb";x\nc;y;z\n')
    assert f"{path} row 3 has 3 fields" in refusal(path)
    write(path, 'text;label\n"a\nb";x\n"c\nd";y;z\n')
    assert f"{path} row 3 (lines 4 to 5: is a quote left open?) has 3 fields" in refusal(path)


def test_delimiter_may_be_a_bar(tmp_path: Path) -> None:
    assert pairs(write(tmp_path / "a.csv", "text|label\na, b|x\n")) == [("a, b", "x", 2)]


def test_examples_without_text_are_left_out_and_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\na,x\n" ",y\n"b\nc",y\n,x\n')
    progress = Recorder()
    found = load_examples(path, data=DATA, progress=progress)
    assert [(e.text, e.row) for e in found] == [("a", 2), ("b\nc", 4)]
    assert progress.messages == [f"note: {path}: left out 2 rows without text: 3, 5."]
    pair = DataSettings(pair_column="other")
    write(path, "text,other,label\na,b,x\n,b,y\n")
    assert [e.row for e in load_examples(path, data=pair)] == [2]


def test_plain_text_is_a_document_per_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one \u2028 still one\r\n\n  two\n")
    assert texts(path) == [("one \u2028 still one", 1), ("two", 3)]
    assert "is plain text and has no labels" in refusal(path)


def test_plain_text_splits_at_blank_lines_when_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\none\nmore\n \n\ntwo\n")
    assert texts(path, DataSettings(documents="blank")) == [("one\nmore", 2), ("two", 6)]


def test_plain_text_is_streamed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt.gz", b"good\n" * 5 + b"\xff\n")
    documents = read_documents([path], data=DATA)
    assert [next(documents).row for _ in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(DataError, match="line 6"):
        next(documents)


def test_folder_of_text_files_gives_documents(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "second\nline\n")
    write(tmp_path / "a.txt.gz", "first")
    write(tmp_path / ".hidden.txt", "never")
    documents = list(read_documents([tmp_path], data=DATA))
    assert [d.text for d in documents] == ["first", "second\nline"]
    assert documents[1].source == str(tmp_path / "b.txt")
    assert "has no .txt files in class folders" in refusal(tmp_path)


def test_folder_per_class_gives_examples(tmp_path: Path) -> None:
    write(tmp_path / "pos" / "1.txt", "fine")
    write(tmp_path / "neg" / "1.txt", "bad")
    write(tmp_path / "notes.txt", "about this set")
    assert pairs(tmp_path) == [("bad", "neg", 1), ("fine", "pos", 1)]
    assert len(texts(tmp_path)) == 3


def test_folder_without_text_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "text\nfine\n")
    assert "has no .txt files." in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("one\ntwo\n", [("one", 1), ("two", 2)]),
        ('\n{"text": "one"}\n', [("one", 2)]),
        ("__label__a one\n", [("one", 1)]),
    ],
)
def test_standard_input_is_recognised(
    content: str, expected: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert texts("-") == expected


def test_standard_input_is_named_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert refusal("-").startswith("standard input is empty.")


def test_spm_pair_is_decoded(tmp_path: Path) -> None:
    path = write(tmp_path / "train.review.spm", "▁Un ▁livre ▁magni fique .\n▁d ' accord\n")
    assert texts(path) == [("Un livre magnifique.", 1), ("d'accord", 2)]
    assert "there is no file" in refusal(path)
    write(tmp_path / "train.label", "1\n0\n")
    assert pairs(path) == [("Un livre magnifique.", "1", 1), ("d'accord", "0", 2)]


def test_spm_pair_of_two_lengths_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "train.review.spm", "▁a\n▁b\n")
    write(tmp_path / "train.label", "1\n")
    assert "train.label ends after row 1" in refusal(path)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8-sig", "cp1252"])
def test_encoding_is_chosen_by_settings(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "a.csv", "text,label\ncafé,1\nthé,0\n".encode(encoding))
    assert pairs(path, DataSettings(encoding=encoding)) == [("café", "1", 2), ("thé", "0", 3)]


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    assert pairs(write(tmp_path / "a.csv", "\ufefftext,label\nfine,1\n")) == [("fine", "1", 2)]


def test_missing_file_is_refused_with_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", "text\nfine\n")
    with pytest.raises(DataError, match=r"There is no file or folder .*train\.cvs.*Did you mean"):
        read_documents([tmp_path / "train.cvs"], data=DATA)


def test_missing_column_names_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "texte,label\nfine,1\n")
    assert refusal(path) == (
        f"{path} has no column 'text'. Its columns are 'texte', 'label'. "
        "Did you mean 'texte'? Pass --text-column NAME."
    )
    path = write(tmp_path / "b.csv", "text,class\nfine,1\n")
    assert refusal(path).endswith("Its columns are 'text', 'class'. Pass --label-column NAME.")
    path = write(tmp_path / "own.csv", "body,queue\nfine,1\n")
    assert refusal(path) == (
        f"{path} has no column 'text' and no 'label'. Its columns are 'body', 'queue'. "
        "Pass --text-column NAME --label-column NAME."
    )
    path = write(tmp_path / "c.jsonl", '{"text": "fine"}\n')
    assert "row 1 has no key 'label'. Its keys are 'text'." in refusal(path)
    path = write(tmp_path / "d.csv", "text,text,label\nfine,1,2\n")
    assert "has two columns named 'text'" in refusal(path)


def test_wrong_encoding_names_byte_and_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"text,label\nfine,1\ncaf\xe9 noir,0\n")
    assert refusal(path) == (
        f"{path} line 3 is not utf-8: byte 0xe9 at offset 21 (invalid continuation byte). "
        "Convert the file to UTF-8, or pass the --encoding it was saved in: cp1252 or latin-1 "
        "(western), cp1254 or iso8859-9 (Turkish), cp1250 (central European), cp1251 (Cyrillic). "
        "A wrong one is not always refused: look at a line first."
    )
    path = write(tmp_path / "b.csv", "text,label\nfine,1\n".encode("utf-16"))
    assert "pass --encoding utf-16" in refusal(path)
    path = write(tmp_path / "c.csv", "text,label\nfine,1\n".encode("utf-16") + b"\x00")
    assert "line 3 is not utf-16" in refusal(path, DataSettings(encoding="utf-16"))


def test_unknown_encoding_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nfine,1\n")
    assert "There is no text encoding 'utf-9'" in refusal(path, DataSettings(encoding="utf-9"))


def test_nul_bytes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b"text,label\nfine,1\nb\x00d,0\n")
    assert refusal(path).startswith(f"{path} line 3 contains a NUL byte.")
    path = write(tmp_path / "b.jsonl", '{"text": "b\\u0000d", "label": 1}\n')
    assert refusal(path).startswith(f"{path} row 1 contains a NUL byte.")


def test_ragged_csv_names_row_and_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nfine,1\nbad, very bad,0\n")
    assert f"{path} row 3 has 3 fields. The header has 2." in refusal(path)


def test_unclosed_quote_names_its_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\nfine,1\n"bad,0\ngood,1\n')
    assert f"{path} line 3 opens a quote that is never closed." in refusal(path)
    path = write(tmp_path / "b.csv", 'text,label\n"a "good" one",1\n')
    assert f"{path} line 2 is not valid csv" in refusal(path)
    path = write(tmp_path / "c.csv", 'text,label\n"bad,0\ngood,1\nfine,"1\n')
    assert "line 2" in refusal(path)


def test_invalid_json_names_its_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "fine", "label": 1}\n{"text": "bad" "label": 0}\n')
    assert f"{path} row 2 is not a JSON object: Expecting ',' delimiter" in refusal(path)
    path = write(tmp_path / "b.jsonl", '["fine", 1]\n')
    assert "row 1 is not a JSON object: it is a list" in refusal(path)


def test_json_values_of_other_types_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": 7, "label": 1}\n')
    assert f"The text of {path} row 1 is 7. Texts are strings." in refusal(path)
    path = write(tmp_path / "b.jsonl", '{"text": "fine", "label": ["a", "b"]}\n')
    assert f"The label of {path} row 1 is ['a', 'b']." in refusal(path)
    path = write(tmp_path / "c.jsonl", '{"text": "half \\ud83d", "label": 1}\n')
    assert "lone surrogate" in refusal(path)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt", "a.spm", "a.txt.gz"])
def test_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "")
    with pytest.raises(DataError, match="is empty"):
        list(read_documents([path], data=DATA))


def test_header_without_rows_is_refused(tmp_path: Path) -> None:
    assert "is empty." in refusal(write(tmp_path / "a.csv", "text,label\n"))


def test_all_texts_empty_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\n"",1\n" ",0\n')
    assert refusal(path).startswith(f"All texts of {path} are empty.")
    with pytest.raises(DataError, match="are empty"):
        list(read_documents([path], data=DATA))


def test_missing_label_names_its_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nfine,1\nbad,\n")
    assert refusal(path).startswith(f"{path} row 3 has no label.")
    path = write(tmp_path / "b.jsonl", '{"text": "fine", "label": null}\n')
    assert refusal(path).startswith(f"{path} row 1 has no label.")
    path = write(tmp_path / "c.txt", "__label__a fine\nbad\n")
    assert refusal(path).startswith(f"{path} row 2 has no label.")


def test_two_labels_in_a_line_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "__label__a __label__b fine\n")
    assert f"{path} row 1 has 2 labels, __label__a __label__b." in refusal(path)
    assert texts(path) == [("fine", 1)]


@pytest.mark.parametrize(
    ("labels", "is_refused"),
    [
        (["0.5", "3.7"], True),
        (["1", "2.5"], True),
        (["1.0", "0.0"], True),
        (["1", "2"], False),
        (["1.5", "none"], False),
    ],
)
def test_float_labels_are_refused(tmp_path: Path, labels: list[str], is_refused: bool) -> None:
    rows = [json.dumps({"text": "fine", "label": label}) for label in labels]
    path = write(tmp_path / "a.jsonl", "\n".join(rows))
    if is_refused:
        assert f"The labels of {path} are floats, such as" in refusal(path)
    else:
        assert len(list(read_examples(path, data=DATA))) == 2


def test_unknown_extension_lists_the_known(tmp_path: Path) -> None:
    problem = refusal(write(tmp_path / "a.odt", "x"))
    assert "'.odt'" in problem
    assert all(extension in problem for extension in READERS)


def test_registered_reader_is_used_and_forgotten(tmp_path: Path) -> None:
    path = write(tmp_path / "a.shout.gz", "good a book")

    @register_reader(".shout")
    def read_shout(
        path: Path, *, data: DataSettings, need_label: bool, whole: bool
    ) -> Iterator[Row]:
        label, _, text = gzip.decompress(path.read_bytes()).decode().partition(" ")
        yield Row(text.upper(), label, str(path), 1, 1)

    try:
        assert pairs(path) == [("A BOOK", "good", 1)]
    finally:
        READERS.unregister(".shout")
    assert "'.shout'" in refusal(path)


@pytest.mark.parametrize("extension", [".csv", ".txt", "xml", ".XML", ".gz"])
def test_reader_needs_a_new_extension(extension: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(repr(extension))):
        register_reader(extension)(READERS[".csv"])


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"fine\n" * 1000)[:-20])
    assert "is not a complete gzip file" in refusal(path)
    path.write_bytes(b"fine\n")
    assert "is not a complete gzip file" in refusal(path)
