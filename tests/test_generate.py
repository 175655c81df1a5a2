"""Generation: greedy is the argmax, sampling keeps to its limits, and both know where to stop."""

from pathlib import Path

import pytest
import torch

from regraft.config import Settings, TokenizerSettings
from regraft.errors import ConfigError
from regraft.generate import _choose, generate
from regraft.heads import build_language_model
from regraft.runfolder import LoadedRun, RunInfo
from regraft.runtime import seed_generator
from regraft.tokenizer import train_tokenizer


@pytest.fixture
def run(tiny_pretrain: Settings) -> LoadedRun:
    torch.manual_seed(1)
    tokenizer = train_tokenizer(["a good book, a bad book"], settings=TokenizerSettings(size=280))
    model = build_language_model(tiny_pretrain.model, vocab_size=tokenizer.vocab_size).eval()
    info = RunInfo(kind="language-model", status="complete")
    return LoadedRun(Path("run"), info, tiny_pretrain, tokenizer, model)


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
        run.model.head.linear.bias[run.tokenizer.end_id] = 1e6
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
