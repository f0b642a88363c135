"""Does a sequence hold a marked token twice? A transformer decides."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split

VOCAB, LENGTH = 12, 10


class Encoder(nn.Module):
    """Embedding, one transformer layer, mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layer(self.embed(tokens))  # (n, t, d)
        return self.out(x.mean(1))


class Repeats(Task):
    """Sequences in which token 0 comes at least twice, or not."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Encoder()

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        n = 1800 if split is Split.TRAIN else 400
        tokens = torch.randint(VOCAB, (n, LENGTH), generator=generator)
        is_marked = torch.rand(n, LENGTH, generator=generator) < 0.1
        tokens = tokens.masked_fill(is_marked, 0)
        return TensorDataset(tokens, ((tokens == 0).sum(1) >= 2).long())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
