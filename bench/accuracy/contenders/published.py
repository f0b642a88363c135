"""(a) The published original recipe: frozen trunk, batch size 2, NAdam at 0.001, 60 epochs.

Three epochs are timed and the total is extrapolated. The accuracy after 60 epochs is found outside
of the clock, by training the same head in the same order on precomputed features of the frozen
trunk.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.accuracy.contenders.contest import (
    accuracy,
    frozen_trunk,
    now,
    parser_of,
    read_pictures,
    report,
    square,
)

IMPORTED_AT = now()
BATCH = 2
LR = 0.001
TIMED_EPOCHS = 3


def load(pictures: list, size: int) -> tuple[Tensor, Tensor]:
    """Decode pictures into memory: uint8 (n, 3, h, w) and labels (n,)."""
    pixels = np.stack([square(picture.path, size) for picture in pictures])
    labels = torch.tensor([picture.label for picture in pictures])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), labels


def train_epoch(
    trunk: nn.Module, head: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> None:
    for rows in torch.randperm(len(x)).split(BATCH):
        loss = F.cross_entropy(head(trunk(x[rows])), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(32)])


def new_head(seed: int, num_features: int, num_classes: int) -> tuple[nn.Module, torch.optim.NAdam]:
    torch.manual_seed(seed)
    head = nn.Linear(num_features, num_classes)
    return head, torch.optim.NAdam(head.parameters(), lr=LR)


def main() -> None:
    options = parser_of(__doc__).parse_args()
    splits, classes = read_pictures(options.pictures)
    (x, y), (val_x, val_y) = (load(splits[name], options.size) for name in ("train", "val"))
    trunk = frozen_trunk()
    head, optimizer = new_head(options.seed, trunk.num_features, len(classes))
    ready = now()
    timed = min(TIMED_EPOCHS, options.max_epochs)
    for _ in range(timed):
        train_epoch(trunk, head, optimizer, x, y)
        F.cross_entropy(outputs(nn.Sequential(trunk, head), val_x), val_y)
    epoch_s = (now() - ready) / timed
    torch.save(head.state_dict(), options.out / "head.pt")
    seconds = ready - IMPORTED_AT + options.max_epochs * epoch_s
    test_x, test_y = load(splits["test"], options.size)
    features, test_features = outputs(trunk, x), outputs(trunk, test_x)
    head, optimizer = new_head(options.seed, trunk.num_features, len(classes))
    for _ in range(options.max_epochs):
        train_epoch(nn.Identity(), head, optimizer, features, y)
    report(
        imported_at=IMPORTED_AT,
        seconds=seconds,
        epochs=options.max_epochs,
        test_accuracy=accuracy(outputs(head, test_features), test_y.tolist()),
        epoch_s=epoch_s,
        timed_epochs=timed,
    )


if __name__ == "__main__":
    main()
