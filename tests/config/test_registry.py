"""Registries: names are unique, and an unknown one is answered with the nearest."""

import pytest

from regraft.config import Registry
from regraft.errors import ConfigError


def fruits() -> Registry[int]:
    registry: Registry[int] = Registry("fruit")
    registry.register("apple")(1)
    registry.register("pear")(2)
    return registry


def test_registry_gives_items_by_name_in_order() -> None:
    registry = fruits()
    assert registry["pear"] == 2
    assert list(registry) == ["apple", "pear"]
    assert "apple" in registry
    assert "plum" not in registry
    assert len(registry) == 2


def test_registry_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"fruit 'aple'.*apple, pear.*'apple'\?"):
        fruits()["aple"]


def test_registry_unknown_name_far_from_all_lists_them() -> None:
    with pytest.raises(ConfigError) as caught:
        fruits()["xyz"]
    assert "apple, pear" in caught.value.expected
    assert "?" not in caught.value.remedy


def test_registry_refuses_a_second_item_of_one_name() -> None:
    registry = fruits()
    with pytest.raises(ConfigError, match="fruit 'apple'"):
        registry.register("apple")(3)
    assert registry["apple"] == 1


def test_registry_forgets_what_was_unregistered() -> None:
    registry = fruits()
    assert registry.unregister("apple") == 1
    assert list(registry) == ["pear"]
