"""A deep autoencoder by several optimizers: loss against seconds, and against steps.

    python -m bench.optim.autoencoder [--quick] [--stages curves times]

784-1000-500-250-30 and back, tanh, on drawn digits (`strokes`); the loss of a picture is the sum of
the cross-entropies of its pixels. How they are tuned and compared: `race`. The problem, and K-FAC
on it: Martens and Grosse 2015, arXiv:1503.05671, section 13.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.optim.race import INVERSE_EVERY, Problem, Trials, arguments, grid, race
from bench.optim.strokes import digits

SIZES: Final = (784, 1000, 500, 250, 30)
NUM: Final = 20_000
TRIALS: Final[Trials] = {
    "sgd": grid(lr=(0.001, 0.003, 0.01, 0.03), momentum=(0.9, 0.99)),
    "adam": grid(lr=(3e-4, 1e-3, 3e-3, 1e-2), beta1=(0.9, 0.95)),
    "soap": grid(lr=(1e-3, 3e-3, 1e-2, 3e-2), beta1=(0.9, 0.95), inverse_every=INVERSE_EVERY),
    "kfac": grid(
        lr=(0.03, 0.1, 0.3, 1.0),
        damping=(0.1, 0.3),
        kl_clip=1.0,
        factor_every=2,
        inverse_every=INVERSE_EVERY,
    ),
}
"""Eight trials each."""


def autoencoder(seed: int) -> nn.Sequential:
    """Return the network, with Xavier's weights."""
    torch.manual_seed(seed)
    sizes = [*SIZES, *SIZES[-2::-1]]
    layers: list[nn.Module] = []
    for number, (entering, leaving) in enumerate(pairwise(sizes)):
        layer = nn.Linear(entering, leaving)
        nn.init.xavier_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
        layers.append(layer)
        is_code, is_last = number == len(SIZES) - 2, number == len(sizes) - 2
        if not is_code and not is_last:
            layers.append(nn.Tanh())
    return nn.Sequential(*layers)


def problem(num: int = NUM) -> Problem:
    """Return the problem, on as many drawings."""
    pictures, _ = digits(num)

    def loss(model: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
        batch = pictures[rows]
        logits = model(batch)
        total = F.binary_cross_entropy_with_logits(logits, batch, reduction="sum")
        return logits, total / len(batch)

    def measured(model: nn.Module) -> float:
        with torch.no_grad():
            return loss(model, torch.arange(min(1000, num)))[1].item()

    return Problem(
        name="autoencoder",
        about=f"Autoencoder {'-'.join(map(str, SIZES))} on {num:,} drawn digits",
        network=autoencoder,
        num=num,
        batch=500,
        every=10,
        loss=loss,
        measured=measured,
        kind="binary_cross_entropy",
        trials=TRIALS,
    )


def main() -> None:
    """Race on the autoencoder."""
    args = arguments(__doc__, steps=200).parse_args()
    race(problem(2000 if args.quick else NUM), args)


if __name__ == "__main__":
    main()
