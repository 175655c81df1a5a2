"""An objective that is registered from outside is known by name wherever settings are."""

from collections.abc import Iterator

import pytest

from regraft.config import OBJECTIVES, ObjectiveTraits, resolve, settings_from_dict
from regraft.config.resolution import settings_to_dict
from regraft.data.tokens.tokenizer_training import numbered_tokenizer
from regraft.errors import ConfigError
from regraft.training import build_objective, register_objective, unregister_objective
from regraft.training.objectives import causal


@pytest.fixture
def mirrored() -> Iterator[str]:
    register_objective("mirrored", ObjectiveTraits(is_causal=True))(lambda context: causal)
    yield "mirrored"
    unregister_objective("mirrored")


def test_registered_objective_is_resolved_built_and_saved(mirrored: str) -> None:
    settings = resolve("pretrain", preset="lab", overrides={"objective.kind": mirrored})
    assert settings.model.attention == "causal"
    assert build_objective(settings, tokenizer=numbered_tokenizer(20)) is causal
    assert settings_from_dict(settings_to_dict(settings)) == settings


def test_registered_objective_obeys_its_traits(mirrored: str) -> None:
    with pytest.raises(ConfigError, match=r"objective.mask_rate.*mirrored"):
        resolve(
            "pretrain",
            preset="lab",
            overrides={"objective.kind": mirrored, "objective.mask_rate": 0.3},
        )


def test_registering_a_name_twice_is_refused(mirrored: str) -> None:
    for name in (mirrored, "masked"):
        with pytest.raises(ConfigError, match=f"objective '{name}'"):
            register_objective(name)(lambda context: causal)


def test_unknown_objective_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"objective\.kind.*'maskd'.*'masked'\?"):
        resolve("pretrain", overrides={"objective.kind": "maskd"})


def test_unregistered_objective_is_unknown_again(mirrored: str) -> None:
    register_objective("passing")(lambda context: causal)
    unregister_objective("passing")
    assert "passing" not in OBJECTIVES
