"""The cost of a trunk is counted without its weights."""

from __future__ import annotations

import pytest
import torch

from stepladder.measuring.model.larger_trunks import FAMILIES, trunk_cost
from stepladder.models.torchvision_shim import import_timm

TORCHVISION = {
    "mobilenetv3_large_100": 0.217,
    "vit_base_patch16_224": 17.564,
    "densenet121": 2.834,
}
"""Billions of multiply-adds at 224, classifier included, as torchvision lists them."""
EFFICIENTNET = {
    ("efficientnet_b0", 224): 0.39,
    ("tf_efficientnet_b1", 240): 0.70,
}
"""The same by name and side. Tan and Le 2019, table 2, arXiv:1905.11946."""


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "gmacs"), TORCHVISION.items())
def test_flops_are_those_that_are_published(name: str, gmacs: float) -> None:
    cost = trunk_cost(name, 224)
    assert cost is not None
    assert cost.flops == pytest.approx(2e9 * gmacs, rel=0.02)


@pytest.mark.parametrize(("model", "gmacs"), EFFICIENTNET.items())
def test_flops_are_counted_at_the_size_of_the_pictures(
    model: tuple[str, int], gmacs: float
) -> None:
    cost = trunk_cost(*model)
    assert cost is not None
    assert cost.flops == pytest.approx(2e9 * gmacs, rel=0.05)


def test_every_name_is_one_of_timm() -> None:
    timm = import_timm()
    assert [name for names in FAMILIES for name in names if not timm.is_model(name)] == []


SAME_LAYERS = ("tf_efficientnet_lite0", "tf_efficientnet_b0", "deit_tiny_patch16_224")
"""First of families that differ from another one by padding or by how they were trained."""
BUILT = [family for family in FAMILIES if family[0] not in SAME_LAYERS]


@pytest.mark.parametrize(
    "family",
    [*BUILT[:2], *(pytest.param(family, marks=pytest.mark.thorough) for family in BUILT[2:])],
    ids=lambda family: family[0],
)
def test_every_family_can_be_counted_and_rises(family: tuple[str, ...]) -> None:
    costs = [trunk_cost(name, 224) for name in (family[0], family[1])]
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[0].flops < costs[1].flops


def test_the_width_is_that_of_the_features() -> None:
    widths = [cost.num_features for n in ("resnet34", "resnet50") if (cost := trunk_cost(n, 224))]
    assert widths == [512, 2048]


def test_counting_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    trunk_cost.cache_clear()
    assert trunk_cost("resnet10t", 64) is not None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("name", "side"), [("no_such_model", 224), ("resnet18", 0)])
def test_what_cannot_be_built_or_run_has_no_cost(name: str, side: int) -> None:
    assert trunk_cost(name, side) is None
