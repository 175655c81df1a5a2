"""Results as plain values, ready for JSON, and back."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Plain:
    """A dataclass whose fields are plain values, or dataclasses of such."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls: type[_Result], values: Mapping[str, Any]) -> _Result:
        """Read what `to_dict` gave, where JSON has lists for tuples.

        A ValueError names the first bad place.
        """
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_python(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"{place}: {first['msg'].lower()}") from error
