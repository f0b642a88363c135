"""Findings of prepare about the pictures: counts, warnings and the log."""

from __future__ import annotations

import contextlib
import platform
import socket
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.config.choices import SourceFormat, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.traits import FORMATS, Trait
from stepladder.data.prepare.class_names import renaming
from stepladder.data.prepare.copies import Copies, find_copies
from stepladder.data.prepare.counted import first_names, pictures
from stepladder.data.prepare.encode import Looks
from stepladder.data.prepare.name_groups import expression_for, groups_of, versions_in
from stepladder.data.prepare.near_duplicates import LOOK_LENGTH, find_near
from stepladder.data.prepare.near_file import (
    LOG_NAME,
    NEAR_NAME,
    NearPair,
    are_many,
    near_fix,
    near_words,
)
from stepladder.data.prepare.plan import Plan, Row
from stepladder.data.prepare.quarantine import NAME as QUARANTINE_NAME
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.prepare.ranges import is_grave, merge_ranges, range_warnings
from stepladder.data.prepare.shard_work import Finished
from stepladder.data.prepare.split import check_classes
from stepladder.data.remote.places import object_place, shown
from stepladder.data.sources.listing import Listing, Note
from stepladder.data.sources.walk import printable
from stepladder.data.spark.listing import FRAME, is_url, spark_address
from stepladder.errors import DataError
from stepladder.machine.activity import doing
from stepladder.machine.limits import num_cores
from stepladder.records import read_json, write_json

_REMOVE = "; remove from the source what does not show its class"
_NAMED_WORDS = {
    Trait.TINY: ("have a side of fewer than 8 pixels", _REMOVE),
    Trait.STRIP: ("are more than 20 times as long as wide", _REMOVE),
    Trait.ONE_COLOUR: ("have a single colour", _REMOVE),
    Trait.LOST: (
        "are all black or all white in the store, though their values differ",
        "; the warning about their samples has their range",
    ),
    Trait.EXTRA_BYTES: (
        "have surplus bytes before the end mark of the JPEG, which were ignored",
        "; check that nothing in them is damaged",
    ),
}
"""What is said of pictures with a trait, before their names and after them."""
_NEAR_SHARE = 0.2  # relative difference of val's share from the configured one, not worth a word
_LISTED = f"the store's {NEAR_NAME}"


@dataclass(frozen=True)
class Findings:
    """Findings of a prepare run.

    Attributes:
        class_counts: usable pictures by split and class, as in a manifest.
        bad: quarantined pictures.
        near: held-out pictures that are near-duplicates of one of train.
        warnings: one sentence each.
        log: entries for prepare_log.json.
    """

    class_counts: dict[str, tuple[int, ...]]
    bad: list[Bad]
    near: list[NearPair]
    warnings: tuple[str, ...]
    log: dict[str, Any]

    def write_log(self, folder: Path, *, wall_s: float) -> None:
        """Write prepare_log.json; time, host and paths are in no other file of a store."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        machine = {
            "host": socket.gethostname(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "cores": num_cores(),
        }
        log = {"finished": now, "wall_s": round(wall_s, 3), **machine, **self.log}
        notes = [said for said in self.warnings if isinstance(said, Note)]
        write_json(folder / LOG_NAME, {**log, "warnings": self.warnings, "notes": notes})


def find(
    config: PrepareConfig,
    listing: Listing,
    plan: Plan,
    finished: Sequence[Finished],
    unread: Sequence[Bad],
) -> Findings:
    """Count and compare the pictures of the splits.

    Raises:
        DataError: if val or test has a class without usable pictures in train.
    """
    bad = [*unread, *(item for done in finished for item in done.bad)]
    counts: dict[Split, Counter[str]] = defaultdict(Counter)
    looks: dict[Split, list[Looks]] = defaultdict(list)
    rows: dict[Split, list[Row]] = {split: [] for split in Split}
    for shard, done in zip(plan.shards, finished, strict=True):
        counts[shard.split].update(plan.classes[label] for label in done.labels)
        looks[shard.split].append(done.looks)
        paths = {item.path for item in done.bad}
        rows[shard.split] += [row for row in shard.rows if row.path not in paths]
    copies = find_copies(rows)
    warnings = [
        *listing.warnings,
        *check_classes(
            counts, plan.classes, bad, rename=partial(renaming, listing=listing, config=config)
        ),
        *_split_warnings(config, listing, counts),
    ]
    if bad:
        warnings.append(
            f"{pictures(len(bad), 'are left')} out of the store, because they cannot be used; "
            f"{QUARANTINE_NAME} in the store lists them, each with the reason"
            if len(bad) > 1
            else "1 picture cannot be used and is left out of the store; "
            f"{QUARANTINE_NAME} in the store has its path and the reason"
        )
    traits = sum((Counter(done.traits) for done in finished), Counter[Trait]())
    warnings += _trait_warnings(traits)
    for trait, said in _NAMED_WORDS.items():
        names = [name for done in finished for name in done.named.get(trait, ())]
        if names:
            shown_names = first_names(names, traits[trait], "")
            warnings.append(f"{pictures(traits[trait], said[0])}: {shown_names}{said[1]}")
    ranges = merge_ranges(done.ranges for done in finished)
    of_ranges = list(range_warnings(ranges, config.source.expanduser()))
    of_ranges.sort(key=lambda said: not is_grave(said))
    num_grave = sum(map(is_grave, of_ranges))
    warnings = [*of_ranges[:num_grave], *warnings, *of_ranges[num_grave:]]
    can_group = listing.has_drawn_val and not config.group_by
    near, near_log, near_warnings = _compare_looks(looks, rows, copies, plan, can_group=can_group)
    if can_group and not any(" of val " in said for said in near_warnings):
        near_warnings += _version_warnings(rows)
    class_counts = {
        split.value: tuple(counts[split][label] for label in plan.classes)
        for split in Split
        if counts[split]
    }
    source = _lasting_source(config, listing)
    log = {
        "source": spark_address(source) if is_url(source) else shown(source),
        "config": replace(config, source=source, **listing.origin),
        "skipped": {"counts": listing.skipped.counts, "examples": listing.skipped.examples},
        "traits": {trait.value: traits[trait] for trait in Trait if traits[trait]},
        "ranges": {
            name: {"num": one.num, "low": one.low, "high": one.high, "white": one.white}
            for name, one in ranges.items()
        },
        "copies_within_splits": copies.num_within_splits,
        "copies_of_train": copies.of_train,
        "copies_in_classes": copies.in_classes,
        "near_duplicates": near_log,
    }
    found = (*warnings, *copies.warnings(LOG_NAME), *near_warnings)
    return Findings(class_counts, bad, near, found, log)


def read_log_warnings(folder: Path) -> tuple[str, ...]:
    """Return the warnings in a store's log; an empty tuple if there is no log."""
    with contextlib.suppress(DataError):
        return warnings_in_log(read_json(folder / LOG_NAME))
    return ()


def warnings_in_log(log: object) -> tuple[str, ...]:
    """Return the warnings in the content of a log, with the notes among them."""
    found = log.get("warnings") if isinstance(log, dict) else None
    if not isinstance(found, list):
        return ()
    notes = log.get("notes") if isinstance(log, dict) else None
    notes = notes if isinstance(notes, list) else []
    return tuple(Note(said) if said in notes else str(said) for said in found)


def grouping(folder: Path, split: Split) -> tuple[bool, str | None]:
    """Return whether a split was drawn without groups, and what would group it, by a store's log.

    The second is a value of --group-by that keeps its near-duplicates together, if it is known.
    """
    with contextlib.suppress(DataError, KeyError, TypeError):
        log = read_json(folder / LOG_NAME)["near_duplicates"][split.value]
        return bool(log["can_group"]), log.get("group_by")
    return False, None


def _lasting_source(config: PrepareConfig, listing: Listing) -> Path:
    """Return the source as an absolute path; URLs, tables and DataFrames are returned unchanged."""
    if listing.root == Path(FRAME):
        return listing.root
    if config.source_format is SourceFormat.TABLE:
        return config.source
    is_elsewhere = object_place(config.source) is not None or is_url(config.source)
    return config.source if is_elsewhere else config.source.expanduser().absolute()


def _split_warnings(
    config: PrepareConfig, listing: Listing, counts: Mapping[Split, Counter[str]]
) -> list[str]:
    if not listing.has_drawn_val:
        unused = "--group-by has no effect, because the source has its own val split"
        return [unused] if config.group_by else []
    num = {split: counts[split].total() if split in counts else 0 for split in Split}
    drawn, rest = num[Split.VAL], num[Split.VAL] + num[Split.TRAIN]
    share = 100 * drawn / rest if rest else 0.0
    wanted = 100 * config.val_frac
    has_test = Split.TEST in {picture.split for picture in listing.pictures}
    became = f"{drawn} of {rest} pictures{' of train' * has_test} ({share:.3g} %) became val"
    if abs(share - wanted) > _NEAR_SHARE * wanted:
        what = "groups" if config.group_by else "pictures"
        became += (
            f" instead of {wanted:g} %, because few {what} are drawn and each class gets at least "
            "one, if it can"
        )
    became += _by_class(counts, wanted)
    if has_test:
        return [
            f"the source has train and test, but no val: {became}; for another share, use "
            "--val-frac, and for a val split of your own, make a folder val or name a column with "
            "--split-column"
        ]
    return [
        f"the source has no splits: {became}, and there is no test split; for one, make folders "
        "train, val and test, or name a column with --split-column"
    ]


def _by_class(counts: Mapping[Split, Counter[str]], wanted: float) -> str:
    """Return the classes with the lowest and the highest share of val, if one is far off."""
    train, val = (counts.get(split, Counter()) for split in (Split.TRAIN, Split.VAL))
    shares = {label: 100 * val[label] / (val[label] + train[label]) for label in train}
    low, high = (pick(shares, key=shares.__getitem__, default=None) for pick in (min, max))
    if low is None or high is None or shares[low] == shares[high]:
        return ""
    if max(wanted - shares[low], shares[high] - wanted) <= _NEAR_SHARE * wanted:
        return ""
    told = [
        f"{shares[label]:.3g} % ({val[label]} of {val[label] + train[label]}) of "
        f"{printable(label)!r}"
        for label in (low, high)
    ]
    return f", by class from {told[0]} to {told[1]}"


def _trait_warnings(traits: Mapping[Trait, int]) -> list[str]:
    """Return a warning, with a count, for each trait that may be a sign of a mistake."""
    said = {
        Trait.BAD_EXIF: "have damaged EXIF data, which was ignored, with any rotation in it",
        Trait.MISNAMED: "have the wrong extension (for example a PNG named .jpg): the actual "
        "format was read",
        Trait.TRANSPARENT: "have transparent parts, which are read as white",
        Trait.SEVERAL: "have several frames or pages: only the first is stored",
    }
    told = [pictures(traits[trait], words) for trait, words in said.items() if traits[trait]]
    formats = [f"{traits[trait]} {trait.value}" for trait in FORMATS if traits[trait]]
    noun = "picture" if sum(traits[trait] for trait in FORMATS) == 1 else "pictures"
    return [*told, *([f"read {', '.join(formats)} {noun}"] if formats else [])]


def _compare_looks(
    looks: dict[Split, list[Looks]],
    rows: dict[Split, list[Row]],
    copies: Copies,
    plan: Plan,
    *,
    can_group: bool,
) -> tuple[list[NearPair], dict[str, Any], list[str]]:
    """Find held-out pictures that are near-duplicates of one of train and no copies of one.

    Args:
        rows: the usable pictures, in the order of their looks.
        can_group: whether val was drawn without groups.
    """
    empty = np.zeros((0, LOOK_LENGTH), dtype=np.uint8)
    train = np.concatenate([empty, *looks[Split.TRAIN]])
    pairs: list[NearPair] = []
    log: dict[str, Any] = {}
    warnings = []
    for split in (Split.VAL, Split.TEST):
        others = np.flatnonzero(~np.array(copies.is_of_train[split], dtype=bool))
        with doing(f"searching {split} for near-duplicates of train"):
            near = find_near(np.concatenate([empty, *looks[split]])[others], train)
        if not near.num_compared:
            continue
        pairs += [
            NearPair(split, rows[split][row].path, rows[Split.TRAIN][other].path, row, other)
            for row, other in zip(others[near.held_out].tolist(), near.train.tolist(), strict=True)
        ]
        is_groupable = can_group and split is Split.VAL
        log[split.value] = {
            "num_near": len(near),
            "num_compared": near.num_compared,
            "can_group": is_groupable,
        }
        if are_many(len(near), near.num_compared):
            group_by = _group_by(rows, plan, pairs) if is_groupable else None
            log[split.value]["group_by"] = group_by
            fix = near_fix(split.value, can_group=is_groupable, listed=_LISTED, group_by=group_by)
            warnings.append(f"{near_words(len(near), near.num_compared, split.value)}: {fix}")
    return pairs, log, warnings


def _group_by(rows: Mapping[Split, list[Row]], plan: Plan, pairs: list[NearPair]) -> str | None:
    """Return the value of --group-by that keeps near-duplicates of val and train together."""
    drawn = [*rows[Split.TRAIN], *rows[Split.VAL]]
    labels = [plan.classes[row.label] for row in drawn]
    near = [(pair.path, pair.train_path) for pair in pairs if pair.split is Split.VAL]
    return expression_for([row.path for row in drawn], labels, near)


def _version_warnings(rows: Mapping[Split, list[Row]]) -> list[str]:
    """Return a warning if pictures of val are, by their names, versions of those of train."""
    train, val = ([row.path for row in rows[split]] for split in (Split.TRAIN, Split.VAL))
    pattern = versions_in([*train, *val])
    if pattern is None:
        return []
    of_train = dict(zip(groups_of(pattern, train), train, strict=True))
    pairs = [
        (path, of_train[group])
        for path, group in zip(val, groups_of(pattern, val), strict=True)
        if group in of_train
    ]
    if not are_many(len(pairs), len(val)):
        return []
    fix = near_fix(Split.VAL.value, can_group=True, listed=_LISTED, group_by=pattern)
    return [
        f"{len(pairs)} of {len(val)} pictures of val are by their names versions of one of train, "
        f"such as {printable(pairs[0][0])!r} of {printable(pairs[0][1])!r}, so the accuracy on val "
        f"is optimistic: {fix}"
    ]
