"""Read WebDataset samples: members of a tar that share a name up to the first dot.

Source: WebDataset documentation, "The WebDataset Format".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.formats import PICTURE_SUFFIXES
from stepladder.data.sources.containers.contract import (
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    Container,
    Item,
)
from stepladder.data.sources.containers.files import SourceFile
from stepladder.data.sources.containers.labels import checked_label, encodable
from stepladder.data.sources.containers.tar import Member, read_members
from stepladder.data.sources.listing import name_some, split_of_cell
from stepladder.data.sources.walk import Skipped
from stepladder.errors import DataError

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
_BYTES_PER_PIXEL = 8  # 16-bit RGBA, uncompressed
_BYTES_AROUND = 1 << 20
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")
_IMAGES = frozenset({*(suffix[1:] for suffix in PICTURE_SUFFIXES), "npy", "img", "image"})


@dataclass
class _Sample:
    """Members that share a key; of duplicate names the first is used."""

    key: str
    fields: dict[str, Member] = field(default_factory=dict)


class TarContainer(Container):
    """A tar of samples."""

    def __init__(self, file: SourceFile, split: Split | None, config: PrepareConfig) -> None:
        self.name = file.name
        self.key = file.key if split is None else f"{file.key} {split}"
        self.num_rows = None
        self.picture_bytes = file.size_bytes
        self.skipped = Skipped()
        self._file = file
        self._split = split
        self._config = config

    def items(self) -> Iterator[list[Item]]:
        """Yield samples; see `Container.items`."""
        items: list[Item] = []
        num_bytes = 0
        for row, sample in enumerate(self._samples()):
            item = self._item(row, sample)
            items.append(item)
            num_bytes += len(item.data)
            if num_bytes >= MAX_BATCH_BYTES or len(items) >= MAX_BATCH_ROWS:
                yield items
                items, num_bytes = [], 0
        if items:
            yield items

    def _samples(self) -> Iterator[_Sample]:
        sample: _Sample | None = None
        self.skipped = skipped = Skipped()
        max_bytes = self._config.max_pixels * _BYTES_PER_PIXEL + _BYTES_AROUND
        with self._file.open_ahead() as file:
            for member in read_members(file, self.name, max_bytes=max_bytes, skipped=skipped):
                match = _NAME.fullmatch(member.name)
                if match is None:
                    name = f"{self.name}/{member.name}"
                    skipped.add(name, "member(s) of a tar without a file extension")
                    continue
                key, ending = match[1], match[2].lower()
                if sample is None or sample.key != key:
                    if sample is not None:
                        yield sample
                    sample = _Sample(key)
                if ending in sample.fields:
                    name = f"{self.name}/{member.name}"
                    skipped.add(name, "member(s) of a tar with a duplicate name")
                else:
                    sample.fields[ending] = member
        if sample is not None:
            yield sample
        self._file.refuse_changed()

    def _item(self, row: int, sample: _Sample) -> Item:
        where = f"{self.name}: sample {sample.key}"
        facts = _facts(sample, where)
        label = self._label(sample, facts, where)
        split = facts.get(self._config.split_column)
        group = facts.get(self._config.group_by) if self._config.group_by else None
        ending = self._image_ending(sample, where)
        member = sample.fields.get(ending) if ending else None
        reason = None
        if member is None:
            reason = f"no picture among {', '.join(sorted(sample.fields))}"[:200]
        elif member.data is None:
            reason = f"is {member.size_bytes} bytes, larger than the maximum size of a picture"
        elif not member.data:
            reason = "is empty (0 bytes)"
        return Item(
            row,
            (member.data or b"") if member and reason is None else b"",
            label,
            self._split if split is None else split_of_cell(split, where),
            f"{self.name}/{member.name if member else sample.key}",
            None if group is None else encodable(str(group)),
            reason,
        )

    def _image_ending(self, sample: _Sample, where: str) -> str | None:
        named = self._config.image_column
        if named is not None:
            return named.lower().lstrip(".")
        found = [ending for ending in sample.fields if ending.rpartition(".")[2] in _IMAGES]
        if len(found) > 1:
            raise DataError(
                f"several pictures in one sample: {', '.join(found)}",
                where=where,
                fix=f"Choose one: --image-column {found[0]}",
            )
        return found[0] if found else None

    def _label(self, sample: _Sample, facts: dict[str, Any], where: str) -> str | int:
        """Return the label from the named column, or from the usual WebDataset fields."""
        name = self._config.label_column
        is_named = name != PrepareConfig.label_column
        before, after = ("", name.lower().lstrip(".")) if is_named else ("cls", "txt")
        if before in sample.fields:
            return _label_of(sample.fields[before], before, where)
        if name in facts:
            return checked_label(facts[name], name, where)
        if after in sample.fields:
            return _label_of(sample.fields[after], after, where)
        looked_for = "neither " if is_named else "neither a .cls, nor "
        of_json = f" Its .json has {name_some(sorted(facts))}." if facts else ""
        raise DataError(
            f"no label: {looked_for}{name!r} in a .json, nor a .{after}",
            where=where,
            why=f"It has {', '.join(sorted(sample.fields))}.{of_json}"[:300],
            fix="Name the key in the .json: --label-column NAME",
        )


def _label_of(member: Member, ending: str, where: str) -> str | int:
    """Read a label stored as a member: a number in .cls, a name in any other."""
    text = _text(member, where).strip()
    is_number = ending.rpartition(".")[2] == "cls"
    return checked_label(_number(text, where) if is_number else text, ending, where)


def _facts(sample: _Sample, where: str) -> dict[str, Any]:
    """Return the JSON of a sample; empty if it has no .json."""
    member = sample.fields.get("json")
    if member is None:
        return {}
    try:
        value = json.loads(_text(member, where))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the .json is invalid ({str(error)[:100]})", where=where, fix="Fix it in the tar."
        ) from None
    return value if isinstance(value, dict) else {}


def _number(text: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise DataError(
            f"the .cls contains {text[:40]!r}, which is not an integer",
            where=where,
            fix="Write class numbers in .cls, or class names in .txt.",
        ) from None


def _text(member: Member, where: str) -> str:
    data = member.data or b""
    if len(data) > _BYTES_AROUND or member.data is None:
        raise DataError(
            f"{member.name} is {member.size_bytes} bytes, too large for a label",
            where=where,
            fix="Fix it in the tar.",
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DataError(
            f"{member.name} is not UTF-8 text", where=where, fix="Fix it in the tar."
        ) from None
