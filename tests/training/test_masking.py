"""What is hidden: how much, which, by what, and that only the Moment decides."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_examples

from regraft.config.resolution import resolve
from regraft.config.schema import ObjectiveSettings, TokenizerSettings
from regraft.data.rows import IGNORED
from regraft.data.tokens.tokenizer import Tokenizer
from regraft.data.tokens.tokenizer_training import numbered_tokenizer, train_tokenizer
from regraft.errors import ConfigError
from regraft.training.masking import SPAN_LENGTH, Corruption, Moment, build_corruption

NUMBERED = numbered_tokenizer(40)
NUM_SPECIAL = 6
MASK = NUMBERED.mask_id


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    """So few merges that most words are several tokens."""
    texts = [text for text, _ in make_examples(60, seed=1)]
    return train_tokenizer(texts, settings=TokenizerSettings(size=280))


def corruption(tokenizer: Tokenizer = NUMBERED, **settings: Any) -> Corruption:
    return build_corruption(ObjectiveSettings(kind="masked", **settings), tokenizer=tokenizer)


def moment(num_rows: int, **changes: Any) -> Moment:
    values: dict[str, Any] = {"seed": 0, "step": 0, "rows": np.arange(num_rows), "done": 0.0}
    return Moment(**{**values, **changes})


def text(num_rows: int, length: int, *, special_share: float = 0.0) -> torch.Tensor:
    """Random ordinary ids, with special ones in between."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(NUM_SPECIAL, 40, (num_rows, length), generator=generator)
    special = torch.randint(1, NUM_SPECIAL, (num_rows, length), generator=generator)
    is_special = torch.rand(num_rows, length, generator=generator) < special_share
    return special.where(is_special, ids)


def hide(
    hidden_by: Corruption, ids: torch.Tensor, *, real: torch.Tensor | None = None, **changes: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    return hidden_by.hide(ids, real_BT=real, moment=moment(len(ids), **changes))


def five_errors(share: float, count: int) -> float:
    """Five standard errors of a share of so many."""
    return 5 * (share * (1 - share) / count) ** 0.5


def test_hide_chooses_15_percent_and_replaces_80_10_10():
    ids = text(300, 512, special_share=0.1)
    lengths = 300 + torch.arange(300).unsqueeze(1) * 37 % 213
    # Padding is what the mask says, whatever stands there.
    real = torch.arange(512) < lengths
    hidden, targets = hide(corruption(), ids, real=real)
    maskable = real & (ids >= NUM_SPECIAL)
    assert int(maskable.sum()) > 100_000
    chosen = targets != IGNORED
    assert not (chosen & ~maskable).any()
    assert torch.equal(targets[chosen], ids[chosen])
    assert torch.equal(hidden[~chosen], ids[~chosen])
    # Rounded to a whole token in each row, so more exact than drawn for each token.
    num_chosen = int(chosen.sum())
    assert num_chosen / int(maskable.sum()) == pytest.approx(0.15, abs=0.0005)
    becomes_mask = (hidden == MASK) & chosen
    assert int(becomes_mask.sum()) / num_chosen == pytest.approx(
        0.8, abs=five_errors(0.8, num_chosen)
    )
    # A random token is the same by chance in one of 34 cases.
    stays = (hidden == ids) & chosen
    share = 0.1 + 0.1 / 34
    assert int(stays.sum()) / num_chosen == pytest.approx(share, abs=five_errors(share, num_chosen))


def test_hide_takes_every_ordinary_token_as_often_as_any_other():
    ids = torch.full((200, 512), NUM_SPECIAL)
    hidden, targets = hide(corruption(mask_rate=0.5), ids)
    chosen = targets != IGNORED
    counts = hidden[chosen].bincount(minlength=40)
    assert counts[:NUM_SPECIAL].tolist() == [0, 0, 0, 0, int(counts[MASK]), 0]
    expected = int(chosen.sum()) * 0.1 / 34
    others = counts[NUM_SPECIAL + 1 :]
    # Pearson's chi square of 33 classes: mean 33, deviation 8.
    assert ((others - expected) ** 2 / expected).sum() < 33 + 5 * 8


def test_hide_chooses_every_place_as_often_as_any_other():
    targets = hide(corruption(), text(2000, 50))[1]
    counts = (targets != IGNORED).sum(dim=0)
    expected = 2000 * 8 / 50
    assert int(counts.sum()) == 2000 * 8
    assert ((counts - expected) ** 2 / expected).sum() < 49 + 5 * 10


def test_what_is_hidden_and_what_takes_its_place_are_independent():
    # The same number for both would hide the first places only, or make all of them <mask>.
    here = moment(200)
    streams = [here.uniform(500, stream=name).flatten() for name in ("what is hidden", "which")]
    assert torch.corrcoef(torch.stack(streams))[0, 1].abs() < 5 / 100_000**0.5


@pytest.mark.parametrize("masking", ["token", "word", "span"])
@pytest.mark.parametrize("rate", [0.001, 0.15, 0.5, 0.999])
@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_hide_chooses_at_least_one_and_as_many_as_said(masking, rate, length):
    targets = hide(corruption(mask_rate=rate, masking=masking), text(60, length))[1]
    num_chosen = (targets != IGNORED).sum(dim=1)
    wanted = max(round(length * rate), 1)
    if masking == "span":
        assert num_chosen.min() >= 1
        assert num_chosen.max() <= 2 * wanted
    else:  # every number is a word
        assert (num_chosen == wanted).all()


@pytest.mark.parametrize("masking", ["token", "word", "span"])
def test_row_without_an_ordinary_token_stays_as_it_is(masking):
    ids = text(3, 9)
    ids[1] = torch.tensor([2, 3, 1, 5, 4, 2, 3, 0, 0])
    ids[2, 1:] = 3
    real = torch.ones_like(ids, dtype=torch.bool)
    real[1, 7:] = False
    hidden, targets = hide(corruption(masking=masking, mask_rate=0.9), ids, real=real)
    assert torch.equal(hidden[1], ids[1])
    assert (targets[1] == IGNORED).all()
    # One ordinary token is a target always.
    assert targets[2].tolist() == [int(ids[2, 0]), *[IGNORED] * 8]


def word_numbers(tokenizer: Tokenizer, ids: torch.Tensor) -> torch.Tensor:
    """The number of the word that each token belongs to; special tokens stand alone."""
    continues, can_be_continued = (torch.from_numpy(flags) for flags in tokenizer.word_joints())
    is_joint = can_be_continued[ids[:, :-1]] & continues[ids[:, 1:]]
    return torch.nn.functional.pad((~is_joint).long().cumsum(dim=1), (1, 0))


def real_text(tokenizer: Tokenizer, *, num_rows: int, length: int) -> torch.Tensor:
    rows = tokenizer.encode_batch([text for text, _ in make_examples(num_rows * 8, seed=1)])
    stream = [token for row in rows for token in (tokenizer.start_id, *row, tokenizer.end_id)]
    return torch.tensor(stream[: num_rows * length]).view(num_rows, length)


def test_word_masking_hides_whole_words_and_keeps_the_rate(words):
    ids = real_text(words, num_rows=400, length=256)
    assert ids.numel() > 100_000
    targets = hide(corruption(words, masking="word"), ids)[1]
    chosen = targets != IGNORED
    numbers, maskable = word_numbers(words, ids), ids >= NUM_SPECIAL
    sizes, num_chosen = (
        torch.zeros_like(ids).scatter_add_(1, numbers, flags.long()) for flags in (maskable, chosen)
    )
    assert ((num_chosen == 0) | (num_chosen == sizes)).all()
    assert sizes.max() > 5
    assert int(chosen.sum()) / int(maskable.sum()) == pytest.approx(0.15, abs=0.002)
    # A long word has the chance of a short one.
    long, short = (
        (num_chosen[of_size] > 0).double().mean().item()
        for of_size in (sizes > 3, (sizes > 0) & (sizes <= 3))
    )
    assert long == pytest.approx(short, rel=0.1)


def test_word_longer_than_the_budget_is_hidden_in_part_and_last(words):
    one_word = torch.tensor([words.encode("x" * 40)])
    assert one_word.shape[1] > 20
    wanted = round(one_word.shape[1] * 0.15)
    hide_words = corruption(words, masking="word")
    # A text without spaces is one word: it must not be hidden as a whole.
    assert int((hide(hide_words, one_word)[1] != IGNORED).sum()) == wanted
    # Other words are hidden first, as long as there are enough.
    others = words.encode(" a b c d e f g h i")
    ids = torch.cat([one_word, torch.tensor([others])], dim=1).repeat(50, 1)
    chosen = hide(hide_words, ids)[1] != IGNORED
    assert (chosen.sum(dim=1) == round(ids.shape[1] * 0.15)).all()
    assert not chosen[:, : one_word.shape[1]].any()


def test_span_masking_hides_spans_of_the_length_stated():
    # So few that they seldom touch each other.
    ids = text(100, 3000)
    chosen = hide(corruption(masking="span", mask_rate=0.02), ids)[1] != IGNORED
    num_spans = int((chosen & ~torch.nn.functional.pad(chosen, (1, 0))[:, :-1]).sum())
    assert int(chosen.sum()) / ids.numel() == pytest.approx(0.02, abs=0.001)
    assert int(chosen.sum()) / num_spans == pytest.approx(SPAN_LENGTH, rel=0.08)


def test_span_masking_keeps_the_rate():
    ids = text(250, 512, special_share=0.02)
    chosen = hide(corruption(masking="span"), ids)[1] != IGNORED
    share = int(chosen.sum()) / int((ids >= NUM_SPECIAL).sum())
    assert share == pytest.approx(0.15, abs=0.002)


@pytest.mark.parametrize(("done", "rate"), [(0.0, 0.3), (0.5, 0.225), (1.0, 0.15)])
def test_mask_rate_follows_its_schedule(done, rate):
    scheduled = corruption(mask_rate=0.3, mask_rate_end=0.15)
    assert scheduled.rate(moment(1, done=done)) == pytest.approx(rate)
    chosen = hide(scheduled, text(10, 400), done=done)[1] != IGNORED
    assert (chosen.sum(dim=1) == 400 * rate).all()


def test_mask_rate_without_an_end_stays():
    assert corruption().rate(moment(1, done=0.7)) == 0.15


def test_same_moment_hides_the_same_and_any_other_something_else():
    ids = text(5, 60)
    for masking in ("token", "span"):
        hides = corruption(masking=masking)
        first = hide(hides, ids)[1]
        assert torch.equal(hide(hides, ids)[1], first)
        for change in ({"seed": 1}, {"step": 1}, {"rows": np.arange(5, 10)}):
            assert not torch.equal(hide(hides, ids, **change)[1], first)
    assert not torch.equal(first[0] == IGNORED, first[1] == IGNORED)


@pytest.mark.parametrize("masking", ["token", "word", "span"])
def test_rows_are_hidden_alike_alone_together_and_padded(words, masking):
    ids = real_text(words, num_rows=7, length=40)
    real = torch.arange(40) < torch.tensor([[40], [3], [17], [40], [1], [25], [39]])
    ids = ids.masked_fill(~real, words.pad_id)
    hides = corruption(words, masking=masking)
    rows = np.array([4, 9, 11, 2, 0, 100, 7])
    together = hides.hide(ids, real_BT=real, moment=moment(7, rows=rows))
    # In parts, in another order, as another process has them.
    part = np.array([5, 2, 0])
    there = hides.hide(ids[part], real_BT=real[part], moment=moment(3, rows=rows[part]))
    for whole, some in zip(together, there, strict=True):
        assert torch.equal(whole[part], some)
    # Alone and without padding, or with more of it.
    for number, length in enumerate(real.sum(dim=1).tolist()):
        for width in (length, 40):
            alone = hides.hide(
                ids[number : number + 1, :width],
                real_BT=real[number : number + 1, :width],
                moment=moment(1, rows=rows[number : number + 1]),
            )
            for whole, one in zip(together, alone, strict=True):
                assert torch.equal(whole[number, :length], one[0, :length])
                assert (one[0, length:] == whole[number, length:width]).all()


@pytest.mark.parametrize("masking", ["token", "span"])
def test_masked_token_cannot_be_read_from_the_input(masking):
    ids = text(20, 100)
    hides = corruption(masking=masking, mask_rate=0.3)
    hidden, targets = hide(hides, ids)
    # Any other text under <mask> or a random token gives the same input.
    is_seen = (targets == IGNORED) | (hidden == targets)
    changed = ids.where(is_seen, (ids - NUM_SPECIAL + 7) % 34 + NUM_SPECIAL)
    again, other_targets = hide(hides, changed)
    assert torch.equal(again, hidden)
    assert not torch.equal(other_targets, targets)
    assert torch.equal(other_targets == IGNORED, targets == IGNORED)


def test_uniform_is_uniform_and_the_same_at_the_beginning_of_a_longer_row():
    numbers = moment(500).uniform(200, stream="test")
    assert 0 <= numbers.min() < 0.001
    assert 0.999 < numbers.max() < 1
    counts = (numbers * 10).long().flatten().bincount(minlength=10)
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 9 + 5 * 4.3
    for length in (1, 3, 64):
        assert torch.equal(moment(500).uniform(length, stream="test"), numbers[:, :length])
    neighbours = torch.corrcoef(numbers[:2])[0, 1]
    assert neighbours.abs() < 0.4


@pytest.mark.parametrize("key", [2**53 + 1, 2**63 + 1, 2**64 - 2])
def test_uniform_uses_every_bit_of_its_key(monkeypatch, key):
    draws = []
    for number in (key, key + 1):
        monkeypatch.setattr(Moment, "key", lambda self, stream, number=number: number)
        draws.append(moment(2).uniform(5, stream="test"))
    assert not torch.equal(draws[0], draws[1])


def test_chance_is_one_number_for_all_rows_of_a_step(monkeypatch):
    chances = [moment(1, step=step).chance(stream="test") for step in range(4000)]
    assert np.mean(chances) == pytest.approx(0.5, abs=5 * 0.29 / 4000**0.5)
    assert np.mean(np.array(chances) < 0.25) == pytest.approx(0.25, abs=five_errors(0.25, 4000))
    assert moment(9, step=3, done=0.5).chance(stream="test") == chances[3]
    monkeypatch.setattr(Moment, "key", lambda self, stream: 2**64 - 1)
    assert moment(1).chance(stream="test") < 1


def test_hide_can_mask_all_that_is_chosen():
    ids = text(30, 100)
    hidden, targets = corruption().hide(
        ids,
        real_BT=torch.ones_like(ids, dtype=torch.bool),
        moment=moment(30),
        masked_share=1.0,
        random_share=0.0,
    )
    assert torch.equal(hidden == MASK, targets != IGNORED)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5])
@pytest.mark.parametrize("name", ["mask_rate", "mask_rate_end"])
def test_masking_nothing_or_everything_is_refused(name, rate):
    bound = "greater than 0" if rate <= 0 else "less than 1"
    with pytest.raises(
        ConfigError, match=rf"objective\.{name}: input should be {bound}, not {rate}"
    ):
        resolve("pretrain", overrides={f"objective.{name}": rate})


def test_tokenizer_without_a_mask_is_refused():
    lacking = numbered_tokenizer(40)
    lacking.mask_id = None
    with pytest.raises(ConfigError) as caught:
        corruption(lacking)
    assert str(caught.value) == (
        "The objective masked needs a token <mask>, which this tokenizer lacks. The lab's dict.txt "
        "has none; a tokenizer trained here has. Take --objective causal, or another tokenizer."
    )


def test_corruption_knows_its_tokenizer(words):
    hides = corruption(words)
    assert hides.mask_id == words.mask_id
    assert hides.ordinary_ids.tolist() == list(range(NUM_SPECIAL, words.vocab_size))
