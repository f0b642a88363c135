"""Prepare writes the same store from the same pictures, reports problems, and rejects the rest."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from stepladder.config.choices import Encoding, Fit, JpegSize, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.decode import decode_picture
from stepladder.data.prepare import plan as plan_module
from stepladder.data.prepare import target as target_module
from stepladder.data.prepare.prepare import PreparePhase, PrepareProgress, PrepareResult, prepare
from stepladder.data.prepare.quarantine import Bad, check_share
from stepladder.data.store.store import Store
from stepladder.data.store.verify import verify_store
from stepladder.errors import DataError, ResourceError, UsageError

SIZE = 24


def save_photo(path: Path, seed: int) -> None:
    """Save a picture that is unique to its seed."""
    coarse = np.random.default_rng(seed).integers(0, 255, size=(5, 6, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize((36, 30), Image.Resampling.BICUBIC).save(path)


@pytest.fixture(scope="module")
def kept_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train, val and test of two classes, 8 + 3 + 3 each, JPEG and PNG; never changed."""
    root = tmp_path_factory.mktemp("kept") / "photos"
    for start, split, count in ((0, "train", 8), (100, "val", 3), (200, "test", 3)):
        for label in range(2):
            for idx in range(count):
                suffix = "png" if idx % 3 == 2 else "jpg"
                seed = start + 50 * label + idx
                save_photo(root / split / f"class {label}" / f"{idx}.{suffix}", seed)
    return root


@pytest.fixture(scope="module")
def made(kept_photos: Path) -> PrepareResult:
    """A store of these; never changed."""
    return make(kept_photos, kept_photos.with_name("store"))


@pytest.fixture
def split_photos(kept_photos: Path, tmp_path: Path) -> Path:
    """The same photos, for one test."""
    return Path(shutil.copytree(kept_photos, tmp_path / "photos"))


def make(source: Path, out: Path, **options: object) -> PrepareResult:
    settings = {"size": SIZE, "workers": 2, **options}
    return prepare(PrepareConfig(source=source, out=out, **settings))


def contents(folder: Path) -> dict[str, bytes]:
    """Read all files of a store except the log, which has timestamps and paths."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.pop("prepare_log.json")
    return files


def quarantine(folder: Path) -> list[list[str]]:
    rows = list(csv.reader(io.StringIO((folder / "quarantine.csv").read_text(), newline="")))
    assert rows[0] == ["path", "reason"]
    return rows[1:]


def test_a_store_holds_each_picture_with_its_label(kept_photos: Path, made: PrepareResult) -> None:
    result = made
    assert result.manifest.classes == ("class 0", "class 1")
    assert result.manifest.class_counts == {"train": (8, 8), "val": (3, 3), "test": (3, 3)}
    assert verify_store(result.folder) == []
    store = Store.open(result.folder)
    for split in Split:
        part = store.split(split)
        assert part is not None
        for row in range(len(part)):
            path = kept_photos / part.describe(row)
            assert path.parts[-3] == split
            assert path.parent.name == f"class {part.labels[row]}"
            want = decode_picture(path.read_bytes(), size=SIZE, fit=Fit.PAD)
            np.testing.assert_array_equal(part.picture(row), want)


def test_rows_are_sorted_by_content(made: PrepareResult) -> None:
    part = Store.open(made.folder).split(Split.TRAIN)
    assert part is not None
    hashes = [part.sha256(row) for row in range(len(part))]
    assert hashes == sorted(hashes)


def test_channel_sums_are_those_of_the_training_pixels(made: PrepareResult) -> None:
    result = made
    part = Store.open(result.folder).split(Split.TRAIN)
    assert part is not None
    pixels = np.stack([part.picture(row) for row in range(len(part))]).astype(np.int64)
    assert result.manifest.channel_sum == tuple(pixels.sum(axis=(0, 1, 2)).tolist())
    assert result.manifest.channel_sq_sum == tuple((pixels**2).sum(axis=(0, 1, 2)).tolist())
    assert result.manifest.num_pixels == 16 * SIZE * SIZE


@pytest.mark.parametrize("jpeg_size", list(JpegSize))
def test_jpeg_stores_read_as_pixel_stores_do(
    split_photos: Path, made: PrepareResult, tmp_path: Path, jpeg_size: JpegSize
) -> None:
    pixels = Store.open(made.folder).split(Split.VAL)
    result = make(
        split_photos,
        tmp_path / "jpeg",
        encoding=Encoding.JPEG,
        jpeg_size=jpeg_size,
        jpeg_quality=95,
    )
    jpeg = Store.open(result.folder).split(Split.VAL)
    assert pixels is not None
    assert jpeg is not None
    tolerance = 0 if jpeg_size is JpegSize.ORIGINAL else 6
    for row in range(len(pixels)):
        difference = np.abs(pixels.picture(row).astype(int) - jpeg.picture(row))
        assert difference.mean() <= tolerance


def test_original_jpeg_stores_hold_the_source_bytes(split_photos: Path, tmp_path: Path) -> None:
    result = make(split_photos, tmp_path / "store", encoding=Encoding.JPEG)
    table = pq.read_table(result.folder / result.manifest.shards[0].name).to_pylist()
    assert len(table) == 16
    for row in table:
        assert row["picture"] == (split_photos / row["path"]).read_bytes()


def test_same_pictures_give_the_same_bytes(split_photos: Path, tmp_path: Path) -> None:
    first = make(split_photos, tmp_path / "first", workers=1)
    elsewhere = tmp_path / "moved" / "away"
    shutil.copytree(split_photos, elsewhere)
    second = make(elsewhere, tmp_path / "second", workers=3)
    one, other = contents(first.folder), contents(second.folder)
    one.pop("prepare_hashes.jsonl")  # times and inodes of the source files
    other.pop("prepare_hashes.jsonl")
    assert one == other
    for name, data in one.items():
        assert os.fsencode(tmp_path) not in data, name


def test_a_second_call_finds_the_store_up_to_date(split_photos: Path, tmp_path: Path) -> None:
    first = make(split_photos, tmp_path / "store")
    before = contents(first.folder), first.folder.stat().st_ino
    second = make(split_photos, tmp_path / "store", workers=1)
    assert second.is_up_to_date
    assert (second.manifest, second.num_bad) == (first.manifest, 0)
    assert second.warnings == first.warnings
    assert (contents(first.folder), first.folder.stat().st_ino) == before
    assert not list(tmp_path.glob("*.partial"))


def test_a_store_of_other_pictures_or_options_is_not_overwritten_unasked(
    split_photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "store"
    before = contents(make(split_photos, out).folder)
    with pytest.raises(UsageError, match="other pictures or options: size") as caught:
        make(split_photos, out, size=16)
    assert "--overwrite" in str(caught.value)
    save_photo(split_photos / "train" / "class 0" / "new.jpg", 999)
    with pytest.raises(UsageError, match="the pictures of the source differ"):
        make(split_photos, out)
    assert contents(out) == before
    again = make(split_photos, out, overwrite=True)
    assert again.manifest.class_counts["train"] == (9, 8)
    assert verify_store(out) == []


def test_a_folder_of_other_things_is_never_replaced(split_photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "home"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="do not belong to a store"):
        make(split_photos, out, overwrite=True)
    assert (out / "thesis.tex").exists()


def test_a_store_inside_its_source_is_refused(split_photos: Path) -> None:
    with pytest.raises(UsageError, match="inside the folder of its source"):
        make(split_photos, split_photos / "store")


def test_unreadable_pictures_are_put_aside_with_reasons(split_photos: Path, tmp_path: Path) -> None:
    folder = split_photos / "train" / "class 0"
    good = (folder / "0.jpg").read_bytes()
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "half.jpg").write_bytes(good[:-20])
    (folder / "page.jpg").write_bytes(b"<html>not found</html>")
    (folder / "=cmd|x.jpg").write_bytes(b"GIF89a")
    result = make(split_photos, tmp_path / "store", max_bad=0.2)
    assert result.num_bad == 4
    assert result.manifest.class_counts["train"] == (8, 8)
    rows = quarantine(result.folder)
    assert [path.rpartition("/")[2] for path, _ in rows] == [
        "=cmd|x.jpg",
        "empty.jpg",
        "half.jpg",
        "page.jpg",
    ]
    reasons = " ".join(reason for _, reason in rows)
    for part in ("GIF", "0 bytes", "remature end", "HTML"):
        assert part in reasons
    assert any("quarantine.csv" in warning for warning in result.warnings)


def test_quarantine_cells_are_no_formulas(tmp_path: Path) -> None:
    rows = ["path,label"]
    for seed in range(20):
        save_photo(tmp_path / "photos" / f"{seed}.jpg", seed)
        rows.append(f"photos/{seed}.jpg,class {seed % 2}")
    rows.append('"=HYPERLINK(""x"").jpg",class 1')
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(rows))
    result = make(table, tmp_path / "store", max_bad=0.1, val_frac=0.4)
    assert quarantine(result.folder) == [['\'=HYPERLINK("x").jpg', "does not exist"]]


def test_too_many_bad_pictures_leave_no_store_and_the_remedy_works(
    split_photos: Path, tmp_path: Path
) -> None:
    for idx in range(7):
        (split_photos / "train" / "class 0" / f"bad{idx}.jpg").write_bytes(b"\xff\xd8\xff\xe0 half")
    (split_photos / "train" / "class 1" / "empty.jpg").touch()
    with pytest.raises(DataError, match=r": 8 of 36 pictures \(22.2 %\) cannot be used") as caught:
        make(split_photos, tmp_path / "store")
    why = str(caught.value.why)
    assert why.count("train/class 0/bad") == 5
    assert why.endswith("; and 3 more")
    assert len(caught.value.brief().splitlines()) == 3
    assert not (tmp_path / "store").exists()
    max_bad = float(str(caught.value.fix).partition("--max-bad ")[2])
    assert make(split_photos, tmp_path / "store", max_bad=max_bad).num_bad == 8


def test_a_class_that_skipping_would_empty_is_named(split_photos: Path, tmp_path: Path) -> None:
    folder = split_photos / "train" / "class 2"
    folder.mkdir()
    for idx in range(4):
        (folder / f"{idx}.jpg").write_bytes(b"\xff\xd8\xff\xe0 half")
    with pytest.raises(DataError, match="cannot be used, more than") as caught:
        make(split_photos, tmp_path / "store")
    assert caught.value.fix == "Replace or remove these pictures in the source."
    with pytest.raises(
        DataError, match="1 of 3 classes have only pictures that cannot be used: class 2"
    ):
        make(split_photos, tmp_path / "store", max_bad=1)
    assert not (tmp_path / "store").exists()


def test_a_hundred_bad_pictures_stop_it_at_once(tmp_path: Path) -> None:
    bad = [Bad(f"{idx}.jpg", "is empty (0 bytes)") for idx in range(120)]
    check = partial(check_share, max_bad=0.01, source=tmp_path, are_all_known=False)
    check(bad[:99], num_pictures=1000)
    check(bad, num_pictures=12_000)
    with pytest.raises(DataError, match=r": at least 120 of 10000 pictures") as caught:
        check(bad, num_pictures=10_000)
    assert str(caught.value.fix).endswith("--max-bad 1")
    assert str(caught.value.why).startswith("'0.jpg', '1.jpg', ")


@pytest.mark.parametrize(
    ("num", "told"),
    [
        (1, "1 picture of the table does not exist: '0.jpg'; 'z.jpg': is empty"),
        (2, "2 pictures of the table do not exist: '0.jpg', '1.jpg'; 'z.jpg': is empty"),
        (7, "7 pictures of the table do not exist: '0.jpg', '1.jpg', '2.jpg', '3.jpg', '4.jpg'; "),
    ],
)
def test_pictures_of_a_table_that_do_not_exist_are_counted(
    tmp_path: Path, num: int, told: str
) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n")
    bad = [*(Bad(f"{idx}.jpg", "does not exist") for idx in range(num)), Bad("z.jpg", "is empty")]
    with pytest.raises(DataError) as caught:
        check_share(bad, num_pictures=20, max_bad=0.01, source=table)
    assert str(caught.value.why).startswith(told)


def test_pictures_in_train_and_val_are_named(split_photos: Path, tmp_path: Path) -> None:
    same = split_photos / "train" / "class 0" / "0.jpg"
    shutil.copy(same, split_photos / "val" / "class 0" / "copy.jpg")
    shutil.copy(same, split_photos / "train" / "class 1" / "copy.jpg")
    (split_photos / "train" / "class 0" / "a.jpg").write_bytes(b"\xff\xd8\xff\xe0 half")
    result = make(split_photos, tmp_path / "store", max_bad=0.1)
    said = "\n".join(result.warnings)
    assert "1 of 7 pictures of val is also in train" in said
    assert "optimistic: val/class 0/copy.jpg = train/class 1/copy.jpg" in said
    of_classes = ["train/class 0/0.jpg", "train/class 1/copy.jpg", "val/class 0/copy.jpg"]
    assert "1 picture is in two or more classes (identical files): " + " = ".join(of_classes) in (
        said
    )
    assert "near-duplicates" not in said
    log = json.loads((result.folder / "prepare_log.json").read_text())
    assert log["copies_of_train"] == {"val": [["val/class 0/copy.jpg", "train/class 1/copy.jpg"]]}
    assert log["copies_in_classes"] == [of_classes]
    near = {"num_near": 0, "num_compared": 6, "can_group": False}
    assert log["near_duplicates"]["val"] == near


def test_five_copies_are_named_and_all_are_saved(split_photos: Path, tmp_path: Path) -> None:
    for path in (split_photos / "train" / "class 1").iterdir():
        shutil.copy(path, split_photos / "test" / "class 1" / f"again_{path.name}")
    result = make(split_photos, tmp_path / "store")
    (said,) = [text for text in result.warnings if "identical" in text]
    assert said.startswith("8 of 14 pictures of test are also in train")
    assert said.count(" = train/class 1/") == 5
    assert said.endswith(" and 3 more, see prepare_log.json")
    log = json.loads((result.folder / "prepare_log.json").read_text())
    assert len(log["copies_of_train"]["test"]) == 8


def test_shots_of_one_scene_on_two_sides_are_counted_unless_grouped(tmp_path: Path) -> None:
    source = tmp_path / "photos"
    for scene in range(20):
        for shot in range(4):
            path = source / f"class {scene % 2}" / f"scene{scene}" / f"{shot}.png"
            save_photo(path, scene)
            pixels = np.asarray(Image.open(path)).copy()
            pixels[0, shot] = 0
            Image.fromarray(pixels).save(path)
    warned = make(source, tmp_path / "split", val_frac=0.3).warnings
    assert any(
        "near-duplicates of one of train" in text and "--group-by" in text for text in warned
    )
    grouped = make(source, tmp_path / "grouped", val_frac=0.3, group_by="folder")
    assert not any("near-duplicates" in text for text in grouped.warnings)
    store = Store.open(grouped.folder)
    scenes = []
    for split in (Split.TRAIN, Split.VAL):
        part = store.split(split)
        assert part is not None
        scenes.append({part.describe(row).rpartition("/")[0] for row in range(len(part))})
    assert not scenes[0] & scenes[1]


def test_a_class_only_in_test_is_an_error(split_photos: Path, tmp_path: Path) -> None:
    save_photo(split_photos / "test" / "new" / "1.jpg", 7)
    with pytest.raises(DataError, match="classes in test has no pictures in train: new"):
        make(split_photos, tmp_path / "store")


def test_shards_are_cut_by_the_first_digits_of_the_hash(
    split_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "MAX_MEAN_SHARD_BYTES", 8_000)
    result = make(split_photos, tmp_path / "store")
    names = [shard.name for shard in result.manifest.shards if shard.split == Split.TRAIN]
    assert len(names) > 4
    for name in names:
        digit = name.removeprefix("train-").removesuffix(".parquet")
        hashes = pq.read_table(result.folder / name, columns=["sha256"])["sha256"].to_pylist()
        assert all(sha256.hex().startswith(digit) for sha256 in hashes)
    assert verify_store(result.folder) == []


def test_progress_goes_through_both_phases_to_the_end(split_photos: Path, tmp_path: Path) -> None:
    seen: list[PrepareProgress] = []
    config = PrepareConfig(source=split_photos, out=tmp_path / "store", size=SIZE)
    prepare(config, on_progress=seen.append)
    assert [p.phase for p in seen if p.done == p.total] == [PreparePhase.HASH, PreparePhase.WRITE]
    assert all(progress.total == 28 for progress in seen)
    assert seen[-1].left_s == 0


def test_a_store_that_cannot_fit_is_refused_before_it_is_begun(
    split_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "disk_free_bytes", lambda _: 10_000)
    with pytest.raises(ResourceError, match=r"needs .* GB, but only 1e-05 GB are free") as caught:
        make(split_photos, tmp_path / "store")
    assert caught.value.exit_code == 4
    assert not (tmp_path / "store").exists()


def test_finished_shards_are_not_made_again(
    split_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_module, "MAX_MEAN_SHARD_BYTES", 8_000)
    want = contents(make(split_photos, tmp_path / "whole").folder)
    _stop_before_publishing(monkeypatch, split_photos, tmp_path / "store")
    shards = tmp_path / "store.partial" / "store"
    inodes = {path.name: path.stat().st_ino for path in shards.glob("*.parquet")}
    damaged = sorted(inodes)[0]
    (shards / damaged).write_bytes(b"PAR1 damaged")
    assert contents(make(split_photos, tmp_path / "store").folder) == want
    kept = {path.name: path.stat().st_ino for path in (tmp_path / "store").glob("*.parquet")}
    assert {name for name in inodes if kept[name] == inodes[name]} == inodes.keys() - {damaged}


def test_files_of_an_earlier_try_with_other_options_do_not_stay(
    split_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = contents(make(split_photos, tmp_path / "whole").folder)
    with monkeypatch.context() as context:
        context.setattr(plan_module, "MAX_MEAN_SHARD_BYTES", 8_000)
        _stop_before_publishing(context, split_photos, tmp_path / "store", size=16)
    assert contents(make(split_photos, tmp_path / "store").folder) == want


def _stop_before_publishing(
    monkeypatch: pytest.MonkeyPatch, source: Path, out: Path, **options: object
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(target_module, "publish", stop)
        with pytest.raises(KeyboardInterrupt):
            make(source, out, **options)
    assert not out.exists()


def test_the_log_says_when_and_where_and_nothing_else_does(
    split_photos: Path, tmp_path: Path
) -> None:
    result = make(split_photos, tmp_path / "store")
    log = json.loads((result.folder / "prepare_log.json").read_text())
    assert log["source"] == str(split_photos)
    assert log["wall_s"] > 0
    assert log["warnings"] == list(result.warnings)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"other")])
def test_a_file_that_changes_meanwhile_is_put_aside(
    split_photos: Path, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    victim = split_photos / "train" / "class 0" / "5.png"

    def on_progress(progress: PrepareProgress) -> None:
        if progress.phase is PreparePhase.HASH and progress.done == progress.total:
            spoil(victim)

    config = PrepareConfig(source=split_photos, out=tmp_path / "store", size=SIZE, max_bad=0.1)
    result = prepare(config, on_progress=on_progress)
    assert result.manifest.class_counts["train"] == (7, 8)
    ((path, reason),) = quarantine(result.folder)
    assert path == "train/class 0/5.png"
    assert reason in {"does not exist", "changed while the store was made"}
    assert verify_store(result.folder) == []


def test_what_a_stopped_run_had_finished_is_kept_and_reported(
    split_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("stepladder.data.prepare.prepare.find", stopped)
        with pytest.raises(KeyboardInterrupt):
            make(split_photos, tmp_path / "store")
    assert make(split_photos, tmp_path / "store").num_kept == 28
    assert make(split_photos, tmp_path / "other").num_kept == 0


@pytest.mark.parametrize(("num", "val_frac"), [(20, 0.1), (60, 0.5)])
def test_the_pictures_that_became_val_are_counted(
    num: int, val_frac: float, tmp_path: Path
) -> None:
    for seed in range(num):
        save_photo(tmp_path / "in" / f"class {seed % 4}" / f"{seed}.png", seed)
    result = make(tmp_path / "in", tmp_path / "store", val_frac=val_frac)
    drawn = sum(Store.open(result.folder).manifest.class_counts[Split.VAL])
    (said,) = [text for text in result.warnings if "no splits" in text]
    assert f"{drawn} of {num} pictures ({100 * drawn / num:.3g} %) became val" in said
    is_other = abs(drawn / num / val_frac - 1) > 0.2
    assert (f"instead of {100 * val_frac:g} %" in said) is is_other


def test_val_that_is_taken_from_train_beside_test_is_reported(tmp_path: Path) -> None:
    for seed in range(40):
        split = "test" if seed < 8 else "train"
        save_photo(tmp_path / "in" / split / f"class {seed % 2}" / f"{seed}.png", seed)
    result = make(tmp_path / "in", tmp_path / "store", val_frac=0.25)
    counts = result.manifest.class_counts
    drawn = sum(counts[Split.VAL])
    assert drawn + sum(counts[Split.TRAIN]) == 32
    (said,) = [text for text in result.warnings if "no val" in text]
    share = f"{drawn} of 32 pictures of train ({100 * drawn / 32:.3g} %) became val"
    assert f"the source has train and test, but no val: {share}" in said


@pytest.mark.parametrize(("num", "is_off"), [((3, 11), True), ((200, 200), False)])
def test_classes_whose_share_of_val_is_far_off_are_named(
    num: tuple[int, int], is_off: bool, tmp_path: Path
) -> None:
    """Pictures are drawn by content, so that adding some moves none: small classes vary."""
    for label, count in enumerate(num):
        for at in range(count):
            save_photo(tmp_path / "in" / f"class {label}" / f"{at}.png", 1000 * label + at)
    result = make(tmp_path / "in", tmp_path / "store", val_frac=0.5)
    val = result.manifest.class_counts[Split.VAL]
    (said,) = [text for text in result.warnings if "no splits" in text]
    assert ("by class" in said) is is_off
    if is_off:
        told = [f"{100 * val[at] / num[at]:.3g} % ({val[at]} of {num[at]})" for at in (0, 1)]
        low, high = sorted(range(2), key=lambda at: val[at] / num[at])
        named = f"from {told[low]} of 'class {low}' to {told[high]} of 'class {high}'"
        assert f", by class {named}" in said
