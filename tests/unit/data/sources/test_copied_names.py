"""Classes named as copies of another one are reported, and the printed option merges them."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures


def listed(root: Path, *folders: str, **options: object) -> Listing:
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / f"{folder.replace('/', '-')}.jpg").write_bytes(b"x")
    return list_pictures(PrepareConfig(source=root, **options))


def pattern(listing: Listing) -> str | None:
    """Return the value of --label-pattern that a warning of copies proposes."""
    told = [one for one in listing.warnings if "of another: " in one]
    return shlex.split(told[0].partition("add --label-pattern ")[2])[0] if told else None


@pytest.mark.parametrize(
    "copy",
    [
        *("cats (1)", "cats(2)", "cats 2", "cats_1", "cats - Copy", "cats - Copy (2)", "cats copy"),
        *("cats copy 2", "cats - Kopie", "cats - copia", "Copy of cats", "Kopie von cats"),
        "cats (1) (1)",
    ],
)
@pytest.mark.parametrize("place", ["", "download/", "train/"])
def test_the_option_merges_copies(tmp_path: Path, copy: str, place: str) -> None:
    names = [f"{place}{name}" for name in ("cats", copy, "dogs", "owls 7")]
    names += ["val/cats", "val/dogs", "val/owls 7"] if place == "train/" else []
    listing = listed(tmp_path, *names)
    assert any(f"of another: {copy} of cats. " in one for one in listing.warnings)
    merged = listed(tmp_path, label_pattern=pattern(listing))
    counts = Counter(one.label for one in merged.pictures if one.path.startswith(place))
    assert counts == {"cats": 2, "dogs": 1, "owls 7": 1}
    assert len(merged.pictures) == len(listing.pictures)
    assert {one.path: one.split for one in merged.pictures} == {
        one.path: one.split for one in listing.pictures
    }


def test_only_copies_are_merged(tmp_path: Path) -> None:
    names = ["cats", "cats 2", "Copy of cats", "type 1", "type 2", "wildcats 2"]
    merged = listed(tmp_path, label_pattern=pattern(listed(tmp_path, *names)))
    assert Counter(one.label for one in merged.pictures) == {
        "cats": 3,
        "type 1": 1,
        "type 2": 1,
        "wildcats 2": 1,
    }


def test_numbered_classes_are_no_copies(tmp_path: Path) -> None:
    assert (
        pattern(listed(tmp_path, "type 1", "type 2", "copy", "a (3)", "2", "carbon copy")) is None
    )
