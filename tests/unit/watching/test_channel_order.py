"""Images whose axes a view exchanged, and what only looks like that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from stepladder.records.watch import WatchReport
from stepladder.watching.contract import Found
from stepladder.watching.faults.inputs.pixels import channel_order
from stepladder.watching.hooks.inputs.pixels import neighbours
from stepladder.watching.seen.inputs import PixelsSeen
from stepladder.watching.seen.seen import Seen

Watched = Callable[..., WatchReport]


def noise(height: int, width: int, channels: int = 3) -> Tensor:
    """Return 64 images of noise."""
    generator = torch.Generator().manual_seed(height * width + channels)
    return torch.randn(64, channels, height, width, generator=generator)


def smooth(height: int, width: int, channels: int = 3) -> Tensor:
    """Return 64 images in which neighbours are alike."""
    return F.avg_pool2d(noise(height + 4, width + 4, channels), 5, 1)


def last(images: Tensor) -> Tensor:
    """Return images of (height, width, channels)."""
    return images.permute(0, 2, 3, 1).contiguous()


def ruled(images: Tensor) -> Tensor:
    """Add lines at every third row and column, at another place in each image."""
    rows, columns = torch.arange(images.shape[2]), torch.arange(images.shape[3])
    for idx, image in enumerate(images):
        image += 2.0 * ((rows[:, None] + idx) % 3 == 0) + 2.0 * ((columns + idx) % 3 == 0)
    return images


def seen_of(images: Tensor) -> Seen:
    one = PixelsSeen(built="Net", where="train.py:9", size=(images.shape[2], images.shape[3]))
    one.num_values = images.numel()
    for batch in torch.split(images, 16):
        down, right, pixel_down, within, between = neighbours(batch).tolist()
        one.downs.append(down)
        one.pixel_rights.append(right)
        one.pixel_downs.append(pixel_down)
        one.withins.append(within)
        one.betweens.append(between)
    seen = Seen()
    seen.pixels.append(one)
    return seen


SCRAMBLED = {
    "colours": last(smooth(16, 16)).view(-1, 3, 16, 16),
    "grey": last(smooth(24, 24, 1).expand(-1, 3, -1, -1)).reshape(-1, 3, 24, 24),
    "another_height": last(smooth(12, 20)).reshape(-1, 3, 12, 20),
    "mostly_noise": last(noise(32, 32) + 2 * smooth(32, 32)).view(-1, 3, 32, 32),
    "other_means_of_channels": last(
        smooth(16, 16) + torch.tensor([0.0, 2.0, 5.0]).view(3, 1, 1)
    ).view(-1, 3, 16, 16),
}
SOUND = {
    "colours": smooth(16, 16),
    "grey": smooth(24, 24, 1).expand(-1, 3, -1, -1),
    "permuted": last(smooth(16, 16)).permute(0, 3, 1, 2),
    "noise": noise(16, 16),
    "other_means_of_channels": noise(24, 24) + torch.tensor([0.0, 2.0, 5.0]).view(3, 1, 1),
    "lines_at_every_third_pixel": ruled(noise(24, 24)),
    "lines_at_every_third_pixel_of_another_width": ruled(smooth(20, 25)),
    "harmonics_in_a_spectrogram": (
        noise(24, 24) + 2.0 * (torch.arange(24).view(1, 1, 24, 1) % 3 == 0) * noise(1, 24)
    ),
    "a_board_of_pieces": (noise(9, 9) > 1).float().expand(64, 3, 9, 9),
    "interlaced_frames": smooth(24, 24)[:, :, torch.arange(24).view(8, 3).T.flatten()],
}


@pytest.mark.parametrize("name", SCRAMBLED)
def test_pixels_that_a_view_scrambled_are_found(name: str) -> None:
    images = SCRAMBLED[name]
    answer = channel_order(seen_of(images))
    assert isinstance(answer, Found)
    _, _, height, width = images.shape
    assert f"images.view(-1, {height}, {width}, 3).permute(0, 3, 1, 2)" in answer.fix
    mended = images.reshape(-1, height, width, 3).permute(0, 3, 1, 2)
    assert not isinstance(channel_order(seen_of(mended)), Found)


@pytest.mark.parametrize("name", SOUND)
def test_other_images_are_not(name: str) -> None:
    assert not isinstance(channel_order(seen_of(SOUND[name])), Found)


SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
images = nn.functional.avg_pool2d(torch.randn(64, 3, 20, 20), 5, 1)
images = images.permute(0, 2, 3, 1).reshape(-1, 3, 16, 16)
net = nn.Sequential(LAYERS, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 2))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(20):
    rows = torch.randperm(64)[:32]
    sgd.zero_grad()
    nn.functional.cross_entropy(net(images[rows]), rows % 2).backward()
    sgd.step()
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layers", "is_found"),
    [
        ("nn.Conv2d(3, 3, 3)", True),
        ("nn.Identity()", False),
        ("nn.Conv2d(3, 3, 1)", False),
    ],
    ids=["convolution", "linear", "single_pixels"],
)
def test_it_matters_to_convolutions_of_neighbours_only(
    layers: str, is_found: bool, watched: Watched
) -> None:
    report = watched(SCRIPT.replace("LAYERS", layers))
    (one,) = [finding for finding in report.findings if finding.check == "channel_order"]
    assert (one.fault is not None) is is_found, one.evidence
