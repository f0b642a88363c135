from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from stepladder.config.recipe import AugmentConfig
from stepladder.data.augment import randaugment as ops
from stepladder.data.augment import warp
from stepladder.data.augment.augment import augment, is_augmenting, mixup, random_crop, random_flip
from stepladder.data.augment.randaugment import OPERATIONS, randaugment
from stepladder.data.batch import Batch

EVERYTHING = AugmentConfig(crop=0.3, flip=True, randaugment_ops=2, mixup_alpha=0.4)
PER_SAMPLE = AugmentConfig(crop=0.3, flip=True, randaugment_ops=2)


def pictures(n: int, height: int = 24, width: int = 20) -> Tensor:
    """Gradients, discs and grain, each picture with its own tint."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    rng = np.random.default_rng(0)
    made = []
    for idx in range(n):
        disc = ((y - height * 0.4) ** 2 + (x - 4 - idx % 9) ** 2 < 30) * 90
        tint = rng.uniform(0.4, 1.0, 3).reshape(3, 1, 1)
        ramp = 6.0 * x + 2.0 * y + disc + rng.uniform(0, 12, (height, width))
        made.append(np.clip(tint * ramp + 20, 0, 255))
    return torch.from_numpy(np.stack(made).astype(np.uint8))


def batch(ids: list[int], num_classes: int = 3) -> Batch:
    pool = pictures(16)
    rows = torch.tensor(ids)
    return Batch(pool[rows % 16], rows % num_classes, rows)


def run(given_batch: Batch, config: AugmentConfig, seed: int = 1, epoch: int = 2) -> Batch:
    return augment(given_batch, config, seed=seed, epoch=epoch, num_classes=3)


def test_off_changes_nothing() -> None:
    before = batch([3, 1, 2])
    assert not is_augmenting(AugmentConfig())
    assert run(before, AugmentConfig()) is before


def test_same_draws_give_the_same_bits_and_others_do_not() -> None:
    first, again = (run(batch([*range(12)]), EVERYTHING) for _ in range(2))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    for other in ({"seed": 7}, {"epoch": 3}):
        assert not torch.equal(first.inputs, run(batch([*range(12)]), EVERYTHING, **other).inputs)


@settings(max_examples=15)
@given(ids=st.lists(st.integers(0, 15), min_size=1, max_size=9, unique=True))
def test_a_sample_is_changed_the_same_way_in_any_batch(ids: list[int]) -> None:
    whole = run(batch([*range(16)]), PER_SAMPLE).inputs
    part = run(batch(ids), PER_SAMPLE).inputs
    assert torch.equal(part, whole[ids])


def test_inputs_are_left_as_they_were() -> None:
    before = batch([*range(8)])
    copy = before.inputs.clone()
    run(before, EVERYTHING)
    assert torch.equal(before.inputs, copy)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pictures_stay_bytes_in_their_layout(layout: torch.memory_format) -> None:
    before = batch([*range(8)])
    before = before._replace(inputs=before.inputs.contiguous(memory_format=layout))
    after = run(before, EVERYTHING)
    assert after.inputs.dtype == torch.uint8
    assert after.inputs.is_contiguous(memory_format=layout)
    assert torch.equal(after.inputs, run(batch([*range(8)]), EVERYTHING).inputs)


def test_an_empty_batch_passes_through() -> None:
    assert len(run(batch([0])._replace(ids=torch.empty(0)), EVERYTHING).ids) == 0


def test_flip_mirrors_about_half_exactly() -> None:
    ids = np.arange(2000)
    ramp = torch.arange(4, dtype=torch.uint8).expand(2000, 3, 2, 4)
    flipped = random_flip(ramp, ids, seed=0, epoch=0)
    is_flipped = flipped[:, 0, 0, 0] == 3
    assert torch.equal(flipped[is_flipped], ramp[is_flipped].flip(-1))
    assert torch.equal(flipped[~is_flipped], ramp[~is_flipped])
    assert abs(is_flipped.float().mean().item() - 0.5) < 0.05


def test_crops_keep_the_share_of_area_and_the_aspect_they_promise() -> None:
    uniform = np.random.default_rng(0).random((4000, 4))
    matrices = warp.crop_matrices(uniform, smallest=0.25, height=40, width=40)
    share_x, share_y = matrices[:, 0, 0], matrices[:, 1, 1]
    assert (share_x * share_y >= 0.25 * 0.85).all()
    assert (np.maximum(share_x, share_y) <= 1).all()
    is_whole = (share_x < 1) & (share_y < 1)
    aspect = (share_x / share_y)[is_whole]
    assert (aspect >= 3 / 4 - 1e-9).all()
    assert (aspect <= 4 / 3 + 1e-9).all()
    edge = np.abs(matrices[:, :, 2]) + 20 * np.stack([share_x, share_y], axis=1)
    assert (edge <= 20 + 1e-9).all()


def test_crop_of_a_ramp_is_a_stretched_part_of_it() -> None:
    ramp = (torch.arange(64) * 3).to(torch.uint8).expand(50, 3, 64, 64)
    cropped = random_crop(ramp, np.arange(50), smallest=0.2, seed=0, epoch=0)
    slope = cropped[:, 0, 0].float().diff(dim=-1)[:, 4:-4]
    assert (slope >= 0).all()
    assert (slope.mean(dim=1) < 3.01).all()
    assert (slope.mean(dim=1) > 3 * np.sqrt(0.2 * 3 / 4) - 0.1).all()
    assert len({row[0, 0, 0].item() for row in cropped}) > 5


def test_warp_by_identity_and_whole_pixels_is_exact() -> None:
    x = pictures(3)
    same = warp.translations(np.zeros(3), is_x=True)
    assert torch.equal(warp.warp(x, same, is_filled=True), x)
    shifted = warp.warp(x, warp.translations(np.full(3, 2.0), is_x=True), is_filled=True)
    assert torch.equal(shifted[..., :-2], x[..., 2:])
    assert (shifted[..., -2:] == warp.FILL).all()
    shifted = warp.warp(x, warp.translations(np.full(3, -3.0), is_x=False), is_filled=True)
    assert torch.equal(shifted[..., 3:, :], x[..., :-3, :])


def test_quarter_turn_agrees_with_torch() -> None:
    x = pictures(2, 16, 16)
    turned = warp.warp(x, warp.rotations(np.full(2, np.pi / 2)), is_filled=True)
    assert torch.equal(turned, torch.rot90(x, 1, dims=(2, 3)))


def test_shear_moves_rows_in_proportion_to_their_height() -> None:
    x = pictures(1, 8, 8)
    sheared = warp.warp(x, warp.shears(np.array([2.0]), is_x=True), is_filled=True)
    assert torch.equal(sheared[0, :, 4, :7], x[0, :, 4, 1:])  # 0.5 below the center: 1 pixel
    assert torch.equal(sheared[0, :, 5, :5], x[0, :, 5, 3:])  # 1.5 below: 3 pixels


def pil(x: Tensor) -> Image.Image:
    return Image.fromarray(x.permute(1, 2, 0).contiguous().numpy())


def same_factor(value: float) -> Tensor:
    return torch.full((4,), value)


REFERENCES: list[tuple[str, Callable[[Tensor], Tensor], Callable[[Image.Image], Image.Image]]] = [
    ("autocontrast", ops.autocontrast, ImageOps.autocontrast),
    ("equalize", ops.equalize, ImageOps.equalize),
    *(
        (f"posterize {b}", lambda x, b=b: ops.posterize(x, torch.full((4,), b)),
         lambda p, b=b: ImageOps.posterize(p, b))
        for b in (1, 4, 8)
    ),
    *(
        (f"solarize {t}", lambda x, t=t: ops.solarize(x, same_factor(t)),
         lambda p, t=t: ImageOps.solarize(p, t))
        for t in (0, 100, 256)
    ),
    *(
        (f"{ours.__name__} {f}", lambda x, f=f, ours=ours: ours(x, same_factor(f)),
         lambda p, f=f, theirs=theirs: theirs(p).enhance(f))
        for ours, theirs in (
            (ops.brightness, ImageEnhance.Brightness),
            (ops.contrast, ImageEnhance.Contrast),
            (ops.color, ImageEnhance.Color),
            (ops.sharpness, ImageEnhance.Sharpness),
        )
        for f in (0.1, 1.0, 1.9)
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ours", "theirs"), REFERENCES, ids=[r[0] for r in REFERENCES])
def test_agrees_with_pillow_to_one_level(
    name: str,
    ours: Callable[[Tensor], Tensor],
    theirs: Callable[[Image.Image], Image.Image],
) -> None:
    x = pictures(4, 33, 47)
    wanted = np.stack([np.asarray(theirs(pil(one))).transpose(2, 0, 1) for one in x])
    difference = np.abs(ours(x).numpy().astype(int) - wanted)
    assert difference.max() <= (2 if name.startswith("sharpness") else 1)
    assert (difference > 0).mean() < 0.15  # Pillow truncates products that are slightly too small


def test_smoothing_kernel_is_pillows() -> None:
    x = pictures(2, 20, 30)
    smooth = ops.sharpness(x, torch.zeros(2))
    wanted = np.asarray(pil(x[0]).filter(ImageFilter.SMOOTH)).transpose(2, 0, 1)
    assert np.abs(smooth[0].numpy().astype(int) - wanted).max() <= 1


@pytest.mark.parametrize("value", [0, 7, 255])
def test_flat_pictures_survive_every_operation(value: int) -> None:
    flat = torch.full((2, 3, 9, 9), value, dtype=torch.uint8)
    assert torch.equal(ops.autocontrast(flat), flat)
    assert torch.equal(ops.equalize(flat), flat)
    for _, operation in OPERATIONS:
        assert operation(flat, np.array([0.9, -0.9])).shape == flat.shape


def test_zero_magnitude_leaves_only_what_has_no_strength() -> None:
    x = pictures(2)
    changed = {
        name for name, operation in OPERATIONS if not torch.equal(operation(x, np.zeros(2)), x)
    }
    assert changed == {"autocontrast", "equalize"}


def test_every_operation_is_drawn_and_the_list_keeps_its_order() -> None:
    assert [name for name, _ in OPERATIONS][:5] == [
        "identity", "autocontrast", "equalize", "rotate", "solarize",
    ]  # fmt: skip
    assert len(OPERATIONS) == 14
    x = pictures(1, 8, 8).expand(200, -1, -1, -1)
    out = randaugment(x, np.arange(200), num_ops=1, magnitude=9.0, seed=0, epoch=0)
    assert len({bytes(one.numpy().tobytes()) for one in out}) >= 20


def test_mixup_mixes_pictures_and_targets_by_one_share() -> None:
    ids = np.arange(10)
    x = torch.stack([torch.full((3, 4, 4), 20 * i, dtype=torch.uint8) for i in range(10)])
    targets = torch.eye(10)
    mixed, shares = mixup(x, targets, ids, alpha=1.0, seed=0, epoch=0)
    torch.testing.assert_close(shares.sum(1), torch.ones(10))
    own = shares.diagonal()
    assert (own >= 0.5).all()
    others = (shares - torch.diag(own)).argmax(1)
    assert sorted(others.tolist()) == list(range(10))  # a ring: everyone is a partner once
    wanted = own * 20 * torch.arange(10) + (1 - own) * 20 * others
    torch.testing.assert_close(mixed[:, 0, 0, 0].float(), wanted, atol=0.51, rtol=0)


def test_mixup_depends_on_the_ids_of_a_batch_but_not_on_their_order() -> None:
    order = [5, 2, 9, 0, 7, 1]
    config = AugmentConfig(mixup_alpha=0.5)
    first, again = run(batch(sorted(order)), config), run(batch(order), config)
    place = np.argsort(np.argsort(order))
    assert torch.equal(first.inputs[place], again.inputs)
    assert torch.equal(first.targets[place], again.targets)


def test_one_picture_mixes_with_itself() -> None:
    before = batch([4])
    after = run(before, AugmentConfig(mixup_alpha=0.5))
    assert torch.equal(after.inputs, before.inputs)
    torch.testing.assert_close(after.targets, F.one_hot(before.targets, 3).float())
