"""Captions in tars and Parquet files are never read as classes without a word."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from stepladder.errors import DataError, UsageError

COLOURS = ("red", "green", "blue", "white")


def caption(at: int) -> str:
    return f"a {COLOURS[at % 4]} sofa of the {at}th century"


def captioned(shop: Any, *, facts: bool = True, same: int = 1, **more: list[str]) -> Path:
    """Return a tar as img2dataset writes it."""
    members: list[tuple[str, bytes]] = []
    for at in range(12):
        members.append((f"{at:04d}.jpg", shop.photo(at)))
        known = {"caption": caption(at), "url": f"https://a.b/{at}", "status": "success"}
        known |= {name: values[at % len(values)] for name, values in more.items()}
        if facts:
            members.append((f"{at:04d}.json", json.dumps(known).encode()))
        members.append((f"{at:04d}.txt", caption(at // same).encode()))
    source: Path = shop.tar("all.tar", members)
    return source


@pytest.mark.parametrize("options", [{}, {"label_column": "caption"}, {"label_column": "txt"}])
def test_captions_of_tars_are_refused_with_the_files_of_a_sample(
    shop: Any, options: dict[str, str]
) -> None:
    source = captioned(shop)
    with pytest.raises(DataError, match="look like captions, not classes: 12 different") as caught:
        shop.make(source, **options)
    fix = str(caught.value.fix)
    assert "The files of a sample end in jpg, json, txt. The .json has caption, status, url." in fix
    assert "NAME.cls" in fix
    assert "--label-column" not in fix


def test_tars_without_facts_are_refused_too(shop: Any) -> None:
    with pytest.raises(DataError, match="look like captions") as caught:
        shop.make(captioned(shop, facts=False))
    assert "The files of a sample end in jpg, txt. None of them repeats" in str(caught.value.fix)


def test_a_key_that_repeats_is_named_and_works(shop: Any) -> None:
    source = captioned(shop, **{"colour name": list(COLOURS)})
    with pytest.raises(DataError, match="look like captions") as caught:
        shop.make(source)
    _, name = shlex.split(str(caught.value.fix).rpartition("class: ")[2])
    assert name == "colour name"
    assert set(shop.labels(shop.make(source, label_column=name).folder).values()) == set(COLOURS)


def test_no_key_of_a_caption_is_proposed_as_the_class(shop: Any) -> None:
    with pytest.raises(DataError, match="has no label") as caught:
        shop.make(captioned(shop), label_column="nosuch")
    assert "--label-column" not in str(caught.value.fix)


def test_captions_that_repeat_are_a_warning(shop: Any) -> None:
    warnings = shop.make(captioned(shop, same=2)).warnings
    assert any("may be captions: 6 different texts in 12 pictures" in said for said in warnings)


def test_captions_of_parquet_files_are_refused_and_not_proposed(shop: Any) -> None:
    columns = {
        "image": [shop.photo(at) for at in range(12)],
        "caption": [caption(at) for at in range(12)],
    }
    source = shop.table("a.parquet", columns)
    with pytest.raises(UsageError, match="the column of labels, 'label', is missing") as missing:
        shop.make(source)
    assert "--label-column" not in str(missing.value.fix)
    with pytest.raises(DataError, match="look like captions, not classes") as caught:
        shop.make(source, label_column="caption")
    assert "--label-column" in str(caught.value.fix)
