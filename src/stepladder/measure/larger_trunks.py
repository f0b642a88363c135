"""Larger trunks of the same family whose weights are at hand."""

from __future__ import annotations

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import ModelConfig
from stepladder.models import packaged
from stepladder.models.torchvision_shim import import_timm

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
"""Names of timm models, in rising size."""


def larger_trunks(config: ModelConfig) -> tuple[str, ...]:
    """List the larger models of a trunk's family whose weights lie on this machine, in rising size.

    Asks no network: a model counts if its file is in the local cache of the Hugging Face hub, or
    comes with the installation. Empty for a model of no known family.
    """
    name = config.name.partition(".")[0]
    if config.weights is WeightsSource.NONE:
        return ()
    family = next((names for names in FAMILIES if name in names), ())
    larger = family[family.index(name) + 1 :] if family else ()
    return tuple(other for other in larger if has_weights(other))


def has_weights(name: str) -> bool:
    """Say whether the weights of a timm model lie on this machine."""
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
