"""Trunks: a timm model without its classifier, from raw pixels to one feature vector per image."""

from __future__ import annotations

import socket
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies

from torch import Tensor, nn

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import ModelConfig
from stepladder.errors import ResourceError, UsageError
from stepladder.models import packaged
from stepladder.models.checkpointing import checkpoint_trunk
from stepladder.models.normalize import Normalize
from stepladder.models.state_file import read_safetensors, refuse_misfit
from stepladder.models.torchvision_shim import import_timm


class Trunk(nn.Module):
    """Normalizes images and computes pooled features of each.

    Attributes:
        num_features: d, the width of the features.

    Shapes: x (n, 3, h, w), uint8 or a float type, 0 to 255; the features are (n, d).
    """

    def __init__(self, normalize: Normalize, model: nn.Module, *, num_features: int) -> None:
        super().__init__()
        self.normalize = normalize
        self.model = model
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of each image."""
        return cast("Tensor", self.model(self.normalize(x)))  # (n, d)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Turn gradient checkpointing on or off."""
        checkpoint_trunk(self.model, enable)


def build_trunk(config: ModelConfig, *, image_size: int | None = None) -> Trunk:
    """Build a trunk and load its weights.

    A model with a fixed input size (most transformers) is built for image_size, in pixels; None
    keeps its default. Other models take any size.

    Raises:
        UsageError: if the name is unknown, or there are no such weights for it.
        DataError: if a weights file is not safetensors, is damaged or does not fit.
        ResourceError: if weights cannot be downloaded from the hub.
    """
    _refuse_unknown(config)
    if config.weights is WeightsSource.HUB:
        model = _create(config.name, image_size, weights=hub_weights(config.name))
    else:
        model = _create(config.name, image_size)
    mean, std = _pixel_statistics(model)
    if config.weights is WeightsSource.PACKAGED:
        model.load_state_dict(packaged.packaged_state(model.state_dict()))
        mean, std = packaged.MEAN, packaged.STD
    elif isinstance(config.weights, Path):
        _load_file(model, config.weights)
    width = getattr(model, "head_hidden_size", None) or model.num_features
    return Trunk(Normalize(mean, std), model, num_features=int(cast("int", width)))


def hub_weights(name: str) -> Path:
    """Find the safetensors file of a timm model in the hub's local cache, or download it.

    A cached file is used without a request to the hub, which takes half a minute of retries if
    there is no network.

    Raises:
        UsageError: if the model has no safetensors file there.
        ResourceError: if the hub cannot be reached.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    source = import_timm().get_pretrained_cfg(name)
    if source is None or not source.hf_hub_id:
        raise _no_safetensors(name)
    repository, _, revision = str(source.hf_hub_id).partition("@")
    file = source.hf_hub_filename or "model.safetensors"
    if not file.endswith(".safetensors"):
        raise _no_safetensors(name)
    cached = try_to_load_from_cache(repository, file, revision=revision or None)
    if isinstance(cached, str):
        return Path(cached)
    try:
        _look_up_hub()
        return Path(hf_hub_download(repository, file, revision=revision or None))
    except LocalEntryNotFoundError as error:
        raise _unreachable(name, error) from error
    except EntryNotFoundError as error:
        raise _no_safetensors(name) from error
    except Exception as error:
        raise _unreachable(name, error) from error


def _look_up_hub() -> None:
    """Resolve the hub's host name, because a download without a network retries for long.

    Raises:
        OSError: if it cannot be resolved. Skipped with a proxy, which resolves names itself.
    """
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not getproxies():
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)


def _refuse_unknown(config: ModelConfig) -> None:
    timm = import_timm()
    if not timm.is_model(config.name.partition(".")[0]):
        near = get_close_matches(config.name, timm.list_models(), n=3, cutoff=0.5)
        raise UsageError(
            f"model.name: timm has no model {config.name!r}",
            fix=f"Did you mean {', '.join(near)}?"
            if near
            else "List the names: python -c 'import timm; print(*timm.list_models(), sep=chr(10))'",
        )
    if config.weights is WeightsSource.PACKAGED and config.name != packaged.NAME:
        raise UsageError(
            f"model.weights: there are no packaged weights for {config.name!r}, "
            f"only for {packaged.NAME}",
            fix="Type --model.weights hub, or the path of a safetensors file; to train all weights "
            "from random ones, --model.weights none --train all.",
        )


def _create(name: str, image_size: int | None, weights: Path | None = None) -> nn.Module:
    timm = import_timm()
    options: dict[str, Any] = {"num_classes": 0, "in_chans": 3}
    source = timm.get_pretrained_cfg(name)
    if image_size is not None and source is not None and source.fixed_input_size:
        options["img_size"] = image_size
    if weights is not None:
        options |= {"pretrained": True, "pretrained_cfg_overlay": {"file": str(weights)}}
    try:
        return cast("nn.Module", timm.create_model(name, **options))
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise UsageError(
            f"model.name: timm cannot build the model {name!r} for these pictures "
            f"({type(error).__name__}: {first})",
            fix="Choose another model (--model.name), or prepare the store with another --size.",
        ) from error


def _pixel_statistics(model: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]]:
    facts = cast("dict[str, Any]", getattr(model, "pretrained_cfg", {}))
    mean = facts.get("mean") or (0.5, 0.5, 0.5)
    std = facts.get("std") or (0.5, 0.5, 0.5)
    return tuple(255.0 * value for value in mean), tuple(255.0 * value for value in std)


def _load_file(model: nn.Module, path: Path) -> None:
    """Load the file of a trunk, or of a whole classifier without its last layer."""
    wanted = model.state_dict()
    classifier = (
        cast("dict[str, Any]", getattr(model, "pretrained_cfg", {})).get("classifier") or ()
    )
    names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    heads = tuple(f"{name}." for name in names)
    found = {
        name: tensor
        for name, tensor in read_safetensors(path).items()
        if name in wanted or not name.startswith(heads)
    }
    refuse_misfit(found, wanted, where=str(path))
    model.load_state_dict(found)


def _no_safetensors(name: str) -> UsageError:
    return UsageError(
        f"model.weights: the hub has no safetensors file for {name!r}",
        why="stepladder never opens pickles.",
        fix="If you trust them, convert them once, then type --model.weights "
        f'{name}.safetensors:\n    python -c "import timm, safetensors.torch as s; s.save_file('
        f"timm.create_model('{name}', pretrained=True).state_dict(), '{name}.safetensors')\"",
    )


def _unreachable(name: str, error: Exception) -> ResourceError:
    first = next(iter(str(error).splitlines()), "")
    return ResourceError(
        f"the weights of {name!r} could not be downloaded ({type(error).__name__}: {first})",
        why="They are not in the local cache of the Hugging Face hub.",
        fix="Connect to the internet once, type --model.weights PATH.safetensors, or train all "
        "weights from random ones: --model.weights none --train all.",
    )
