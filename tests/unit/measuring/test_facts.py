"""Facts about a job that need no timing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stepladder.config.choices import Encoding, TrainMode, WeightsSource
from stepladder.config.recipe import ModelConfig, Recipe
from stepladder.data.store.store import Store
from stepladder.machine import instruction_set
from stepladder.machine.compiler import compiler_missing
from stepladder.measuring import facts as facts_module
from stepladder.measuring.facts import (
    has_bf16,
    is_pretrained,
    machine_facts,
    model_facts,
    source_pixels,
    store_encoding,
    stored_bytes,
)
from stepladder.measuring.model import larger_trunks as trunks
from stepladder.measuring.model.larger_trunks import FAMILIES, has_weights, larger_trunks
from stepladder.task.image_classification import ImageClassification

CPU = torch.device("cpu")


def test_facts_of_the_machine_are_reported_unchanged(tmp_path: Path) -> None:
    facts = machine_facts(CPU, tmp_path / "not there yet")
    assert facts.device == "cpu"
    assert facts.has_compiler == (compiler_missing("cpu") is None)
    assert facts.has_cuda == torch.cuda.is_available()
    assert facts.num_cores >= 1
    assert facts.free_host_bytes == facts.free_memory_bytes > 0
    assert abs(facts.free_disk_bytes - shutil.disk_usage(tmp_path).free) < 1 << 32
    assert facts.device_name


def test_memory_of_a_gpu_and_of_its_host_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (14, 32))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10)
    monkeypatch.setattr(facts_module, "compiler_missing", lambda device: None)
    monkeypatch.setattr(facts_module, "available_memory_bytes", lambda: 256)
    facts = machine_facts(torch.device("cuda"), tmp_path)
    assert (facts.free_memory_bytes, facts.free_host_bytes) == (14 + 10, 256), "torch holds ten"


def test_bf16_follows_the_processors_instructions() -> None:
    has_any = any("bf16" in name for name in instruction_set())
    assert has_bf16(CPU) == has_any


@pytest.mark.parametrize("mode", [TrainMode.HEAD, TrainMode.ALL])
def test_what_learns_is_counted(
    mode: TrainMode, pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    with open_on(recipe(train=mode), pictures()) as subject:
        facts = model_facts(subject)
    trunk, head = 4 * 27 + 4 + 8, 4 * 3 + 3
    assert facts.weight_bytes == 4 * (trunk + head)
    assert facts.trainable_bytes == (4 * head if mode is TrainMode.HEAD else facts.weight_bytes)
    assert facts.is_trunk_frozen == (mode is TrainMode.HEAD)
    assert (facts.num_conv2d, facts.num_batchnorm) == (1, 1)
    assert facts.has_head
    assert not facts.is_built_in
    assert not facts.is_random_before_head
    assert facts.default_threads == 1  # a Dataset may not be thread-safe


def test_a_subject_names_its_reader(
    pictures: Callable, recipe: Callable[..., Recipe], open_on: Callable
) -> None:
    plain = recipe()
    with open_on(plain, pictures()) as subject:
        assert subject.reading_threads == 1
        assert subject.reader().num_threads == 1
    named = replace(plain, loader=replace(plain.loader, threads=3))
    with open_on(named, pictures()) as subject:
        assert subject.reading_threads == subject.reader().num_threads == 3


def test_a_users_model_is_taken_for_one_that_knows_nothing_yet(
    pictures: Callable, tmp_path: Path, build_store: Callable
) -> None:
    build_store(tmp_path / "store")
    built_in = ImageClassification(tmp_path / "store")
    plain = Recipe(model=ModelConfig(weights=WeightsSource.NONE))
    assert is_pretrained(built_in, Recipe())
    assert not is_pretrained(built_in, plain)
    assert not is_pretrained(pictures(), Recipe())


def test_the_size_of_stored_jpegs_is_known(tmp_path: Path, build_store: Callable) -> None:
    build_store(tmp_path / "jpegs", encoding=Encoding.JPEG, size=8)
    build_store(tmp_path / "pixels")
    jpegs, pixels = (ImageClassification(tmp_path / name) for name in ("jpegs", "pixels"))
    assert (store_encoding(jpegs), store_encoding(pixels)) == ("jpeg", "pixels")
    assert source_pixels(jpegs) == 64
    assert source_pixels(pixels) is None
    for task in (jpegs, pixels):
        shards = Store.open(task.store.path).manifest.shards
        num_bytes = sum((task.store.path / info.name).stat().st_size for info in shards)
        assert stored_bytes(task) == num_bytes / sum(info.num_rows for info in shards)


def test_data_without_a_store_says_nothing_of_one(pictures: Callable) -> None:
    assert store_encoding(pictures()) is None
    assert source_pixels(pictures()) is None
    assert stored_bytes(pictures()) is None


def test_larger_trunks_are_those_further_on_in_the_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trunks, "has_weights", lambda name: name != "resnet50")
    config = ModelConfig(name="resnet18", weights=WeightsSource.HUB)
    assert larger_trunks(config) == ("resnet34", "resnet101", "resnet152")
    assert larger_trunks(ModelConfig(name="resnet152", weights=WeightsSource.HUB)) == ()
    assert larger_trunks(ModelConfig(name="test_byobnet", weights=WeightsSource.HUB)) == ()
    assert larger_trunks(ModelConfig(name="resnet18", weights=WeightsSource.NONE)) == ()


def test_weights_count_only_where_they_are_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants, file_download

    for module in (constants, file_download.constants):
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(tmp_path))
    assert has_weights("tf_efficientnet_lite0")
    assert not has_weights("resnet34.a1_in1k")
    assert not has_weights("no_such_model")
    folder = tmp_path / "models--timm--resnet34.a1_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "model.safetensors").write_bytes(b"weights")
    assert has_weights("resnet34.a1_in1k")


def test_families_name_models_that_timm_has() -> None:
    from stepladder.models.torchvision_shim import import_timm

    known = set(import_timm().list_models())
    assert [name for family in FAMILIES for name in family if name not in known] == []
