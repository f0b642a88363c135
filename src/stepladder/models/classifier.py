"""A classifier: a trunk for image features, and a small head for the classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stepladder.config.recipe import HeadConfig, ModelConfig
from stepladder.models.checkpointing import checkpoint_trunk
from stepladder.models.freezing import is_frozen
from stepladder.models.trunk import Trunk, build_trunk


class Classifier(nn.Module):
    """Compute the logits of each image: model(x) = head(trunk(x)).

    A frozen trunk stays in evaluation mode under `train()`, so its BatchNorm and dropout do not
    change.

    Shapes: x (n, 3, h, w), uint8 or a float type, 0 to 255; the scores (logits) are (n, C).
    """

    def __init__(self, trunk: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.trunk(x))  # (n, d) -> (n, C)
        return logits

    def train(self, mode: bool = True) -> Classifier:
        """Set training mode; a frozen trunk stays in evaluation mode."""
        super().train(mode)
        if is_frozen(self.trunk):
            self.trunk.eval()
        return self

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Turn gradient checkpointing of the trunk on or off."""
        checkpoint_trunk(self.trunk, enable)


def build_head(config: HeadConfig, *, num_features: int, num_classes: int) -> nn.Sequential:
    """Build dropout, an optional hidden layer, and the linear layer for the logits.

    Linear layers use torch's default initialization, so that the first loss is near ln C.

    Shapes: features (n, d) -> logits (n, C).
    """
    layers: list[nn.Module] = [nn.Dropout(config.dropout)]
    width = num_features
    if config.hidden:
        layers += [nn.Linear(width, config.hidden), nn.ReLU()]
        width = config.hidden
    return nn.Sequential(*layers, nn.Linear(width, num_classes))


def build_classifier(
    model: ModelConfig,
    head: HeadConfig,
    *,
    seed: int,
    num_classes: int,
    image_size: int | None = None,
) -> Classifier:
    """Build trunk and head, each from the seed; torch's global random state does not change.

    The head's initial weights do not depend on random draws of the trunk, so a seed yields the same
    head with packaged, hub or no weights. For image_size see `build_trunk`.

    Raises:
        UsageError, DataError, ResourceError: see `build_trunk`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trunk: Trunk = build_trunk(model, image_size=image_size)
        torch.manual_seed(seed)
        scores = build_head(head, num_features=trunk.num_features, num_classes=num_classes)
    return Classifier(trunk, scores)
