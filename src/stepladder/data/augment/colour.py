"""Colour and tone operations on a batch of pictures, each picture with its own strength.

Every one takes uint8 (n, 3, h, w) and gives uint8 of that shape, on any device. They follow
Pillow's ImageOps and ImageEnhance, which the tests hold them to.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_GREY = (299, 587, 114)  # thousandths, as in Pillow's conversion to L
_SMOOTH = ((1, 1, 1), (1, 5, 1), (1, 1, 1))  # Pillow's SMOOTH kernel, over 13


def autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel from 0 to 255; a flat channel stays."""
    low = x.amin(dim=(2, 3), keepdim=True).int()
    high = x.amax(dim=(2, 3), keepdim=True).int()
    stretched = (x - low) * 255 // (high - low).clamp_min(1)
    return torch.where(high > low, stretched, x).to(torch.uint8)


def equalize(x: Tensor) -> Tensor:
    """Flatten the histogram of each channel; a channel of one value stays."""
    n, c, height, width = x.shape
    pixels = x.reshape(n * c, height * width).long()
    row = torch.arange(n * c, device=x.device).unsqueeze(1)
    histogram = torch.bincount((pixels + 256 * row).flatten(), minlength=256 * n * c)
    histogram = histogram.view(n * c, 256)
    brightest = histogram.gather(1, pixels.amax(dim=1, keepdim=True))
    step = (height * width - brightest) // 255  # (n c, 1)
    before = histogram.cumsum(1) - histogram
    table = ((before + step // 2) // step.clamp_min(1)).clamp_(0, 255)
    table = torch.where(step > 0, table, torch.arange(256, device=x.device))
    return table.gather(1, pixels).view(x.shape).to(torch.uint8)


def posterize(x: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest bits of each value. Shapes: bits int (n,), in [0, 8]."""
    mask = (256 - torch.pow(2, 8 - bits)).view(-1, 1, 1, 1).to(torch.uint8)
    return x & mask


def solarize(x: Tensor, threshold: Tensor) -> Tensor:
    """Invert values at or above a threshold. Shapes: threshold (n,), in [0, 256]."""
    return torch.where(x.float() >= threshold.view(-1, 1, 1, 1), 255 - x, x)


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Mix with black: 0 is black, 1 the picture, above 1 brighter. Shapes: factor (n,)."""
    return _mix(torch.zeros((), device=x.device), x, factor)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Mix with the mean grey of the picture. Shapes: factor (n,)."""
    grey = _grey(x)
    num_pixels = grey[0].numel()
    total = grey.sum(dim=(1, 2, 3), keepdim=True, dtype=torch.int64)
    mean = (2 * total + num_pixels) // (2 * num_pixels)  # in integers: the same in any batch
    return _mix(mean.float(), x, factor)


def color(x: Tensor, factor: Tensor) -> Tensor:
    """Mix with the grey picture: 0 is grey, 1 the picture. Shapes: factor (n,)."""
    return _mix(_grey(x).float(), x, factor)


def sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Mix with the smoothed picture: 0 is smooth, above 1 sharper. Shapes: factor (n,)."""
    kernel = torch.tensor(_SMOOTH, dtype=torch.float32, device=x.device)
    smooth = x.float()
    if min(x.shape[-2:]) >= 3:  # the border has no nine neighbours, and stays
        total = F.conv2d(smooth, kernel.expand(x.shape[1], 1, 3, 3), groups=x.shape[1])
        smooth[:, :, 1:-1, 1:-1] = (total / kernel.sum() + 0.5).floor_()
    return _mix(smooth, x, factor)


def _grey(x: Tensor) -> Tensor:
    weighted = x.int() * torch.tensor(_GREY, dtype=torch.int32, device=x.device).view(1, 3, 1, 1)
    return (weighted.sum(dim=1, keepdim=True, dtype=torch.int32) + 500) // 1000  # (n, 1, h, w)


def _mix(other: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    mixed = other + (x.float() - other) * factor.view(-1, 1, 1, 1)
    return mixed.clamp_(0, 255).to(torch.uint8)
