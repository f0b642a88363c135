"""Bad input on the command line: exit code, and a message with cause, place and fix.

How each reader handles damage is tested next to the reader. These tests cover what users see, and
that the suggested fix works.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from stepladder.records import read_json

Run = Callable[..., str]


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def newest_state(folder: str = "run") -> Path:
    return max(Path(folder, "checkpoints").glob("step-*"))


# -- sources ------------------------------------------------------------------------------------


def test_a_missing_folder_is_a_usage_error(prepare: Run) -> None:
    said = prepare("phtos", code=2)
    assert said.startswith("phtos: the source does not exist\n  Set --source to a folder")


@pytest.mark.parametrize("name", ["nothere.parquet", "nothere.tar", "table/"])
def test_what_may_be_a_source_is_reported_where_there_is_none(name: str, prepare: Run) -> None:
    said = prepare(name, code=2)
    assert "does not exist" in said
    for kind in ("class folders", "CSV", "Parquet", "Delta", ".tar"):
        assert kind in said


@pytest.mark.parametrize("name", ["x.tar.bz2", "x.tar.xz", "x.tar.zst", "x.zip", "in"])
def test_an_archive_that_is_not_read_is_reported_with_what_is(
    name: str, prepare: Run, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / ("in/0.tar.zst" if name == "in" else name)
    file.write_bytes(b"BZh91AY&SY")
    said = prepare(name, code=2)
    assert said.startswith(f"{file.name}: archives of this format cannot be read")
    assert ".tar.gz" in said


def test_places_of_other_kinds_are_refused_and_make_no_folder(
    photos: Path, prepare: Run, train: Run, tmp_path: Path
) -> None:
    canary = "s3a://AKIA:canary@photos/store"
    prepare()
    before = {path.name for path in tmp_path.iterdir()}
    said = [
        prepare(code=2, out="gs://photos/store"),
        prepare(code=2, out=canary),
        prepare(canary, code=2),
        prepare("hdfs://host/photos", code=2),
        train("--run.mirror", "gs://photos/run", code=2),
        train("--data.store", canary, code=2),
        train(into="gs://photos/run", code=2),
    ]
    assert all("addresses are not supported here" in one for one in said)
    assert not any("canary" in one for one in said)
    assert "--engine spark" in said[3]
    assert {path.name for path in tmp_path.iterdir()} - before <= {"run"}


def test_an_empty_class_is_named(photos: Path, prepare: Run) -> None:
    (photos / "durian").mkdir()
    said = prepare(code=3)
    assert "photos: these class folders contain no pictures that can be read: durian\n" in said
    assert "or remove the folders" in said


def test_one_class_is_not_enough(photos: Path, prepare: Run) -> None:
    for name in ("bread", "corn"):
        shutil.rmtree(photos / name)
    said = prepare(code=3)
    assert said.startswith("photos: all pictures of the source have the same label, 'apple'\n")


def test_a_label_column_that_is_not_clear_is_told_with_the_flag(photos: Path, prepare: Run) -> None:
    files = sorted(photos.rglob("*.jpg"))
    rows = [
        f"{path.relative_to(photos)},{path.parent.name},{idx % 2}" for idx, path in enumerate(files)
    ]
    (photos / "table.csv").write_text("\n".join(["path,kind,day", *rows]))
    said = prepare("photos/table.csv", code=3)
    assert "row 1: no column 'label', and several may be it: 'kind', 'day'\n" in said
    (remedy,) = (
        line.split(": ")[1].split() for line in said.splitlines() if "Name the column" in line
    )
    assert remedy[:2] == ["stepladder", "prepare"]
    prepare(*remedy[2:])
    assert read_json(Path("store/manifest.json"))["classes"] == ["apple", "bread", "corn"]


def test_odd_names_train_and_junk_is_left_out(photos: Path, prepare: Run, train: Run) -> None:
    (photos / ".DS_Store").write_bytes(b"x")
    (photos / ".hidden").mkdir()
    (photos / "apple" / ".DS_Store").write_bytes(b"x")
    (photos / "loop").symlink_to(".")
    (photos / "apple" / "self.jpg").symlink_to("self.jpg")
    os.mkfifo(photos / "apple" / "pipe.jpg")
    (photos / "apple" / "apple0.jpg").rename(photos / "apple" / "two words.jpg")
    (photos / "apple" / "apple1.jpg").rename(photos / "apple" / "new\nline.jpg")
    (photos / "bread").rename(photos / "brødé 字\n2")
    said = prepare()
    assert "3 classes" in said
    for left_out in ("'loop'", "'apple/self.jpg'", "'apple/pipe.jpg'"):
        assert left_out in said
    train()
    assert "brødé 字\n2" in read_json(Path("run/summary.json"))["classes"]
    assert Path("run/report.html").stat().st_size > 0


# -- pictures -----------------------------------------------------------------------------------


def bomb() -> bytes:
    """A PNG of a few bytes that claims to have 3.6 billion pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def spoil(folder: Path) -> None:
    half = (folder / "apple1.jpg").read_bytes()
    (folder / "apple0.jpg").write_bytes(b"")
    (folder / "apple1.jpg").write_bytes(half[: len(half) // 2])
    (folder / "apple2.jpg").write_bytes(b"%PDF-1.7 not a picture")
    (folder / "bomb.png").write_bytes(bomb())


def test_bad_pictures_stop_it_and_the_remedy_puts_them_aside(photos: Path, prepare: Run) -> None:
    spoil(photos / "apple")
    said = prepare(code=3)
    assert "of 25 pictures" in said
    assert "more than the limit of 1 %" in said
    assert "'apple/apple0.jpg': is empty (0 bytes)" in said
    assert not Path("store").exists()
    assert "4 unreadable pictures were skipped" in prepare("photos", "--max-bad", "0.2")
    listed = Path("store/quarantine.csv").read_text().splitlines()
    assert [line.partition(",")[0] for line in listed[1:]] == [
        "apple/apple0.jpg",
        "apple/apple1.jpg",
        "apple/apple2.jpg",
        "apple/bomb.png",
    ]
    for reason in ("0 bytes", "Truncated", "PDF", "60000x60000"):
        assert sum(reason in line for line in listed) == 1


def test_predict_reports_a_bad_picture_and_continues(
    photos: Path, prepare: Run, train: Run, run: Run
) -> None:
    prepare()
    train()
    spoil(photos / "apple")
    lines = run("predict", "run", "photos/apple").splitlines()
    assert len(lines) == 9
    assert sum("\t-\t" in line for line in lines) == 4
    assert run("predict", "run", "photos/durian", code=3).startswith("photos/durian: ")


# -- stores -------------------------------------------------------------------------------------


def cut(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-100])


def flip_a_pixel(shard: Path) -> None:
    flip(shard, shard.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (cut, "store: shard train-all.parquet has "),
        (flip_a_pixel, "the picture is damaged: its checksum (CRC)"),
        (Path.unlink, "store: shard train-all.parquet is missing"),
    ],
)
def test_a_damaged_store_is_told_and_the_remedy_mends_it(
    damage: Callable[[Path], None], found: str, photos: Path, prepare: Run, train: Run, run: Run
) -> None:
    prepare()
    sound = Path("store/train-all.parquet").read_bytes()
    damage(Path("store/train-all.parquet"))
    said = train(code=3)
    assert found in said
    assert "`stepladder prepare` command with --overwrite" in said
    assert "train-all.parquet" in run("verify", "store", code=3)
    prepare("photos", "--overwrite")
    assert run("verify", "store") == "store: no damage found\n"
    assert Path("store/train-all.parquet").read_bytes() == sound
    train()


def test_a_store_that_is_not_whole_is_made_again_unasked(photos: Path, prepare: Run) -> None:
    prepare()
    Path("store/train-all.parquet").unlink()
    assert "nothing was written" not in prepare()
    assert "nothing was written" in prepare()
    assert "nothing was written" in prepare("photos", "--overwrite")


def test_a_folder_that_is_not_a_store_is_reported(photos: Path, train: Run) -> None:
    Path("notes").mkdir()
    Path("notes/plan.txt").touch()
    said = train("--data.store", "notes", code=3)
    assert "notes: this folder contains no class folders with pictures" in said
    assert "create one folder for each class" in said
    said = train("--data.store", "nowhere", code=3)
    assert said.startswith("nowhere: the folder does not exist")
    assert "stepladder prepare" in said
    assert not Path("run").exists()


def test_a_store_replaced_between_run_and_resume(photos: Path, prepare: Run, train: Run) -> None:
    prepare()
    train()
    for idx in range(12):  # more pictures in both splits
        Image.new("RGB", (40, 40), (20 * idx, 90, 30)).save(photos / "corn" / f"new{idx}.png")
    prepare("photos", "--overwrite")
    said = train(epochs=2, code=3)
    assert said.startswith(
        "run: the training data have changed since this run began, so it cannot simply be resumed\n"
    )
    assert "--accept-new-data" in said
    assert "earlier validations no longer count" in train("--accept-new-data", epochs=2)
    summary = read_json(Path("run/summary.json"))
    assert summary["epochs"] == summary["best_epoch"] == 2
    assert summary["fingerprint"] == read_json(Path("store/manifest.json"))["fingerprint"]


def test_a_smaller_store_in_the_middle_of_an_epoch(photos: Path, prepare: Run, train: Run) -> None:
    prepare()
    batch = ("--batch.global-batch-size", "12")
    train("--schedule.max-steps", "1", *batch)
    for name in ("apple", "bread", "corn"):
        for idx in range(4):
            (photos / name / f"{name}{idx}.jpg").unlink()
    prepare("photos", "--overwrite")  # fewer than 12 are left for training
    train("--schedule.max-steps", "2", "--accept-new-data", *batch)
    summary = read_json(Path("run/summary.json"))
    assert (summary["epochs"], summary["steps"]) == (1, 2)


# -- runs ---------------------------------------------------------------------------------------


class Harm:
    """Leaves a marker file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("mark"),))


def cut_weights(state: Path) -> None:
    weights = state / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def flip_state(state: Path) -> None:
    flip(state / "state.json", 40)


def hide_a_pickle(state: Path) -> None:
    (state / "model.safetensors").write_bytes(pickle.dumps(Harm()))


@pytest.mark.parametrize("damage", [cut_weights, flip_state, hide_a_pickle])
def test_damaged_checkpoints_are_named_and_never_begun_again_in_silence(
    damage: Callable[[Path], None], photos: Path, prepare: Run, train: Run, run: Run
) -> None:
    prepare()
    train("--run.checkpoint-every-s", "0", epochs=2)
    newest = newest_state()
    damage(newest)
    assert newest.name in run("verify", "run", code=3)
    assert newest.name in train(epochs=3)  # from the previous checkpoint, with a warning
    assert read_json(Path("run/summary.json"))["epochs"] == 3
    for state in Path("run/checkpoints").glob("step-*"):
        damage(state)
    said = train(epochs=4, code=3)
    assert "every checkpoint of this run is damaged" in said
    assert "--overwrite" in said
    assert not Path("mark").exists()
    train("--overwrite")


def test_a_checkpoint_of_another_model_is_refused(photos: Path, prepare: Run, train: Run) -> None:
    prepare()
    train()
    train("--head.hidden", "8", into="other")
    shutil.rmtree("run/checkpoints")
    shutil.copytree("other/checkpoints", "run/checkpoints")
    said = train(epochs=2, code=3)
    assert newest_state().name in said
    assert "head" in said


def test_another_config_in_the_same_folder_is_refused(
    photos: Path, prepare: Run, train: Run
) -> None:
    prepare()
    train()
    said = train("--batch.lr", "0.5", code=2)
    assert said.startswith(
        "run/config.yaml: this folder already has a run with other options, so the new run "
        "cannot use it\n"
    )
    assert "batch.lr: 0.001 -> 0.5" in said
    assert "--overwrite" in said


@pytest.mark.thorough
def test_a_second_run_in_the_same_folder_waits_for_nobody(
    photos: Path, prepare: Run, train: Run
) -> None:
    prepare()
    code = (
        "import sys; from pathlib import Path\n"
        "from stepladder.training.setup.run_folder import RunFolder\n"
        "with RunFolder(Path('run')).lock(): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        said = train(code=4)
        holder.stdin.close()
    assert said.startswith("run: ")
    assert str(holder.pid) in said
    train()


@contextmanager
def files_limited_to(num_bytes: int) -> Iterator[None]:
    """Limit the size of files, to simulate a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_while_saving_is_loud_and_the_run_resumes_later(
    photos: Path, prepare: Run, train: Run, run: Run
) -> None:
    prepare()
    train()
    before = {path: path.read_bytes() for path in newest_state().iterdir()}
    largest = max(len(data) for path, data in before.items() if path.stat().st_nlink == 1)
    with files_limited_to(largest - 1):
        said = train(epochs=2, code=4)
    assert "checkpoint" in said
    assert {path: path.read_bytes() for path in before} == before
    assert run("verify", "run") == "run: no damage found\n"
    train(epochs=2)
    assert read_json(Path("run/summary.json"))["epochs"] == 2


def test_programs_get_the_same_facts_as_json(photos: Path, prepare: Run) -> None:
    (photos / "durian").mkdir()
    said = prepare("photos", "--json", code=3)
    (line,) = (line for line in said.splitlines() if line.startswith('{"event": "error"'))
    told = json.loads(line)
    assert (told["exit_code"], told["kind"]) == (3, "DataError")
    assert told["where"].endswith("photos")
    assert "durian" in told["what"]
    assert "remove" in told["fix"]
