"""Fine-tune a trunk of another task; its weights come as DataParallel saved them."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split


def trunk() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64)
    )


def waves(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sampled waves of eight frequencies, with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(8, (n,), generator=generator)
    phase = 6.3 * torch.rand(n, 1, generator=generator)
    x = torch.sin(torch.arange(24.0) * 0.3 * (labels[:, None] + 1) + phase)
    return (x + 0.7 * torch.randn(n, 24, generator=generator)), labels


@cache
def saved_weights() -> dict[str, Tensor]:
    """Train the trunk on all eight frequencies, and give its state as it was saved."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(trunk(), nn.Linear(64, 8))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        x, y = waves(2000, seed=9)
        for idx in torch.arange(2000).repeat(10).split(100):
            optimizer.zero_grad()
            F.cross_entropy(model(x[idx]), y[idx]).backward()
            optimizer.step()
    return {f"module.{name}": value for name, value in model[0].state_dict().items()}


class Frequencies(Task):
    """Tell low from high frequencies, with few examples."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        body = trunk()
        state = {name.removeprefix("module."): value for name, value in saved_weights().items()}
        body.load_state_dict(state, strict=False)
        head = nn.Linear(64, 2)
        nn.init.normal_(head.weight, std=0.01)
        return nn.Sequential(body, head)

    def data(self, split: Split) -> TensorDataset:
        x, frequency = waves(160 if split is Split.TRAIN else 500, seed=list(Split).index(split))
        return TensorDataset(x, (frequency % 2 == 0).long())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
