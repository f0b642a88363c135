"""Two hosts download only their own files of a store in an object store."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

import stepladder
from stepladder.data.remote.places import ObjectPlace
from stepladder.data.remote.s3 import S3Objects
from stepladder.errors import UsageError
from tests.conftest import StoreBuilder
from tests.ranks.together import TASKS, codes_of

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
from object_server import Proxy, environment_of, running_server

PLACE = ObjectPlace("photos", "store")
NUM_FILES = 16  # of train; val has as many
ROWS = {"train": 403, "val": 101}
SETTINGS = {
    "run.checks": "off",
    "run.log_every": 5,
    "batch.global_batch_size": 16,
    "batch.lr": 0.05,
    "stopping.early": False,
    "optimizer.name": "sgd",
    "train": "all",
    "loader.threads": 1,
    "data.window_rows": 64,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Proxy]:
    """An object store."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with running_server() as proxy:
        yield proxy


@pytest.fixture
def store_bytes(
    server: Proxy, build_store: StoreBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Put a store into the object store, and return the bytes of its files."""
    for name, value in environment_of(server, secret="canary").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STORE", str(PLACE))
    monkeypatch.chdir(tmp_path)
    server.reset()
    server.empty(PLACE.bucket)
    build_store(tmp_path / "made", num_rows=ROWS, size=48, shards=NUM_FILES)
    objects = S3Objects()
    for file in (tmp_path / "made").iterdir():
        objects.put_bytes(PLACE.join(file.name), file.read_bytes())
    objects.close()
    return sum(file.stat().st_size for file in (tmp_path / "made").glob("*.parquet"))


def call(folder: Path, **settings: Any) -> dict[str, Any]:
    """Return a call of `train`."""
    more = {key.replace("__", "."): value for key, value in settings.items()}
    return {"task": f"{TASKS}:OfStore", "dir": str(folder), **SETTINGS, **more}


def train_on(
    tmp_path: Path, name: str, *, ranks_of_hosts: tuple[int, ...], **settings: Any
) -> Path:
    """Train on several hosts, each with an empty cache, and return the run folder."""
    run = tmp_path / name
    started = tmp_path / f"{name}-{len(list(tmp_path.glob(f'{name}-*')))}"
    folders = [started / f"host-{host}" for host in range(len(ranks_of_hosts))]
    for folder in folders:
        folder.mkdir(parents=True)
    codes, logs = codes_of(
        [call(run, **settings)], started, ranks_of_hosts=ranks_of_hosts, folders=folders
    )
    assert not any(codes), "\n".join(logs)
    return run


def received(run: Path) -> list[int]:
    """Return the bytes that each host has downloaded."""
    return list(json.loads((run / "summary.json").read_text())["received_bytes_by_host"].values())


def weights(run: Path) -> dict[str, np.ndarray]:
    """Return the weights of the last checkpoint."""
    last = max((run / "checkpoints").glob("step-*"))
    return load_file(last / "model.safetensors")


def validations(run: Path) -> list[float]:
    """Return the validation losses of a run."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event["val_loss"] for event in events if event["event"] == "validation"]


def config(run: Path) -> Any:
    """Return the resolved config of a run."""
    return yaml.safe_load((run / "config.yaml").read_text())


@pytest.mark.distributed
@pytest.mark.parametrize("where", ["stream", "memory"])
def test_each_host_downloads_its_part_of_the_store(
    where: str, store_bytes: int, tmp_path: Path
) -> None:
    run = train_on(
        tmp_path, "run", ranks_of_hosts=(1, 1), schedule__max_epochs=3, data__where=where
    )
    assert config(run)["data"]["hosts"] == 2
    # one file of each split is at the cut between the hosts; indexes and the manifest are extra
    assert max(received(run)) < store_bytes * (0.5 + 1.5 / NUM_FILES) + 30_000
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    told = [event["received_bytes_by_host"] for event in events if event["event"] == "reader"]
    assert told
    assert all(len(hosts) == 2 for hosts in told)
    assert "downloaded by" in (run / "report.html").read_text()


@pytest.mark.distributed
def test_every_host_downloads_all_files_if_it_is_switched_off(
    store_bytes: int, tmp_path: Path
) -> None:
    run = train_on(tmp_path, "run", ranks_of_hosts=(1, 1), schedule__max_epochs=1, data__hosts=1)
    assert config(run)["data"]["hosts"] == 1
    assert min(received(run)) > 0.9 * store_bytes


@pytest.mark.distributed
def test_one_process_gives_what_two_hosts_give_and_a_run_resumes_on_other_hosts(
    store_bytes: int, tmp_path: Path
) -> None:
    """Also from the middle of an epoch: 403 examples are 26 steps, and the run stops after 40."""
    assert store_bytes
    hosts = train_on(tmp_path, "hosts", ranks_of_hosts=(1, 1), schedule__max_epochs=3)
    alone = tmp_path / "alone"
    stepladder.train(**call(alone, schedule__max_epochs=3, data__hosts=2))
    train_on(
        tmp_path, "moved", ranks_of_hosts=(2, 2), schedule__max_epochs=3, schedule__max_steps=40
    )
    moved = train_on(tmp_path, "moved", ranks_of_hosts=(1, 1, 1), schedule__max_epochs=3)
    assert config(moved)["data"]["hosts"] == 2
    for run in (hosts, moved):
        np.testing.assert_allclose(validations(run), validations(alone), rtol=1e-5)
        for name, array in weights(alone).items():
            np.testing.assert_allclose(weights(run)[name], array, rtol=1e-4, atol=2e-5)
    assert "stay divided among 2 hosts" in (moved / "events.jsonl").read_text()
    with pytest.raises(UsageError, match=r"data.hosts: 2 -> 3"):
        stepladder.train(**call(moved, schedule__max_epochs=4, data__hosts=3))


def two_folders(tmp_path: Path, name: str) -> list[Path]:
    """Return the working folders of two hosts that share no files."""
    folders = [tmp_path / name / host for host in ("first", "second")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    return folders


@pytest.mark.thorough
def test_a_run_folder_that_is_not_shared_is_refused_on_every_host(tmp_path: Path) -> None:
    call = {"task": f"{TASKS}:Plain", "dir": "run", "train": "all", "run.checks": "off"}
    folders = two_folders(tmp_path, "hosts")
    codes, logs = codes_of([call], tmp_path, ranks_of_hosts=(1, 1), folders=folders)
    assert all(codes)
    log = (folders[1] / "run" / "logs" / "rank-1.log").read_text()
    for text in (logs[0], log):
        assert "the run folder is not shared" in text
        assert "--run.mirror s3://" in text
    assert not list((folders[0] / "run" / "logs").glob("shared-*"))


@pytest.mark.distributed
def test_hosts_without_a_shared_folder_resume_from_an_object_store(
    store_bytes: int, tmp_path: Path
) -> None:
    """Also on hosts whose folders are empty."""
    assert store_bytes
    common = {"run__mirror": "s3://photos/runs/one", "schedule__max_epochs": 3}
    for name, more in (("before", {"schedule__max_steps": 40}), ("after", {})):
        calls = [call(Path("run"), **common, **more)]
        folders = two_folders(tmp_path, name)
        codes, logs = codes_of(calls, tmp_path, ranks_of_hosts=(1, 1), folders=folders)
        assert not any(codes), "\n".join(logs)
    resumed = folders[0] / "run"
    assert not (folders[1] / "run" / "checkpoints").exists()
    alone = tmp_path / "alone"
    stepladder.train(**call(alone, schedule__max_epochs=3, data__hosts=2))
    for name, array in weights(alone).items():
        np.testing.assert_allclose(weights(resumed)[name], array, rtol=1e-4, atol=2e-5)
