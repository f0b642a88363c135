"""Read WebDataset samples: members of a tar that share a name up to the first dot.

Source: WebDataset documentation, "The WebDataset Format".
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.formats import PICTURE_SUFFIXES
from stepladder.data.sources.containers.columns import LABEL_NAMES
from stepladder.data.sources.containers.contract import Container, Item, in_batches
from stepladder.data.sources.containers.files import SourceFile
from stepladder.data.sources.containers.labels import checked_label, encodable
from stepladder.data.sources.containers.tar import Member, read_members
from stepladder.data.sources.label_tables.labels import other_names
from stepladder.data.sources.labels.captions import CAPTION_NAMES, find_captions
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.splits.split_names import (
    SPLIT_WORDS,
    is_only_of_annotations,
    split_of_cell,
)
from stepladder.data.sources.walk import OF_MASKS, Skipped, why_no_picture
from stepladder.errors import DataError

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
_BYTES_PER_PIXEL = 8  # 16-bit RGBA, uncompressed
_BYTES_AROUND = 1 << 20
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")
_LAST_DOT = re.compile(r"((?:.*/)?[^/]+)\.([^./]+)")
_LABELS = frozenset({"cls", "txt", "json"})
_DOCUMENT = re.compile(
    r"(?:.*/)?(?:licen[cs]e|readme|copying|notice|changelog|authors|citation|classes|labels)"
    r"\.(?:txt|md|rst|json|csv|tsv|xml|ya?ml|html?|pdf|bib|cff)",
    re.IGNORECASE,
)
_LEAST_COMPARED = 4  # samples that show whether values repeat
_MAX_COMPARED = 1000  # samples whose keys are compared
_MAX_HELD_BYTES = 64 << 20
_MAX_READ_AGAIN = 3  # times that a tar is read again for the picture of a sample without one
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
        self._has_folders: bool | None = None  # until the first sample with a picture or a label
        self._num_extra = 0

    def items(self) -> Iterator[list[Item]]:
        """Yield samples; see `Container.items`."""
        yield from in_batches(self._item(row, sample) for row, sample in enumerate(self._samples()))

    def label_advice(self) -> str:
        """Return the files of a sample, and the keys whose values repeat as classes do."""
        endings, values = self._fields()
        has = f"The files of a sample end in {', '.join(endings)}."
        if values:
            has += f" The .json has {name_some(sorted(values))}."
        able = _keys_of_labels(values)
        if able:
            return (
                f"{has} Name the key that contains the class: --label-column {shlex.quote(able[0])}"
            )
        return (
            f"{has} None of them repeats as classes do. Unpack the tars into FOLDER, write the "
            "class of each picture NAME.jpg into a file NAME.cls beside it, and pack them again: "
            "tar --sort=name -cf NEW.tar -C FOLDER ."
        )

    def _fields(self) -> tuple[list[str], dict[str, list[str | int]]]:
        """Return the endings of the files of the first samples, and the values of each key."""
        endings: dict[str, None] = {}
        values: dict[str, list[str | int]] = {}
        for sample in itertools.islice(self._samples(), _MAX_COMPARED):
            endings.update(dict.fromkeys(sorted(sample.fields)))
            for name, value in _keys(_facts(sample, f"{self.name}: sample {sample.key}")):
                values.setdefault(name, []).append(value)
        return list(endings), values

    def _samples(self) -> Iterator[_Sample]:
        self.skipped = skipped = Skipped()
        self._num_extra = 0
        for sample in self._grouped(self._members(skipped)):
            if self._is_extra(sample):
                self._skip(sample)
            elif self._is_mask(sample):
                for member in sample.fields.values():
                    self.skipped.add(f"{self.name}/{member.name}", OF_MASKS)
            else:
                yield sample
        self._file.refuse_changed()

    def _members(self, skipped: Skipped) -> Iterator[Member]:
        max_bytes = self._config.max_pixels * _BYTES_PER_PIXEL + _BYTES_AROUND
        with self._file.open_ahead() as file:
            yield from read_members(file, self.name, max_bytes=max_bytes, skipped=skipped)

    def _grouped(self, members: Iterator[Member]) -> Iterator[_Sample]:
        """Group members by key: the name up to the first dot, or up to the last.

        The first dot is the rule of WebDataset. The last dot counts, from then on, if one name up
        to it has both a picture and a label, as in `IMG_2024.01.jpg` and `IMG_2024.01.cls`; and if
        folders are the classes, so that each picture is a sample.
        """
        pattern = _NAME
        held: list[Member] = []
        held_bytes = 0
        for member in members:
            name = f"{self.name}/{member.name}"
            if _DOCUMENT.fullmatch(member.name):
                self.skipped.add(name, why_no_picture(member.name) or "document(s)")
                continue
            if pattern.fullmatch(member.name) is None:
                self.skipped.add(name, "member(s) of a tar without a file extension")
                continue
            if held and self._is_next(member, held, pattern, held_bytes):
                pattern = self._pattern_of(held, pattern)
                yield from self._samples_of(held, pattern)
                held, held_bytes = [], 0
            held.append(member)
            held_bytes += len(member.data or b"")
        if held:
            yield from self._samples_of(held, self._pattern_of(held, pattern))

    def _is_next(
        self, member: Member, held: list[Member], pattern: re.Pattern[str], held_bytes: int
    ) -> bool:
        """Return True if the members held are complete without this one."""
        if _key(pattern, member) != _key(pattern, held[0]):
            return True
        if pattern is _LAST_DOT or _key(_LAST_DOT, member) == _key(_LAST_DOT, held[-1]):
            return False
        return held_bytes > _MAX_HELD_BYTES or self._is_dotted(held)

    def _pattern_of(self, held: list[Member], pattern: re.Pattern[str]) -> re.Pattern[str]:
        """Choose how to group these and the following members."""
        fields = {_parts(_LAST_DOT, member)[1]: member for member in held}
        if self._has_folders is None and not self._is_extra(
            _Sample(_key(pattern, held[0]), fields)
        ):
            self._has_folders = self._are_folders(held)
        return _LAST_DOT if self._has_folders or self._is_dotted(held) else pattern

    def _samples_of(self, members: list[Member], pattern: re.Pattern[str]) -> Iterator[_Sample]:
        samples: dict[str, _Sample] = {}
        for member in members:
            key, ending = _parts(pattern, member)
            sample = samples.setdefault(key, _Sample(key))
            if ending in sample.fields:
                name = f"{self.name}/{member.name}"
                self.skipped.add(name, "member(s) of a tar with a duplicate name")
            else:
                sample.fields[ending] = member
        yield from samples.values()

    def _is_dotted(self, members: list[Member]) -> bool:
        """Return True if a name up to its last dot has a picture and a label."""
        names = (self._config.image_column, self._config.label_column)
        if any("." in name.strip(".") for name in names if name):
            return False  # the user names members by what follows the first dot
        found: dict[str, set[str]] = {}
        for member in members:
            key, ending = _parts(_LAST_DOT, member)
            if _parts(_NAME, member)[0] != key:
                found.setdefault(key, set()).add(ending)
        labels = _LABELS | {self._config.label_column.lower()}
        return any(endings & _IMAGES and endings & labels for endings in found.values())

    def _are_folders(self, members: list[Member]) -> bool:
        """Return True if the first members are a picture in a folder, without any label."""
        endings = {_parts(_LAST_DOT, member)[1] for member in members}
        is_default = self._config.label_column == PrepareConfig.label_column
        has_folder = "/" in members[0].name
        return is_default and has_folder and bool(endings & _IMAGES) and not endings & _LABELS

    def _is_extra(self, sample: _Sample) -> bool:
        """Return True if the files of a sample are neither pictures by their names nor a label."""
        has_picture = any(ending.rpartition(".")[2] in _IMAGES for ending in sample.fields) or any(
            why_no_picture(member.name) is None for member in sample.fields.values()
        )
        if has_picture or self._config.image_column is not None:
            return False
        if self._has_folders:
            return True
        name = self._config.label_column
        if {"cls", "txt", name.lower().lstrip(".")} & sample.fields.keys():
            return False
        return _fact(_facts(sample, f"{self.name}: sample {sample.key}"), name) is _MISSING

    def _is_mask(self, sample: _Sample) -> bool:
        """Return True if the folder of a class is in one of masks: `ground_truth/scratch/1.png`."""
        around = sample.key.split("/")[:-2]
        return bool(self._has_folders) and any(map(is_only_of_annotations, around))

    def _skip(self, sample: _Sample) -> None:
        """Skip files that are no pictures, unless they belong to a picture elsewhere in the tar."""
        self._num_extra += 1
        if self._num_extra <= _MAX_READ_AGAIN:
            self._refuse_scattered(sample, f"{self.name}: sample {sample.key}")
        for member in sample.fields.values():
            self.skipped.add(f"{self.name}/{member.name}", why_no_picture(member.name) or "")

    def _item(self, row: int, sample: _Sample) -> Item:
        where = f"{self.name}: sample {sample.key}"
        facts = _facts(sample, where)
        label = self._label(sample, facts, where)
        split = facts.get(self._config.split_column)
        if split is None and self._has_folders:
            words = (part.lower() for part in sample.key.split("/")[:-2])
            split = next((SPLIT_WORDS[word].value for word in words if word in SPLIT_WORDS), None)
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

    def _refuse_scattered(self, sample: _Sample, where: str) -> None:
        """Read the tar again, and refuse it if it has more files of a sample elsewhere.

        Raises:
            DataError: if it has.
        """
        here = {member.name for member in sample.fields.values()}
        elsewhere = next(
            (
                member.name
                for member in self._members(Skipped())
                if member.name not in here
                and _NAME.fullmatch(member.name)
                and sample.key in {_key(_NAME, member), _key(_LAST_DOT, member)}
            ),
            None,
        )
        if elsewhere is not None:
            raise DataError(
                "the files of this sample are not next to each other in the tar: "
                f"{min(here)}, {elsewhere}",
                where=where,
                why="A tar is read from start to end, one sample after the other, so its picture "
                "and label must be neighbours.",
                fix="Unpack the tar into FOLDER, and pack it again sorted by name: tar --sort=name "
                "-cf NEW.tar -C FOLDER .",
            )

    def _image_ending(self, sample: _Sample, where: str) -> str | None:
        named = self._config.image_column
        if named is not None:
            return named.lower().lstrip(".")
        found = [ending for ending in sample.fields if ending.rpartition(".")[2] in _IMAGES]
        if len(found) > 1:
            raise DataError(
                "this sample of the tar has several pictures, and only one can be read: "
                f"{', '.join(f'{sample.key}.{one}' for one in found)}",
                where=where,
                fix="Choose the ending of the files to read in all samples, such as --image-column "
                f"{found[0]}",
            )
        return found[0] if found else None

    def _label(self, sample: _Sample, facts: dict[str, Any], where: str) -> str | int:
        """Return the label from the named column, the usual WebDataset fields, or the folder."""
        if self._has_folders:
            if "/" not in sample.key:
                raise DataError(
                    "this picture of the tar is not in a folder, so its class is unknown",
                    where=where,
                    why="The first picture of the tar has no label file; the names of the folders "
                    "are therefore the classes.",
                    fix="Move the picture into the folder of its class, and pack the tar again.",
                )
            return encodable(sample.key.split("/")[-2])
        name = self._config.label_column
        is_named = name != PrepareConfig.label_column
        before, after = ("", name.lower().lstrip(".")) if is_named else ("cls", "txt")
        if before in sample.fields:
            return _label_of(sample.fields[before], before, where)
        value = _fact(facts, name)
        if value is not _MISSING:
            return checked_label(value, name, where)
        if after in sample.fields:
            return _label_of(sample.fields[after], after, where)
        self._refuse_scattered(sample, where)
        looked_for = "neither " if is_named else "neither a .cls, nor "
        of_json = f" Its .json has {name_some(sorted(facts))}." if facts else ""
        raise DataError(
            f"this sample of the tar has no label: {looked_for}{name!r} in a .json, nor a .{after}",
            where=where,
            why=f"Its files end in {', '.join(sorted(sample.fields))}.{of_json}"[:300],
            fix=_label_advice(sample, self._fields()[1]),
        )


def _label_of(member: Member, ending: str, where: str) -> str | int:
    """Read a label stored as a member: a number or a name in .cls, a name in any other."""
    text = _text(member, where).strip()
    is_number = ending.rpartition(".")[2] == "cls" and _NUMBER.fullmatch(text)
    return checked_label(int(text) if is_number else text, ending, where)


_NUMBER = re.compile(r"[+-]?\d{1,18}")
_MISSING = object()


def _parts(pattern: re.Pattern[str], member: Member) -> tuple[str, str]:
    """Return key and ending of a member."""
    match = pattern.fullmatch(member.name) or _NAME.fullmatch(member.name)
    assert match is not None
    return match[1], match[2].lower()


def _key(pattern: re.Pattern[str], member: Member) -> str:
    return _parts(pattern, member)[0]


def _fact(facts: dict[str, Any], name: str) -> Any:
    """Return the value of a key, or of a key within objects, `outer.inner`."""
    if name in facts:
        return facts[name]
    value: Any = facts
    for part in name.split("."):
        value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
    return value


def _keys(facts: dict[str, Any], start: str = "") -> Iterator[tuple[str, str | int]]:
    """Yield the values that can be labels, each with its key: `key` or `outer.inner`."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{start}{name}.")
        elif isinstance(value, str) or (
            isinstance(value, int) and not isinstance(value, bool) and value >= 0
        ):
            yield start + name, value


def _keys_of_labels(values: Mapping[str, Sequence[str | int]]) -> list[str]:
    """Return the keys whose values may be classes, the likeliest first."""
    able = [
        name
        for name in other_names(list(values))
        if len(values[name]) < _LEAST_COMPARED
        or (
            1 < len(set(values[name])) <= len(values[name]) // 2
            and find_captions([str(value) for value in values[name]]) is None
        )
    ]
    return sorted(able, key=lambda name: name.rpartition(".")[2] not in ("label", *LABEL_NAMES))


def _label_advice(sample: _Sample, values: Mapping[str, Sequence[str | int]]) -> str:
    """Return a remedy that works: a key or member that can be a label."""
    members = [name for name in sample.fields if name not in {"json", *_IMAGES, *CAPTION_NAMES}]
    members = [name for name in members if name.rpartition(".")[2] not in _IMAGES]
    usual = ("label", *LABEL_NAMES)
    able = [*_keys_of_labels(values), *members]
    able.sort(key=lambda name: name.rpartition(".")[2] not in usual)
    if able:
        return f"Name the field that contains the class: --label-column {shlex.quote(able[0])}"
    return (
        "Pack the tar again: with a file NAME.cls or NAME.txt that contains the class beside each "
        "picture NAME, or with one folder for each class."
    )


def _facts(sample: _Sample, where: str) -> dict[str, Any]:
    """Return the JSON of a sample; empty if it has no .json."""
    member = sample.fields.get("json")
    if member is None:
        return {}
    try:
        value = json.loads(_text(member, where))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"the file {member.name} in the tar is not valid JSON ({str(error)[:100]})",
            where=where,
            fix="Correct the file, and pack the tar again.",
        ) from None
    return value if isinstance(value, dict) else {}


def _text(member: Member, where: str) -> str:
    data = member.data or b""
    if len(data) > _BYTES_AROUND or member.data is None:
        raise DataError(
            f"the file {member.name} in the tar has {member.size_bytes:,} bytes, too many for the "
            f"label of a picture (at most {_BYTES_AROUND:,})",
            where=where,
            fix="Correct the file, and pack the tar again.",
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DataError(
            f"the file {member.name} in the tar, which has the label, is not UTF-8 text",
            where=where,
            fix="Save the file as UTF-8 text, and pack the tar again.",
        ) from None
