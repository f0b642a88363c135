"""Classes that train spells otherwise are named, with a command that renames their folders."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import pytest

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.class_names import near_classes, renaming
from stepladder.data.prepare.split import check_classes
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError
from tests.unit.data.sources.printed import commands_in, typed_listing

LONG = ("large.cell.carcinoma_left.hilum_T2_N2", "small.cell.carcinoma_left.hilum_T1_N2", "normal")
SHORT = ("large.cell.carcinoma", "small.cell.carcinoma", "normal")


@pytest.mark.parametrize(
    ("unknown", "known", "pairs"),
    [
        (SHORT[:2], LONG[:2], list(zip(SHORT[:2], LONG[:2], strict=True))),
        (LONG[:2], SHORT[:2], list(zip(LONG[:2], SHORT[:2], strict=True))),
        (["ak47", "dog"], ["001.ak47", "056.dog"], [("ak47", "001.ak47"), ("dog", "056.dog")]),
        (["Mild Demented"], ["MildDemented", "Very"], [("Mild Demented", "MildDemented")]),
        (["apple"], ["apple red", "apple green"], []),  # which of them?
        (["apple 1", "apple"], ["apple 1 old"], []),
        (["1"], ["1 2"], []),
        (["cell"], ["unicellular"], []),
    ],
)
def test_names_of_one_class(
    unknown: list[str], known: list[str], pairs: list[tuple[str, str]]
) -> None:
    assert near_classes(unknown, known) == pairs


def test_combinations_of_labels_are_no_ways_to_spell_one() -> None:
    known = ["chair sofa", "horse chair bottle", "car", "horse", "bottle", "chair", "sofa"]
    assert near_classes(["car sofa", "horse car bottle"], known) == []


def fill(root: Path, split: str, names: tuple[str, ...]) -> None:
    for name in names:
        (root / split / name).mkdir(parents=True)
        for at in range(3):
            (root / split / name / f"{at}.jpg").write_bytes(f"{split}{name}{at}".encode())


def check(listing: Listing, source: Path) -> None:
    counts: dict[Split, Counter[str]] = defaultdict(Counter)
    for picture in listing.pictures:
        counts[picture.split or Split.TRAIN][picture.label] += 1
    config = PrepareConfig(source=source)
    check_classes(counts, rename=partial(renaming, listing=listing, config=config))


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("above", ["", "chest scans"])
def test_the_command_renames_the_folders_of_a_split(tmp_path: Path, split: str, above: str) -> None:
    """As in Kaggle's chest CT scans, whose test folders have shorter names."""
    source = tmp_path / "my data"
    for name in ("train", "valid", "test"):
        fill(source / above, name, SHORT if name == split else LONG)
    with pytest.raises(DataError, match=r"2 of the classes in (val|test) have no") as caught:
        check(list_pictures(PrepareConfig(source=source)), source)
    assert "'large.cell.carcinoma' in " in str(caught.value.why)
    command = commands_in(caught.value.fix)[0]
    listing = typed_listing(command)
    check(listing, source)
    assert {picture.label for picture in listing.pictures} == set(LONG)


def test_labels_of_tables_are_renamed_in_words(tmp_path: Path) -> None:
    for name in ("train", "val"):
        fill(tmp_path, name, SHORT)
    rows = [f"train/{one}/{at}.jpg,{one},train" for one in SHORT for at in range(3)]
    rows += [f"val/{a}/0.jpg,{b},val" for a, b in zip(SHORT, LONG, strict=True)]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["path,label,split", *rows]) + "\n")
    with pytest.raises(DataError, match="2 of the classes in val") as caught:
        check(list_pictures(PrepareConfig(source=table)), table)
    assert "write the same label in the table" in str(caught.value.fix)
