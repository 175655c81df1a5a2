"""Exact and near duplicates, and the clean copies without them."""

import gzip
import json
from pathlib import Path

import pytest

from regraft.config.schema import DataSettings
from regraft.data.text.clean import drop_leaks
from regraft.data.text.duplicates import Leak, find_leaks, normalised, without_duplicates
from regraft.data.text.profile import profile
from regraft.data.text.readers import load_examples
from regraft.data.text.records import Document
from regraft.errors import DataError

DATA = DataSettings()
LONG = " ".join(f"word{number}" for number in range(60))


def documents(source: str, *texts: str) -> list[Document]:
    return [Document(text, source, row) for row, text in enumerate(texts, start=1)]


class Recorder:
    """A Progress that keeps what it is told."""

    def __init__(self) -> None:
        self.total: float | None = None
        self.moved = 0.0
        self.is_open = False

    def start(self, name: str, *, total: float | None) -> None:
        self.total, self.is_open = total, True

    def advance(self, amount: float = 1, *, note: str = "") -> None:
        self.moved += amount

    def finish(self) -> None:
        self.is_open = False

    def say(self, message: str) -> None: ...


def test_normalised_folds_space_and_composition_but_not_case() -> None:
    assert normalised("  un\tthe\u0301\u00a0noir\n") == "un thé noir"
    assert normalised("Good") != normalised("good")


def test_without_duplicates_keeps_the_first() -> None:
    items = documents("a", "one", "two", " one ", "Two")
    assert [item.row for item in without_duplicates(items)] == [1, 2, 4]


def test_find_leaks_reports_exact_rows_between_splits_only() -> None:
    train = documents("train", "one", "same", "same", "")
    valid = documents("valid", "two", " same")
    test = documents("test", "two", "same", "three", "three", "")
    assert find_leaks([train, valid, test]) == [
        Leak("exact", "valid", 2, "train", 2, 1.0),
        Leak("exact", "test", 2, "train", 2, 1.0),
        Leak("exact", "test", 1, "valid", 1, 1.0),
        Leak("exact", "test", 2, "valid", 2, 1.0),
    ]


def test_find_leaks_finds_near_duplicates_with_their_true_similarity() -> None:
    train = documents("train", "nothing of the kind", LONG)
    edited = LONG.replace("word30", "other")
    test = documents("test", LONG.upper() + "!", edited, "something else entirely", LONG[:200])
    leaks = find_leaks([train, test])
    assert [(leak.kind, leak.row, leak.other_row) for leak in leaks] == [
        ("near", 1, 2),
        ("near", 2, 2),
    ]
    # 58 shingles of three words; one word changed replaces three of them.
    assert leaks[1].similarity == pytest.approx(55 / 61)
    assert find_leaks([train, test], near=False) == []


def test_find_leaks_threshold_decides() -> None:
    half = " ".join(LONG.split()[:40])
    splits = [documents("train", LONG), documents("test", half)]
    assert find_leaks(splits, threshold=0.8) == []
    (leak,) = find_leaks(splits, threshold=0.6)
    assert leak.similarity == pytest.approx(38 / 58)


def test_find_leaks_compares_short_texts() -> None:
    leaks = find_leaks(
        [documents("train", "Great book", "?!"), documents("test", "great book!", "!")]
    )
    assert [(leak.kind, leak.row, leak.similarity) for leak in leaks] == [("near", 1, 1.0)]


def test_find_leaks_moves_its_progress() -> None:
    recorder = Recorder()
    find_leaks([documents("a", "x", "y"), documents("b", "z")], progress=recorder)
    assert (recorder.total, recorder.moved, recorder.is_open) == (3, 3, False)


def leaks_of(paths: list[Path], data: DataSettings = DATA) -> tuple[Leak, ...]:
    return profile(paths, data=data).leaks


def test_drop_leaks_keeps_a_csv_as_it_is_but_for_the_rows(tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_bytes(b"text,label\r\nsame,1\r\nother,0\r\n")
    test.write_bytes(b'id,text,label\n1,"two\nlines",1\n2,same,1\n3,"new, quoted",0\n')
    leaks = leaks_of([test, train])
    dropped = drop_leaks([train, test], data=DATA, out_dir=tmp_path / "clean", leaks=leaks)
    assert dropped == {str(train): 0, str(test): 1}
    assert (tmp_path / "clean" / "train.csv").read_bytes() == train.read_bytes()
    assert (tmp_path / "clean" / "test.csv").read_bytes() == (
        b'id,text,label\n1,"two\nlines",1\n3,"new, quoted",0\n'
    )


def test_drop_leaks_drops_a_record_of_many_lines(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('text\n"two\nlines"\n')
    (tmp_path / "test.csv").write_text('text\nnew\n"two\nlines"\nlast\n')
    paths = [tmp_path / "train.csv", tmp_path / "test.csv"]
    drop_leaks(paths, data=DATA, out_dir=tmp_path / "clean", leaks=leaks_of(paths))
    assert (tmp_path / "clean" / "test.csv").read_text() == "text\nnew\nlast\n"


def test_drop_leaks_keeps_every_key_of_zipped_jsonl(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": "same", "label": "a"}, {"id": 2, "text": "new", "label": "b"}]
    lines = [json.dumps(row) + "\n" for row in rows]
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl.gz"
    train.write_text(lines[0])
    test.write_bytes(gzip.compress("".join(lines).encode()))
    drop_leaks([train, test], data=DATA, out_dir=tmp_path / "clean", leaks=leaks_of([train, test]))
    clean = gzip.decompress((tmp_path / "clean" / "test.jsonl.gz").read_bytes()).decode()
    assert clean == lines[1]


def test_drop_leaks_keeps_an_spm_pair_a_pair(tmp_path: Path) -> None:
    for split, pieces, labels in (
        ("train", "▁s ame\n", "1\n"),
        ("test", "▁a\n▁same\n▁b\n", "0\n1\n1\n"),
    ):
        (tmp_path / f"{split}.review.spm").write_text(pieces, encoding="utf-8")
        (tmp_path / f"{split}.label").write_text(labels)
    paths = [tmp_path / "train.review.spm", tmp_path / "test.review.spm"]
    drop_leaks(paths, data=DATA, out_dir=tmp_path / "clean", leaks=leaks_of(paths))
    clean = load_examples(tmp_path / "clean" / "test.review.spm", data=DATA)
    assert [(e.text, e.label) for e in clean] == [("a", "0"), ("b", "1")]
    assert (tmp_path / "clean" / "train.label").read_text() == "1\n"


def test_drop_leaks_rewrites_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    paths = [tmp_path / "train.parquet", tmp_path / "test.parquet"]
    parquet.write_table(pyarrow.table({"text": ["same"], "id": [9]}), paths[0])
    parquet.write_table(pyarrow.table({"text": ["new", "same"], "id": [1, 2]}), paths[1])
    drop_leaks(paths, data=DATA, out_dir=tmp_path / "clean", leaks=leaks_of(paths))
    clean = parquet.read_table(tmp_path / "clean" / "test.parquet")
    assert clean.to_pydict() == {"text": ["new"], "id": [1]}


def test_drop_leaks_copies_folders_without_their_leaks(tmp_path: Path) -> None:
    for name, text in {"train/a/1": "same", "test/a/1": "same", "test/b/2": "new"}.items():
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    paths = [tmp_path / "train", tmp_path / "test"]
    dropped = drop_leaks(paths, data=DATA, out_dir=tmp_path / "clean", leaks=leaks_of(paths))
    assert dropped == {str(paths[0]): 0, str(paths[1]): 1}
    assert [p.name for p in (tmp_path / "clean" / "test").rglob("*.txt")] == ["2.txt"]


def test_drop_leaks_keeps_encoding_and_blank_separated_documents(tmp_path: Path) -> None:
    data = DataSettings(encoding="utf-16", documents="blank")
    paths = [tmp_path / "train.txt", tmp_path / "test.txt"]
    paths[0].write_bytes("thé\nnoir\n".encode("utf-16"))
    paths[1].write_bytes("thé\nnoir\n\ncafé\n".encode("utf-16"))
    drop_leaks(paths, data=data, out_dir=tmp_path / "clean", leaks=leaks_of(paths, data))
    assert (tmp_path / "clean" / "test.txt").read_bytes().decode("utf-16") == "\ncafé\n"


def test_drop_leaks_checks_every_file_before_it_writes_one(tmp_path: Path) -> None:
    train, valid, test = (tmp_path / f"{name}.csv" for name in ("train", "valid", "test"))
    train.write_text("text\nsame\nother\n")
    valid.write_text("text\nsame\nnew\n")
    test.write_text("text\nsame\n")
    paths = [train, valid, test]
    with pytest.raises(DataError, match=r"All 1 rows of .*test\.csv are also in an earlier split"):
        drop_leaks(paths, data=DATA, out_dir=tmp_path / "clean", leaks=leaks_of(paths))
    assert not (tmp_path / "clean").exists()


def test_drop_leaks_refuses_to_harm(tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("text\nsame\n")
    test.write_text("text\nsame\n")
    leaks = leaks_of([train, test])
    with pytest.raises(DataError, match=r"would replace .* itself"):
        drop_leaks([train, test], data=DATA, out_dir=tmp_path, leaks=leaks)
    with pytest.raises(DataError, match=r"All 1 rows of .* are also in an earlier split"):
        drop_leaks([train, test], data=DATA, out_dir=tmp_path / "clean", leaks=leaks)
    with pytest.raises(DataError, match=r"Two files are named 'train.csv'"):
        drop_leaks([train, train], data=DATA, out_dir=tmp_path / "clean", leaks=[])
    with pytest.raises(DataError, match="Standard input cannot be read twice"):
        drop_leaks(["-"], data=DATA, out_dir=tmp_path / "clean", leaks=[])
