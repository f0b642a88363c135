"""Channels that were reshaped instead of permuted are detected in noise; textures are no alarm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.checks.data.channels import CHECK
from stepladder.checks.examples import Example, SoundPictures, labelled
from stepladder.checks.job import open_job
from stepladder.checks.run import run_check
from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.records.findings import Finding, Outcome

SIZE, NUM = 24, 64


def discs(num_channels: int, generator: torch.Generator) -> Tensor:
    """Draw colored discs, (n, h, w, c), with noise of equal strength."""
    at = torch.linspace(-1, 1, SIZE)
    middle = 0.6 * torch.rand(NUM, 2, 1, 1, generator=generator) - 0.3
    far = (at[:, None] - middle[:, 0]).square() + (at[None] - middle[:, 1]).square()
    inside = (far < 0.4).float()[..., None]  # (n, h, w, 1)
    colour = torch.randn(NUM, 1, 1, num_channels, generator=generator)
    noise = torch.randn(NUM, SIZE, SIZE, num_channels, generator=generator)
    return inside * colour + noise


def gratings(_: int, generator: torch.Generator) -> Tensor:
    """Draw waves in all directions, three to twelve pixels long, equal in all channels."""
    at = torch.arange(SIZE, dtype=torch.float32)
    turn = 3.14 * torch.rand(NUM, 1, 1, generator=generator)
    speed = 0.5 + 1.6 * torch.rand(NUM, 1, 1, generator=generator)
    start = 6.28 * torch.rand(NUM, 1, 1, generator=generator)
    wave = (speed * (turn.cos() * at[:, None] + turn.sin() * at[None]) + start).sin()
    return wave[..., None].expand(-1, -1, -1, 3)


def noise(_: int, generator: torch.Generator) -> Tensor:
    return torch.randn(NUM, SIZE, SIZE, 3, generator=generator)


def enlarged(num_channels: int, generator: torch.Generator) -> Tensor:
    """Draw pictures of squares of three by three equal pixels."""
    small = discs(num_channels, generator)[:, ::3, ::3]
    return small.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)


def moved(pixels: Tensor) -> Tensor:
    return pixels.permute(0, 3, 1, 2).contiguous()


def reshaped(pixels: Tensor) -> Tensor:
    return pixels.reshape(len(pixels), -1, SIZE, SIZE)


def look(
    make: Callable[[int, torch.Generator], Tensor],
    change: Callable[[Tensor], Tensor],
    num_channels: int,
    folder: Path,
) -> Finding:
    class Drawn(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            generator = torch.Generator().manual_seed(list(Split).index(split))
            pictures = change(make(num_channels, generator).contiguous())
            return labelled(pictures, torch.arange(NUM) % 4)

        def build_model(self, recipe: Recipe) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(num_channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)
            )

    task = Drawn()
    return run_check(CHECK, open_job(Example(task=task).config(folder), task, task_name="example"))


@pytest.mark.parametrize("num_channels", [3, 4, 6])
def test_reshaped_channels_are_found_in_noise(num_channels: int, tmp_path: Path) -> None:
    finding = look(discs, reshaped, num_channels, tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "channel_order"), finding


@pytest.mark.parametrize("make", [discs, gratings, noise, enlarged], ids=lambda make: make.__name__)
def test_pictures_whose_channels_were_moved_pass(
    make: Callable[[int, torch.Generator], Tensor], tmp_path: Path
) -> None:
    finding = look(make, moved, 3, tmp_path)
    assert finding.outcome is Outcome.PASSED, finding


def test_noise_has_no_order_to_lose(tmp_path: Path) -> None:
    finding = look(noise, reshaped, 3, tmp_path)
    assert finding.outcome is Outcome.PASSED, finding
