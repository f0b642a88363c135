"""Lines that do nothing, or something else than they seem to, read from the source."""

from __future__ import annotations

import pytest

from stepladder.watching.script.slips import slips

SLIPS = {
    "scores.masked_fill(mask, -1e9)": "unused",
    "self.x.clamp(0, 1)": "unused",
    "hidden.detach()": "unused",
    "table.dropna()": "unused",
    "optimizer.zero_grad": "uncalled",
    "model.eval": "uncalled",
    "loss.backward": "uncalled",
    "a = x - x.mean() / (x.std() + 1e-8)": "precedence",
    "a = x - x.mean(0) / x.std(0)": "precedence",
    "a = x - np.mean(x) / np.std(x)": "precedence",
    "a = x - mean / std": "precedence",
    "a = x - x_mean / (x_std + eps)": "precedence",
    "a = nn.ModuleList([Head(width)] * horizon)": "same_layer",
    "a = nn.Sequential(*([Block(8)] * 3))": "same_layer",
    "a = ModuleList(n * [nn.Linear(4, 4)])": "same_layer",
    "t = reward + gamma * mask + next_value": "undiscounted",
    "t = r + self.gamma * (1 - done) + target(next_state).max(1)[0]": "undiscounted",
}
SOUND = (
    "scores = scores.masked_fill(mask, -1e9)",
    "scores.masked_fill_(mask, -1e9)",
    "torch.clamp(x, 0, 1, out=x)",
    "table.dropna(inplace=True)",
    "optimizer.zero_grad()",
    "step = scheduler.step",
    "a = (x - x.mean()) / (x.std() + 1e-8)",
    "a = x - y.mean() / x.std()",
    "a = x - mean / num",
    "a = x - total / std_of",
    "a = nn.ModuleList([Head(width) for _ in range(horizon)])",
    "a = nn.ModuleList([self.shared] * horizon)",
    "a = nn.Sequential(*[Block(8) for _ in range(3)])",
    "t = reward + gamma * mask * next_value",
    "t = reward + gamma * mask * target(next_state).max(1)[0] + bonus",
    "t = reward + gamma * next_value",
    "t = reward + shaping * mask + next_bonus_of(x)",
)


@pytest.mark.parametrize("line", SLIPS)
def test_a_slip_is_found(line: str) -> None:
    (found,) = slips(f"import torch\n\ndef f(x):\n    {line}\n    return x\n")
    assert (found.kind, found.line) == (SLIPS[line], 4)


@pytest.mark.parametrize("line", SOUND)
def test_similar_lines_are_sound(line: str) -> None:
    assert slips(f"def f(x):\n    {line}\n") == []
