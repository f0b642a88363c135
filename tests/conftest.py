"""Fixtures shared by the tests of several packages."""

from __future__ import annotations

import base64
import contextlib
import gc
import hashlib
import io
import json
import os
import shutil
import signal
import string
import struct
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from _pytest.assertion import rewrite
from hypothesis import HealthCheck, settings
from PIL import Image, ImageDraw

from stepladder.config.choices import Encoding
from stepladder.data.prepare.writer import ShardWriter
from stepladder.data.sources import delta_log as delta
from stepladder.data.store.manifest import publish
from stepladder.machine import activity
from stepladder.machine.limits import num_cores
from stepladder.records import Manifest, ShardInfo
from stepladder.records.profile import Profile, TrainingTime

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: the tests share few cores
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads yield their core

# As in an activated environment: tests run commands that are printed, such as `python -c …`.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))

activity.FIRST_S = 3600.0  # on a loaded machine, lines of progress would come into messages

MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 * 10**9  # the largest folder that the tests leave there in total is a tenth of it


def has_room(folder: Path) -> bool:
    """Return True if a folder has room for what the tests write and the code that some compile."""
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(folder).free > ROOM_BYTES


# Thousands of files are synced to disk, as the tests require. Where test folders are in memory,
# nobody waits for that. What a killed process leaves behind is the same.
if has_room(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# The time that an example takes depends on the machine only.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


# A shell starts what is in the background with Ctrl-C ignored, which children would inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Run the garbage collector only after test collection, and freeze what was imported.

    A full collection over torch and all tests takes almost a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Rewrite the assertions of a part of the test files, of which other workers do the rest.

    Otherwise each worker would rewrite all of them, in half of the time of a test collection.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    places = [Path(word.partition("::")[0]) for word in config.args]
    files = [file for place in places for file in (place, *place.rglob("test_*.py"))]
    ours = sorted(set(files))[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]
    # private functions of pytest: where they have changed, each worker rewrites its own
    with contextlib.suppress(AttributeError, TypeError, ValueError, OSError, SyntaxError):
        for file in ours:
            cached = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
            if file.is_file() and rewrite._read_pyc(file, cached) is None:
                source_hash, code = rewrite._rewrite_test(file, config)
                cached.parent.mkdir(exist_ok=True)
                rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, cached)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use one worker more than there are cores: a sixth of the time is spent waiting."""
    return num_cores() + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Assign all files that share a Spark session to one worker, as each JVM takes ten seconds."""
    from xdist.scheduler import LoadFileScheduling

    class ByFileOrSession(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            folder, _, name = file.rpartition("/")
            return folder if folder == "tests/spark" and name != "test_cluster.py" else file

    return ByFileOrSession(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files that have slow tests, so that none runs alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def draw_photo(kind: int, idx: int, *, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """Draw a picture with structure: a gradient, a shape by class, a position by idx."""
    width, height = size
    random = np.random.default_rng(1000 * kind + idx)
    down, right = np.mgrid[0:height, 0:width]
    colour = random.integers(40, 200, size=3)
    shade = (down / height + right / width)[..., None] * 60
    noise = random.normal(0, 4, size=(height, width, 3))
    picture = Image.fromarray(np.clip(colour + shade + noise, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    x, y = (int(value) for value in random.integers(2, 12, size=2))
    ink = tuple(int(value) for value in random.integers(0, 255, size=3))
    box = (x, y, x + width // 2, y + height // 2)
    if kind % 3 == 0:
        pen.ellipse(box, fill=ink)
    elif kind % 3 == 1:
        pen.rectangle(box, fill=ink)
    else:
        pen.polygon([(x, y + height // 2), (x + width // 4, y), box[2:]], fill=ink)
    return picture


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let climbs count every timing: beside other tests there may be no quiet moment."""
    monkeypatch.setattr("stepladder.ladder.timing.patience.MAX_WAIT_S", 0.0)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of three classes with eight JPEG photographs each."""
    root = tmp_path / "photos"
    for kind, name in enumerate(("apple", "bread", "corn")):
        folder = root / name
        folder.mkdir(parents=True)
        for idx in range(8):
            draw_photo(kind, idx).save(folder / f"{name}{idx}.jpg", quality=92)
    return root


class StoreBuilder(Protocol):
    """Write a store of drawn pictures; return its folder and its pictures by split in row order."""

    def __call__(
        self,
        folder: Path,
        *,
        num_rows: Mapping[str, int] = ...,
        size: int = ...,
        encoding: Encoding = ...,
        shards: int = ...,
        seed: int = ...,
    ) -> dict[str, np.ndarray]: ...


def write_store(
    folder: Path,
    *,
    num_rows: Mapping[str, int] = {"train": 20, "val": 5},
    size: int = 8,
    encoding: Encoding = Encoding.PIXELS,
    shards: int = 2,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Write a store with the real writer; shards are split by the first digit of the hash."""
    work = folder.with_name(folder.name + ".work")
    work.mkdir(parents=True)
    classes = ("apple", "bread", "corn")
    pictures: dict[str, np.ndarray] = {}
    counts: dict[str, tuple[int, ...]] = {}
    infos: list[ShardInfo] = []
    for split, count in num_rows.items():
        random = np.random.default_rng([seed, len(split), count])
        base = random.integers(0, 200, size=(count, 1, 1, 3))
        ramp = np.arange(size)[:, None, None] + random.integers(0, 40, size=(size, size, 3))
        drawn = (base + ramp).clip(0, 255).astype(np.uint8)
        hashes = sorted(
            hashlib.sha256(f"{seed}{split}{idx}".encode()).digest() for idx in range(count)
        )
        labels = np.arange(count) % len(classes)
        for prefix in range(shards):
            rows = [r for r in range(count) if hashes[r][0] * shards // 256 == prefix]
            path = work / f"{split}-{prefix:x}.parquet"
            with ShardWriter(path, encoding=encoding, size=size) as writer:
                for row in rows:
                    label = int(labels[row])
                    picture = drawn[row]
                    data: Any = picture if encoding is Encoding.PIXELS else _jpeg(picture)
                    name = f"{classes[label]}/{split} {row}.jpg"
                    writer.add(sha256=hashes[row], path=name, label=label, picture=data)
                infos.append(writer.close())
        pictures[split] = drawn
        counts[split] = tuple(np.bincount(labels, minlength=len(classes)).tolist())
    train = pictures["train"].astype(np.int64)
    manifest = Manifest(
        encoding=encoding.value,
        size=size,
        fit="pad",
        classes=classes,
        class_counts=counts,
        channel_sum=tuple(train.sum(axis=(0, 1, 2)).tolist()),
        channel_sq_sum=tuple((train**2).sum(axis=(0, 1, 2)).tolist()),
        num_pixels=train.size // 3,
        shards=tuple(infos),
    )
    publish(work, folder, manifest)
    return pictures


def _jpeg(picture: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.fixture(scope="session")
def build_store() -> StoreBuilder:
    """Return the function that writes a small store of drawn pictures."""
    return write_store


def plain_profile(time: TrainingTime, **facts: Any) -> Profile:
    """Return the profile of a small head on a frozen trunk, on one core, with changed facts."""
    plain: dict[str, Any] = {
        "num_train": 90,
        "num_val": 30,
        "is_built_in": False,
        "has_head": True,
        "is_trunk_frozen": True,
        "is_random_before_head": False,
        "is_pretrained": False,
        "num_conv2d": 0,
        "num_batchnorm": 0,
        "weight_bytes": 100,
        "trainable_bytes": 50,
        "example_bytes": 8,
        "device": "cpu",
        "device_name": "a processor",
        "num_cores": 1,
        "has_cuda": False,
        "has_bf16": False,
        "has_compiler": False,
        "free_memory_bytes": 10**9,
        "free_disk_bytes": 10**9,
    }
    return Profile(time=time, **plain | facts)


class ProfileOf(Protocol):
    """Return a profile with the given time and facts."""

    def __call__(self, time: TrainingTime, **facts: Any) -> Profile: ...


@pytest.fixture(scope="session")
def profile_of() -> ProfileOf:
    """Return the function that makes a small profile."""
    return plain_profile


@pytest.fixture(scope="session")
def measured_peaks() -> Callable[..., object]:
    """Measure the peaks of this machine once: each profile would take a third of a second."""
    from stepladder.measuring.model.flops import measure_peaks

    found: dict[tuple[object, ...], object] = {}

    def peaks(*how: Any, has_conv: bool, budget_s: float) -> object:
        key = (*how, has_conv)
        if key not in found:
            found[key] = measure_peaks(*how, has_conv=has_conv, budget_s=budget_s)
        return found[key]

    return peaks


@pytest.fixture(scope="session")
def vector_instructions() -> None:
    """Detect the CPU's vector instructions once, in a cache folder that all processes share.

    Otherwise each process compiles the two test programs in its own cache folder.
    """
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # restored afterwards: torch sets it
        patch.delenv("TORCHINDUCTOR_CACHE_DIR")
        bool(pick_vec_isa())


def _deletion_vector(rows: list[int]) -> dict[str, Any]:
    """Write the descriptor of a deletion vector stored inline in the log.

    Source: Delta protocol, "Deletion Vectors"; Roaring bitmap format specification.
    """
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16)
    bitmap += struct.pack(f"<{len(rows)}H", *rows)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    data += b"\0" * (-len(data) % 4)
    plain = string.digits + string.ascii_uppercase + string.ascii_lowercase
    z85 = string.digits + string.ascii_lowercase + string.ascii_uppercase
    turn = str.maketrans(plain + "!#$%&()*+-;<=>?@^_`{|}~", z85 + ".-:+=^!/*?&<>()[]{}@%$#")
    text = base64.b85encode(data).decode().translate(turn)
    facts = {"storageType": "i", "pathOrInlineDv": text}
    return {**facts, "sizeInBytes": len(data), "cardinality": len(rows)}


def _delete_by_vector(table: Path, rows: list[int]) -> None:
    log = table / "_delta_log"
    lines = (log / f"{0:020}.json").read_text().splitlines()
    add = next(json.loads(line) for line in lines if line.startswith('{"add"'))
    remove = {"path": add["add"]["path"], "deletionTimestamp": 1, "dataChange": True}
    add["add"]["deletionVector"] = _deletion_vector(rows)
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    commit = {"commitInfo": {"timestamp": 1, "operation": "DELETE"}}
    actions = [commit, {"protocol": protocol}, {"remove": remove}, add]
    (log / f"{1:020}.json").write_text("\n".join(json.dumps(action) for action in actions))


@pytest.fixture(scope="session")
def delete_by_vector() -> Callable[[Path, list[int]], None]:
    """Return a function that commits version 1 of a one-file table, deleting rows as Spark does."""
    return _delete_by_vector


@pytest.fixture
def short_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncate row masks after the last deleted row, as older releases of deltalake do."""
    rows_kept = delta._rows_kept

    def shortened(table: Any, option: delta.VersionOption) -> dict[str, list[bool]]:
        masks = rows_kept(table, option)
        return {name: keep[: len(keep) - keep[::-1].index(False)] for name, keep in masks.items()}

    monkeypatch.setattr(delta, "_rows_kept", shortened)
