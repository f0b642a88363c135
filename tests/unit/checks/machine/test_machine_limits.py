"""The machine's limits compared with the job's needs, using facts of other machines."""

from __future__ import annotations

import resource
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stepladder.checks.examples import Example, SoundPictures, sound_recipe
from stepladder.checks.job import CheckedJob, open_job
from stepladder.checks.machine import machine_limits
from stepladder.checks.run import run_check
from stepladder.config.choices import DeviceChoice, TrainMode, WeightsSource, Where
from stepladder.config.recipe import DataConfig, DeviceConfig, LoaderConfig, ModelConfig, Recipe
from stepladder.machine import Gpu
from stepladder.machine.network import interfaces_up
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification

H100 = Gpu(name="NVIDIA H100", memory_bytes=80 * 10**9, driver="470.57")
SMALL = ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)
GB = 10**9
MB = 10**6
IN_2026 = 1_790_000_000.0
PLENTY = (
    "8 cores, 32.0 GB of memory free, 8,000 MB in /dev/shm, 4,096 open files"  # of a sound machine
)

Machine = Callable[..., None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a function that makes this a sound machine, except for the given facts."""
    shm = tmp_path / "shm"
    shm.mkdir()
    for name in (
        *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    ):
        monkeypatch.delenv(name, raising=False)

    def become(
        *,
        cores: int = 8,
        memory_bytes: float = 32 * GB,
        shm_bytes: float | None = 8_000 * MB,
        open_files: int = 4_096,
        clock_s: float = 1e-9,
        now_s: float = IN_2026,
        gpus: tuple[Gpu, ...] = (),
        cuda: str | None = "13.0",
        is_cuda_usable: bool = False,
        disk_bytes_per_s: float | None = None,
    ) -> None:
        clock = SimpleNamespace(
            get_clock_info=lambda _: SimpleNamespace(resolution=clock_s),
            perf_counter=time.perf_counter,
            strftime=lambda words: time.strftime(words, time.gmtime(now_s)),
            time=lambda: now_s,
        )
        facts: dict[str, Any] = {
            "_SHM": shm if shm_bytes is not None else tmp_path / "no_shm",
            "available_memory_bytes": lambda: memory_bytes,
            "disk_free_bytes": lambda _: shm_bytes,
            "gpus": lambda: gpus,
            "measure_disk": lambda _: disk_bytes_per_s,
            "num_cores": lambda: cores,
            "time": clock,
        }
        for name, fact in facts.items():
            monkeypatch.setattr(machine_limits, name, fact)
        monkeypatch.setattr(resource, "getrlimit", lambda _: (open_files, resource.RLIM_INFINITY))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: is_cuda_usable)
        monkeypatch.setattr(torch.version, "cuda", cuda)

    become()
    return become


def job_of(folder: Path, *, task: Task | None = None, **changes: Any) -> CheckedJob:
    example = Example(task=task or SoundPictures(), recipe=sound_recipe(**changes))
    return open_job(example.config(folder), example.task, task_name="example")


def look(folder: Path, **changes: Any) -> Finding:
    return run_check(machine_limits.CHECK, job_of(folder, **changes))


def assert_found(finding: Finding, what: str, fix: str) -> None:
    """Exactly one problem is found, with a fix, and the machine's facts are listed."""
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "machine_limit"), finding
    said, _, facts = finding.evidence.partition(" (")
    assert said == what
    assert facts.endswith(")")
    assert fix in finding.fix


def test_a_sound_machine_is_silent_and_says_what_it_has(machine: Machine, tmp_path: Path) -> None:
    finding = look(tmp_path)
    assert (finding.outcome, finding.evidence) == (Outcome.PASSED, PLENTY)


AUTO = DeviceConfig(kind=DeviceChoice.AUTO)


@pytest.mark.parametrize(
    ("facts", "changes", "what", "fix"),
    [
        (
            {"cores": 4},
            {"device": DeviceConfig(kind=DeviceChoice.CPU, threads=5)},
            "device.threads is 5, but the process may use 4 cores",
            "--device.threads",
        ),
        (
            {"cores": 4},
            {"loader": LoaderConfig(threads=33)},
            "loader.threads is 33, but the process may use 4 cores",
            "--loader.threads",
        ),
        (
            {"open_files": 255},
            {},
            "the limit of open files is 255",
            "ulimit -n 4096",
        ),
        (
            {"clock_s": 0.0156},
            {},
            "the clock is too coarse to time steps",
            "another machine",
        ),
        (
            {"now_s": 0.0},
            {},
            "the system date is 1970-01-01",
            "Set the date",
        ),
    ],
    ids=["compute threads", "reading threads", "open files", "coarse clock", "date"],
)
def test_each_limit_is_found_alone(
    machine: Machine,
    facts: dict[str, Any],
    changes: dict[str, Any],
    what: str,
    fix: str,
    tmp_path: Path,
) -> None:
    machine(**facts)
    assert_found(look(tmp_path, **changes), what, fix)


@pytest.mark.parametrize(
    ("facts", "changes"),
    [
        ({"cores": 4}, {"device": DeviceConfig(kind=DeviceChoice.CPU, threads=4)}),
        ({"cores": 4}, {"loader": LoaderConfig(threads=32)}),
        ({"open_files": 256}, {}),
        ({"open_files": resource.RLIM_INFINITY}, {}),
        ({"clock_s": 1e-3}, {}),
        ({"now_s": 1_704_067_200.0}, {}),
        ({"shm_bytes": None}, {}),
        ({"shm_bytes": 0}, {}),
    ],
    ids=[
        "compute threads",
        "reading threads",
        "open files",
        "no limit of files",
        "clock",
        "date",
        "no /dev/shm",
        "one rank needs no /dev/shm",
    ],
)
def test_what_just_suffices_is_silent(
    machine: Machine, facts: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    machine(**facts)
    finding = look(tmp_path, **changes)
    assert finding.outcome is Outcome.PASSED, finding


def test_a_system_without_such_limits_is_not_asked_for_them(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine(shm_bytes=None)
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    finding = look(tmp_path)
    assert finding.outcome is Outcome.PASSED
    assert finding.evidence == "8 cores, 32.0 GB of memory free"


def test_all_that_is_found_is_said_and_the_first_is_put_right(
    machine: Machine, tmp_path: Path
) -> None:
    machine(cores=2, open_files=64, clock_s=1.0)
    finding = look(tmp_path, device=DeviceConfig(kind=DeviceChoice.CPU, threads=16))
    said = finding.evidence.partition(" (")[0].split("; ")
    assert [words.split()[0] for words in said] == ["device.threads", "the", "the"]
    assert "--device.threads" in finding.fix


# --- the driver against torch's build


@pytest.mark.parametrize(
    ("cuda", "why", "fix"),
    [
        (None, "torch is built without CUDA", "Install a CUDA build of torch"),
        ("13.0", "torch, built for CUDA 13.0, cannot use it", "Update the driver"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_named_with_its_driver(
    machine: Machine, cuda: str | None, why: str, fix: str, tmp_path: Path
) -> None:
    machine(gpus=(H100,), cuda=cuda)
    finding = look(tmp_path, device=AUTO)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "machine_limit")
    said = f"this machine has a NVIDIA H100 (driver 470.57), but {why}: training would use the CPU"
    assert finding.evidence == f"{said} ({PLENTY})"
    assert fix in finding.fix


def test_a_driver_that_does_not_say_its_number_is_left_out(
    machine: Machine, tmp_path: Path
) -> None:
    machine(gpus=(replace(H100, driver=None),))
    assert "this machine has a NVIDIA H100, but torch" in look(tmp_path, device=AUTO).evidence


@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_the_driver_matters_only_to_who_would_use_a_gpu(
    machine: Machine, cuda: str | None, tmp_path: Path
) -> None:
    machine(gpus=(), cuda=cuda)
    assert look(tmp_path, device=AUTO).outcome is Outcome.PASSED
    machine(gpus=(H100,), cuda=cuda)
    assert look(tmp_path).outcome is Outcome.PASSED, "--device.kind cpu"


def test_a_gpu_that_torch_uses_is_silent(machine: Machine, tmp_path: Path) -> None:
    job = job_of(tmp_path, device=AUTO)  # opened before: the check itself needs no CUDA
    machine(gpus=(H100,), is_cuda_usable=True)
    assert machine_limits.machine_limits(job).outcome is Outcome.PASSED


# --- memory, shared memory, disk


def weight_bytes(job: CheckedJob) -> int:
    return sum(weight.nbytes for weight in job.model().parameters())


def test_weights_with_their_optimizer_have_to_fit(machine: Machine, tmp_path: Path) -> None:
    needed = 4 * weight_bytes(job_of(tmp_path))
    machine(memory_bytes=needed)
    assert look(tmp_path).outcome is Outcome.PASSED
    machine(memory_bytes=needed - 1)
    finding = look(tmp_path)
    assert finding.fault == "machine_limit"
    assert "do not fit into 0.0 GB" in finding.evidence


@pytest.fixture
def pictures(tmp_path: Path, build_store: Any) -> ImageClassification:
    """The built-in task on a store of 20 training pictures of 32x32."""
    build_store(tmp_path / "store", num_rows={"train": 20, "val": 5}, size=32)
    return ImageClassification(tmp_path / "store", Recipe(model=SMALL, train=TrainMode.ALL))


def changes_of(task: ImageClassification, where: Where) -> dict[str, Any]:
    data = DataConfig(store=task.store.path, where=where)
    return {"task": task, "model": SMALL, "data": data}


def test_pictures_held_in_memory_have_to_fit_with_the_weights(
    machine: Machine, pictures: ImageClassification, tmp_path: Path
) -> None:
    held = changes_of(pictures, Where.MEMORY)
    needed = 4 * weight_bytes(job_of(tmp_path, **held)) + 20 * 32 * 32 * 3
    machine(memory_bytes=needed)
    assert look(tmp_path, **held).outcome is Outcome.PASSED
    machine(memory_bytes=needed - 1)
    finding = look(tmp_path, **held)
    assert finding.fault == "machine_limit"
    assert "--data.where stream" in finding.fix
    assert look(tmp_path, **changes_of(pictures, Where.STREAM)).outcome is Outcome.PASSED


def test_two_ranks_need_more_shared_memory_than_a_container_gets(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    machine(shm_bytes=64 * MB)
    what = "64 MB are free in /dev/shm, but 2 ranks may need 128 MB"
    assert_found(look(tmp_path), what, "--shm-size")
    for enough in (128 * MB, None):
        machine(shm_bytes=enough)
        assert look(tmp_path).outcome is Outcome.PASSED


def test_only_the_ranks_of_this_machine_share_its_memory(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    machine(shm_bytes=64 * MB)
    assert look(tmp_path).outcome is Outcome.PASSED


def test_the_port_is_asked_for_by_the_rank_that_opens_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("MASTER_PORT", str(port))
        what = f"MASTER_PORT {port} is already in use"
        assert_found(look(tmp_path), what, "MASTER_PORT")
        monkeypatch.setenv("RANK", "1")
        assert look(tmp_path).outcome is Outcome.PASSED
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "mine")
        assert look(tmp_path).outcome is Outcome.PASSED


def test_a_host_of_rank_0_that_nobody_knows_is_found(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("MASTER_PORT", "29400")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert look(tmp_path).outcome is Outcome.PASSED
    monkeypatch.setenv("MASTER_ADDR", "host-that-is.invalid")
    what = "MASTER_ADDR is host-that-is.invalid, but this machine does not know a way to that host"
    assert_found(look(tmp_path), what, "MASTER_ADDR")


def test_an_interface_that_does_not_exist_is_found_if_there_are_several_ranks(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    assert look(tmp_path).outcome is Outcome.PASSED
    monkeypatch.setenv("WORLD_SIZE", "2")
    names = [one.name for one in interfaces_up() if not one.is_loopback]
    what = "GLOO_SOCKET_IFNAME is nowhere0, but this machine has the network interfaces "
    what += ", ".join([*names, "lo"])
    assert_found(look(tmp_path), what, "Type: unset GLOO_SOCKET_IFNAME")


@pytest.mark.parametrize(
    ("bytes_per_s", "where", "is_found"),
    [
        (1.0, Where.STREAM, True),  # no model is this slow
        (1.0, Where.MEMORY, False),
        (1e18, Where.STREAM, False),
        (None, Where.STREAM, False),
    ],
)
def test_a_disk_slower_than_the_forward_pass_is_found(
    machine: Machine,
    pictures: ImageClassification,
    bytes_per_s: float | None,
    where: Where,
    is_found: bool,
    tmp_path: Path,
) -> None:
    machine(disk_bytes_per_s=bytes_per_s)
    finding = look(tmp_path, **changes_of(pictures, where))
    assert finding.outcome is (Outcome.WARNED if is_found else Outcome.PASSED), finding
    assert finding.evidence.startswith("the disk reads 0 MB/s, but the model consumes") is is_found
