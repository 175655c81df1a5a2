"""Hugging Face folders with tiny random models of many types, as save_pretrained leaves them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_examples
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

transformers = pytest.importorskip("transformers")

TEXTS = [text for text, _ in make_examples(24, seed=5)]
# Width, heads and layers of every model below; 12 = 3 x 4.
SHAPE: dict[str, Any] = {"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2}
ENCODER: dict[str, Any] = {**SHAPE, "intermediate_size": 20, "max_position_embeddings": 64}

# Model type: (configuration, kind of tokenizer, does it look both ways?).
TYPES: dict[str, tuple[dict[str, Any], str, bool]] = {
    "bert": (ENCODER, "wordpiece", True),
    "roberta": ({**ENCODER, "pad_token_id": 1}, "roberta", True),
    "camembert": ({**ENCODER, "pad_token_id": 1}, "roberta", True),
    "distilbert": (
        {"dim": 12, "n_heads": 3, "n_layers": 2, "hidden_dim": 20, "max_position_embeddings": 64},
        "wordpiece",
        True,
    ),
    "electra": ({**ENCODER, "embedding_size": 8}, "wordpiece", True),
    "modernbert": (
        {**ENCODER, "global_attn_every_n_layers": 2, "local_attention": 8, "pad_token_id": 0},
        "wordpiece",
        True,
    ),
    "albert": ({**ENCODER, "embedding_size": 8}, "wordpiece", True),
    "gpt2": ({"n_embd": 12, "n_head": 3, "n_layer": 2, "n_positions": 64}, "gpt2", False),
    "opt": (
        {**SHAPE, "ffn_dim": 20, "max_position_embeddings": 64, "word_embed_proj_dim": 8},
        "opt",
        False,
    ),
    "llama": ({**ENCODER, "num_key_value_heads": 1}, "llama", False),
}


def _wordpiece() -> tuple[Inner, dict[str, str]]:
    inner = Inner(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    roles = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=list(roles.values()), show_progress=False
    )
    inner.train_from_iterator(TEXTS, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    # As all-MiniLM's: cut and filled up to the length it was trained with.
    inner.enable_truncation(6)
    inner.enable_padding(length=6, pad_id=0, pad_token="[PAD]")
    return inner, roles


def _byte_level(special: list[str]) -> Inner:
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXTS, trainer)
    inner.post_processor = processors.ByteLevel(trim_offsets=True)
    return inner


def _template(inner: Inner, single: str, *tokens: str) -> None:
    inner.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(token, inner.token_to_id(token)) for token in tokens]
    )


def make_tokenizer(kind: str) -> tuple[Inner, dict[str, str]]:
    """A tokenizer trained on the spot, and the token of every role it has."""
    if kind == "wordpiece":
        return _wordpiece()
    if kind == "gpt2":
        inner = _byte_level(["<|endoftext|>"])
        return inner, dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
    if kind == "llama":
        inner = _byte_level(["<unk>", "<s>", "</s>"])
        _template(inner, "<s> $A", "<s>")
        return inner, {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
    inner = _byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    if kind == "opt":
        _template(inner, "</s> $A", "</s>")
        return inner, {"pad": "<pad>", "bos": "</s>", "eos": "</s>", "unk": "</s>"}
    _template(inner, "<s> $A </s>", "<s>", "</s>")
    roles = {"pad": "<pad>", "unk": "<unk>", "mask": "<mask>"}
    return inner, {**roles, "cls": "<s>", "bos": "<s>", "sep": "</s>", "eos": "</s>"}


def make_folder(folder: Path, model_type: str, **changes: Any) -> Path:
    """A Hugging Face folder with a tiny random model, as save_pretrained leaves it."""
    values, kind, _ = TYPES[model_type]
    inner, roles = make_tokenizer(kind)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, **{f"{role}_token": token for role, token in roles.items()}
    )
    # More rows than tokens, as in many real folders.
    config = transformers.AutoConfig.for_model(
        model_type, **{"vocab_size": len(tokenizer) + 3, **values, **changes}
    )
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases, too, are to be seen in results
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
