"""Ranks that differ are named with both sides."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from stepladder.errors import DataError, ResourceError, UsageError
from stepladder.parallel.group import require_same_kind
from stepladder.parallel.handshake import (
    differences_of_hosts,
    hash_files,
    require_same_config,
    require_same_data,
    require_same_programs,
    require_same_task,
    require_same_tensors,
    require_same_weights,
)
from stepladder.parallel.network import Network
from stepladder.parallel.place import Place
from stepladder.parallel.world import ALONE, World


@dataclass(frozen=True, kw_only=True)
class Pretended(World):
    """Rank 0 of two, whose gathering returns what the other rank would have sent."""

    size: int = 2
    others: Iterator[Any]

    def gather(self, value: Any) -> list[Any]:
        """Return this rank's value, and the other one's."""
        other = next(self.others)
        return [value, other(value)]

    def barrier(self) -> None:
        """Do nothing."""


def two(*others: Any) -> World:
    return Pretended(others=iter(others))


def test_a_different_option_is_named_with_both_values() -> None:
    def other(value: Any) -> Any:
        facts, _, notes = value
        return {**facts, "batch.lr": "0.1"}, "host-b", notes

    with pytest.raises(UsageError) as caught:
        require_same_config(two(other), {"batch.lr": 0.05, "seed": 1})
    assert "batch.lr: 0.05 on rank 0, 0.1 on rank 1 (host-b)" in str(caught.value)
    assert "seed" not in str(caught.value)


def test_a_missing_split_is_a_difference() -> None:
    with pytest.raises(DataError, match="data val: abc on rank 0, none on rank 1"):
        require_same_data(
            two(lambda _: ({"data train": "xyz"}, "b", {})), {"train": "xyz", "val": "abc"}
        )


def test_a_different_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"torch: .* on rank 0, 2\.0 on rank 1"):
        require_same_programs(two(lambda value: ({**value[0], "torch": "2.0"}, "b", {})))


def test_another_source_of_the_same_version_is_refused_with_both_commits() -> None:
    def other(value: Any) -> Any:
        facts, _, _ = value
        return {**facts, "stepladder source": "0f0f"}, "b", {"stepladder source": "commit 1234"}

    with pytest.raises(UsageError, match=r"stepladder source: .* on rank 0, 0f0f \(commit 1234\)"):
        require_same_programs(two(other))


def test_only_names_and_contents_of_source_files_count(tmp_path: Path) -> None:
    def written(folder: str, **files: str) -> str:
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
        return hash_files(sorted((tmp_path / folder).iterdir()), below=tmp_path / folder)

    first = written("first", a="x = 1", b="y = 1")
    assert written("second", a="x = 1", b="y = 1") == first
    assert written("third", a="x = 1", b="y = 2") != first
    assert written("fourth", a="x = 1", c="y = 1") != first
    assert written("fifth", a="x = 1b", b="y = 1") != first


def test_another_source_of_the_task_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "task.py"
    file.write_text("one")

    def other(value: Any) -> Any:
        facts, _, _ = value
        return {**facts, "source of the Task": "abc"}, "b", {"source of the Task": "/b/task.py"}

    with pytest.raises(UsageError, match=r"source of the Task: .*task\.py\) on rank 0, abc \(/b/"):
        require_same_task(two(other), f"{file}:Plain", file)


def test_a_task_of_the_same_source_in_another_folder_passes(tmp_path: Path) -> None:
    seen = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "task.py").write_text("one")
        world = two(lambda value: seen.append(value[0]) or value)
        require_same_task(world, f"{folder / 'task.py'}:Plain", folder / "task.py")
    assert seen[0] == seen[1]


def test_a_model_with_other_tensors_is_refused() -> None:
    def other(value: Any) -> Any:
        return {**value[0], "tensor head.weight": "torch.float32 3x9"}, "b", {}

    said = "tensor head.weight: torch.float32 3x8 on rank 0, torch.float32 3x9 on rank 1"
    with pytest.raises(UsageError, match=said):
        require_same_tensors(two(lambda _: "other", other), {"head.weight": "torch.float32 3x8"})


def test_weights_that_differ_after_they_were_sent_are_refused() -> None:
    require_same_weights(two(lambda value: value), "abc")
    with pytest.raises(ResourceError, match=r"they differ on rank 1 \(b\)"):
        require_same_weights(two(lambda _: ("xyz", "b")), "abc")


def test_equal_ranks_pass() -> None:
    same = two(*(lambda value: value for _ in range(4)))
    require_same_programs(same)
    require_same_config(same, {"seed": 1})
    require_same_data(same, {"train": "abc"})
    require_same_tensors(same, {"weight": "torch.float32 3"})
    require_same_config(ALONE, {"seed": 1})


@pytest.mark.parametrize(
    ("name", "theirs"), [("number of visible GPUs", "9"), ("threads", "63"), ("cores", "61")]
)
def test_what_costs_time_is_a_warning_with_both_sides(name: str, theirs: str) -> None:
    world = two(lambda value: {**value, name: theirs, "host": "b"}, lambda now: now)
    (found,) = differences_of_hosts(world, device="L4")
    assert found.startswith(f"the machines of this run differ in {name}: ")
    assert f"for rank 0, {theirs} for rank 1 on b; each step" in found


def test_another_network_interface_is_a_warning() -> None:
    fast = Network(interface="eth1 (25 Gbit/s)", variables={})
    hosts = {"network": fast, "hosts": (0, 1), "host_names": ("a", "b")}
    world = Pretended(
        others=iter(
            [
                lambda value: {**value, "network interface": "eth0 (1 Gbit/s)", "host": "b"},
                lambda now: now,
            ]
        ),
        **hosts,
    )
    (found,) = differences_of_hosts(world, device="L4")
    said = "network interface: eth1 (25 Gbit/s) for rank 0, eth0 (1 Gbit/s) for rank 1 on b"
    assert said in found


def test_a_rank_without_a_gpu_is_named_by_all_ranks() -> None:
    store = HashStore()
    kinds = (True, False)

    def check(rank: int) -> str:
        place = Place(rank=rank, size=2, local_rank=0, local_size=1, address="a", port=1)
        with pytest.raises(ResourceError) as caught:
            require_same_kind(store, place, is_cuda=kinds[rank])
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(check, range(2)))
    host = socket.gethostname()
    assert said[0] == said[1]
    assert f"rank 0 ({host}) has a GPU, but rank 1 ({host}) has no GPU" in said[0]


def test_another_device_and_a_wrong_clock_are_warnings() -> None:
    found = differences_of_hosts(
        two(lambda value: {**value, "device": "T4", "host": "b"}, lambda now: now + 90),
        device="L4",
    )
    assert found[0].startswith(
        "the machines of this run differ in device: L4 for rank 0, T4 for rank 1 on b"
    )
    assert found[1].startswith(
        "the clock of the machine of rank 1 differs from that of rank 0 by +90 s, "
    )
    assert differences_of_hosts(two(*(lambda one: one for _ in range(2))), device="L4") == []
