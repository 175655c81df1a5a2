"""A family that is registered from outside is built, counted and resolved by its name."""

from collections.abc import Iterator

import pytest

from regraft.config import FAMILIES, FamilyTraits, resolve
from regraft.errors import ConfigError
from regraft.models import (
    FamilyCount,
    LabBackbone,
    build_backbone,
    check_ledger,
    ledger,
    register_family,
    unregister_family,
)
from regraft.models.parameter_count import COUNTS

SMALL = {"model.width": 12, "model.num_layers": 2, "model.num_heads": 3}


@pytest.fixture
def narrow() -> Iterator[str]:
    @register_family("narrow", FamilyTraits(positions="sinusoidal"), count=COUNTS["lab"])
    class NarrowBackbone(LabBackbone):
        pass

    yield "narrow"
    unregister_family("narrow")


def test_registered_family_is_resolved_built_and_counted(narrow: str) -> None:
    overrides = {**SMALL, "model.family": narrow}
    model = resolve("pretrain", preset="lab", overrides=overrides).model
    assert model.feedforward_width == 4 * 12
    assert type(build_backbone(model, vocab_size=9)).__name__ == "NarrowBackbone"
    counted = ledger(model, vocab_size=9, max_length=16, batch_size=2)
    assert check_ledger(counted, model, vocab_size=9, num_classes=None) == counted.total


def test_registered_family_obeys_its_traits(narrow: str) -> None:
    overrides = {**SMALL, "model.family": narrow, "model.width": 9}
    with pytest.raises(ConfigError, match=r"model\.width: 9"):
        resolve("pretrain", preset="lab", overrides=overrides)


def test_registering_a_family_twice_is_refused(narrow: str) -> None:
    for name in (narrow, "bag", "foreign"):
        with pytest.raises(ConfigError, match=f"family '{name}'"):
            register_family(name)(LabBackbone)


def test_unknown_family_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"model\.family.*'modrn'.*'modern'\?"):
        resolve("pretrain", overrides={"model.family": "modrn"})


def test_family_without_count_is_refused_by_the_ledger() -> None:
    register_family("uncounted")(LabBackbone)
    try:
        model = resolve("pretrain", preset="lab", overrides={"model.family": "uncounted"}).model
        with pytest.raises(ConfigError, match="uncounted"):
            ledger(model, vocab_size=9, max_length=16, batch_size=2)
    finally:
        unregister_family("uncounted")
    assert "uncounted" not in FAMILIES
    assert isinstance(COUNTS["bert"], FamilyCount)
