"""A bidirectional LSTM and a CNN over the tokens of a base: what was trained before transformers.

They are arms of a comparison only: nothing is pre-trained with them, no run folder holds one.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regraft.config import ModelSettings
from regraft.models.backbones import Backbone
from regraft.models.heads import ClassifierHead, Model
from regraft.models.layers import Dropout, KeyValueCache
from regraft.models.masks import is_right_padded

# Kim 2014: vectors of 300, windows of 3, 4 and 5 tokens with 100 maps each, dropout 0.5. The LSTM
# is as wide: 150 in each direction.
WIDTH = 300
WINDOWS = (3, 4, 5)
DROPOUT = 0.5
# Adam's usual rate for both; that of the base may suit weights that are trained already.
BASELINE_LEARNING_RATE = 1e-3


class BaselineBackbone(Backbone):
    """What both have in common: an embedding, and rows that are padded on the right."""

    def __init__(self, *, vocab_size: int, blocks: nn.ModuleList) -> None:
        # No registered family: such a network comes as an arm of a comparison only.
        super().__init__(ModelSettings(family=type(self).__name__, width=WIDTH, dropout=DROPOUT))
        self.embedding = nn.Embedding(vocab_size, WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.dropout = Dropout(DROPOUT)
        self.blocks = blocks

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
        """Vectors of every position; they mean nothing at padding."""
        others = (segments_BT, token_types_BT, is_causal, cache)
        assert all(part is None for part in others), "it reads single texts, whole"
        real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if real_BT is None else real_BT
        assert is_right_padded(real_BT)
        return self.read(self.dropout(self.embedding(ids_BT)), real_BT=real_BT)

    def read(
        self, x_BTD: Float[Tensor, "B T D"], *, real_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        """The vectors of every position, from the embedded tokens."""
        raise NotImplementedError


class LstmBackbone(BaselineBackbone):
    """One layer that reads a text from both ends (Graves & Schmidhuber 2005)."""

    def __init__(self, *, vocab_size: int) -> None:
        lstm = nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        super().__init__(vocab_size=vocab_size, blocks=nn.ModuleList([lstm]))

    def read(
        self, x_BTD: Float[Tensor, "B T D"], *, real_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        # Packed: the backward direction must begin at the last real token, not at padding.
        lengths_B = real_BT.sum(dim=1).cpu()
        packed = pack_padded_sequence(x_BTD, lengths_B, batch_first=True, enforce_sorted=False)
        states, _ = self.blocks[0](packed)
        states_BTD, _ = pad_packed_sequence(states, batch_first=True, total_length=x_BTD.shape[1])
        return self.dropout(states_BTD)


class CnnBackbone(BaselineBackbone):
    """Convolutions over windows of tokens, max-pooled over the text."""

    def __init__(self, *, vocab_size: int) -> None:
        maps = WIDTH // len(WINDOWS)
        blocks = nn.ModuleList(nn.Conv1d(WIDTH, maps, size) for size in WINDOWS)
        super().__init__(vocab_size=vocab_size, blocks=blocks)

    def read(
        self, x_BTD: Float[Tensor, "B T D"], *, real_BT: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        # As many zeros after the text as the longest window reaches: further padding of a batch
        # changes nothing.
        x_BDT = (x_BTD * real_BT.unsqueeze(2)).transpose(1, 2)
        x_BDT = F.pad(x_BDT, (0, max(WINDOWS) - 1))
        lengths_B = real_BT.sum(dim=1)
        strongest = []
        for block in self.blocks:
            answers_BMT = F.relu(block(x_BDT))
            places_T = torch.arange(answers_BMT.shape[2], device=answers_BMT.device)
            is_text_BT = places_T < lengths_B.unsqueeze(1)
            # ReLU's smallest output is 0: what follows the text is never the maximum.
            strongest.append((answers_BMT * is_text_BT.unsqueeze(1)).amax(dim=2))
        pooled_BD = self.dropout(torch.cat(strongest, dim=1))
        # One vector a text, at every position: any pooling of the head reads just that.
        return pooled_BD.unsqueeze(1).expand(-1, x_BTD.shape[1], -1)


BASELINES: dict[str, type[LstmBackbone] | type[CnnBackbone]] = {
    "lstm": LstmBackbone,
    "cnn": CnnBackbone,
}


def build_baseline(kind: str, *, vocab_size: int, num_classes: int) -> Model:
    """A new random classifier of one of BASELINES."""
    backbone = BASELINES[kind](vocab_size=vocab_size)
    head = ClassifierHead(backbone, num_classes=num_classes, pooling="mean")
    return Model(backbone, head)
