"""A folder that repeats the class folders beside it is left out, or refused with a command."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import pytest

from stepladder.config.choices import ClassesFrom
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import UsageError


def fill(root: Path, *folders: str, content: str = "x", num: int = 3) -> Path:
    for folder in folders:
        for idx in range(num):
            path = root / folder / f"{idx}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}{folder[-3:]}{idx}")
    return root


def listed(root: Path, **options: object) -> Listing:
    return list_pictures(PrepareConfig(source=root, **options))


def counts(listing: Listing) -> dict[str, int]:
    return dict(Counter(one.label for one in listing.pictures))


@pytest.mark.parametrize("place", ["", "train/"])
@pytest.mark.parametrize("inner", ["cells", "cells/cells"])
@pytest.mark.parametrize("copied", [("cat", "dog"), ("dog",)])
def test_a_copy_of_the_classes_is_left_out(
    tmp_path: Path, place: str, inner: str, copied: tuple[str, ...]
) -> None:
    root = fill(tmp_path, f"{place}cat", f"{place}dog")
    fill(root, *(f"{place}{inner}/{name}" for name in copied), num=2)  # a part of the pictures
    if place:
        fill(root, "test/cat", "test/dog")
    listing = listed(root)
    assert counts(listing) == dict.fromkeys(("cat", "dog"), 6 if place else 3)
    assert any(f"left out {place}{inner}" in one for one in listing.warnings)


@pytest.mark.parametrize("place", ["", "train/"])
def test_a_version_of_the_classes_is_refused_with_both_commands(tmp_path: Path, place: str) -> None:
    root = fill(tmp_path / "my data", f"{place}cat", f"{place}dog")
    fill(root, *(f"{place}cells/{one}" for one in ("cat", "dog", "owl")), content="longer")
    if place:
        fill(root, "test/cat", "test/dog")
    with pytest.raises(UsageError, match="another version of them") as caught:
        listed(root)
    first, second = str(caught.value.fix).split("stepladder prepare ")[1:]
    (inside, *_) = shlex.split(first.partition(". To read")[0])
    assert counts(listed(Path(inside))) == {"cat": 3, "dog": 3, "owl": 3}
    source, _, pattern = shlex.split(second)
    num = 6 if place else 3
    assert counts(listed(Path(source), label_pattern=pattern)) == {"cat": num, "dog": num}
    if not place:
        found = listed(root, classes_from=ClassesFrom.TOP)
        assert counts(found) == {"cat": 3, "dog": 3, "cells": 9}


def test_a_class_of_other_folders_is_kept(tmp_path: Path) -> None:
    root = fill(tmp_path, "cat", "dog", "others/owl", "others/hen", "others/dog")
    (tmp_path / "others/dog/0.jpg").write_text("another picture")
    assert counts(listed(root)) == {"cat": 3, "dog": 3, "others": 9}
