"""A small transformer on the characters of a text, by several optimizers.

    python -m bench.optim.tokens [--quick] [--stages curves times]

The text is the Markdown of this project's docs, of which the last tenth is held out; the loss is
that of the next character there. Two layers of attention and feed-forward, 64 wide, 64 characters.
How the optimizers are tuned and compared: `race`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.optim.race import INVERSE_EVERY, Problem, Trials, arguments, grid, race

DOCS: Final = Path(__file__).parents[2] / "docs"
WIDTH: Final = 64
LAYERS: Final = 2
HEADS: Final = 2
LENGTH: Final = 64
HELD_OUT: Final = 64  # sequences
TRIALS: Final[Trials] = {
    "sgd": grid(lr=(0.01, 0.03, 0.1, 0.3), momentum=(0.9, 0.99)),
    "adam": grid(lr=(1e-3, 3e-3, 1e-2, 3e-2), beta1=(0.9, 0.95)),
    "soap": grid(lr=(1e-3, 3e-3, 1e-2, 3e-2), beta1=(0.9, 0.95), inverse_every=INVERSE_EVERY),
    "muon": grid(lr=(1e-3, 3e-3, 1e-2, 3e-2), momentum=(0.9, 0.95)),
    "kfac": grid(
        lr=(0.1, 0.3),
        damping=(0.01, 0.1),
        kl_clip=(1e-3, 1e-2),
        factor_every=2,
        inverse_every=INVERSE_EVERY,
    ),
}
"""Eight trials each."""


class Block(nn.Module):
    """Attention and feed-forward, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mixed, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wider, self.back = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next representation.

        Shapes: (batch, length, width) in and out.
        """
        batch, length, _ = x.shape
        parts = (
            self.mixed(self.norms[0](x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        )
        found = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.joined(found.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.back(F.gelu(self.wider(self.norms[1](x))))


class Transformer(nn.Module):
    """Predicts the next character."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_tokens, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, num_tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits.

        Shapes: x (batch, length), logits (batch, length, tokens).
        """
        scores: Tensor = self.out(self.norm(self.blocks(self.tokens(x) + self.places)))
        return scores


def problem() -> Problem:
    """Return the problem."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md")))
    names = sorted(set(text))
    index = {name: number for number, name in enumerate(names)}
    codes = torch.tensor([index[name] for name in text])
    sequences = codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
    num = len(sequences) * 9 // 10
    held_out = sequences[num:][:: max(1, (len(sequences) - num) // HELD_OUT)]

    def scored(model: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(rows[:, :-1]).flatten(0, 1)
        return logits, F.cross_entropy(logits, rows[:, 1:].flatten())

    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Transformer(len(names))

    def measured(model: nn.Module) -> float:
        with torch.no_grad():
            return scored(model, held_out)[1].item()

    return Problem(
        name="tokens",
        about=f"Transformer of {LAYERS} layers, {WIDTH} wide, on {num * LENGTH:,} characters of "
        "Markdown; the loss is that of held-out text",
        network=network,
        num=num,
        batch=16,
        every=10,
        loss=lambda model, rows: scored(model, sequences[rows]),
        measured=measured,
        kind="cross_entropy",
        trials=TRIALS,
    )


def main() -> None:
    """Race on the text."""
    race(problem(), arguments(__doc__, steps=300).parse_args())


if __name__ == "__main__":
    main()
