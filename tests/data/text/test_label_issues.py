"""Label issues as a file, what is accepted of them, and copies of data files with new labels."""

import gzip
import json
from pathlib import Path

import pytest

from regraft.config.resolution import resolve
from regraft.data.text.clean import relabel
from regraft.data.text.label_issues import (
    LabelIssue,
    accepted_issues,
    label_warnings,
    read_label_issues,
    write_label_issues,
)
from regraft.data.text.readers import load_examples
from regraft.data.text.records import Example
from regraft.errors import ConfigError, DataError

DATA = resolve("finetune").data


def issue(row: int, text: str, label: str, proposal: str, confidence: float = 0.9) -> LabelIssue:
    return LabelIssue(row, f"id-{row}", text, label, proposal, confidence)


ISSUES = [issue(3, "deux\nlignes", "bad", "good", 0.95), issue(2, 'a "quote", b', "good", "bad")]


def test_issues_come_back_from_disk(tmp_path: Path) -> None:
    write_label_issues(tmp_path / "issues.csv", ISSUES)
    assert read_label_issues(tmp_path / "issues.csv") == ISSUES
    write_label_issues(tmp_path / "none.csv", [])
    assert read_label_issues(tmp_path / "none.csv") == []


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        ("row,text\n1,a\n", "'id'"),
        ("row,id,text,label,proposal,confidence\none,,a,b,c,0.5\n", "line 2"),
        ("row,id,text,label,proposal,confidence\n1,,a,b\n", "too few fields"),
    ],
)
def test_file_that_holds_no_issues_is_refused(tmp_path: Path, content: str, fact: str) -> None:
    path = tmp_path / "issues.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=fact):
        read_label_issues(path)


def test_accepted_are_rows_or_confident_ones_or_all() -> None:
    assert accepted_issues(ISSUES) == ISSUES
    assert accepted_issues(ISSUES, rows=[2]) == ISSUES[1:]
    assert accepted_issues(ISSUES, min_confidence=0.92) == ISSUES[:1]


def test_accepting_what_is_not_there_is_refused() -> None:
    with pytest.raises(DataError, match="row 7"):
        accepted_issues(ISSUES, rows=[2, 7])
    with pytest.raises(DataError, match=r"0\.95"):
        accepted_issues(ISSUES, min_confidence=0.99)
    with pytest.raises(ConfigError, match="is 2"):
        accepted_issues(ISSUES, min_confidence=2)
    with pytest.raises(ConfigError, match="two ways"):
        accepted_issues(ISSUES, rows=[2], min_confidence=0.5)
    with pytest.raises(DataError, match="empty"):
        accepted_issues([])


def test_relabelled_csv_differs_in_the_labels_only(tmp_path: Path) -> None:
    path, out = tmp_path / "train.csv", tmp_path / "clean.csv"
    kept = 'id;label;text\r\n7;"good";"un\r\ndeux"\r\n'
    path.write_bytes((kept + '8;good;"a ""quote"", b"\r\n9; bad ;last').encode())
    examples = {e.row: e for e in load_examples(path, data=DATA)}
    assert [example.id for example in examples.values()] == ["7", "8", "9"]
    issues = [issue(3, 'a "quote", b', "good", "bad; really"), issue(4, "last", "bad", "good")]
    relabel(path, issues, data=DATA, out_path=out)
    changed = '8;"bad; really";"a ""quote"", b"\r\n9;good;last\n'
    assert out.read_bytes() == (kept + changed).encode()


def test_relabelled_json_keeps_the_type_of_the_label(tmp_path: Path) -> None:
    path, out = tmp_path / "train.jsonl.gz", tmp_path / "clean.jsonl.gz"
    rows = [{"text": f"t{n}", "label": n % 2, "more": [n]} for n in range(3)]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    relabel(path, [issue(2, "t1", "1", "0")], data=DATA, out_path=out)
    written = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    assert written == [rows[0], {**rows[1], "label": 0}, rows[2]]


def test_relabelled_fasttext_and_parquet(tmp_path: Path) -> None:
    path, out = tmp_path / "train.txt", tmp_path / "clean.txt"
    path.write_text("__label__a one two\n__label__b three\n", encoding="utf-8")
    relabel(path, [issue(2, "three", "b", "a")], data=DATA, out_path=out)
    assert out.read_text() == "__label__a one two\n__label__a three\n"
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, out = tmp_path / "train.parquet", tmp_path / "clean.parquet"
    parquet.write_table(pyarrow.table({"text": ["x", "y"], "label": [3, 4], "n": [1.5, 2.5]}), path)
    relabel(path, [issue(2, "y", "4", "3")], data=DATA, out_path=out)
    assert parquet.read_table(out).to_pydict() == {
        "text": ["x", "y"],
        "label": [3, 3],
        "n": [1.5, 2.5],
    }


def test_file_that_changed_since_is_refused(tmp_path: Path) -> None:
    path, out = tmp_path / "train.csv", tmp_path / "clean.csv"
    path.write_text("text,label\na,x\nb,y\n", encoding="utf-8")
    for wrong, fact in (
        (issue(2, "a", "y", "x"), "label is 'x', not 'y'"),
        (issue(2, "other", "x", "y"), "text is another"),
        (issue(9, "a", "x", "y"), "no example"),
    ):
        with pytest.raises(DataError, match=fact):
            relabel(path, [wrong], data=DATA, out_path=out)
    assert not out.exists()


def test_copy_keeps_its_place_and_format(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,label\na,x\nb,y\n", encoding="utf-8")
    for target, fact in ((path, "replace"), (tmp_path / "clean.jsonl", r"\.csv")):
        with pytest.raises(DataError, match=fact):
            relabel(path, [issue(2, "a", "x", "y")], data=DATA, out_path=target)
    with pytest.raises(DataError, match="cannot be copied"):
        relabel(tmp_path, [issue(2, "a", "x", "y")], data=DATA, out_path=tmp_path / "clean.csv")


def test_warnings_name_spellings_and_contradicting_rows() -> None:
    rows = [("a", "Good"), ("b", "good"), ("c", "go od"), (" a ", "bad"), ("d", "bad")]
    examples = [Example(text, label, "f.csv", row) for row, (text, label) in enumerate(rows, 2)]
    spelling, contradiction = label_warnings(examples)
    assert all(part in spelling for part in ("'Good' (1)", "'good' (1)", "'go od' (1)"))
    assert "row 2 'Good', row 5 'bad'" in contradiction
    assert label_warnings(examples[1:2] + examples[4:]) == []


def test_warnings_name_texts_without_any_label() -> None:
    sets = [("a", ("x", "y")), ("b", ()), ("c", ("x",)), ("d", ())]
    examples = [
        Example(text, "|".join(labels), "f.csv", row, labels=labels)
        for row, (text, labels) in enumerate(sets, 2)
    ]
    (warning,) = label_warnings(examples, separator="|")
    assert "without any label: row 3, 5." in warning
