"""What `regraft data check` is told about files."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from regraft.config.schema import DataSettings
from regraft.data.text import readers
from regraft.data.text.profile import profile
from regraft.errors import DataError
from regraft.runtime.progress import Silent

DATA = DataSettings()


def write_jsonl(path: Path, *rows: tuple[str, str | None]) -> Path:
    records = [{"text": text} | ({"label": label} if label else {}) for text, label in rows]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_profile_counts_rows_labels_and_duplicates(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "all.jsonl", ("one two", "a"), ("", "b"), (" one  two", "b"), ("x", None)
    )
    (file,) = profile([path], data=DATA).files
    assert (file.num_rows, file.empty_rows, file.role) == (4, (2,), None)
    assert [(d.row, d.first_row) for d in file.duplicates] == [(3, 1)]
    assert file.label_counts == {"a": 1, "b": 2}
    assert file.num_unlabelled == 1


def test_profile_names_the_files_of_a_folder(tmp_path: Path) -> None:
    for name, text in {"a/1": "one", "a/2": "", "b/1": "one"}.items():
        path = tmp_path / "set" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (file,) = profile([tmp_path / "set"], data=DATA).files
    folder = tmp_path / "set"
    assert file.empty_sources == (str(folder / "a" / "2.txt"),)
    (twin,) = file.duplicates
    assert (twin.source, twin.first_source) == (str(folder / "b/1.txt"), str(folder / "a/1.txt"))
    (warning,) = profile([tmp_path / "set"], data=DATA).warnings
    assert f"{Path('a/1.txt')} 'a', {Path('b/1.txt')} 'b'" in warning


def test_profile_says_that_a_table_has_no_column_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("text,etiket\nfine,good\nbad,poor\n")
    (warning,) = profile([path], data=DATA).warnings
    assert "'text', 'etiket'" in warning
    assert "--label-column" in warning
    assert profile([path], data=DataSettings(label_column="etiket")).warnings == ()
    text = tmp_path / "a.txt"
    text.write_text("fine\nbad\n")
    assert profile([text], data=DATA).warnings == ()


def test_profile_quantiles_are_lengths_that_occur(tmp_path: Path) -> None:
    rows = [("w " * length, "a") for length in range(1, 101)]
    (file,) = profile([write_jsonl(tmp_path / "all.jsonl", *rows)], data=DATA).files
    assert file.words == {"p5": 5, "p25": 25, "p50": 50, "p75": 75, "p95": 95, "max": 100}


def test_profile_counts_the_cut_in_words_or_tokens(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "all.jsonl", ("a b c d e f g h i", "x"), ("abcdefghij", "y"))
    data = DataSettings(max_length=8)
    cut = profile([path], data=data).files[0].cut
    assert (cut.unit, cut.num_cut, cut.share) == ("words", 1, 0.5)
    cut = (
        profile([path], data=data, token_lengths=lambda texts: [len(t) for t in texts]).files[0].cut
    )
    assert (cut.unit, cut.num_cut, cut.share) == ("tokens", 2, 1.0)


def test_profile_orders_splits_by_their_names(tmp_path: Path) -> None:
    test = write_jsonl(tmp_path / "my-test.jsonl", ("same", "a"), ("new", "b"))
    dev = write_jsonl(tmp_path / "dev_set.jsonl", ("same", "a"), ("mine", "b"))
    train = write_jsonl(tmp_path / "Train.jsonl", ("same", "a"), ("other", "b"))
    found = profile([test, dev, train], data=DATA)
    assert [file.role for file in found.files] == ["train", "valid", "test"]
    assert found.leak_counts() == [
        {"source": str(dev), "other_source": str(train), "exact": 1, "near": 0},
        {"source": str(test), "other_source": str(train), "exact": 1, "near": 0},
        {"source": str(test), "other_source": str(dev), "exact": 1, "near": 0},
    ]


def test_profile_takes_the_order_given_without_roles(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "b.jsonl", ("same", "a"))
    second = write_jsonl(tmp_path / "a.jsonl", ("same", "a"))
    (leak,) = profile([first, second], data=DATA).leaks
    assert (leak.source, leak.other_source) == (str(second), str(first))


def test_profile_sees_files_of_one_role_as_one_split(tmp_path: Path) -> None:
    parts = [write_jsonl(tmp_path / f"train{n}.jsonl", ("same", "a"), ("b", "b")) for n in (1, 2)]
    assert profile(parts, data=DATA).leaks == ()


def test_profile_warns_of_odd_labels(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", ("one", "a"), ("two", "b"), ("three", None))
    test = write_jsonl(tmp_path / "test.jsonl", ("four", "c"))
    assert profile([train, test], data=DATA).warnings == (
        f"{train}: 1 rows have no label.",
        f"{test}: only one label, 'c'.",
        f"{test}: labels that do not occur in {train}: 'c'.",
    )


def test_profile_is_ready_for_json(tmp_path: Path) -> None:
    train = write_jsonl(tmp_path / "train.jsonl", ("same", "a"), ("two", "b"))
    test = write_jsonl(tmp_path / "test.jsonl", ("same", "a"))
    told = json.loads(json.dumps(profile([train, test], data=DATA, near=False).to_dict()))
    assert told["near_checked"] is False
    assert told["files"][1]["cut"]["max_length"] == DATA.max_length
    assert told["leaks"][0]["row"] == 1
    assert told["leak_counts"][0]["exact"] == 1


def test_profile_refuses_floats_and_empty_texts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"are floats, such as '0.5'"):
        profile([write_jsonl(tmp_path / "a.jsonl", ("x", "0.5"), ("y", "1"))], data=DATA)
    with pytest.raises(DataError, match=r"All texts of .* are empty"):
        profile([write_jsonl(tmp_path / "b.jsonl", ("", "a"))], data=DATA)


class Messages(Silent):
    """Keeps what is said before anything else is started."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.num_started = 0

    def say(self, message: str) -> None:
        if not self.num_started:
            self.said.append(message)

    def start(self, name: str, *, total: float | None) -> None:
        self.num_started += 1


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_memory_that_files_will_take_is_said_first(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_jsonl(tmp_path / "plain", *[(f"text {n}", None) for n in range(50)])
    path, other = tmp_path / name, tmp_path / "b.jsonl"
    packed = gzip.compress(content.read_bytes())
    path.write_bytes(packed if path.suffix == ".gz" else content.read_bytes())
    other.write_text('{"text": "another"}\n')
    monkeypatch.setattr(readers, "_MUCH_BYTES", 51 * 4_000)
    messages = Messages()
    profile([path, other], data=DATA, progress=messages)
    assert messages.said == [f"{path}, {other} will take about 0.0 GB of memory."]
    messages = Messages()
    profile([path, other], data=DATA, near=False, progress=messages)
    assert not messages.said


def test_gzip_bomb_of_many_lines_is_refused_before_a_row_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "train.txt.gz"
    path.write_bytes(gzip.compress(b"a\n" * (20 << 20)))
    tracemalloc.start()
    with pytest.raises(DataError, match="200 times larger when it is decompressed"):
        profile([path], data=DATA)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
