"""Pre-train a small language model on your own text, graft a classifier, prove what it was worth.

The public names are listed in `__init__.pyi`; each loads when first used, so that
`import regraft` loads neither torch nor scikit-learn.
"""

from typing import Any

import lazy_loader

_attribute, _, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = sorted([*_names, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("regraft")
    from regraft.runtime import optional

    with optional(f"regraft.{name}", extra="train"):
        return _attribute(name)


def __dir__() -> list[str]:
    return __all__
