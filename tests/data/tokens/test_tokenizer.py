"""Tokenizers: any text comes back, special ids stay special, files that are none are refused."""

import itertools
import pickle
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labs import TEXTS
from vocabularies import KINDS, trained

from regraft.data.tokens import tokenizer as tokenizer_module
from regraft.data.tokens.tokenizer import SPECIAL_TOKENS, Tokenizer, load_tokenizer
from regraft.errors import DataError, RunFolderError

# What Unicode has in store: emoji and flags, right to left, combining marks, control characters.
ODD_TEXTS = [
    "",
    " ",
    "   ",
    "\n\n\t \r\n",
    "👨\u200d👩\u200d👧 🇫🇷 👍🏽",
    "שלום עולם، مرحبا",
    "e\u0301te\u0301 a\u0308\u0323",
    "\x00\x07\x7f\x85\u2028\ufeff",
    "हिन्दी ไทย 中文 한국어",
    "  deux  blancs  ",
    "▁ Ġ ## <0x0A>",
    "x" * 3000 + " " * 3000 + "é" * 300,
    "\U0010ffff\ufffd",
]


@pytest.fixture(scope="module")
def tokenizers_by_kind() -> dict[str, Tokenizer]:
    return {kind: trained(kind) for kind in KINDS}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request, tokenizers_by_kind) -> Tokenizer:
    return tokenizers_by_kind[request.param]


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
@settings(max_examples=150, deadline=None)
def test_round_trip_holds_for_any_unicode(tokenizers_by_kind, kind, text):
    ids = tokenizers_by_kind[kind].encode(text)
    assert tokenizers_by_kind[kind].decode(ids) == text
    assert all(token_id >= len(SPECIAL_TOKENS) for token_id in ids)


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
def test_round_trip_holds_for_odd_texts(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_ids_are_the_first_six(tokenizer):
    named = (tokenizer.pad_id, tokenizer.unknown_id, tokenizer.start_id, tokenizer.end_id)
    assert (*named, tokenizer.mask_id, tokenizer.separator_id) == (0, 1, 2, 3, 4, 5)
    assert tokenizer.tokens(range(6)) == list(SPECIAL_TOKENS)


@pytest.mark.parametrize("name", SPECIAL_TOKENS)
def test_special_tokens_in_a_text_are_text(tokenizer, name):
    for text in (name, f"a review that says {name} twice{name}", f" {name} "):
        ids = tokenizer.encode(text)
        assert min(ids) >= len(SPECIAL_TOKENS)
        assert tokenizer.decode(ids) == text


def test_special_ids_are_those_without_text(tokenizer):
    assert tokenizer.special_ids == frozenset(range(len(SPECIAL_TOKENS)))
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode(" ".join([*TEXTS, *SPECIAL_TOKENS])))


def test_decode_skips_special_ids(tokenizer):
    ids = tokenizer.encode("le héros")
    framed = [tokenizer.start_id, *ids, tokenizer.end_id, tokenizer.pad_id]
    assert tokenizer.decode(framed) == "le héros"


def test_encode_batch_equals_encode(tokenizer):
    texts = [*TEXTS, *ODD_TEXTS] * 5  # more than one chunk
    assert len(texts) > tokenizer_module._ENCODE_CHUNK
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []


def test_half_a_surrogate_pair_becomes_the_replacement_character(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud83d b")) == "a\ufffd b"


def test_tokens_are_readable(tokenizers_by_kind):
    bpe = tokenizers_by_kind["bpe"]
    assert "".join(bpe.tokens(bpe.encode("le héros déçoit"))) == "le▁héros▁déçoit"
    assert bpe.tokens(bpe.encode("\n")) == ["\\n"]
    assert bpe.tokens(bpe.encode("☃")) == ["<E2>", "<98>", "<83>"]


def is_of_word(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character).startswith("M")


@pytest.mark.parametrize(
    "text",
    [
        *TEXTS[::9],
        "déçu, l'œil été2023 e\u0301te\u0301 naïvement",
        "中文字符 हिन्दी 👨\u200d👩\u200d👧 x👍y",
        "tabs\tand\nlines--dashes_under",
    ],
)
def test_word_joints_are_where_the_text_has_them(tokenizer, text):
    continues, can_be_continued = tokenizer.word_joints()
    encoding = tokenizer._inner.encode(text, add_special_tokens=False)
    # The library's own offsets judge, in characters; several tokens may be parts of one.
    for (one, (_, stop)), (other, (start, _)) in itertools.pairwise(
        zip(encoding.ids, encoding.offsets, strict=True)
    ):
        found = bool(can_be_continued[one] and continues[other])
        is_inside_character = start < stop
        if is_inside_character or (is_of_word(text[stop - 1]) and is_of_word(text[start])):
            assert found
        # Some bytes of a character do not say which: they are taken for a letter's.
        elif "\ufffd" not in tokenizer.decode([one]) + tokenizer.decode([other]):
            assert not found


def test_word_joints_never_cross_a_special_token(tokenizer):
    continues, can_be_continued = tokenizer.word_joints()
    special = sorted(tokenizer.special_ids)
    assert not continues[special].any()
    assert not can_be_continued[special].any()
    assert len(continues) == len(can_be_continued) == tokenizer.vocab_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Fin.", True),
        ("Quoi ?", True),
        ("Non !", True),
        ("Ah…", True),
        ("Une ligne\n", True),
        ("Une virgule,", False),
        ("le héros", False),
    ],
)
def test_sentence_ends_are_marks_and_newlines(tokenizers_by_kind, text, expected):
    bpe = tokenizers_by_kind["bpe"]
    # The mark may be several tokens of one byte each, none of which is a character.
    if "…" not in text or len(bpe.encode("…")) == 1:
        assert bpe.sentence_ends()[bpe.encode(text)[-1]] == expected


def test_sentence_ends_look_behind_closing_quotes():
    texts = ["« Il dit: assez.» (Puis rien.) Elle: 'non!'"] * 9
    bpe = trained("bpe", size=400, texts=texts)
    ends = bpe.sentence_ends()
    closed = [
        number
        for number, token in enumerate(bpe.tokens(range(400)[: bpe.vocab_size]))
        if token in (".»", ".)", "!'")
    ]
    assert len(closed) == 3
    assert ends[closed].all()
    assert not ends[sorted(bpe.special_ids)].any()


def test_save_and_load_give_the_same_tokenizer(tokenizer, tmp_path):
    path = tmp_path / "run" / "tokenizer.json"
    tokenizer.save(path)
    for place in (path, path.parent):
        again = load_tokenizer(place)
        assert again.fingerprint == tokenizer.fingerprint
        assert again.vocab_size == tokenizer.vocab_size
        assert again.encode_batch(ODD_TEXTS) == tokenizer.encode_batch(ODD_TEXTS)
        assert again.encode("</s>") == tokenizer.encode("</s>")
    assert [file.name for file in path.parent.iterdir()] == ["tokenizer.json"]


def test_pickled_tokenizer_gives_the_same_ids(tokenizer):
    again = pickle.loads(pickle.dumps(tokenizer))
    texts = [*ODD_TEXTS, "le héros</s><pad> <mask>", "</s>"]
    assert again.encode_batch(texts) == tokenizer.encode_batch(texts)
    assert tokenizer.end_id not in again.encode("fin</s>")


def test_load_takes_a_path_as_a_string(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(str(tmp_path)).fingerprint == tokenizer.fingerprint
    with pytest.raises(DataError, match=r"Cannot read the tokenizer x+: File name too long\."):
        load_tokenizer("x" * 300)


def test_load_refuses_what_is_no_tokenizer(tmp_path):
    for name in ("absent.json", "absent.txt"):
        with pytest.raises(DataError, match=rf"Cannot read the tokenizer .*{name}: No such file"):
            load_tokenizer(tmp_path / name)
    with pytest.raises(
        RunFolderError, match=r"The folder .* holds no tokenizer. Expected tokenizer"
    ):
        load_tokenizer(tmp_path)
    for name, content in (("text.json", "not JSON"), ("other.json", '{"a": 1}'), ("x.json", "")):
        (tmp_path / name).write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=rf"{name} is not a tokenizer"):
            load_tokenizer(tmp_path / name)


def test_load_refuses_a_tokenizer_without_special_tokens(tokenizers_by_kind, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizers_by_kind["bpe"].save(path)
    path.write_text(path.read_text(encoding="utf-8").replace("</s>", "<stop>"), encoding="utf-8")
    with pytest.raises(DataError, match="lacks the special token </s> or <eos>"):
        load_tokenizer(path)


def test_pair_is_cut_where_it_is_longer(tokenizers_by_kind):
    tokenizer = tokenizers_by_kind["bpe"]
    start, separator = tokenizer.start_id, tokenizer.separator_id
    for num_first, num_second in itertools.product(range(9), range(9)):
        first, second = [10] * num_first, [20] * num_second
        for max_length in (8, 9, 14, 30):
            ids, types = tokenizer.framed_pair(first, second, max_length=max_length)
            num_kept = ids.count(10), ids.count(20)
            assert sum(num_kept) == min(num_first + num_second, max_length - 3)
            assert ids == [
                *(start, *([10] * num_kept[0]), separator),
                *(*([20] * num_kept[1]), separator),
            ]
            assert types == [0] * (num_kept[0] + 2) + [1] * (num_kept[1] + 1)
            # Whichever was cut is not the shorter one by more than a token.
            if num_kept[0] < num_first:
                assert num_kept[0] >= num_kept[1] - 1
            if num_kept[1] < num_second:
                assert num_kept[1] >= num_kept[0] - 1


def test_a_forked_child_encodes_without_a_warning(tokenizers_by_kind, tmp_path):
    tokenizers_by_kind["bpe"].save(tmp_path / "tokenizer.json")
    script = """
import os, sys, warnings
from pathlib import Path
from regraft.data.tokens.tokenizer import load_tokenizer
warnings.simplefilter("ignore")  # Python 3.12 warns of any fork of a process with threads
tokenizer = load_tokenizer(Path(sys.argv[1]))
texts = ["le premier texte"] * 500
want = tokenizer.encode_batch(texts)
child = os.fork()
if child == 0:
    os._exit(0 if tokenizer.encode_batch(texts) == want else 1)
assert os.waitpid(child, 0)[1] == 0
assert "TOKENIZERS_PARALLELISM" not in os.environ
"""
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_module_loads_no_torch():
    code = "import sys, regraft.data.tokens.tokenizer; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return trained("words")


@pytest.mark.parametrize(
    "text", [*ODD_TEXTS, "Don't! a_1 \u0130x \u03a3\u03a3 \ud800 </s> q\u0301\x1cz"]
)
def test_whole_words_are_read_chunk_by_chunk(text, words):
    rows = words.encode_chunks(text.split())
    assert [*itertools.chain.from_iterable(rows)] == words.encode(text)


@settings(max_examples=200, deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=40), st.text("aB \n!?_.\u00a0\u2003\u0301\u0130\u03a3\u00df", max_size=40)
    )
)
def test_whole_words_of_any_text_are_read_chunk_by_chunk(text, words):
    rows = words.encode_chunks(text.split())
    assert [*itertools.chain.from_iterable(rows)] == words.encode(text)


def test_only_whole_words_are_known_to_split_at_blanks(tokenizers_by_kind, words):
    assert words.splits_at_blanks
    assert not any(tokenizer.splits_at_blanks for tokenizer in tokenizers_by_kind.values())
