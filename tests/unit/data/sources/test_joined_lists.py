"""Lists of splits are all read by the printed command, or those that are left out are named."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import StepladderError

SIZES = {"train": 12, "val": 6, "test": 4}


def fill(path: Path, content: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def refused(root: Path) -> StepladderError:
    with pytest.raises(StepladderError) as error:
        list_pictures(PrepareConfig(source=root))
    return error.value


def typed(error: StepladderError, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Listing:
    """Type the command of an error, and list what it reads."""
    monkeypatch.chdir(cwd)
    before, _, command = str(error.fix).partition("stepladder prepare ")
    if " && " in before:
        edit = before.removeprefix("Type: ").removesuffix(" && ")
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
        subprocess.run(["bash", "-c", edit], check=True)
    source, *flags = shlex.split(command)
    options = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(flags[::2], flags[1::2], strict=True)
    }
    return list_pictures(PrepareConfig(source=Path(source), **options))  # type: ignore[arg-type]


def require(listing: Listing, wanted: dict[str, tuple[str, str]]) -> None:
    found = {
        str(Path(listing.file(one)).resolve()): (one.label, str(one.split))
        for one in listing.pictures
    }
    assert found == wanted


@pytest.mark.parametrize("folders", [0, 1, 2], ids=["flat", "one-folder", "two-folders"])
@pytest.mark.parametrize("splits", [("train", "val"), ("train", "val", "test")])
def test_lists_of_mmpretrain_are_read_with_the_pictures_of_their_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: int, splits: tuple[str, ...]
) -> None:
    root, wanted = tmp_path / "set", {}
    for split in splits:
        rows = []
        for at in range(SIZES[split]):  # the same names in each split
            inside = f"folder_{1 + at // 2 % folders}/" if folders and at % 2 else ""
            fill(path := root / split / f"{inside}{at}.png")
            rows.append(f"{inside}{at}.png {at % 3}\n")
            wanted[str(path)] = (str(at % 3), split)
        fill(root / f"meta/{split}.txt", "".join(rows))
    fill(root / "meta/classes.txt", "bolt\nnut\nwasher\n")
    error = refused(root)
    assert "does not read" not in str(error)
    require(typed(error, tmp_path, monkeypatch), wanted)


@pytest.mark.parametrize("row", ["{name},{label}", "{label};{name}", "{label}\t{name}"])
@pytest.mark.parametrize("is_inside", [True, False])
def test_tables_of_folders_of_splits_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, is_inside: bool
) -> None:
    root, wanted = tmp_path / "my set", {}
    for split, num in SIZES.items():
        rows = [row.format(name="file", label="kind")]
        for at in range(num):
            fill(path := root / split / f"{at}.png")
            rows.append(row.format(name=at, label="ab"[at % 2]))
            wanted[str(path)] = ("ab"[at % 2], split)
        fill(root / (f"{split}/labels.csv" if is_inside else f"{split}.csv"), "\n".join(rows))
    require(typed(refused(root), tmp_path, monkeypatch), wanted)


def test_a_list_without_labels_is_named(tmp_path: Path) -> None:
    for split, num in SIZES.items():
        for at in range(num):
            fill(tmp_path / split / f"{at}.png")
        label = "" if split == "test" else " 1"
        rows = [f"{at}.png{label and f' {at % 2}'}\n" for at in range(num)]
        fill(tmp_path / f"meta/{split}.txt", "".join(rows))
    error = str(refused(tmp_path))
    assert "train.txt and val.txt name these pictures" in error
    assert "does not read test.txt" in error


def test_lists_of_names_beside_a_table_of_labels_are_named(tmp_path: Path) -> None:
    for at in range(12):
        fill(tmp_path / f"images/p{at}x.png")
    fill(
        tmp_path / "labels.csv",
        "file,kind\n" + "".join(f"p{a}x,{'ab'[a % 2]}\n" for a in range(12)),
    )
    fill(tmp_path / "train.txt", "".join(f"p{at}x.png\n" for at in range(8)))
    fill(tmp_path / "val.txt", "".join(f"p{at}x.png\n" for at in range(8, 12)))
    assert "does not read train.txt, val.txt;" in str(refused(tmp_path))


def test_quoted_paths_in_several_folders_are_not_joined_but_named(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for at in range(6):
            fill(tmp_path / split / f"{at} a.png")
        rows = [f'"{at} a.png","{"ab"[at % 2]}"\n' for at in range(6)]
        fill(tmp_path / f"{split}.csv", "file,label\n" + "".join(rows))
    error = str(refused(tmp_path))
    assert "train.csv names these pictures" in error
    assert "does not read val.csv;" in error


def test_loose_pictures_beside_classes_change_nothing_without_other_labels(tmp_path: Path) -> None:
    for split in ("train", "val"):
        rows = []
        for at in range(8):
            fill(tmp_path / split / f"n{at % 2}/{split}{at}.png")
            rows.append(f"n{at % 2}/{split}{at}.png {at % 2}\n")
        fill(tmp_path / split / "stray.png")
        fill(tmp_path / f"{split}.txt", "".join(rows))
    listing = list_pictures(PrepareConfig(source=tmp_path))
    assert Counter(one.label for one in listing.pictures) == {"n0": 8, "n1": 8}


FIFTYONE = [
    (["deer", "fox"], lambda at: at % 2),
    (None, lambda at: ["deer", "fox"][at % 2]),
    (["deer", "fox"], lambda at: {"label": at % 2, "confidence": 0.5}),
    (["fox", "deer"], lambda at: [1 - at % 2]),
]


@pytest.mark.parametrize(("classes", "value"), FIFTYONE)
def test_labels_of_fiftyone_are_read_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: Any, value: Any
) -> None:
    labels, wanted = {}, {}
    for at in range(14):
        fill(path := tmp_path / f"set/data/{at:06}.jpg")
        labels[f"{at:06}"] = value(at)
        wanted[str(path)] = (("deer", "fox")[at % 2], "None")
    fill(tmp_path / "set/labels.json", json.dumps({"classes": classes, "labels": labels}))
    error = refused(tmp_path / "set")
    assert "labels.json names these pictures" in str(error.why)
    require(typed(error, tmp_path, monkeypatch), wanted)


def test_a_number_that_is_no_class_of_fiftyone_is_refused(tmp_path: Path) -> None:
    for at in range(4):
        fill(tmp_path / f"data/{at}.jpg")
    labels = {str(at): at for at in range(4)}
    fill(tmp_path / "labels.json", json.dumps({"classes": ["deer", "fox"], "labels": labels}))
    assert "the number 2 of a class, but there are 2" in str(refused(tmp_path / "labels.json"))


def test_labels_of_fiftyone_for_each_split_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {}
    for split, num in SIZES.items():
        for at in range(num):
            fill(path := tmp_path / f"my set/{split}/data/{at:06}.jpg")
            wanted[str(path)] = (("deer", "fox")[at % 2], split)
        labels = {f"{at:06}": at % 2 for at in range(num)}
        record = {"classes": ["deer", "fox"], "labels": labels}
        fill(tmp_path / f"my set/{split}/labels.json", json.dumps(record))
    require(typed(refused(tmp_path / "my set"), tmp_path, monkeypatch), wanted)


def test_json_of_each_split_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {}
    for split, ats in (("train", range(12)), ("val", range(12, 18))):
        for at in ats:
            fill(path := tmp_path / f"set/images/p{at}x.png")
            wanted[str(path)] = ("ab"[at % 2], split)
        rows = [{"file": f"p{at}x.png", "kind": "ab"[at % 2]} for at in ats]
        fill(tmp_path / f"set/{split}.json", json.dumps(rows))
    require(typed(refused(tmp_path / "set"), tmp_path, monkeypatch), wanted)
