"""Text to ids and back, with a tokenizer.json or the lab's dict.txt and SentencePiece model.

The special tokens of a foreign tokenizer come from its tokenizer_config.json.
"""

import json
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from regraft.data.tokens.lab import LAB_DICT_NAME, LAB_SPECIAL_TOKENS, SPACE, load_lab_tokenizer
from regraft.errors import DataError, RunFolderError
from regraft.runtime import (
    check_listed,
    fingerprint,
    parse_json,
    read_json,
    read_limits,
    write_json,
    write_text,
)

FILE_NAME = "tokenizer.json"
ROLES_NAME = "tokenizer_config.json"

SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "<sep>")
# The names under which each role is known: ours, then the lab's.
_PAD, _UNKNOWN, _START, _END = ("<pad>",), ("<unk>", "<oov>"), ("<s>", "<sos>"), ("</s>", "<eos>")
_MASK, _SEPARATOR = ("<mask>",), ("<sep>",)
# The keys under which Hugging Face names the token of a role, best first. Where padding has no
# token of its own (GPT-2), another is harmless: masks hide it.
_KEYS = {
    _PAD: ("pad_token", "eos_token", "sep_token"),
    _UNKNOWN: ("unk_token", "pad_token", "eos_token", "sep_token"),
    _START: ("cls_token", "bos_token", "eos_token", "sep_token"),
    _END: ("sep_token", "eos_token"),
    _MASK: ("mask_token",),
    _SEPARATOR: ("sep_token",),
}

# Words as GPT-2 splits them, with two changes: combining marks stay with their letters, and a word
# ends after 24 characters. WordPiece is cubic in the length of a word and calls it unknown beyond
# 100 bytes: a space and 24 characters of four bytes stay below.
_WORDS = (
    r"'(?i:[sdmt]|ll|ve|re)(?!\p{L})"
    r"| ?[\p{L}\p{M}]{1,24}| ?\p{N}{1,24}| ?[^\s\p{L}\p{M}\p{N}]{1,24}"
    r"|\s{1,24}(?!\S)|\s{1,24}"
)
# Words as a bag of them wants them: no spaces, and of all punctuation what can change a tone.
_WHOLE_WORDS = r"[\p{L}\p{M}\p{N}_]+|[!?]"
_ASCII_WORDS = re.compile("[a-z0-9_]+|[!?]")  # the same in lower-case ASCII
_ENCODE_CHUNK = 1_000  # texts; bounds the memory of the library's rich encodings
# What a sentence ends with, in the scripts that have such a mark.
_STOPS = (".", "!", "?", "\u2026", "\u3002", "\uff01", "\uff1f", "\u0964", "\u061f")


# The library warns when a process forks after its threads have run, and threads in the child could
# wait for ever. So a child starts with them switched off, unless the user has decided otherwise.
_PARALLELISM = "TOKENIZERS_PARALLELISM"
_UNTIL_FORKED: list[str] = []


def _before_fork() -> None:
    if _PARALLELISM not in os.environ:
        os.environ[_PARALLELISM] = "false"
        _UNTIL_FORKED.append(_PARALLELISM)


def _after_fork_in_parent() -> None:
    while _UNTIL_FORKED:
        os.environ.pop(_UNTIL_FORKED.pop(), None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent)


class Tokenizer:
    """Text to ids and back. Made by `train_tokenizer` or `load_tokenizer`."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """`source` names the file in errors.

        `special_tokens` (`cls_token`: `[CLS]`) gives the roles of tokens in a foreign tokenizer;
        its file defines the tokens around a text. Ours are known by name, and a text follows the
        start token.
        """
        self._inner = _without_specials_in_text(inner)
        self._special_tokens = special_tokens
        self.pad_id = self._required_id(_PAD, source=source)
        self.unknown_id = self._required_id(_UNKNOWN, source=source)
        self.start_id = self._required_id(_START, source=source)
        self.end_id = self._required_id(_END, source=source)
        self.mask_id = self._special_id(_MASK)
        self.separator_id = self._special_id(_SEPARATOR)
        self.prefix_ids, self.suffix_ids = (
            ((self.start_id,), ()) if special_tokens is None else _frame(inner)
        )
        separator_id = self.end_id if self.separator_id is None else self.separator_id
        self.pair_frame: tuple[tuple[int, ...], ...] = (
            ((self.start_id,), (separator_id,), (separator_id,))
            if special_tokens is None
            else _pair_frame(inner) or (self.prefix_ids, (separator_id,), self.suffix_ids)
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _without_specials_in_text(self._inner)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The id of each token."""
        return self._inner.get_vocab(with_added_tokens=True)

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included, and those that a vocabulary leaves out."""
        return max(self.vocabulary.values()) + 1

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal tokenizers, whatever the layout of their files."""
        parts = [json.loads(self._inner.to_str())]
        parts += [] if self._special_tokens is None else [dict(self._special_tokens)]
        return fingerprint(json.dumps(part, sort_keys=True) for part in parts)

    @cached_property
    def splits_at_spaces(self) -> bool:
        """Is a text encoded word by word, so that words can be encoded separately?

        Known of the tokenizers trained here: `_WORDS` looks no further than one character ahead,
        and lets nothing but blank space continue over a space or a newline.
        """
        layout = json.loads(self._inner.to_str())
        words = json.loads(byte_level(models.BPE()).to_str())["pre_tokenizer"]
        return (
            layout["pre_tokenizer"] == words
            and layout["normalizer"] is None
            and layout["model"].get("dropout") is None
            and layout["truncation"] is None
            and layout["padding"] is None
            and all(token["special"] for token in layout["added_tokens"])
        )

    @cached_property
    def splits_at_blanks(self) -> bool:
        """Are the ids of a text those of its chunks between blanks, concatenated?

        Known of whole words, which no blank is part of. NFC composes nothing with a blank.
        """
        inner, words = self._inner, whole_words(models.WordLevel())
        return (
            isinstance(inner.model, models.WordLevel)
            and inner.token_to_id(inner.model.unk_token) == self.unknown_id
            and _state(inner.normalizer) == _state(words.normalizer)
            and _state(inner.pre_tokenizer) == _state(words.pre_tokenizer)
            and inner.truncation is None
            and inner.padding is None
            and all(token.special for token in inner.get_added_tokens_decoder().values())
        )

    def encode_chunks(self, chunks: Sequence[str]) -> list[list[int]]:
        """The ids of many short texts without blanks, if it `splits_at_blanks`.

        An ASCII chunk is cut here: handing each to the library would take longer than reading it.
        """
        id_of, unknown = self.vocabulary.get, repeat(self.unknown_id)
        rows = [
            list(map(id_of, _ASCII_WORDS.findall(chunk.lower()), unknown))
            if chunk.isascii()
            else []
            for chunk in chunks
        ]
        others = [place for place, chunk in enumerate(chunks) if not chunk.isascii()]
        found = self.encode_batch([chunks[place] for place in others])
        for place, ids in zip(others, found, strict=True):
            rows[place] = ids
        return rows

    @cached_property
    def token_bytes(self) -> list[int]:
        """The number of bytes of each id, if `splits_at_spaces`."""
        return [len(self._inner.id_to_token(number) or "") for number in range(self.vocab_size)]

    def encode(self, text: str) -> list[int]:
        """The ids of a text; no special tokens are added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores; no special tokens are added."""
        rows: list[list[int]] = []
        for start in range(0, len(texts), _ENCODE_CHUNK):
            chunk = [without_surrogates(text) for text in texts[start : start + _ENCODE_CHUNK]]
            encodings = self._inner.encode_batch_fast(chunk, add_special_tokens=False)
            rows.extend(encoding.ids for encoding in encodings)
        return rows

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Start and stop of the characters of each id of `encode(text)`."""
        encoding = self._inner.encode(without_surrogates(text), add_special_tokens=False)
        return list(encoding.offsets)

    @property
    def num_framing(self) -> int:
        """How many special tokens surround a text."""
        return len(self.prefix_ids) + len(self.suffix_ids)

    def framed(self, ids: Sequence[int], *, max_length: int) -> list[int]:
        """A text as a classifier reads it: cut so that the tokens around it fit, too.

        Without surrounding tokens, an empty text is a start token: a row is never empty.
        """
        kept = ids[: max_length - self.num_framing]
        return [*self.prefix_ids, *kept, *self.suffix_ids] or [self.start_id]

    def framed_pair(
        self, first: Sequence[int], second: Sequence[int], *, max_length: int
    ) -> tuple[list[int], list[int]]:
        """Two texts as a classifier reads them, and token types: 1 from the second text on.

        `<s> A <sep> B <sep>`, as BERT has it; a tokenizer without `<sep>` takes its end token, one
        from elsewhere what its file says. If both do not fit, the longer one is truncated first.
        """
        before, between, behind = self.pair_frame
        room = max_length - sum(map(len, self.pair_frame))
        # To the token as the library cuts that reads exports: the shorter has half, rounded down.
        shorter = min(len(first), len(second), room // 2)
        if len(first) <= len(second):
            first, second = first[:shorter], second[: room - shorter]
        else:
            first, second = first[: room - shorter], second[:shorter]
        parts = ([*before, *first, *between], [*second, *behind])
        return [*parts[0], *parts[1]], [0] * len(parts[0]) + [1] * len(parts[1])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special ids are skipped."""
        return str(self._inner.decode(list(ids), skip_special_tokens=True))

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """A readable piece for each id: a space is shown as "▁", part of a letter as its bytes."""
        names = [self._inner.id_to_token(token_id) or f"<{token_id}>" for token_id in ids]
        special = {token.content for token in self._inner.get_added_tokens_decoder().values()}
        if not isinstance(self._inner.decoder, decoders.ByteLevel):
            return names
        return [name if name in special else _readable_bytes(name) for name in names]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of special tokens."""
        added = self._inner.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def word_joints(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """For every id: does it continue a word, and can the next id continue it?

        Two neighbours belong to one word if both are true, of the second and the first.
        """
        if isinstance(self._inner.model, models.WordLevel):  # every token is a whole word
            alone = np.zeros(self.vocab_size, dtype=bool)
            return alone, alone
        texts = self._texts_of_ids()
        continues = np.array([_is_of_word(text[:1]) for text in texts])
        can_be_continued = np.array([_is_of_word(text[-1:]) for text in texts])
        return continues, can_be_continued

    def sentence_ends(self) -> NDArray[np.bool_]:
        """For every id: may a sentence end with it?"""
        closing = "\"'\u2019\u201d\u00bb)]"
        texts = self._texts_of_ids()
        return np.array(
            ["\n" in text or text.rstrip().rstrip(closing).endswith(_STOPS) for text in texts]
        )

    def _texts_of_ids(self) -> list[str]:
        """The text of each id; "" of special ones, U+FFFD for bytes that are no character."""
        names = [self._inner.id_to_token(number) or "" for number in range(self.vocab_size)]
        # Added tokens are written as they are, not in the alphabet of bytes.
        written = self._inner.get_added_tokens_decoder().keys()
        if isinstance(self._inner.decoder, decoders.ByteLevel):
            names = [
                name if number in written else _bytes_of(name).decode("utf-8", "replace")
                for number, name in enumerate(names)
            ]
        return ["" if number in self.special_ids else name for number, name in enumerate(names)]

    def save(self, path: Path) -> None:
        """Write tokenizer.json and, for a foreign tokenizer, its special tokens."""
        if self._special_tokens is not None:
            # With a class, for AutoTokenizer reads this folder, too.
            roles = {"tokenizer_class": "PreTrainedTokenizerFast", **self._special_tokens}
            write_json(path.with_name(ROLES_NAME), roles)
        write_text(path, self._inner.to_str(pretty=True) + "\n")

    def _names(self, ours: Sequence[str]) -> Sequence[str]:
        """The tokens that may have a role, given their names in tokenizers made here."""
        if self._special_tokens is None:
            return ours
        keys = _KEYS[tuple(ours)]
        return [self._special_tokens[key] for key in keys if key in self._special_tokens]

    def _special_id(self, ours: Sequence[str]) -> int | None:
        found = (self._inner.token_to_id(name) for name in self._names(ours))
        return next((token_id for token_id in found if token_id is not None), None)

    def _required_id(self, ours: Sequence[str], *, source: str) -> int:
        token_id = self._special_id(ours)
        if token_id is None:
            raise DataError(
                f"The tokenizer {source} lacks the special token {' or '.join(ours)}.",
                f"It needs {' '.join(SPECIAL_TOKENS[:4])} or {' '.join(LAB_SPECIAL_TOKENS)}, or "
                f"{ROLES_NAME} next to it with {_KEYS[tuple(ours)][0]}.",
                remedy="Train one with `regraft tokenizer train`.",
            )
        return token_id


def _without_specials_in_text(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A review may contain "</s>": in a text it is text, never the special id.

    The library keeps this switch neither in tokenizer.json nor in a pickle.
    """
    inner.encode_special_tokens = True
    return inner


def _frame(inner: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The special ids that the file puts before and behind a text."""
    encoding = inner.encode("a")
    places = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
    first, stop = (places[0], places[-1] + 1) if places else (len(encoding), len(encoding))
    return tuple(encoding.ids[:first]), tuple(encoding.ids[stop:])


def _pair_frame(inner: tokenizers.Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The special ids that the file puts before, between and behind two texts.

    Empty for one that puts nothing between them, as GPT-2's: it would make one text of two.
    """
    encoding = inner.encode("a", "a")
    first, second = (
        [place for place, number in enumerate(encoding.sequence_ids) if number == text]
        for text in (0, 1)
    )
    before, behind = encoding.ids[: first[0]], encoding.ids[second[-1] + 1 :]
    between = encoding.ids[first[-1] + 1 : second[0]]
    return (tuple(before), tuple(between), tuple(behind)) if between else ()


def byte_level(model: models.Model) -> tokenizers.Tokenizer:
    """A model that reads the bytes of words, as all that are trained here do."""
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    return inner


def whole_words(model: models.Model) -> tokenizers.Tokenizer:
    """A model of lower-case words that drops everything between them."""
    inner = tokenizers.Tokenizer(model)
    # Turkish capital I with a dot becomes i and a combining dot: "\u0130\u015fte" is "i\u015fte".
    undotted = normalizers.Replace("i\u0307", "i")
    inner.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase(), undotted])
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(_WHOLE_WORDS), behavior="removed", invert=True)
    return inner


def _state(part: normalizers.Normalizer | pre_tokenizers.PreTokenizer | None) -> object:
    """Its JSON."""
    return None if part is None else part.__getstate__()


def without_surrogates(text: str) -> str:
    """A JSON file may hold half a surrogate pair, which is no character: shown as U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _byte_characters() -> dict[str, int]:
    """The printable character GPT-2's byte-level alphabet gives each byte, reversed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + rank): byte for rank, byte in enumerate(hidden)})
    return table


BYTES = _byte_characters()


def _bytes_of(name: str) -> bytes:
    return bytes(BYTES[character] for character in name)


def _is_of_word(character: str) -> bool:
    """A letter, a digit, a combining mark, or a part of a character that needs several bytes."""
    return (
        character.isalnum()
        or character == "\ufffd"
        or unicodedata.category(character or " ")[0] == "M"
    )


def _readable_bytes(name: str) -> str:
    data = _bytes_of(name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(chr(byte) if 0x21 <= byte < 0x7F else f"<{byte:02X}>" for byte in data)
    shown = (
        SPACE
        if character == " "
        else character
        if character.isprintable()
        else repr(character)[1:-1]
        for character in text
    )
    return "".join(shown)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """A tokenizer.json, a folder that holds one, or the lab's dict.txt or its folder."""
    try:
        return _load(Path(path))
    except OSError as error:
        raise DataError(
            f"Cannot read the tokenizer {error.filename}: {error.strerror}.",
            remedy="Check the path.",
        ) from error


def _load(path: Path) -> Tokenizer:
    # Not Path.is_dir, which raises for a name too long.
    if os.path.isdir(path):
        if (path / FILE_NAME).is_file():
            check_listed(path, (FILE_NAME, ROLES_NAME))
            return _load_json(path / FILE_NAME)
        if (path / LAB_DICT_NAME).is_file():
            return _load_lab(path / LAB_DICT_NAME)
        raise RunFolderError(
            f"The folder {path} holds no tokenizer.",
            f"Expected {FILE_NAME}, or the lab's {LAB_DICT_NAME} and SentencePiece model.",
            remedy="Give a run folder, or train one with `regraft tokenizer train`.",
        )
    if path.suffix == ".txt" and os.path.isfile(path):
        return _load_lab(path)
    return _load_json(path)


def _load_lab(dict_path: Path) -> Tokenizer:
    return Tokenizer(load_lab_tokenizer(dict_path), source=str(dict_path))


def _load_json(path: Path) -> Tokenizer:
    with path.open("rb") as file:  # not more than parse_json takes: it may be endless
        content = file.read(read_limits().whole_bytes + 1)
    special_tokens: Mapping[str, Any] = {}
    roles_path = path.with_name(ROLES_NAME)
    if roles_path.is_file():
        try:
            special_tokens = read_json(roles_path)
            _named_tokens(special_tokens)
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise DataError(
                f"{roles_path} cannot be read: {str(error)[:80]}.",
                "Expected a JSON object that names special tokens, such as pad_token.",
                remedy="Restore the file, or remove it if the tokenizer was trained here.",
            ) from error
    return parse_tokenizer(content, source=str(path), special_tokens=special_tokens)


def parse_tokenizer(
    content: str | bytes, *, source: str, special_tokens: Mapping[str, Any]
) -> Tokenizer:
    """A tokenizer from its JSON and, if given, its Hugging Face configuration."""
    try:
        parse_json(content)
        inner = tokenizers.Tokenizer.from_str(
            content if isinstance(content, str) else content.decode()
        )
        ids = inner.get_vocab(with_added_tokens=True).values()
        if len({*ids}) < len(ids):
            raise ValueError("two tokens have one id")
    except BaseException as error:
        # The library raises bare Exception for a wrong layout, or panics, which is not even one.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(
            f"{source} is not a tokenizer: {str(error)[:80]}.",
            "Expected the JSON layout of the `tokenizers` library.",
            remedy="Train one with `regraft tokenizer train`.",
        ) from error
    # Some files cut and fill up every text to the length their makers trained with.
    inner.no_truncation()
    inner.no_padding()
    return Tokenizer(inner, source=source, special_tokens=_named_tokens(special_tokens) or None)


def _named_tokens(values: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that have a role, each given as text or as a table."""
    keys = {key for keys in _KEYS.values() for key in keys if values.get(key)}
    return {
        key: values[key] if isinstance(values[key], str) else str(values[key]["content"])
        for key in sorted(keys)
    }
