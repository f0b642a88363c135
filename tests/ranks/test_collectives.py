"""All schedules over gloo: sums, counts by the formulas, and ranks that die or go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from stepladder.parallel.collectives.algorithms import ALGORITHMS, Shape
from tests.ranks.collective_rank import LENGTHS, local
from tests.ranks.together import ROOT, TASKS, TIMEOUT_S, ended, environment, free_port


def started(size: int, fault: str, folder: Path) -> list[subprocess.Popen[bytes]]:
    port = str(free_port())
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    processes = []
    for rank in range(size):
        place = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
        words = ["-m", "tests.ranks.collective_rank", fault, str(folder / f"{rank}.json")]
        with (folder / f"{rank}.txt").open("w") as out:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env=environment(**place, MASTER_PORT=port, PYTHONPATH=path),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        processes.append(process)
    return processes


def answers(size: int, folder: Path, ranks: Sequence[int]) -> list[Any]:
    found = []
    for rank in ranks:
        file = folder / f"{rank}.json"
        assert file.exists(), (folder / f"{rank}.txt").read_text()[-2000:]
        found.append(json.loads(file.read_text()))
    return found


@pytest.mark.parametrize(
    "size",
    [pytest.param(num, marks=pytest.mark.distributed) for num in (1, 3, 5)]
    + [2, pytest.param(4, marks=pytest.mark.distributed)],
)
def test_sums_equal_those_of_torch_and_counts_equal_the_formulas(size: int, tmp_path: Path) -> None:
    processes = started(size, "none", tmp_path)
    with ended(processes):
        for process in processes:
            process.wait(timeout=TIMEOUT_S)
    found = answers(size, tmp_path, range(size))
    for algorithm in ALGORITHMS:
        for length in LENGTHS:
            shape = Shape(num_ranks=size, num_elements=length, num_local=local(size))
            own = [counts[f"{algorithm.name} {length}"] for counts in found]
            assert sum(messages for messages, _ in own) == algorithm.num_messages(shape)
            assert sum(sent for _, sent in own) == 8 * algorithm.num_sent(shape)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dies", "rank 1 did not take part in an all-reduce, and did not answer afterwards"),
        ("stops", "rank 1 did not take part in an all-reduce, and did not answer afterwards"),
        ("shape", "rank 1 was at sum 2: float32[90], but ranks 0, 2 at sum 2: float32[100]"),
    ],
)
def test_a_faulty_rank_ends_all_and_is_named(fault: str, said: str, tmp_path: Path) -> None:
    processes = started(3, fault, tmp_path)
    with ended(processes):
        others = [processes[0], processes[2], *([processes[1]] if fault == "shape" else [])]
        for process in others:
            process.wait(timeout=TIMEOUT_S)
    for answer in answers(3, tmp_path, (0, 2)):
        assert said in answer["said"]


def trained(
    run: Path, *words: str, task: str = "Plain", epochs: int = 12
) -> dict[str, np.ndarray[Any, Any]]:
    """Train by plain SGD, whose steps are as long as its gradients, and return the weights."""
    command = [sys.executable, "-m", "stepladder", "train", f"{TASKS}:{task}", "--train", "all"]
    command += ["--run.checks", "off", "--stopping.no-early", "--epochs", str(epochs)]
    command += ["--optimizer.name", "sgd", "--batch.lr", "0.05", "--batch.lr-all", "0.05"]
    command += ["--schedule.warmup-steps", "0", "--device.kind", "cpu", "--run.dir", str(run)]
    done = subprocess.run(
        [*command, *words],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return load_file(max((run / "checkpoints").glob("step-*")) / "model.safetensors")


def apart(own: dict[str, np.ndarray[Any, Any]], native: dict[str, np.ndarray[Any, Any]]) -> float:
    """Return the distance of all weights."""
    return float(np.sqrt(sum(((own[name] - value) ** 2).sum() for name, value in native.items())))


@pytest.mark.distributed
def test_trainings_over_each_algorithm_equal_those_over_torch(tmp_path: Path) -> None:
    """The demo's kind of training, with two ranks: within rounding."""
    native = trained(tmp_path / "native", "--devices", "2")
    kinds = [("--all-reduce", algorithm.name) for algorithm in ALGORITHMS]
    kinds += [("--all-reduce", "auto"), ("--buckets", "layer")]
    for words in kinds:
        own = trained(tmp_path / words[1], "--devices", "2", *words)
        for name, value in native.items():
            np.testing.assert_allclose(own[name], value, rtol=1e-5, atol=1e-6, err_msg=str(words))


@pytest.mark.distributed
def test_compressed_gradients_lead_almost_as_far(tmp_path: Path) -> None:
    """Distances are shares of the way that whole gradients lead from the first epoch on."""
    native = trained(tmp_path / "native", "--devices", "2")
    way = apart(trained(tmp_path / "early", "--devices", "2", epochs=1), native)
    for kind, most in (("bf16", 0.02), ("fp16", 0.005), ("power_sgd", 0.5)):
        words = ("--device.gradient-compression", kind)
        share = apart(trained(tmp_path / kind, "--devices", "2", *words), native) / way
        assert 0 < share < most, kind
    rounded = trained(tmp_path / "one", "--device.gradient-compression", "bf16")
    whole = trained(tmp_path / "whole")
    assert 0 < apart(rounded, whole) / way < 0.02  # as trials on one device round them


@pytest.mark.distributed
@pytest.mark.parametrize("words", [("--deterministic",), ()])
def test_power_sgd_does_not_meet_the_sums_of_torch(words: tuple[str, ...], tmp_path: Path) -> None:
    """DDP sends the map of unused weights meanwhile, in its own group."""
    common = ("--devices", "2", "--device.gradient-compression", "power_sgd", *words)
    for number in range(2):
        assert trained(tmp_path / str(number), *common, task="WithIdle")


@pytest.mark.distributed
@pytest.mark.parametrize(
    "words", [("--device.gradient-compression", "bf16"), ("--all-reduce", "auto")]
)
def test_a_synchronised_batch_norm_exchanges_beside_the_gradients(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """Both send during the backward pass, from two threads: each needs groups of its own."""
    common = ("--devices", "3", "--device.sync-batchnorm")
    native = trained(tmp_path / "native", *common, task="WithNorm")
    way = apart(trained(tmp_path / "early", *common, task="WithNorm", epochs=1), native)
    own = trained(tmp_path / "own", *common, *words, task="WithNorm")
    assert apart(own, native) < 0.05 * way


@pytest.mark.distributed
def test_auto_reads_a_saved_fit_of_as_many_devices(tmp_path: Path) -> None:
    bench = [sys.executable, "-m", "stepladder", "bench-collectives", "--devices", "2"]
    bench += ["--sizes", "16KB", "--rounds", "1", "--run.dir", str(tmp_path / "bench")]
    subprocess.run(
        bench, cwd=ROOT, env=environment(), check=True, capture_output=True, timeout=TIMEOUT_S
    )
    words = ("--all-reduce", "auto", "--device.all-reduce-fit")
    file = str(tmp_path / "bench" / "collectives.json")
    native = trained(tmp_path / "native", "--devices", "2", epochs=2)
    own = trained(tmp_path / "own", "--devices", "2", *words, file, epochs=2)
    for name, value in native.items():
        np.testing.assert_allclose(own[name], value, rtol=1e-5, atol=1e-6)
    with pytest.raises(AssertionError, match="has the figures of 2 devices, 2 on each host"):
        trained(tmp_path / "three", "--devices", "3", *words, file, epochs=1)
