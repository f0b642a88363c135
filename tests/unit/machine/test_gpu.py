"""The GPU of a process, by its number among those of its host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import stepladder
from stepladder.config.recipe import Recipe
from stepladder.errors import ResourceError
from stepladder.machine.gpu import gpu_of_rank
from stepladder.parallel import group
from stepladder.parallel.group import opened_world
from stepladder.parallel.place import Place
from stepladder.training.setup.build import open_device


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (4, [0, 1, 2, 3]),  # each process sees all GPUs of its host
        (1, [0, 0, 0, 0]),  # each sees its own, as with `srun --gpus-per-task=1`
        (2, [0, 1, 0, 1]),
    ],
)
def test_each_local_rank_has_a_visible_gpu(
    monkeypatch: pytest.MonkeyPatch, visible: int, indices: list[int]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: visible)
    assert [gpu_of_rank(rank).index for rank in range(4)] == indices


def test_a_run_uses_the_same_gpu_as_its_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    chosen: list[torch.device] = []
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    device = open_device(Recipe(), local_rank=3)
    assert device == gpu_of_rank(3) == torch.device("cuda", 0)
    assert chosen == [device]


def test_processes_that_share_a_gpu_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL finds them when the group is opened, in an error about its own code."""

    def init(_backend: str, **options: object) -> None:
        assert options["device_id"] == torch.device("cuda", 1)
        raise RuntimeError("ncclInvalidUsage: Duplicate GPU detected : rank 3 and rank 1")

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(group, "_store_of", lambda *_: dist.HashStore())
    monkeypatch.setattr(group, "use_network", lambda *_, **__: None)
    monkeypatch.setattr(group, "require_same_kind", lambda *_, **__: None)  # of all ranks
    monkeypatch.setattr(dist, "init_process_group", init)
    place = Place(rank=3, size=4, local_rank=3, local_size=4, address="127.0.0.1", port=1)
    with (
        pytest.raises(ResourceError, match="would use the same GPU") as caught,
        opened_world(place, is_cuda=True, start_s=1),
    ):
        pass
    assert "number 3 of 4 on its host and sees 2 GPUs" in str(caught.value)


def test_no_other_place_counts_gpus_by_rank() -> None:
    """A device made of a local rank elsewhere would not exist where fewer are visible."""
    root = Path(stepladder.__file__).parent
    made = re.compile(r"""device\(\s*["']cuda["'],[^)]*rank|cuda:\{[^}]*rank""")
    found = [path for path in root.rglob("*.py") if made.search(path.read_text("utf-8"))]
    assert [path.relative_to(root) for path in found] == [Path("machine/gpu.py")]
