"""Low-rank adapters for Hugging Face bases (LoRA, Hu et al. 2021).

After training they are merged, so a run folder holds plain weights. peft (the extra `lora`) is
imported where it is needed.
"""

from typing import Any

from torch import nn

from regraft.models.heads import Model
from regraft.models.huggingface import ForeignBackbone
from regraft.runtime import optional, seeded

# What the adapters add is scaled by this over the square root of their rank (Kalajdzievski 2023):
# one learning rate then serves all ranks.
SCALE = 8


def add_adapters(model: Model, *, rank: int, seed: int) -> Any:
    """Add adapters to every matrix of the layers, in place, and freeze the base itself.

    Returns peft's own object, for `merge_adapters`. At first the adapters have no effect.
    """
    with optional("train.lora_rank", extra="lora"):
        from peft import LoraConfig
        from peft.tuners.lora import LoraModel
    backbone = model.backbone
    assert isinstance(backbone, ForeignBackbone), "settings allow adapters on foreign bases only"
    in_layers = set(backbone.blocks.modules())
    layers = {name: part for name, part in backbone.inner.named_modules() if part in in_layers}
    # GPT-2 and its like have their own kind of matrices, which lie the other way round.
    turned = [name for name, part in layers.items() if type(part).__name__ == "Conv1D"]
    config = LoraConfig(
        r=rank,
        lora_alpha=SCALE,
        use_rslora=True,
        fan_in_fan_out=bool(turned),
        target_modules=turned or [n for n, part in layers.items() if isinstance(part, nn.Linear)],
    )
    with seeded(seed, stream="adapters"):
        return LoraModel(backbone.inner, {"default": config}, "default")


def merge_adapters(adapters: Any) -> None:
    """Add the adapters to their matrices, in place, and remove them."""
    adapters.merge_and_unload()
