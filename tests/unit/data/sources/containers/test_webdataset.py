"""WebDataset tars become stores; nothing in a tar can write outside of it."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from stepladder.config.choices import Split
from stepladder.data.sources.containers.files import expand_braces
from stepladder.errors import DataError, StepladderError, UsageError

KINDS = ("apple", "bread")


def samples(shop: Any, rows: range, label: str = "cls") -> list[tuple[str, bytes]]:
    """Return the members of plain samples."""
    members = []
    for row in rows:
        texts = {
            "cls": f"{row % 2}\n",
            "txt": KINDS[row % 2],
            "json": json.dumps({"label": KINDS[row % 2], "number": row % 2}),
        }
        members.append((f"{row:04d}.{label}", texts[label].encode()))
        members.append((f"{row:04d}.{'png' if row % 3 == 2 else 'jpg'}", shop.photo(row)))
    return members


@pytest.mark.parametrize(
    ("label", "options", "names"),
    [
        ("cls", {}, ("0", "1")),
        ("txt", {}, KINDS),
        ("json", {}, KINDS),
        ("json", {"label_column": "number"}, ("0", "1")),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_labels_and_pictures_are_those_of_the_samples(
    shop: Any, label: str, options: dict[str, str], names: tuple[str, str], packed: bool
) -> None:
    name = "all.tar.gz" if packed else "all.tar"
    source = shop.tar(name, samples(shop, range(20), label), "w:gz" if packed else "w")
    found = shop.labels(shop.make(source, **options).folder)
    assert found == {
        f"{name}/{row:04d}.{'png' if row % 3 == 2 else 'jpg'}": names[row % 2] for row in range(20)
    }


@pytest.mark.parametrize("folder", ["", "data/"])
@pytest.mark.parametrize("is_label_first", [False, True])
@pytest.mark.parametrize("label", ["cls", "json"])
def test_samples_whose_files_are_apart_are_refused_and_the_remedy_works(
    shop: Any, folder: str, is_label_first: bool, label: str
) -> None:
    members = [(folder + name, data) for name, data in samples(shop, range(8), label)]
    apart = sorted(members, key=lambda one: one[0].endswith(label) is not is_label_first)
    source = shop.tar("all.tar", apart)
    with pytest.raises(DataError, match="not next to each other") as caught:
        shop.make(source)
    assert f"sample {folder}0000" in str(caught.value)
    assert {f"{folder}0000.jpg", f"{folder}0000.{label}"} <= set(
        caught.value.what.replace(",", "").split()
    )
    command = str(caught.value.fix).partition(": ")[2]
    new, unpacked = shop.folder / "new.tar", shop.folder / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-xf", str(source), "-C", str(unpacked)], check=True)
    subprocess.run(
        shlex.split(command.replace("NEW.tar", str(new)).replace("FOLDER", str(unpacked))),
        check=True,
    )
    assert len(shop.labels(shop.make(new).folder)) == 8


def test_a_sample_without_a_label_is_not_called_apart(shop: Any) -> None:
    members = [one for one in samples(shop, range(8)) if one[0] != "0005.cls"]
    with pytest.raises(DataError, match="sample 0005: this sample of the tar has no label"):
        shop.make(shop.tar("all.tar", members))


def test_shards_come_by_pattern_folder_and_split(shop: Any) -> None:
    for part in range(3):
        members = samples(shop, range(10 * part, 10 * part + 10))
        shop.tar(f"in/{('train', 'train', 'val')[part]}-{part:03d}.tar", members)
    whole = shop.make(shop.folder / "in")
    assert whole.manifest.class_counts == {"train": (10, 10), "val": (5, 5)}
    braces = shop.make(f"{shop.folder}/in/{{train-000,train-001,val-002}}.tar", "b")
    assert shop.contents(braces.folder) == shop.contents(whole.folder)
    with pytest.raises(UsageError, match="--source names 2 files that do not exist"):
        shop.make(f"{shop.folder}/in/train-{{000..003}}.tar", "c")


@pytest.mark.parametrize(
    "names",
    [
        ("imagenet-train-000000", "imagenet-train-000001", "imagenet-val-000000"),
        ("shard-0-train", "shard-1-train", "shard-val-0"),
        ("CIFAR.Training.0", "CIFAR.Training.1", "CIFAR.Validation.0"),
        ("train_0001", "train_0002", "val_0001"),
        ("shop_train/0", "shop_train/1", "shop_eval/0"),
    ],
)
def test_a_split_may_be_anywhere_in_the_name_of_a_shard(shop: Any, names: tuple[str, ...]) -> None:
    for part, name in enumerate(names):
        shop.tar(f"in/{name}.tar", samples(shop, range(10 * part, 10 * part + 10)))
    made = shop.make(shop.folder / "in")
    assert made.manifest.class_counts == {"train": (10, 10), "val": (5, 5)}


def test_a_shard_of_val_is_never_mixed_with_shards_without_a_split(shop: Any) -> None:
    for part, name in enumerate(("shop-0", "shop-1", "shop-val-0")):
        shop.tar(f"in/{name}.tar", samples(shop, range(10 * part, 10 * part + 10)))
    with pytest.raises(DataError, match=r"these names do not: shop-0\.tar, shop-1\.tar") as caught:
        shop.make(shop.folder / "in")
    assert "Rename them, such as to train-0.tar" in str(caught.value.fix)


def test_braces_are_written_out_as_a_shell_does() -> None:
    assert expand_braces("a{08..10}b{x,y}") == [
        f"a{number}b{letter}" for number in ("08", "09", "10") for letter in "xy"
    ]
    with pytest.raises(UsageError, match="more than a million"):
        expand_braces("{0..9999999}")


def test_an_image_column_chooses_among_several(shop: Any) -> None:
    members = []
    for row in range(20):
        members += [
            (f"{row}.left.jpg", shop.photo(row)),
            (f"{row}.right.jpg", b"not this one"),
            (f"{row}.cls", str(row % 2).encode()),
        ]
    source = shop.tar("pairs.tar", members)
    with pytest.raises(
        DataError, match=r"several pictures, .*: 0\.left\.jpg, 0\.right\.jpg"
    ) as caught:
        shop.make(source)
    assert caught.value.where == "pairs.tar: sample 0"
    found = shop.labels(shop.make(source, image_column="left.jpg").folder)
    assert set(found) == {f"pairs.tar/{row}.left.jpg" for row in range(20)}


def test_what_is_not_a_picture_is_put_aside_with_a_reason(shop: Any) -> None:
    members = samples(shop, range(20))
    members += [("w.webp", b"RIFF0000WEBPVP8 "), ("w.cls", b"0"), ("n.cls", b"1"), ("n.ppm", b"")]
    result = shop.make(shop.tar("all.tar", members), max_bad=0.2)
    text = (result.folder / "quarantine.csv").read_text()
    assert "all.tar/w.webp,is truncated: its header is incomplete" in text
    assert "all.tar/n.ppm,is empty (0 bytes)" in text
    assert result.num_bad == 2


def hostile(path: Path, good: list[tuple[str, bytes]], target: Path) -> None:
    """Write a tar with path traversal, links and a device among good samples."""
    with tarfile.open(path, "w") as tar:
        for name in (f"{target}/absolute.jpg", "../up.jpg", "a/../../up2.jpg"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"bad"))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"special{kind!r}.jpg")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        for name, data in [*good, *good[:2]]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, data in good[-2:]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_names_that_lead_out_links_and_devices_are_left_out_and_reported(
    shop: Any, tmp_path: Path
) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    path = shop.folder / "h.tar"
    hostile(path, samples(shop, range(20)), target)
    before = sorted(shop.folder.iterdir())
    result = shop.make(path)
    assert not list(target.iterdir())
    assert sorted(shop.folder.iterdir()) == sorted([*before, shop.folder / "store"])
    told = " ".join(result.warnings)
    assert "3 member(s) of a tar with a name outside the folder" in told
    assert "2 link(s) in a tar" in told
    assert "2 member(s) of a tar that are not regular files" in told
    # a sample that appears again later is separate; its name includes its position
    assert "h.tar#20" in shop.labels(result.folder)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_read_in_both_forms(shop: Any, form: int) -> None:
    path = shop.folder / "long.tar"
    folder = "ä" * 60 + "/" + "b" * 90
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in samples(shop, range(20)):
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    found = shop.labels(shop.make(path).folder)
    assert len(found) == 20
    assert all(name.startswith(f"long.tar/{folder}/") for name in found)


def test_a_tar_without_labels_says_what_it_has(shop: Any) -> None:
    source = shop.tar("all.tar", [(f"{row}.jpg", shop.photo(row)) for row in range(3)])
    with pytest.raises(DataError, match="no label") as caught:
        shop.make(source)
    assert caught.value.where == "all.tar: sample 0"
    assert "Its files end in jpg." in str(caught.value)


def with_all_labels(shop: Any) -> Path:
    """Write samples with three labels: a number, a text and a JSON key."""
    members = []
    for row in range(20):
        facts = json.dumps({"kind": ("ripe", "raw")[row % 2]})
        members += [
            (f"{row}.cls", str(row % 2).encode()),
            (f"{row}.Shop.txt", ("here", "there")[row % 2].encode()),
            (f"{row}.json", facts.encode()),
            (f"{row}.jpg", shop.photo(row)),
        ]
    return shop.tar("all.tar", members)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("kind", {"ripe", "raw"}),
        ("shop.txt", {"here", "there"}),
        (".cls", {"0", "1"}),
        ("label", {"0", "1"}),
    ],
)
def test_a_label_column_that_is_named_wins(shop: Any, name: str, labels: set[str]) -> None:
    result = shop.make(with_all_labels(shop), label_column=name)
    assert set(result.manifest.classes) == labels


def test_a_label_column_that_is_named_and_not_there_is_an_error(shop: Any) -> None:
    with pytest.raises(DataError, match=r"neither 'foo' in a \.json, nor a \.foo") as caught:
        shop.make(with_all_labels(shop), label_column="foo")
    assert caught.value.where == "all.tar: sample 0"
    assert "Its files end in cls, jpg, json, shop.txt. Its .json has kind." in str(caught.value)


def test_half_characters_of_json_are_written_as_escapes(shop: Any) -> None:
    members = []
    for row in range(20):
        facts = json.dumps({"label": f"\ud800{row % 2}", "scene": f"\udfff{row}"})
        members += [(f"{row}.json", facts.encode()), (f"{row}.jpg", shop.photo(row))]
    result = shop.make(shop.tar("all.tar", members), group_by="scene")
    assert result.manifest.classes == ("\\ud8000", "\\ud8001")


def test_label_numbers_that_get_zeros_are_reported(shop: Any) -> None:
    members: list[tuple[str, bytes]] = []
    for row in range(20):
        members += [(f"{row:04d}.cls", b"7" if row % 2 else b"340")]
        members += [(f"{row:04d}.jpg", shop.photo(row))]
    result = shop.make(shop.tar("all.tar", members))
    assert set(shop.labels(result.folder).values()) == {"007", "340"}
    assert any("label 7 is stored as class '007'" in text for text in result.warnings)


def test_masks_around_the_folders_of_classes_are_left_out_and_reported(shop: Any) -> None:
    """As those of MVTec AD, whose folders have the names of the classes."""
    members = [
        (f"screw/{top}/{KINDS[row % 2]}/{row}.jpg", shop.photo(row))
        for row, top in enumerate(["ground_truth"] * 4 + ["train"] * 12 + ["test"] * 4)
    ]
    result = shop.make(shop.tar("all.tar", members))
    assert set(shop.labels(result.folder).values()) == set(KINDS)
    assert result.manifest.num_rows(Split.TRAIN) + result.manifest.num_rows(Split.VAL) == 12
    assert result.manifest.num_rows(Split.TEST) == 4
    assert any("skipped 4 picture(s) in folders of masks" in said for said in result.warnings)


def test_a_tar_of_masks_alone_is_never_an_empty_store(shop: Any) -> None:
    members = [(f"masks/{KINDS[row % 2]}/{row}.jpg", shop.photo(row)) for row in range(8)]
    with pytest.raises(StepladderError) as caught:
        shop.make(shop.tar("all.tar", members))
    assert "8 picture(s) in folders of masks" in str(caught.value)


def test_classes_whose_folder_has_a_word_for_masks_among_others_are_read(shop: Any) -> None:
    names = ("with_mask", "without_mask")
    members = [(f"face_mask_set/{names[row % 2]}/{row}.jpg", shop.photo(row)) for row in range(12)]
    labels = shop.labels(shop.make(shop.tar("all.tar", members)).folder)
    assert set(labels.values()) == set(names)
    assert len(labels) == 12
