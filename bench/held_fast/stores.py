"""Compare stores: the same pictures produce the same files, byte for byte."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from bench.held_fast.checkout import Checkout, differences, set_differences
from bench.held_fast.pictures import write_varied

LOG = "prepare_log.json"
"""Files that record how and when a store was made, compared by their keys only."""
NOTED = ("finished", "wall_s")
"""Keys of the log that differ in every run."""
_WORDS = ("prepare", "../pictures", "--quiet", "--size", "32", "--max-bad", "0.2")
VARIANTS = (
    ("pixels",),
    ("jpeg",),
    ("pixels", "--compression", "zstd"),
    ("pixels", "--compression", "lz4", "--fit", "crop"),
    ("jpeg", "--jpeg-size", "resized"),
    ("jpeg", "--group-by", "([0-9])", "--workers", "1"),
)


def compare_stores(old: Checkout, new: Checkout, folder: Path) -> tuple[list[str], list[str]]:
    """Prepare the same pictures with each, and compare the sha256 of all files.

    Returns:
        (differences, notes).
    """
    pictures = folder / "pictures"
    num_pictures = write_varied(pictures)
    for checkout in (old, new):  # both work at the same path, as a log of the store contains it
        place = folder / "work"
        place.mkdir()
        runs = [
            [*_WORDS, "--out", f"store{idx}", "--encoding", *variant]
            for idx, variant in enumerate(VARIANTS)
        ]
        for words, answer in zip(
            runs, checkout.probe("run_commands", {"runs": runs}, cwd=place), strict=True
        ):
            if answer["code"]:
                raise RuntimeError(f"{checkout.name}: {' '.join(words)}: {answer['err']}")
        place.rename(folder / checkout.name)
    found = []
    for idx, variant in enumerate(VARIANTS):
        before, after = (hashes_of(folder / name / f"store{idx}") for name in ("old", "new"))
        name = " ".join(variant)
        found += set_differences(before, after, name)
        logs = [
            json.loads((folder / of / f"store{idx}" / LOG).read_text()) for of in ("old", "new")
        ]
        old_log, new_log = ({k: v for k, v in log.items() if k not in NOTED} for log in logs)
        found += differences(old_log, new_log, f"{name}: {LOG}")
    return found, [f"{num_pictures} pictures, {len(VARIANTS)} stores of each"]


def hashes_of(folder: Path) -> set[str]:
    """Return the name and sha256 of each file in a folder, except its log."""
    return {
        f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOG
    }
