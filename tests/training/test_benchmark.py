"""What the machine can do: numbers that hang together, on any machine."""

import pytest

from regraft.config.presets import SIZES
from regraft.config.resolution import replace
from regraft.config.schema import Settings
from regraft.training.benchmark import bench


@pytest.fixture
def settings(tiny_pretrain: Settings) -> Settings:
    return replace(tiny_pretrain, "model", max_positions=64)


def test_every_size_is_measured_beside_the_limit(settings, documents_path):
    result = bench([documents_path], settings=settings, seconds_per_shape=0.0)
    assert [speed.name for speed in result.speeds] == [settings.preset, *SIZES]
    assert result.corpus_bytes == sum(len(line) for line in documents_path.read_text().splitlines())
    assert result.corpus_tokens is not None
    assert 0 < result.corpus_tokens < result.corpus_bytes
    for speed in result.speeds:
        assert speed.share_of_limit > 0
        assert speed.corpus_seconds == pytest.approx(result.corpus_tokens / speed.tokens_per_second)
    sizes = [speed.num_parameters for speed in result.speeds[1:]]
    assert sizes == sorted(sizes)


def test_without_a_corpus_no_time_is_told(settings):
    result = bench(settings=settings, seconds_per_shape=0.0)
    assert result.corpus_tokens is None
    assert {speed.corpus_seconds for speed in result.speeds} == {None}
