"""Random augmentation of a training batch, on the device of its tensors.

Crop, flip and RandAugment of a sample depend only on (seed, epoch, its id). MixUp's partner is
another sample of the same batch, so it depends on the ids of the batch, but not on their order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from stepladder.config.recipe import AugmentConfig
from stepladder.data.augment.draws import Purpose, draw_bits, draw_symmetric_beta, draw_uniform
from stepladder.data.augment.randaugment import randaugment
from stepladder.data.augment.warp import crop_matrices, warp
from stepladder.data.batch import Batch

Rows = npt.NDArray[np.int64]


def is_augmenting(config: AugmentConfig) -> bool:
    """Return True if any augmentation is on."""
    return config.crop < 1 or config.flip or config.randaugment_ops > 0 or config.mixup_alpha > 0


def augment(
    batch: Batch, config: AugmentConfig, *, seed: int, epoch: int, num_classes: int
) -> Batch:
    """Apply crop, flip, RandAugment and MixUp, in this order, each if it is on.

    Pictures stay uint8 and keep their memory layout. With MixUp the targets become class weights,
    float32 (n, num_classes).

    Shapes: inputs uint8 (n, 3, h, w), targets int64 (n,), ids (n,).
    """
    if not is_augmenting(config) or len(batch.ids) == 0:
        return batch
    pictures: Tensor = batch.inputs
    targets: Tensor = batch.targets
    ids = batch.ids.numpy()
    if config.crop < 1:
        pictures = random_crop(pictures, ids, smallest=config.crop, seed=seed, epoch=epoch)
    if config.flip:
        pictures = random_flip(pictures, ids, seed=seed, epoch=epoch)
    if config.randaugment_ops:
        pictures = randaugment(
            pictures,
            ids,
            num_ops=config.randaugment_ops,
            magnitude=config.randaugment_magnitude,
            seed=seed,
            epoch=epoch,
        )
    if config.mixup_alpha:
        shares = F.one_hot(targets, num_classes).float()
        alpha = config.mixup_alpha
        pictures, targets = mixup(pictures, shares, ids, alpha=alpha, seed=seed, epoch=epoch)
    return Batch(_like(pictures, batch.inputs), targets, batch.ids)


def random_crop(pictures: Tensor, ids: Rows, *, smallest: float, seed: int, epoch: int) -> Tensor:
    """Crop a random part of each picture and resize it to the picture's size.

    A part is never larger than the picture, so it is only enlarged, and bilinear sampling needs no
    antialiasing.
    """
    uniform = draw_uniform(ids, seed=seed, epoch=epoch, purpose=Purpose.CROP, num=4)
    height, width = pictures.shape[-2:]
    matrices = crop_matrices(uniform, smallest=smallest, height=height, width=width)
    return warp(pictures, matrices, is_filled=False)


def random_flip(pictures: Tensor, ids: Rows, *, seed: int, epoch: int) -> Tensor:
    """Mirror half of the pictures left to right."""
    is_flipped = draw_uniform(ids, seed=seed, epoch=epoch, purpose=Purpose.FLIP) < 0.5  # (n, 1)
    mask = torch.from_numpy(is_flipped).to(pictures.device).view(-1, 1, 1, 1)
    return torch.where(mask, pictures.flip(-1), pictures)


def mixup(
    pictures: Tensor, targets: Tensor, ids: Rows, *, alpha: float, seed: int, epoch: int
) -> tuple[Tensor, Tensor]:
    """Mix each picture and its target with a partner's, with a weight from Beta(alpha, alpha).

    The larger weight is the sample's own. Partners form a ring: the ids of the batch, sorted by a
    random number for each.

    Shapes: pictures uint8 (n, 3, h, w), targets float (n, C).

    Source: Zhang et al. 2018, "mixup: Beyond Empirical Risk Minimization", arXiv:1710.09412.
    """
    share = draw_symmetric_beta(
        ids, alpha=alpha, seed=seed, epoch=epoch, purpose=Purpose.MIXUP_SHARE
    )
    share = np.maximum(share, 1 - share)
    keys = draw_bits(ids, seed=seed, epoch=epoch, purpose=Purpose.MIXUP_PARTNER)[:, 0]
    ring = np.argsort(keys, kind="stable")
    partner = np.empty_like(ring)
    partner[ring] = np.roll(ring, -1)
    device = pictures.device
    other = torch.from_numpy(partner).to(device)
    own_share = torch.from_numpy(share).to(device, torch.float32)
    mixed = _mix(pictures.float(), pictures[other].float(), own_share.view(-1, 1, 1, 1))
    return mixed.round_().to(torch.uint8), _mix(targets, targets[other], own_share.view(-1, 1))


def _mix(own: Tensor, other: Tensor, own_share: Tensor) -> Tensor:
    return (own - other).mul_(own_share).add_(other)


def _like(pictures: Tensor, original: Tensor) -> Tensor:
    if original.is_contiguous():
        return pictures.contiguous()
    return pictures.contiguous(memory_format=torch.channels_last)
