"""Generation: greedy is the argmax, sampling keeps to its limits, and both know where to stop."""

from pathlib import Path

import pytest
import torch

from regraft.config.resolution import replace
from regraft.config.schema import Settings, TokenizerSettings
from regraft.data.tokens.tokenizer_training import train_tokenizer
from regraft.errors import ConfigError
from regraft.models.heads import build_language_model
from regraft.runtime.hardware import seed_generator
from regraft.training.generation import _choose, fill, generate
from regraft.training.loaded_run import LoadedRun
from regraft.training.run_folder import RunInfo


@pytest.fixture
def run(tiny_pretrain: Settings) -> LoadedRun:
    return run_of("causal", tiny_pretrain)


def run_of(kind: str, settings: Settings) -> LoadedRun:
    torch.manual_seed(1)
    attention = "causal" if kind == "causal" else "bidirectional"
    settings = replace(replace(settings, "model", attention=attention), "objective", kind=kind)
    tokenizer = train_tokenizer(["a good book, a bad book"], settings=TokenizerSettings(size=280))
    model = build_language_model(
        settings.model, vocab_size=tokenizer.vocab_size, objective=settings.objective
    )
    info = RunInfo(kind="language-model", status="complete")
    return LoadedRun(Path("run"), info, settings, tokenizer, model.eval())


def test_greedy_equals_argmax_of_the_whole_row(run):
    text = generate(run, "a good", max_tokens=6)
    ids = [run.tokenizer.start_id, *run.tokenizer.encode("a good")]
    num_prompt = len(ids)
    for _ in range(6):
        with torch.no_grad():
            scores = run.model(torch.tensor([ids]))[0, -1]
        scores[[run.tokenizer.pad_id, run.tokenizer.start_id]] = -torch.inf
        ids.append(int(scores.argmax()))
    assert len(ids) == num_prompt + 6
    assert text == run.tokenizer.decode(ids[1:])


def test_generation_stops_at_the_end_token(run):
    with torch.no_grad():
        run.model.head.bias[run.tokenizer.end_id] = 1e6
    assert generate(run, "a good", max_tokens=50) == "a good"


def test_generation_never_passes_the_positions(run):
    text = generate(run, "a good", max_tokens=10_000, temperature=1.0)
    # Bytes may join into broken characters, so count what the model can have read at most.
    assert 0 < len(run.tokenizer.encode(text)) <= 10 * run.settings.model.max_positions


def test_sampling_is_reproducible_by_seed(run):
    one, two, other = (
        generate(run, "a", temperature=1.0, max_tokens=20, seed=seed) for seed in (1, 1, 2)
    )
    assert one == two != other


def test_top_k_and_top_p_keep_to_the_most_probable():
    scores = torch.log(torch.tensor([0.05, 0.5, 0.3, 0.15]))

    def drawn(**limits) -> set[int]:
        generator = seed_generator(0, stream="test")
        settings = {"top_k": None, "top_p": None, **limits}
        return {
            _choose(scores, temperature=1.0, generator=generator, **settings) for _ in range(300)
        }

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {1, 2}
    assert drawn(top_p=0.6) == {1, 2}
    assert drawn(top_p=0.5) == {1}
    assert drawn(top_p=0.01) == {1}


def test_low_temperature_approaches_greedy():
    scores = torch.tensor([0.0, 1.0, 0.9])
    generator = seed_generator(0, stream="test")
    limits = {"top_k": None, "top_p": None, "generator": generator}
    cold = {_choose(scores, temperature=0.001, **limits) for _ in range(100)}
    assert cold == {1}


def test_bad_options_are_named_together(run):
    with pytest.raises(ConfigError, match=r"temperature is -1\.0.*top_k is 0.*top_p is 1\.5"):
        generate(run, "a", temperature=-1.0, top_k=0, top_p=1.5)


def test_long_prompt_is_refused(run):
    with pytest.raises(ConfigError, match=r"tokens; the model has 64 positions. Shorten"):
        generate(run, "a good book " * 100)


def test_masked_base_does_not_continue_and_causal_one_does_not_fill(run, tiny_pretrain):
    with pytest.raises(ConfigError, match=r"objective masked.*cannot continue a text"):
        generate(run_of("masked", tiny_pretrain), "a good")
    with pytest.raises(ConfigError, match=r"objective causal.*masked"):
        fill(run, "a <mask> book")
    with pytest.raises(ConfigError, match=r"objective replaced"):
        fill(run_of("replaced", tiny_pretrain), "a <mask> book")


def test_contrast_has_taught_neither(tiny_pretrain):
    run = run_of("contrast", tiny_pretrain)
    with pytest.raises(ConfigError, match=r"objective contrast.*--objective causal or hybrid"):
        generate(run, "a good")
    with pytest.raises(ConfigError, match=r"objective contrast.*masked, bert, sop or hybrid"):
        fill(run, "a <mask> book")


@pytest.mark.parametrize("kind", ["masked", "hybrid"])
def test_fill_reads_both_sides_of_every_mask(kind, tiny_pretrain):
    run = run_of(kind, tiny_pretrain)
    guesses = fill(run, "a <mask> book, a <mask>", top=3)
    assert [len(place) for place in guesses] == [3, 3]
    start, mask = run.tokenizer.start_id, run.tokenizer.mask_id
    # The space before a word is part of its token, so that before a mask is nobody else's.
    parts = [run.tokenizer.encode(part) for part in ("a", " book, a")]
    assert run.tokenizer.encode("a good book") == [
        *parts[0],
        *run.tokenizer.encode(" good"),
        *run.tokenizer.encode(" book"),
    ]
    ids = [start, *parts[0], mask, *parts[1], mask]
    with torch.no_grad():
        scores = run.model(torch.tensor([ids]))[0, len(parts[0]) + 1]
    scores[sorted(run.tokenizer.special_ids)] = -torch.inf
    best = scores.softmax(dim=0).topk(3)
    assert [guess.token for guess in guesses[0]] == run.tokenizer.tokens(best.indices.tolist())
    assert [g.probability for g in guesses[0]] == pytest.approx(best.values.tolist(), rel=1e-5)
    later = fill(run, "a <mask> book, a bad", top=3)
    assert guesses[0] != later[0]


def test_fill_refuses_a_text_without_a_mask(tiny_pretrain):
    run = run_of("masked", tiny_pretrain)
    with pytest.raises(ConfigError, match=r"The text has no <mask>: 'a good book'\. Write <mask>"):
        fill(run, "a good book")
    with pytest.raises(ConfigError, match="top is 0, it must be 1 or more"):
        fill(run, "a <mask>", top=0)
    with pytest.raises(ConfigError, match="the model has 64 positions"):
        fill(run, "a <mask>" * 100)


def test_hybrid_base_continues_a_text(tiny_pretrain):
    assert generate(run_of("hybrid", tiny_pretrain), "a good", max_tokens=4).startswith("a good")
