"""Bad input and broken data by number, as in docs/reliability.md, each with its injection.

If a row is tested next to the code, PROVED names the tests; the others are here.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageCms, ImageOps

from stepladder.cli.main import main
from stepladder.config.choices import Encoding, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.decode import decode_picture
from stepladder.data.decoding.formats import BadPictureError
from stepladder.data.prepare.prepare import PreparePhase, PrepareProgress, prepare
from stepladder.data.sources.pictures import list_pictures
from stepladder.data.sources.source_file import read_file
from stepladder.data.store.index import encode_index, index_path
from stepladder.data.store.manifest import fingerprint_of
from stepladder.data.store.pages import decode_path, page_header
from stepladder.data.store.store import Store, StoreSplit
from stepladder.errors import DataError
from stepladder.records import Manifest, ShardInfo, read_json, write_json

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs" / "reliability.md"

BAD_INPUT, HERE = "faults/test_bad_input.py", "faults/test_reliability.py"
DECODE, PREPARE_UNIT = "unit/data/decoding/test_decode.py", "unit/data/prepare/test_prepare.py"
SOURCES, TABLE = "unit/data/sources/test_listing.py", "unit/data/sources/test_csv_table.py"
CONTAINERS = "faults/test_containers.py"
STORE, STORE_DAMAGE = "unit/data/store/test_store.py", "faults/test_store_damage.py"

PROVED: dict[int, dict[str, tuple[str, ...]]] = {
    1: {BAD_INPUT: ("test_bad_pictures_stop_it_and_the_remedy_puts_them_aside",)},
    2: {
        DECODE: ("test_half_a_file_is_refused",),
        HERE: ("test_how_many_bad_pictures_are_too_many_is_the_users",),
    },
    3: {
        DECODE: (
            "test_jpeg_without_its_end_is_refused",
            "test_every_flipped_byte_of_png_pixels_is_found",
        ),
        HERE: ("test_a_flip_in_a_jpeg_is_told_by_its_decoder_or_leaves_a_picture",),
    },
    4: {
        DECODE: ("test_other_formats_are_refused_by_name", "test_html_is_refused_by_name"),
        HERE: ("test_a_png_with_the_name_of_a_jpeg_is_read_and_told",),
    },
    5: {
        DECODE: ("test_bombs_are_refused_before_they_are_decoded",),
        HERE: ("test_bombs_and_huge_files_take_no_memory",),
    },
    6: {
        DECODE: ("test_jpeg_modes_match_pillow", "test_16_bit_grey_keeps_its_range"),
        HERE: ("test_odd_colours_give_the_pixels_of_pillow_and_are_counted",),
    },
    7: {
        DECODE: ("test_exif_orientation_is_applied_once",),
        HERE: ("test_a_picture_on_its_side_is_predicted_as_the_upright_one",),
    },
    8: {
        DECODE: ("test_corrupt_exif_is_ignored",),
        HERE: ("test_damaged_exif_is_one_warning_with_a_count",),
    },
    9: {
        SOURCES: ("test_junk_of_file_managers_is_never_a_class",),
        BAD_INPUT: ("test_odd_names_train_and_junk_is_left_out",),
    },
    10: {
        BAD_INPUT: ("test_an_empty_class_is_named", "test_one_class_is_not_enough"),
        "unit/data/prepare/test_split.py": (
            "test_classes_that_held_out_parts_lack_are_named_with_counts",
        ),
        HERE: ("test_one_picture_a_class_is_told_with_a_way_out",),
    },
    11: {
        "unit/data/prepare/test_split.py": (
            "test_a_class_that_train_lacks_is_an_error_with_its_name",
        ),
        "unit/training/setup/test_differences.py": (
            "test_classes_of_another_name_or_place_are_refused",
        ),
        HERE: ("test_a_run_never_goes_on_with_other_classes",),
    },
    12: {PREPARE_UNIT: ("test_pictures_in_train_and_val_are_named",)},
    13: {
        SOURCES: (
            "test_any_name_can_be_listed_and_opened",
            "test_names_that_are_no_utf8_can_be_listed_and_opened",
        ),
        HERE: ("test_odd_names_come_back_from_the_store",),
    },
    14: {SOURCES: ("test_links_are_followed_inside_only", "test_loops_of_links_end")},
    15: {
        SOURCES: ("test_a_fifo_is_never_opened",),
        HERE: ("test_a_table_that_names_a_fifo_or_a_device_does_not_hang",),
    },
    16: {
        "faults/test_prepare_disk.py": (
            "test_files_without_permission_are_listed_and_count_as_bad",
        )
    },
    17: {
        PREPARE_UNIT: ("test_a_file_that_changes_meanwhile_is_put_aside",),
        HERE: ("test_files_that_vanish_while_it_works_are_put_aside",),
    },
    18: {HERE: ("test_a_folder_of_many_files_takes_little_memory_a_file",)},
    19: {
        "unit/data/prepare/test_writer.py": (
            "test_a_row_group_of_large_pictures_is_bounded_in_bytes",
        ),
        HERE: (
            "test_rows_beyond_two_gigabytes_are_read",
            "test_a_file_too_large_for_a_page_is_refused_unread",
        ),
        CONTAINERS: ("test_a_row_group_over_two_gigabytes_is_read_in_little_memory",),
    },
    20: {
        TABLE: (
            "test_what_is_wrong_is_told_by_row_and_column",
            "test_bom_crlf_quotes_and_blank_lines_are_fine",
        ),
        BAD_INPUT: ("test_a_label_column_that_is_not_clear_is_told_with_the_flag",),
    },
    21: {
        "faults/test_prepare_kill.py": (
            "test_a_killed_prepare_run_again_gives_the_same_bytes",
            "test_killed_again_and_again_it_still_gets_there",
        )
    },
    22: {
        BAD_INPUT: ("test_a_damaged_store_is_told_and_the_remedy_mends_it",),
        HERE: (
            "test_damaged_shards_are_named_and_made_again_as_they_were",
            "test_what_cannot_be_made_as_it_was_is_left_and_told",
        ),
        CONTAINERS: ("test_a_damaged_parquet_file_is_named",),
    },
    23: {
        STORE_DAMAGE: (
            "test_two_hundred_flipped_bytes_of_pictures_are_all_found",
            "test_verify_finds_a_flip_anywhere_in_a_store",
        ),
        CONTAINERS: ("test_a_flipped_byte_under_a_checksum_is_told_by_file_and_row",),
    },
    24: {
        STORE: ("test_a_label_beyond_the_classes_is_refused_before_training",),
        "unit/data/store/test_pages.py": ("test_our_facts_on_other_columns_are_refused",),
        HERE: ("test_a_label_that_is_no_class_is_told_by_file_and_row",),
        CONTAINERS: (
            "test_a_label_that_is_none_is_told_by_file_and_row",
            "test_a_null_picture_is_put_aside_by_file_and_row",
            "test_columns_that_differ_in_one_file_are_told",
        ),
    },
    25: {
        STORE: (
            "test_a_store_that_is_not_whole_is_refused",
            "test_what_killed_processes_leave_is_passed_over",
        )
    },
    26: {
        "unit/data/store/test_pages.py": ("test_a_pickled_extension_type_is_refused_and_not_run",),
        CONTAINERS: (
            "test_a_pickled_extension_type_is_refused_unopened",
            "test_python_objects_in_a_binary_column_are_put_aside",
            "test_a_pyarrow_below_the_floor_is_refused",
        ),
        "unit/data/tables/test_files.py": ("test_an_old_pyarrow_opens_no_table",),
    },
    27: {
        CONTAINERS: (
            "test_a_writer_killed_before_its_commit_leaves_the_last_version",
            "test_a_half_written_commit_is_passed_over_and_told",
            "test_a_writer_beside_us_changes_nothing",
            "test_a_writer_on_a_full_disk_leaves_the_last_version",
            "test_a_checkpoint_of_the_log_that_was_cut_is_told",
            "test_a_vacuumed_file_is_named_with_what_to_type",
        )
    },
    28: {
        BAD_INPUT: ("test_a_store_replaced_between_run_and_resume",),
        "unit/training/setup/test_differences.py": ("test_other_data_is_told_in_examples",),
    },
}

Run = Callable[..., str]


# -- the index ----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", PROVED)
def test_each_row_names_tests_that_exist_and_docs_name_them_too(row: int) -> None:
    (line,) = re.findall(rf"^\| {row} \|.*$", DOCS.read_text(), re.MULTILINE)
    for file, names in PROVED[row].items():
        tree = ast.parse((TESTS / file).read_text())
        there = {item.name for item in tree.body if isinstance(item, ast.FunctionDef)}
        assert set(names) <= there, f"row {row}: {file}"
        assert all(f"`{name}`" in line for name in names), f"row {row}: docs"


# -- by the command -----------------------------------------------------------------------------


def quarantine() -> dict[str, str]:
    lines = Path("store/quarantine.csv").read_text().splitlines()
    return dict(line.split(",", 1) for line in lines[1:])


def splits(folder: str = "store") -> list[StoreSplit]:
    store = Store.open(Path(folder))
    return [found for split in Split if (found := store.split(split)) is not None]


def encode(picture: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def with_exif(jpeg: bytes, tiff: bytes) -> bytes:
    body = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def test_how_many_bad_pictures_are_too_many_is_the_users(photos: Path, prepare: Run) -> None:
    half = photos / "apple" / "apple0.jpg"
    half.write_bytes(half.read_bytes()[:-200])
    said = prepare("photos", "--max-bad", "0", code=3)
    assert "1 of 24 pictures (4.2 %) cannot be used, more than the limit of 0 %" in said
    allowed = said.split("--max-bad ")[1].split()[0]  # the suggested fix
    prepare("photos", "--max-bad", allowed)
    assert quarantine() == {"apple/apple0.jpg": "cannot be decoded: Premature end of JPEG file"}
    assert sum(len(split) for split in splits()) == 23


def test_a_flip_in_a_jpeg_is_told_by_its_decoder_or_leaves_a_picture(photos: Path) -> None:
    """A JPEG has no checksum: a flip that leaves valid codes decodes to another picture."""
    picture = Image.open(photos / "apple" / "apple0.jpg").resize((320, 240))
    whole = encode(picture, quality=92)
    reasons = set()
    for at in range(len(whole) // 4, len(whole) - 2, 97):
        flipped = whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]
        try:
            assert decode_picture(flipped, size=32, fit=PrepareConfig().fit).shape == (32, 32, 3)
        except BadPictureError as error:
            reasons.add(error.what.split(":")[0])
    assert reasons == {"cannot be decoded"}


def test_a_png_with_the_name_of_a_jpeg_is_read_and_told(photos: Path, prepare: Run) -> None:
    picture = Image.open(photos / "apple" / "apple0.jpg")
    (photos / "apple" / "odd.jpg").write_bytes(encode(picture, "PNG"))
    (photos / "apple" / "page.jpg").write_bytes(encode(picture, "WEBP"))
    said = prepare("photos", "--max-bad", "0.1")
    assert "2 pictures have the wrong extension" in said
    assert quarantine() == {}


BOMBS = """
import resource, sys
from pathlib import Path
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import prepare
def make(out, source):
    config = PrepareConfig(source=Path(source), out=Path(out), size=32, val_frac=0.3, max_bad=0.5)
    return prepare(config)
make("good", "good_photos")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = make("store", "photos")
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(result.num_bad, grown * 1024)
"""


def png_header(height: int, width: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + crc

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_bombs_and_huge_files_take_no_memory(photos: Path) -> None:
    shutil.copytree(photos, photos.with_name("good_photos"))
    good = (photos / "apple" / "apple0.jpg").read_bytes()
    at = good.index(b"\xff\xc0") + 5
    sizes = struct.pack(">HH", 65500, 65500)
    (photos / "apple" / "sof.jpg").write_bytes(good[:at] + sizes + good[at + 4 :])
    (photos / "apple" / "wide.png").write_bytes(png_header(40_000, 40_000))
    (photos / "apple" / "large.png").write_bytes(png_header(10_000, 10_000))
    with (photos / "apple" / "huge.jpg").open("wb") as file:  # a sparse file of 3 GiB
        file.write(good)
        file.truncate(3 << 30)
    done = subprocess.run(
        [sys.executable, "-c", BOMBS],
        cwd=photos.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    num_bad, grown_bytes = map(int, done.stdout.split())
    assert num_bad == 4
    assert grown_bytes < 100e6
    listed = (photos.parent / "store" / "quarantine.csv").read_text()
    for name, reason in (
        ("sof.jpg", "has 65500x65500 pixels"),
        ("wide.png", "has 40000x40000 pixels"),
        ("large.png", "has 10000x10000 pixels, more than the limit of 50000000"),
        ("huge.jpg", "more than --max-pixels allows for a picture"),
    ):
        assert re.search(rf"{name},.*{reason}", listed), listed


def odd_pictures(picture: Image.Image) -> dict[str, bytes]:
    grey = picture.convert("L")
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    deep = np.asarray(grey).astype(np.uint16) * 257
    ink = np.asarray(picture.convert("CMYK"))
    return {
        "cmyk.jpg": encode(picture.convert("CMYK"), quality=95),
        "ycck.jpg": simplejpeg.encode_jpeg(255 - ink, colorspace="CMYK", quality=95),
        "grey.jpg": encode(grey, quality=95),
        "progressive.jpg": encode(picture, quality=95, progressive=True),
        "profile.jpg": encode(picture, quality=95, icc_profile=profile),
        "palette.png": encode(picture.convert("P"), "PNG"),
        "deep.png": encode(Image.fromarray(deep), "PNG"),
    }


def test_odd_colours_give_the_pixels_of_pillow_and_are_counted(photos: Path, run: Run) -> None:
    picture = Image.open(photos / "apple" / "apple0.jpg").resize((32, 32))
    made = odd_pictures(picture)
    for name, data in made.items():
        (photos / "bread" / name).write_bytes(data)
    run("prepare", "photos", "--out", "store", "--size", "32", "--val-frac", "0.3")
    stored = {
        split.describe(row): split.picture(row).astype(int)
        for split in splits()
        for row in range(len(split))
    }
    for name, data in made.items():
        opened = Image.open(io.BytesIO(data))
        if name == "deep.png":  # Pillow's convert() clips 16 bits at 255
            opened = picture.convert("L")
        difference = np.abs(stored[f"bread/{name}"] - np.asarray(opened.convert("RGB")).astype(int))
        assert difference.max() <= 2, name
    assert read_json(Path("store/prepare_log.json"))["traits"] == {
        "grey": 2,
        "CMYK": 1,
        "YCCK": 1,
        "CMYK inverted by Adobe's convention": 2,
        "palette": 1,
        "16 bits a channel": 1,
        "progressive": 1,
        "colour profile, not applied": 1,
    }


def test_a_picture_on_its_side_is_predicted_as_the_upright_one(
    photos: Path, prepare: Run, train: Run, run: Run
) -> None:
    prepare()
    train()
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways = encode(Image.open(photos / "apple" / "apple0.jpg"), "PNG", exif=exif)
    Path("new").mkdir()
    Path("new/sideways.png").write_bytes(sideways)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(sideways)))
    upright.save("new/upright.png")
    lines = run("predict", "run", "new").splitlines()
    (one, other) = (line.split("\t")[1:] for line in lines if line.startswith("new/"))
    assert one == other


def test_damaged_exif_is_one_warning_with_a_count(photos: Path, prepare: Run) -> None:
    for idx in range(5):
        file = photos / "apple" / f"apple{idx}.jpg"
        file.write_bytes(with_exif(file.read_bytes(), b"MM\0*\0\0\0\x08\xff\xff"))
    said = prepare()
    assert said.count("EXIF") == 1
    assert "5 pictures have damaged EXIF" in said
    assert quarantine() == {}


def test_one_picture_a_class_is_told_with_a_way_out(photos: Path, prepare: Run) -> None:
    for idx in range(1, 8):
        for name in ("apple", "bread", "corn"):
            (photos / name / f"{name}{idx}.jpg").unlink()
    said = prepare("photos", "--val-frac", "0.5", code=3)
    assert "no pictures are left for the split val" in said
    assert "Each class has only one picture, which is in train." in said


def test_a_run_never_goes_on_with_other_classes(photos: Path, prepare: Run, train: Run) -> None:
    """The head has one output per class, in order: a new name may shift all others."""
    prepare()
    train()
    (photos / "bread").rename(photos / "aardvark")
    prepare("photos", "--overwrite")
    said = train("--accept-new-data", epochs=2, code=3)
    assert said.startswith(
        "the classes of the data have changed since this run began, so it cannot be resumed\n  "
        "0: apple -> aardvark"
    )
    assert "--run.dir" in said
    assert read_json(Path("run/summary.json"))["epochs"] == 1


NAMES = [
    *("two words.jpg", "new\nline.jpg", "-rf.jpg", "\u00e9.jpg", "e\u0301.jpg"),
    *("\U0001f34e.jpg", "back\\slash.jpg", "Case.jpg", "case.jpg", "x" * 251 + ".jpg"),
    os.fsdecode(b"\xff\xfe.jpg"),
]


def test_odd_names_come_back_from_the_store(photos: Path, prepare: Run) -> None:
    data = {
        name: encode(Image.new("RGB", (40, 40), (9 * k, 90, 9))) for k, name in enumerate(NAMES)
    }
    for name, content in data.items():
        (photos / "corn" / name).write_bytes(content)
    (photos / "apple").rename(photos / "-\U0001f34e '\"")
    (photos / "Corn").mkdir()
    shutil.copy(photos / "bread" / "bread0.jpg", photos / "Corn")
    shutil.copy(photos / "bread" / "bread1.jpg", photos / "Corn")
    prepare("photos", "--val-frac", "0.05")
    found = {
        decode_path(split.describe(row)): split.sha256(row)
        for split in splits()
        for row in range(len(split))
    }
    assert {f"corn/{name}" for name in NAMES} <= set(found)
    files = (path for path in photos.rglob("*") if path.is_file())
    assert set(found) == {str(path.relative_to(photos)) for path in files}
    assert read_json(Path("store/manifest.json"))["classes"] == [
        "-\U0001f34e '\"",
        "Corn",
        "bread",
        "corn",
    ]


def test_a_table_that_names_a_fifo_or_a_device_does_not_hang(photos: Path, prepare: Run) -> None:
    rows = [f"{path.relative_to(photos)},{path.parent.name}" for path in photos.rglob("*.jpg")]
    os.mkfifo(photos / "pipe.jpg")
    odd = ["pipe.jpg,apple", "/dev/zero,apple", "apple,apple"]
    (photos / "t.csv").write_text("\n".join(["path,label", *sorted(rows), *odd]) + "\n")
    prepare("photos/t.csv", "--max-bad", "0.5")
    assert sorted(quarantine().values()) == ["is not a regular file"] * 3


def test_files_that_vanish_while_it_works_are_put_aside(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for idx in range(60):
        shutil.copy(photos / "bread" / f"bread{idx % 8}.jpg", photos / "bread" / f"copy{idx}.jpg")
    victims = sorted((photos / "bread").glob("copy*"))

    def vanish(progress: PrepareProgress) -> None:
        """Remove some files when a few are seen, and the others when all are seen."""
        is_seen = progress.phase is PreparePhase.WRITE or progress.done == progress.total
        for path in victims if is_seen else victims[::7]:
            path.unlink(missing_ok=True)

    config = PrepareConfig(source=photos, out=Path("store"), size=32, val_frac=0.3, max_bad=1)
    prepare(config, on_progress=vanish)
    put_aside = quarantine()
    assert sorted(put_aside) == [str(path.relative_to(photos)) for path in victims]
    assert set(put_aside.values()) == {"does not exist"}
    assert sum(len(split) for split in splits()) == 24
    assert main(["verify", "store"]) == 0


def test_a_folder_of_many_files_takes_little_memory_a_file(tmp_path: Path) -> None:
    num_files = 6000
    first = tmp_path / "photos" / "a" / "0.jpg"
    (tmp_path / "photos" / "b").mkdir(parents=True)
    first.parent.mkdir()
    first.write_bytes(b"x")
    os.link(first, tmp_path / "photos" / "b" / "0.jpg")
    for idx in range(1, num_files):
        os.link(first, first.with_name(f"{idx}.jpg"))
    list_pictures(PrepareConfig(source=tmp_path / "photos"))  # imports what it needs
    tracemalloc.start()
    listing = list_pictures(PrepareConfig(source=tmp_path / "photos"))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(listing.pictures) == num_files + 1
    assert kept / num_files < 300
    assert peak / num_files < 1000


def sparse_store(folder: Path, *, labels: list[int], size: int) -> None:
    """Write a store of black pictures as a sparse file, which uses no disk space."""
    folder.mkdir()
    num_rows, num_bytes = len(labels), 3 * size * size
    crc = zlib.crc32(bytes(num_bytes))
    header = page_header(num_bytes, 1, crc)
    offsets = []
    with (folder / "train-all.parquet").open("wb") as file:
        file.write(b"PAR1")
        for _ in range(num_rows):
            file.write(header)
            offsets.append(file.tell())
            file.seek(num_bytes, os.SEEK_CUR)
        file.write(b"PAR1")
        total = file.tell()
    info = ShardInfo(
        name="train-all.parquet",
        split="train",
        num_rows=num_rows,
        size_bytes=total,
        sha256="0" * 64,
    )
    facts = {"lengths": [num_bytes] * num_rows, "crcs": [crc] * num_rows, "labels": labels}
    index = encode_index(offsets=offsets, info=info, **facts)
    index_path(folder / info.name).write_bytes(index)
    manifest = Manifest(
        encoding=Encoding.PIXELS.value,
        size=size,
        fit="pad",
        classes=("black", "white"),
        class_counts={"train": (num_rows, 0)},
        channel_sum=(0, 0, 0),
        channel_sq_sum=(0, 0, 0),
        num_pixels=num_rows * size * size,
        shards=(info,),
    )
    write_json(folder / "manifest.json", replace(manifest, fingerprint=fingerprint_of(manifest)))


def test_rows_beyond_two_gigabytes_are_read(tmp_path: Path) -> None:
    sparse_store(tmp_path / "store", labels=[0] * 90, size=4096)
    assert (tmp_path / "store" / "train-all.parquet").stat().st_size > 1 << 32
    split = Store.open(tmp_path / "store").split(Split.TRAIN)
    assert split is not None
    assert split.picture(0).max() == 0
    assert split.picture(89).max() == 0  # its CRC was verified
    with (tmp_path / "store" / "train-all.parquet").open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(DataError, match=r"row 89: .*CRC"):
        split.picture(89)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_that_is_no_class_is_told_by_file_and_row(tmp_path: Path, label: int) -> None:
    sparse_store(tmp_path / "store", labels=[0, 1, label], size=8)
    split = Store.open(tmp_path / "store").split(Split.TRAIN)
    assert split is not None
    with pytest.raises(DataError) as caught:
        _ = split.labels
    assert str(caught.value).startswith(
        f"{tmp_path}/store/train-all.parquet: row 2: the store is damaged: label {label} is not "
        "one of the 2 classes"
    )


def test_a_file_too_large_for_a_page_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(3 << 30)
    tracemalloc.start()
    with pytest.raises(BadPictureError, match="more than --max-pixels allows for a picture"):
        read_file(str(tmp_path / "huge.jpg"), max_pixels=10**10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


# -- stores -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1", b"PAR1 cut", b"\x89PNG no Parquet", None],
    ids=["empty", "four bytes", "cut", "no Parquet", "missing"],
)
def test_damaged_shards_are_named_and_made_again_as_they_were(
    content: bytes | None, photos: Path, prepare: Run, run: Run
) -> None:
    prepare()
    shard = Path("store/val-all.parquet")
    sound, untouched = shard.read_bytes(), Path("store/train-all.parquet").stat()
    if content is None:
        shard.unlink()
    else:
        shard.write_bytes(content)
    said = run("verify", "store", code=3)
    assert said.startswith("shard val-all.parquet ")
    assert "stepladder verify store --repair" in said
    assert run("verify", "store", "--repair") == (
        "store: rebuilt: val-all.parquet\nstore: no damage found\n"
    )
    assert shard.read_bytes() == sound
    assert Path("store/train-all.parquet").stat().st_mtime_ns == untouched.st_mtime_ns
    assert not Path("store.partial").exists()


def test_what_cannot_be_made_as_it_was_is_left_and_told(
    photos: Path, prepare: Run, run: Run
) -> None:
    prepare()
    Path("store/train-all.parquet").unlink()
    photos.rename("moved")
    assert "does not exist" in run("verify", "store", "--repair", code=2)
    assert "rebuilt" in run("verify", "store", "--repair", "--source", "moved")
    Path("store/train-all.parquet").write_bytes(b"PAR1")
    for file in Path("moved/apple").glob("*.jpg"):
        file.write_bytes(file.read_bytes() + b" ")  # each is now a different file
    said = run("verify", "store", "--repair", "--source", "moved", code=3)
    assert "cannot be made again: train-all.parquet" in said
    assert "`stepladder prepare` command with --overwrite" in said
    assert Path("store/train-all.parquet").read_bytes() == b"PAR1"
    log = json.loads(Path("store/prepare_log.json").read_text())
    del log["config"]
    Path("store/prepare_log.json").write_text(json.dumps(log))
    assert "does not record from which pictures" in run("verify", "store", "--repair", code=3)
