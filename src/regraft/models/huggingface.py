"""A Hugging Face folder as a base: its backbone, its tokenizer, and settings that rebuild it.

Code in the folder is never run. transformers (the extra `hf`) is imported where it is needed.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regraft.config import DataSettings, ModelSettings, Settings, settings_from_dict
from regraft.data import Tokenizer, parse_tokenizer
from regraft.errors import ConfigError, RunFolderError
from regraft.models.backbones import Backbone, register_family
from regraft.models.huggingface_folder import CONFIG_NAME, read_config
from regraft.models.layers import KeyValueCache
from regraft.models.masks import is_right_padded
from regraft.runtime import optional

# What configurations call the fields of ModelSettings. The first name present is read; a dropout is
# changed under all of its names.
_NAMES = {
    "feedforward_width": ("intermediate_size", "ffn_dim", "n_inner", "hidden_dim", "d_inner"),
    "max_positions": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    "dropout": (
        *("hidden_dropout_prob", "hidden_dropout", "dropout", "resid_pdrop", "embd_pdrop"),
        *("mlp_dropout", "embedding_dropout"),
    ),
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"),
}
# A configuration may name an implementation of attention, even one that would be downloaded.
_ATTENTION = ("attn_implementation", "_attn_implementation")
# Parts of a configuration that are not the shape: its origin, and a head that is not used.
_NOT_SHAPE = {
    *("architectures", "auto_map", "dtype", "torch_dtype", "_name_or_path", "transformers_version"),
    *("id2label", "label2id", "problem_type", "use_cache"),
    *_ATTENTION,
}
# Positions of a model that sets itself no limit.
_NO_LIMIT = 1_000_000
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "tekken.json")


@register_family("foreign")
class ForeignBackbone(Backbone):
    """A backbone whose layers are those of any AutoModel that gives a vector for every token.

    It can be fine-tuned only: neither pre-trained nor asked to generate text.
    """

    def __init__(self, inner: nn.Module, *, settings: ModelSettings) -> None:
        """`inner` is the model of transformers."""
        super().__init__(settings)
        self.inner = inner
        if hasattr(inner, "pooler"):
            # Unused: we pool ourselves, and DDP would wait for the gradients of its weights. Not
            # None, because not every model checks before it calls its pooler.
            inner.pooler = nn.Identity()

    @classmethod
    def build(cls, settings: ModelSettings, *, vocab_size: int) -> Backbone:
        return build_foreign(settings)

    @property
    def embedding(self) -> nn.Embedding:  # type: ignore[override]
        """The table of tokens; it may be narrower than the model (ELECTRA)."""
        return self.inner.get_input_embeddings()  # type: ignore[operator]

    @property
    def blocks(self) -> nn.ModuleList:  # type: ignore[override]
        """The layers: the module list with the most parameters."""
        lists = [part for part in self.inner.modules() if isinstance(part, nn.ModuleList)]
        return max(lists, key=_num_parameters, default=nn.ModuleList())

    def forward(
        self,
        ids_BT: Int[Tensor, "B T"],
        *,
        real_BT: Bool[Tensor, "B T"] | None = None,
        segments_BT: Int[Tensor, "B T"] | None = None,
        token_types_BT: Int[Tensor, "B T"] | None = None,
        is_causal: bool | None = None,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Vectors of every position.

        Architectures count positions in many ways, but padding behind the real tokens cannot shift
        them: other padding is moved there and back.
        """
        others = (segments_BT, is_causal, cache)
        assert all(part is None for part in others), "a foreign backbone reads whole texts"
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        types = {}
        if token_types_BT is not None and self._has_token_types:
            types = {"token_type_ids": token_types_BT}
        if is_right_padded(real_BT):
            return self._run(ids_BT, real_BT, **types).last_hidden_state
        order_BT = (~real_BT).to(torch.int8).argsort(dim=1, stable=True)
        types = {name: part.gather(1, order_BT) for name, part in types.items()}
        moved = self._run(ids_BT.gather(1, order_BT), real_BT.gather(1, order_BT), **types)
        moved_BTD = moved.last_hidden_state
        back_BT = order_BT.argsort(dim=1)
        return moved_BTD.gather(1, back_BT.unsqueeze(2).expand_as(moved_BTD))

    @torch.no_grad()
    def attention_weights(
        self, ids_BT: Int[Tensor, "B T"], *, real_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "L B H T T"]:
        """Where each position looks, for every layer and head; padding behind the real tokens."""
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        assert is_right_padded(real_BT)
        inner: Any = self.inner
        configured = inner.config._attn_implementation
        with quiet_transformers():
            try:
                # The fast implementations never form the weights.
                inner.set_attn_implementation("eager")
                weights = self._run(ids_BT, real_BT, output_attentions=True).attentions
            finally:
                inner.set_attn_implementation(configured)
        if not weights or any(layer is None or layer.dim() != 4 for layer in weights):
            raise ConfigError(
                f"A {inner.config.model_type} model does not return its attention weights.",
                remedy="Use a model of another type, or one that was pre-trained here.",
            )
        return torch.stack(weights)

    @property
    def _has_token_types(self) -> bool:
        """Does it mark two texts by token types, as BERT does? RoBERTa has a table of one."""
        return int(getattr(self.inner.config, "type_vocab_size", None) or 0) > 1

    def _run(self, ids_BT: Tensor, real_BT: Tensor, **more: bool | Tensor) -> Any:
        return self.inner(input_ids=ids_BT, attention_mask=real_BT.long(), **more)


def build_foreign(settings: ModelSettings) -> ForeignBackbone:
    """A new random model of a foreign architecture, with the dropout of the settings."""
    with quiet_transformers():
        from transformers import AutoConfig, AutoModel

        assert settings.architecture is not None, "a foreign family has its architecture"
        config = AutoConfig.for_model(**settings.architecture)
        for name in ("dropout", "attention_dropout"):
            _set_dropout(config, name, getattr(settings, name))
        config.use_cache = False
        inner = AutoModel.from_config(config, trust_remote_code=False, dtype=torch.float32)
    return ForeignBackbone(inner, settings=settings)


def with_dropout(backbone: ForeignBackbone, *, settings: ModelSettings) -> ForeignBackbone:
    """The same weights with the dropout of the settings, which such a model has throughout."""
    changed = build_foreign(settings)
    changed.load_state_dict(backbone.state_dict())
    return changed


def _set_dropout(config: Any, name: str, value: float) -> None:
    if value == _first(config, name, default=0.0):
        return
    known = [key for key in _NAMES[name] if hasattr(config, key)]
    if not known:
        raise ConfigError(
            f"model.{name} is {value:g}, but a {config.model_type} model has no such dropout.",
            remedy=f"Omit model.{name}.",
        )
    for key in known:
        setattr(config, key, value)


def _first(config: Any, name: str, *, default: float) -> Any:
    """The value of the first name that the configuration has."""
    values = (getattr(config, key, None) for key in _NAMES[name])
    return next((value for value in values if value is not None), default)


@dataclass(frozen=True)
class ForeignBase:
    """A Hugging Face folder, loaded."""

    backbone: ForeignBackbone
    settings: Settings
    tokenizer: Tokenizer


def load_foreign(path: Path) -> ForeignBase:
    """The model and tokenizer of a Hugging Face folder; no network, no code from the folder."""
    _check_files(path)
    with quiet_transformers():
        config = _load_config(path)
        inner = _load_weights(path, config=config)
        tokenizer = _load_tokenizer(path)
        settings = _read_settings(path, inner=inner)
        _check_vocabulary(path, inner=inner, tokenizer=tokenizer)
    return ForeignBase(ForeignBackbone(inner, settings=settings.model), settings, tokenizer)


def _check_files(path: Path) -> None:
    if read_config(path).get("quantization_config") is not None:
        _refuse(
            f"The base {path} is quantised.",
            "Its weights are rounded and cannot be trained.",
            remedy="Use the original folder, in full precision.",
        )
    if any("/" in str(read_config(path).get(name)) for name in _ATTENTION):
        _refuse(
            f"The base {path} names code for its attention that would be downloaded.",
            "Nothing is downloaded, and code from elsewhere is never run.",
            remedy=f"Remove {_ATTENTION[0]} from its config.json.",
        )
    if (path / "adapter_config.json").exists():
        _refuse(
            f"The base {path} is an adapter, which names another model to load.",
            "A base is one folder with all of its weights.",
            remedy="Merge the adapter into its model with peft, and save that.",
        )
    if not any((path / name).is_file() for name in _WEIGHTS):
        others = sorted(
            part.name for end in ("bin", "pt", "h5", "msgpack") for part in path.glob(f"*.{end}")
        )
        content = f"only {others[0]}" if others else "no weights"
        _refuse(
            f"The base {path} holds {content}.",
            f"Weights are read from {_WEIGHTS[0]}: other files may contain code.",
            remedy="Load it with transformers and save it again: save_pretrained writes that file.",
        )
    if not any(any(path.glob(name)) for name in _TOKENIZERS):
        _refuse(
            f"The base {path} holds no tokenizer.",
            "Its weights mean nothing without the ids they were trained with.",
            remedy="Put its tokenizer.json and tokenizer_config.json into the folder.",
        )


def _load_config(path: Path) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    model_type = read_config(path)["model_type"]
    if model_type not in CONFIG_MAPPING:
        _refuse(
            f"The base {path} is of the type {model_type!r}, which transformers does not know.",
            "Code in a folder is not run.",
            remedy="Install a newer transformers, or use a base of a type that it knows.",
        )
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a damaged file leads to inside transformers
        _refuse_unreadable(path / CONFIG_NAME, error)
    if config.is_encoder_decoder:
        _refuse(
            f"The base {path} is an encoder with a decoder ({model_type}).",
            "A classifier reads the vectors of one stack of layers.",
            remedy="Use an encoder such as BERT or a decoder such as GPT-2.",
        )
    config.use_cache = False
    return config


def load_sequence_classifier(path: Path) -> tuple[Any, Any, int]:
    """Model, tokenizer and maximal length of such a folder; no network, no code from the folder."""
    _check_files(path)
    with quiet_transformers():
        from transformers import AutoTokenizer

        config = _load_config(path)
        model: Any = _load_weights(path, config=config, auto="AutoModelForSequenceClassification")
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # of many kinds, from inside the tokenizers
            _refuse_unreadable(path, error)
    return model, tokenizer, min(_max_positions(model), int(tokenizer.model_max_length))


def _load_weights(path: Path, *, config: Any, auto: str = "AutoModel") -> nn.Module:
    import transformers

    try:
        inner, loading_info = getattr(transformers, auto).from_pretrained(
            path,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # of many kinds, from inside the architectures
        _refuse_unreadable(path, error)
    # transformers fills what a file lacks with random numbers; a pooler is not used anyway.
    missing = sorted(
        name for name in loading_info["missing_keys"] if not name.startswith("pooler.")
    )
    if missing:
        _refuse(
            f"The weights of {path} lack {len(missing)} tensors of a {config.model_type} model, "
            f"such as {missing[0]}.",
            "Weights and configuration must come from the same model.",
            remedy="Restore the folder.",
        )
    module: nn.Module = inner.eval()
    return module


def _load_tokenizer(path: Path) -> Tokenizer:
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of many kinds, from inside the tokenizers
        _refuse_unreadable(path, error)
    if not loaded.is_fast:
        _refuse(
            f"The tokenizer of {path} is written in Python ({type(loaded).__name__}).",
            "Only those that one tokenizer.json holds are read.",
            remedy="Put the tokenizer.json of its fast version into the folder.",
        )
    text = loaded.backend_tokenizer.to_str()
    return parse_tokenizer(text, source=str(path), special_tokens=loaded.special_tokens_map)


def _check_vocabulary(path: Path, *, inner: Any, tokenizer: Tokenizer) -> None:
    num_rows = len(inner.get_input_embeddings().weight)
    if tokenizer.vocab_size > num_rows:
        _refuse(
            f"The tokenizer of {path} has {tokenizer.vocab_size:,} tokens, but the weights are "
            f"made for {num_rows:,}.",
            "Tokenizer and weights must come from the same model.",
            remedy="Restore the tokenizer this model was trained with.",
        )


def _read_settings(path: Path, *, inner: Any) -> Settings:
    """The shape as our settings name it; the rest of the configuration is the architecture."""
    config = inner.config
    shape = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    if missing := [name for name in shape if not isinstance(getattr(config, name, None), int)]:
        _refuse(
            f"The base {path} ({config.model_type}) has no {missing[0]}.",
            "A base is a stack of attention layers of one width.",
            remedy="Use a base of another architecture.",
        )
    width, is_causal = _probe(path, inner)
    longest = _max_positions(inner)
    values = json.loads(config.to_json_string(use_diff=True))
    model = {
        "family": "foreign",
        "attention": "causal" if is_causal else "bidirectional",
        "width": width,
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "feedforward_width": _first(config, "feedforward_width", default=4 * config.hidden_size),
        "dropout": _first(config, "dropout", default=0.0),
        "attention_dropout": _first(config, "attention_dropout", default=0.0),
        "max_positions": longest,
        "architecture": {key: part for key, part in values.items() if key not in _NOT_SHAPE},
    }
    return settings_from_dict(
        {
            "preset": "foreign",
            "model": model,
            "objective": {"kind": "causal" if is_causal else "masked"},
            "head": {"pooling": "last" if is_causal else "mean"},
            "data": {"max_length": min(longest, DataSettings().max_length)},
            "train": {"epochs": 1},
        }
    )


@torch.no_grad()
def _probe(path: Path, inner: Any) -> tuple[int, bool]:
    """The width of the vectors, and whether a token looks to the left only, measured on a text.

    No table of architectures would be complete, and some are either, by a switch.
    """
    ids_BT = torch.tensor([[5, 6, 7, 8, 5, 5], [5, 6, 7, 9, 5, 5]])
    real_BT = torch.tensor([[1, 1, 1, 1, 0, 0]] * 2)
    try:
        padded_BTD = inner(input_ids=ids_BT, attention_mask=real_BT).last_hidden_state
        vectors_BTD = inner(
            input_ids=ids_BT[:, :4], attention_mask=real_BT[:, :4]
        ).last_hidden_state
        first, second = vectors_BTD[:, :3]
    except Exception as error:  # images, sounds and pairs of towers fail in their own ways
        _refuse(
            f"The base {path} ({inner.config.model_type}) gives no vector for each token: "
            f"{_first_line(error)}.",
            "A base reads text, and nothing but text.",
            remedy="Use an encoder such as BERT or a decoder such as GPT-2.",
        )
    if not torch.allclose(padded_BTD[:, :4], vectors_BTD, rtol=1e-3, atol=1e-4):
        _refuse(
            f"The base {path} ({inner.config.model_type}) reads padding as if it were text.",
            "The vectors of a text must not depend on the other texts of a batch.",
            remedy="Use a base whose attention ignores padding.",
        )
    return vectors_BTD.shape[2], torch.allclose(first, second, rtol=1e-5, atol=1e-5)


def _max_positions(inner: Any) -> int:
    longest = int(_first(inner.config, "max_positions", default=_NO_LIMIT))
    for name, part in inner.named_modules():
        # RoBERTa counts positions from the id of the padding token on.
        if name.endswith("position_embeddings") and getattr(part, "padding_idx", None) is not None:
            return longest - part.padding_idx - 1
    return longest


def _num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Import transformers inside: no progress bars, no warnings about unused heads."""
    with optional("A Hugging Face model", extra="hf"):
        from transformers.utils import logging
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120].rstrip(".")


def _refuse_unreadable(path: Path, error: Exception) -> NoReturn:
    raise RunFolderError(
        f"{path} cannot be read by transformers: {_first_line(error)}.",
        remedy="Check that AutoModel and AutoTokenizer load the folder, or restore it.",
    ) from error


def _refuse(problem: str, expected: str, *, remedy: str) -> NoReturn:
    raise RunFolderError(problem, expected, remedy=remedy)
