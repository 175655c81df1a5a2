"""Text becomes a store in one pass: resumable, shared by jobs, flat in memory."""

import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Recorder, make_examples
from typer.testing import CliRunner

from regraft.apps.cli import app
from regraft.config.schema import DataSettings, TokenizerSettings
from regraft.data.text.records import Document
from regraft.data.tokens.store import Part, StoreFolder, StoreInfo, TokenStore, open_store
from regraft.data.tokens.store_writer import source_fingerprint, write_shards, write_store
from regraft.data.tokens.tokenizer import Tokenizer, load_tokenizer
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.errors import DataError

TEXTS = [text for text, _ in make_examples(60, seed=1)]
DATA = DataSettings()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, settings=TokenizerSettings(size=300))


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty texts fill nine shards of about four units."""
    monkeypatch.setattr("regraft.data.tokens.store_writer.SHARD_BYTES", 500)
    monkeypatch.setattr("regraft.data.tokens.store_writer.UNIT_BYTES", 120)
    # In this process: tests of others are in test_encoder.py.
    monkeypatch.setattr("regraft.data.tokens.encoding._num_workers", lambda: 1)


def built(path: Path | str, tokenizer: Tokenizer, store_dir: Path, data: DataSettings = DATA):
    write_store([path], data=data, tokenizer=tokenizer, store_dir=store_dir)
    return open_store(store_dir, tokenizer=tokenizer)


def documents_of(store: TokenStore) -> list[list[int]]:
    ids = store.read(0, store.num_tokens)
    return [part.tolist() for part in np.split(ids, store.offsets[1:-1])]


def framed(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [[tokenizer.start_id, *tokenizer.encode(text), tokenizer.end_id] for text in texts]


def contents(store_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store_dir.glob("shard-*")}


def write(path: Path, tokenizer: Tokenizer, store_dir: Path, part: Part | None = None):
    return write_store([path], data=DATA, tokenizer=tokenizer, store_dir=store_dir, part=part)


def test_store_holds_the_documents_of_the_files(documents_path, documents, tokenizer, tmp_path):
    store = built(documents_path, tokenizer, tmp_path / "store")
    assert documents_of(store) == framed(tokenizer, documents)
    assert store.num_bytes == sum(len(text.encode()) for text in documents)
    assert store.read(0, 1).dtype == np.uint16
    assert load_tokenizer(tmp_path / "store").fingerprint == tokenizer.fingerprint


def test_store_leaves_out_empty_documents(tmp_path, tokenizer):
    path = tmp_path / "texts.csv"
    path.write_text('text\na book\n"  "\nthe end\n', encoding="utf-8")
    store = built(path, tokenizer, tmp_path / "store")
    assert documents_of(store) == framed(tokenizer, ["a book", "the end"])
    assert store.num_bytes == len("a book") + len("the end")


def test_store_of_nothing_is_refused(tmp_path, tokenizer):
    info = StoreInfo(tokenizer.fingerprint, tokenizer.vocab_size, "x", {}, shard_bytes=50)
    with pytest.raises(DataError, match="every document is empty"):
        write_shards(
            [Document(" ", "x", 1)],
            info=info,
            tokenizer=tokenizer,
            store_dir=tmp_path / "store",
            part=Part(),
        )


def test_shards_end_where_their_text_is_full(documents_path, documents, tokenizer, tmp_path):
    written = write(documents_path, tokenizer, tmp_path / "store")
    folder = StoreFolder(tmp_path / "store")
    sizes = [folder.read_shard(n).num_bytes for n in range(1, written.num_shards + 1)]
    longest = max(len(text.encode()) for text in documents)
    assert len(sizes) > 5
    assert all(500 <= size < 500 + longest for size in sizes[:-1])
    assert sum(sizes) == written.num_new_bytes == sum(len(text.encode()) for text in documents)
    assert folder.missing(written.num_shards) == []


def test_jobs_together_write_the_same_bytes_as_one(documents_path, tokenizer, tmp_path):
    whole = write(documents_path, tokenizer, tmp_path / "whole")
    first = write(documents_path, tokenizer, tmp_path / "parts", Part(2, 2))
    assert first.num_new_shards == first.num_missing_shards - whole.num_shards % 2
    with pytest.raises(DataError, match=r"Shard 1 of .* with --shard 1/2"):
        open_store(tmp_path / "parts", tokenizer=tokenizer)
    second = write(documents_path, tokenizer, tmp_path / "parts", Part(1, 2))
    assert second.num_missing_shards == 0
    assert first.num_new_tokens + second.num_new_tokens == whole.num_new_tokens
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    one, other = (open_store(tmp_path / n, tokenizer=tokenizer) for n in ("whole", "parts"))
    assert one.fingerprint == other.fingerprint


def test_job_with_no_shard_of_its_own_is_done_at_once(documents_path, tokenizer, tmp_path):
    written = write(documents_path, tokenizer, tmp_path / "store", Part(99, 99))
    assert (written.num_new_shards, written.num_missing_shards) == (0, written.num_shards)


def test_removed_and_damaged_shards_are_written_again(documents_path, tokenizer, tmp_path):
    store_dir = tmp_path / "store"
    write(documents_path, tokenizer, store_dir)
    before = contents(store_dir)
    folder = StoreFolder(store_dir)
    untouched = folder.shard_path(1).stat().st_mtime_ns
    folder.shard_path(2).unlink()
    folder.shard_path(4).write_bytes(before["shard-00004.safetensors"][:-1])
    folder.shard_path(5).write_bytes(before["shard-00005.safetensors"][:-1] + b"\xff")
    assert write(documents_path, tokenizer, store_dir).num_new_shards == 3
    assert contents(store_dir) == before
    assert folder.shard_path(1).stat().st_mtime_ns == untouched


def test_complete_store_is_not_read_again(documents_path, tokenizer, tmp_path):
    write(documents_path, tokenizer, tmp_path / "store")
    progress = Recorder()
    written = write_store(
        [documents_path],
        data=DATA,
        tokenizer=tokenizer,
        store_dir=tmp_path / "store",
        progress=progress,
    )
    assert written.num_new_shards == 0
    assert progress.tasks == ["hash text"]


def test_interrupted_job_goes_on_where_it_stopped(documents_path, tokenizer, tmp_path):
    write(documents_path, tokenizer, tmp_path / "whole")
    info = StoreFolder(tmp_path / "whole").read_info()
    documents = [Document(text, "x", row) for row, text in enumerate(TEXTS)]

    def cut_short() -> Iterator[Document]:
        yield from documents[:40]
        raise KeyboardInterrupt

    def run(documents) -> int:
        return write_shards(
            documents,
            info=info,
            tokenizer=tokenizer,
            store_dir=tmp_path / "store",
            part=Part(),
        ).num_new_shards

    with pytest.raises(KeyboardInterrupt):
        run(cut_short())
    num_done = len(contents(tmp_path / "store"))
    assert 2 < num_done < len(contents(tmp_path / "whole")) - 2
    with pytest.raises(DataError, match="not complete"):
        open_store(tmp_path / "store", tokenizer=tokenizer)
    assert run(documents) == len(contents(tmp_path / "whole")) - num_done
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


class Counted(str):
    """A text that knows how many of its kind are alive."""

    num_alive = 0

    def __new__(cls, text: str) -> "Counted":
        cls.num_alive += 1
        return super().__new__(cls, text)

    def __del__(self) -> None:
        type(self).num_alive -= 1


def test_memory_holds_a_unit_of_text_however_long_it_is(tokenizer, tmp_path):
    most_alive = 0

    def endless(num_documents: int) -> Iterator[Document]:
        nonlocal most_alive
        for row in range(num_documents):
            yield Document(Counted(f"the book number {row} is good"), "x", row)
            most_alive = max(most_alive, Counted.num_alive)

    info = StoreInfo(tokenizer.fingerprint, tokenizer.vocab_size, "x", {}, shard_bytes=500)
    alive = []
    for number, num_documents in enumerate((100, 2000)):
        most_alive = 0
        write_shards(
            endless(num_documents),
            info=info,
            tokenizer=tokenizer,
            store_dir=tmp_path / str(number),
            part=Part(),
        )
        alive.append(most_alive)
    assert alive[0] == alive[1] < 40


def test_store_of_another_tokenizer_is_refused_before_text_is_read(
    documents_path, tokenizer, tmp_path
):
    write(documents_path, tokenizer, tmp_path / "store")
    other = train_tokenizer(["other words"], settings=TokenizerSettings(size=270))
    progress = Recorder()
    with pytest.raises(DataError, match=r"made with another tokenizer, of 300 tokens"):
        write_store(
            [documents_path],
            data=DATA,
            tokenizer=other,
            store_dir=tmp_path / "store",
            progress=progress,
        )
    assert progress.tasks == []


def test_store_of_other_text_is_refused(documents_path, tokenizer, tmp_path):
    write(documents_path, tokenizer, tmp_path / "store")
    documents_path.write_text(documents_path.read_text() + "One more line.\n")
    with pytest.raises(DataError, match=r"made from other text.*same files in the same order"):
        write(documents_path, tokenizer, tmp_path / "store")


def test_store_read_in_another_way_is_refused(documents_path, tokenizer, tmp_path):
    write(documents_path, tokenizer, tmp_path / "store")
    with pytest.raises(DataError, match=r"made with --documents line, not blank\."):
        write_store(
            [documents_path],
            data=DataSettings(documents="blank"),
            tokenizer=tokenizer,
            store_dir=tmp_path / "store",
        )


def test_start_that_came_to_no_shard_can_be_repeated_differently(tmp_path, tokenizer):
    path = tmp_path / "latin.txt"
    path.write_bytes("un été\n".encode("latin-1"))
    with pytest.raises(DataError, match="pass the --encoding it was saved in: cp1252 or latin-1"):
        write(path, tokenizer, tmp_path / "store")
    store = built(path, tokenizer, tmp_path / "store", DataSettings(encoding="latin-1"))
    assert documents_of(store) == framed(tokenizer, ["un été"])


def test_folder_of_something_else_is_left_alone(documents_path, tokenizer, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    for place in (tmp_path / "folder", documents_path):
        with pytest.raises(DataError, match=r"neither a token store nor an empty folder"):
            write(documents_path, tokenizer, place)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["notes.txt"]


def test_standard_input_is_read_once_only(monkeypatch, tokenizer, tmp_path):
    def give(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    give("a book\nthe end\n")
    store = built("-", tokenizer, tmp_path / "store")
    assert documents_of(store) == framed(tokenizer, ["a book", "the end"])
    with pytest.raises(DataError, match=r"Standard input can be read once only"):
        write_store(["-"], data=DATA, tokenizer=tokenizer, store_dir=tmp_path / "store")
    with pytest.raises(DataError, match=r"Parts of a store.*Save the text to a file"):
        write_store(
            ["-"], data=DATA, tokenizer=tokenizer, store_dir=tmp_path / "new", part=Part(1, 2)
        )


def test_source_fingerprint_sees_bytes_order_and_kind(tmp_path):
    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    one, two = written("one.txt", "text\nab"), written("two.txt", "c")
    cut = [written("cut_one.txt", "text\na"), written("cut_two.txt", "bc")]
    renamed = written("one.csv", "text\nab")
    folder = [written("folder/one.txt", "text\nab"), written("folder/two.txt", "c")]
    copies = [[one, two], [str(one), two], folder, [tmp_path / "folder"]]
    assert len({source_fingerprint(paths) for paths in copies}) == 1
    others = [[two, one], [one], cut, [renamed, two]]
    assert len({source_fingerprint(paths) for paths in [*others, copies[0]]}) == 5
    with pytest.raises(DataError, match="There is no file"):
        source_fingerprint([tmp_path / "missing.txt"])


def test_progress_knows_the_size_of_zipped_text(tokenizer, tmp_path, documents):
    class Totals(Recorder):
        totals: list[float | None] = []  # noqa: RUF012
        num_done = 0.0

        def start(self, name: str, *, total: float | None) -> None:
            super().start(name, total=total)
            self.totals.append(total)
            self.num_done = 0

        def advance(self, amount: float = 1, *, note: str = "") -> None:
            super().advance(amount, note=note)
            self.num_done += amount

    text = "\n".join(documents * 5) + "\n"
    path = tmp_path / "documents.txt.gz"
    path.write_bytes(gzip.compress(text.encode()))
    progress = Totals()
    for part in (Part(1, 2), Part()):
        write_store(
            [path],
            data=DATA,
            tokenizer=tokenizer,
            store_dir=tmp_path / "store",
            part=part,
            progress=progress,
        )
        assert progress.totals == [os.path.getsize(path), len(text)]
        assert progress.num_done == len(text) - text.count("\n")
        progress.totals.clear()


def run(*arguments: object):
    return CliRunner().invoke(app, ["tokenize", *map(str, arguments)])


def test_command_writes_a_store(documents_path, tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    arguments = (documents_path, "--tokenizer", tmp_path / "tokenizer.json", "--out")
    part = run(*arguments, tmp_path / "store", "--shard", "1/2")
    assert part.exit_code == 0
    assert "shards are left to other jobs" in part.stdout
    whole = run(*arguments, tmp_path / "store")
    assert "60 documents" in whole.stdout
    assert "MB/s" in whole.stdout
    result = json.loads(run(*arguments, tmp_path / "store", "--json").stdout)
    store = open_store(tmp_path / "store", tokenizer=tokenizer)
    assert result["num_tokens"] == store.num_tokens
    assert result["bytes_per_token"] == pytest.approx(store.num_bytes / store.num_tokens)
    assert (result["num_new_shards"], result["num_missing_shards"]) == (0, 0)


def test_command_refuses_a_job_that_does_not_exist(documents_path, tmp_path):
    result = run(documents_path, "--tokenizer", "x", "--out", tmp_path / "a", "--shard", "5/4")
    assert result.exit_code == 2
    assert "There is no shard '5/4'." in result.stderr
    assert not (tmp_path / "a").exists()
