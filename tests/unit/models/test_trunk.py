from __future__ import annotations

import json
import pickle
import socket
import struct
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from safetensors.torch import save_file

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import ModelConfig
from stepladder.errors import DataError, ResourceError, UsageError
from stepladder.models import packaged
from stepladder.models.torchvision_shim import import_timm
from stepladder.models.trunk import build_trunk

SMALL = "test_efficientnet"


def small(weights: WeightsSource | Path = WeightsSource.NONE) -> ModelConfig:
    return ModelConfig(name=SMALL, weights=weights)


def pixels(size: int = 64, *, n: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(
    ("name", "size"),
    [("test_efficientnet", 64), ("test_resnet", 97), ("mobilenetv3_small_050", 97)],
)
def test_features_have_the_width_that_the_trunk_states(name: str, size: int) -> None:
    trunk = build_trunk(ModelConfig(name=name, weights=WeightsSource.NONE)).eval()
    with torch.no_grad():
        assert trunk(pixels(size)).shape == (2, trunk.num_features)


def test_fixed_size_transformer_is_built_for_the_picture_size() -> None:
    config = ModelConfig(name="test_vit", weights=WeightsSource.NONE)
    trunk = build_trunk(config, image_size=64).eval()
    with torch.no_grad():
        assert trunk(pixels(64)).shape == (2, trunk.num_features)


def test_normalisation_comes_from_the_model_and_is_not_trained() -> None:
    trunk = build_trunk(small())
    mean, std = import_timm().get_pretrained_cfg(SMALL).mean, trunk.normalize.std.flatten() / 255
    torch.testing.assert_close(trunk.normalize.mean.flatten() / 255, torch.tensor(mean))
    torch.testing.assert_close(
        trunk.normalize(pixels()),
        (pixels().float() / 255 - torch.tensor(mean).view(1, 3, 1, 1)) / std.view(1, 3, 1, 1),
    )
    assert not any("normalize" in name for name, _ in trunk.named_parameters())
    assert {"normalize.mean", "normalize.std"} <= set(trunk.state_dict())


def test_bytes_and_floats_give_the_same_features() -> None:
    trunk = build_trunk(small()).eval()
    with torch.no_grad():
        assert torch.equal(trunk(pixels()), trunk(pixels().float()))


def test_packaged_weights_match_by_position_and_bring_their_own_normalisation() -> None:
    stored = torch.load(packaged.weights_path(), map_location="cpu", weights_only=True)
    trunk = build_trunk(ModelConfig())
    state = trunk.model.state_dict()
    assert len(state) == len(stored) - 2
    assert torch.equal(state["conv_stem.weight"], stored["_conv_stem.weight"])
    assert torch.equal(state["bn2.running_var"], stored["_bn1.running_var"])
    assert trunk.normalize.mean.flatten().tolist() == [127.0] * 3
    assert trunk.normalize.std.flatten().tolist() == [128.0] * 3


def test_packaged_weights_fit_the_model_with_its_classifier_too() -> None:
    model = import_timm().create_model(packaged.NAME)
    model.load_state_dict(packaged.packaged_state(model.state_dict()))
    stored = torch.load(packaged.weights_path(), map_location="cpu", weights_only=True)
    assert torch.equal(model.classifier.bias, stored["_fc.bias"])


def test_packaged_weights_with_other_bytes_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "weights.pth"
    other.write_bytes(pickle.dumps({"a": 1}))
    monkeypatch.setattr(packaged, "weights_path", lambda: other)
    with pytest.raises(DataError, match="sha256"):
        build_trunk(ModelConfig())


def test_packaged_weights_of_another_shape_are_refused() -> None:
    model = import_timm().create_model(SMALL, num_classes=0)
    with pytest.raises(DataError, match="do not fit"):
        packaged.packaged_state(model.state_dict())


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="resnet18"):
        build_trunk(ModelConfig(name="resnet_18", weights=WeightsSource.NONE))
    with pytest.raises(UsageError, match="list_models"):
        build_trunk(ModelConfig(name="@@@@", weights=WeightsSource.NONE))


def test_packaged_weights_of_another_model_say_what_to_type() -> None:
    with pytest.raises(UsageError, match=r"--model\.weights hub, or the path .* none --train all"):
        build_trunk(ModelConfig(name=SMALL))


def test_hub_offline_says_what_to_do_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ResourceError, match=r"type --model\.weights PATH.* none --train all"):
        build_trunk(small(WeightsSource.HUB))


def test_a_hub_without_an_address_is_not_asked_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("stepladder.models.trunk.getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", _no_address)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", _never)
    with pytest.raises(ResourceError, match="Name or service not known"):
        build_trunk(small(WeightsSource.HUB))


def _no_address(host: str, *_: object) -> NoReturn:
    raise socket.gaierror(-2, f"Name or service not known: {host}")


def _never(*_: object, **__: object) -> NoReturn:
    raise AssertionError("nothing is fetched")


def test_hub_weights_in_the_cache_need_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timm = import_timm()
    source = timm.create_model(SMALL)
    repository = timm.get_pretrained_cfg(SMALL).hf_hub_id
    folder = tmp_path / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    save_file(source.state_dict(), snapshot / "model.safetensors")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", _no_address)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", _never)
    trunk = build_trunk(small(WeightsSource.HUB))
    assert torch.equal(trunk.model.conv_stem.weight, source.conv_stem.weight)


def test_hub_weights_that_are_a_pickle_are_refused_with_the_way_out() -> None:
    config = ModelConfig(name="legacy_xception", weights=WeightsSource.HUB)
    with pytest.raises(UsageError, match=r"legacy_xception\.safetensors"):
        build_trunk(config)


def test_weights_file_of_a_trunk_or_of_a_whole_classifier_loads(tmp_path: Path) -> None:
    timm = import_timm()
    for num_classes in (0, 10):
        source = timm.create_model(SMALL, num_classes=num_classes)
        save_file(source.state_dict(), tmp_path / "weights.safetensors")
        state = build_trunk(small(tmp_path / "weights.safetensors")).model.state_dict()
        assert all(torch.equal(state[name], source.state_dict()[name]) for name in state)


def test_weights_file_that_does_not_fit_shows_five_lines(tmp_path: Path) -> None:
    other = import_timm().create_model("test_resnet", num_classes=0)
    save_file(other.state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(DataError, match="none were loaded") as caught:
        build_trunk(small(tmp_path / "weights.safetensors"))
    assert caught.value.why is not None
    assert len(caught.value.why.splitlines()) == 1 + 5 + 1
    assert "missing  conv_stem.weight 24x3x3x3" in caught.value.why


def test_one_wrong_shape_is_named(tmp_path: Path) -> None:
    state = import_timm().create_model(SMALL, num_classes=0).state_dict()
    state["bn1.weight"] = torch.zeros(3)
    save_file(state, tmp_path / "weights.safetensors")
    with pytest.raises(DataError, match=r"bn1\.weight is 3, the model has 24"):
        build_trunk(small(tmp_path / "weights.safetensors"))


def oversized_header() -> bytes:
    return struct.pack("<Q", 1 << 60) + b"{"


def data_past_the_end() -> bytes:
    entry = {"a": {"dtype": "F32", "shape": [1024], "data_offsets": [0, 4096]}}
    header = json.dumps(entry).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 16


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps({"conv_stem.weight": [1.0]}), "pickle"),
        (b"PK\x03\x04" + b"\0" * 60, "pickle"),
        (b"", "not a safetensors file"),
        (b"not weights at all, but a line of text", "not a safetensors file"),
        (oversized_header(), "not a safetensors file"),
        (struct.pack("<Q", 9) + b"{not json", "damaged"),
        (data_past_the_end(), "damaged"),
    ],
    ids=["pickle", "zip", "empty", "text", "huge header", "bad json", "truncated"],
)
def test_other_files_are_refused_unopened(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message):
        build_trunk(small(path))


def test_missing_weights_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.safetensors"):
        build_trunk(small(tmp_path / "none.safetensors"))
