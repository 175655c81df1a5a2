"""All families, registered; `build_backbone` makes a backbone of any of them."""

from regraft.config import ModelSettings

# Imported for their registrations, too.
from regraft.models import bag, huggingface  # noqa: F401
from regraft.models.backbones import Backbone, family_class, register_family, unregister_family

__all__ = ["build_backbone", "family_class", "register_family", "unregister_family"]


def build_backbone(settings: ModelSettings, *, vocab_size: int) -> Backbone:
    """A new random backbone of any family; a foreign one has its own vocabulary."""
    return family_class(settings.family).build(settings, vocab_size=vocab_size)
