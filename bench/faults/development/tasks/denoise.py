"""A denoising autoencoder; the noise is drawn in the loss."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


class Denoise(Task):
    """Restore sums of two waves."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(
            nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 40)
        )

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        n = 2000 if split is Split.TRAIN else 400
        t = torch.arange(40.0) / 6
        phases = 6.3 * torch.rand(n, 2, generator=generator)
        waves = torch.sin(t + phases[:, :1]) + torch.sin(2 * t + phases[:, 1:])
        return TensorDataset(waves)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        (clean,) = batch.inputs
        noise = torch.randn_like(clean) if model.training else torch.zeros_like(clean)
        return (model(clean + 0.4 * noise) - clean).square().mean(1)
