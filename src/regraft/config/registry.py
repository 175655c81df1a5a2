"""Named things that a user can add to from outside: objectives, families, readers, arms."""

import difflib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from regraft.errors import ConfigError

Item = TypeVar("Item")


class Registry(Generic[Item]):
    """Items by name, in the order of registration. `noun` is what errors call an item."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self._items: dict[str, Item] = {}

    def register(self, name: str) -> Callable[[Item], Item]:
        """A decorator that adds what it decorates under a name that must be new."""

        def add(item: Item) -> Item:
            if name in self._items:
                raise ConfigError(
                    f"There is already a registered {self.noun} {name!r}.",
                    remedy="Choose another name, or unregister the first one.",
                )
            self._items[name] = item
            return item

        return add

    def unregister(self, name: str) -> Item:
        """Remove and return an item."""
        item = self[name]
        del self._items[name]
        return item

    def __getitem__(self, name: str) -> Item:
        if name not in self._items:
            close = difflib.get_close_matches(str(name), self._items, n=1, cutoff=0.5)
            raise ConfigError(
                f"There is no {self.noun} {name!r}.",
                f"Known: {', '.join(self._items)}.",
                remedy=f"Did you mean {close[0]!r}?" if close else "Choose one of these.",
            )
        return self._items[name]

    def get(self, name: str) -> Item | None:
        """An item, or None if there is none of this name."""
        return self._items.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
