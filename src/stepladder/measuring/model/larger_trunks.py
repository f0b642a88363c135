"""Find larger trunks of the same family with local weights, and count a trunk's FLOPs."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import ModelConfig
from stepladder.measuring.model.flops import count_flops
from stepladder.models import packaged
from stepladder.models.torchvision_shim import import_timm
from stepladder.models.trunk import build_trunk

FAMILIES: tuple[tuple[str, ...], ...] = (
    tuple(f"tf_efficientnet_lite{size}" for size in range(5)),
    tuple(f"efficientnet_lite{size}" for size in range(5)),
    tuple(f"tf_efficientnet_b{size}" for size in range(8)),
    tuple(f"efficientnet_b{size}" for size in range(8)),
    ("tf_efficientnetv2_s", "tf_efficientnetv2_m", "tf_efficientnetv2_l"),
    ("resnet10t", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    ("mobilenetv3_small_050", "mobilenetv3_small_075", "mobilenetv3_small_100"),
    ("mobilenetv3_large_075", "mobilenetv3_large_100"),
    tuple(f"vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large")),
    tuple(f"deit_{size}_patch16_224" for size in ("tiny", "small", "base")),
    tuple(
        f"convnext_{size}"
        for size in ("atto", "femto", "pico", "nano", "tiny", "small", "base", "large")
    ),
    ("densenet121", "densenet169", "densenet201"),
    ("legacy_xception", "xception41", "xception65"),
)
"""Names of timm models, by increasing size."""


def larger_trunks(config: ModelConfig) -> tuple[str, ...]:
    """List the larger models of a trunk's family whose weights are on this machine, by size.

    Does not use the network: a model counts if its file is in the local cache of the Hugging Face
    hub, or is part of the installation. Empty for a model of an unknown family.
    """
    name = config.name.partition(".")[0]
    if config.weights is WeightsSource.NONE:
        return ()
    family = next((names for names in FAMILIES if name in names), ())
    larger = family[family.index(name) + 1 :] if family else ()
    return tuple(other for other in larger if has_weights(other))


def has_weights(name: str) -> bool:
    """Return True if the weights of a timm model are on this machine."""
    if name == packaged.NAME:
        return True
    from huggingface_hub import try_to_load_from_cache

    timm = import_timm()
    source = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if source is None or not source.hf_hub_id:
        return False
    repository, _, revision = str(source.hf_hub_id).partition("@")
    file = source.hf_hub_filename or "model.safetensors"
    found = try_to_load_from_cache(repository, file, revision=revision or None)
    return isinstance(found, str) and file.endswith(".safetensors")


class TrunkCost(NamedTuple):
    """The cost of a trunk for one image.

    Attributes:
        flops: of a forward pass.
        num_features: width of the features.
    """

    flops: int
    num_features: int


@cache
def trunk_cost(name: str, side: int) -> TrunkCost | None:
    """Count the FLOPs of a timm trunk on torch's meta device, without weights or computation.

    None if it cannot be built or run there.

    Args:
        side: height and width of an image, in pixels.
    """
    config = ModelConfig(name=name, weights=WeightsSource.NONE)
    try:
        with torch.device("meta"), torch.no_grad():
            trunk = build_trunk(config, image_size=side).eval()
            picture = torch.empty(1, 3, side, side)
            return TrunkCost(count_flops(lambda: trunk(picture)), trunk.num_features)
    except Exception:  # a model on the meta device may raise anything
        return None
