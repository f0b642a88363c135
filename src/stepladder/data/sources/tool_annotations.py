"""Find the annotations of a tool beside pictures: of CVAT, Pascal VOC, YOLO or COCO.

If each picture has objects of one class only, it is the picture's label, and a command writes these
labels as a table. Else the annotations are of a detector, which a classifier cannot learn from.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final
from xml.etree import ElementTree

import yaml

from stepladder.data.sources.label_tables.coco import is_coco
from stepladder.data.sources.walk import is_hidden

_MAX_FOLDERS: Final = 50
_MAX_FILES: Final = 2000
_MAX_BYTES: Final = 1 << 27
_MIN_CLASSES: Final = 2
_MIN_NAMED_FRAC: Final = 0.5
_YOLO_LINE: Final = re.compile(r"[0-9]+(?:\s+-?[0-9.]+(?:e-?[0-9]+)?){4,}\s*")
_YOLO_NAMES: Final = ("data.yaml", "dataset.yaml", "data.yml", "classes.txt", "obj.names")
_HEAD: Final = (
    "import csv,pathlib,sys,xml.etree.ElementTree as E;s=sys.argv;P=pathlib.Path;"
    "o=P(s[1]);a=P(s[2]);"
)
_TAIL: Final = (
    'D={p.stem:p.relative_to(o.parent).as_posix() for p in o.parent.rglob("*") if p.suffix.lower() '
    'in (".jpg",".jpeg",".png",".bmp",".webp",".tif",".tiff",".gif")};'
    'w=csv.writer(o.open("w",encoding="utf-8",newline=""));w.writerow(["path","label"]);'
    "[w.writerow([D[k],*v]) for k,v in L if k in D and len(v)==1]"
)
_CVAT: Final = (
    'L=[(P(i.get("name")).stem,{t.findtext("attribute[@name=\\""+s[3]+"\\"]") if s[3:] else '
    't.get("label") for t in i if t.get("label")}-{None,""}) for i in E.parse(a).iter("image")];'
)
_VOC: Final = (
    'L=[(f.stem,{x.findtext("name") for x in E.parse(f).iter("object")}) '
    'for f in sorted(a.rglob("*.xml"))];'
)
_YOLO: Final = (
    'n=dict(enumerate(s[3:]));k={p.stem for p in o.parent.rglob("*") if p.suffix!=".txt"};'
    "L=[(f.stem,{n.get(int(l.split()[0]),l.split()[0]) for l in f.read_text().splitlines() "
    'if l.strip()}) for f in sorted(a.rglob("*.txt")) if f.stem in k];'
)


@dataclass(frozen=True)
class ToolAnnotations:
    """Annotations that were found.

    Attributes:
        described: what they are, and of which file or folder.
        labels: classes in them.
        edit: command that writes a table of the classes; empty if pictures have several.
        table: that it writes.
    """

    described: str
    labels: frozenset[str]
    edit: str
    table: Path


@dataclass(frozen=True)
class _Found:
    name: str
    place: Path
    classes: Mapping[str, frozenset[str]]  # by the stem of a picture
    script: str = ""
    words: tuple[str, ...] = ()


def find_annotations(
    root: Path, paths: Sequence[str], typed: Callable[[Path], str]
) -> ToolAnnotations | None:
    """Look for annotations in a folder of pictures, above it and in the folders of both.

    Args:
        root: the source's folder.
        paths: the pictures, relative to it.
        typed: writes a path in a command.
    """
    stems = {PurePosixPath(path).stem for path in paths}
    for folder in _places(root):
        for find in (_cvat, _voc, _yolo, _coco):
            try:
                found = find(folder, root)
            except (OSError, ValueError, AttributeError, TypeError, KeyError):
                continue
            except (ElementTree.ParseError, yaml.YAMLError, RecursionError):
                continue
            if found and len(stems & found.classes.keys()) >= _MIN_NAMED_FRAC * len(stems):
                return _described(found, root, stems, typed)
    return None


def _described(
    found: _Found, root: Path, stems: set[str], typed: Callable[[Path], str]
) -> ToolAnnotations:
    classes = [found.classes[stem] for stem in stems & found.classes.keys()]
    labels = frozenset().union(*classes)
    num_one = sum(len(one) == 1 for one in classes)
    num_several = sum(len(one) > 1 for one in classes)
    what = f"{found.place.name} has annotations of {found.name} for these pictures"
    table = root / "labels.csv"
    if table.exists():
        table = root / "labels-of-annotations.csv"
    if len(labels) < _MIN_CLASSES or num_one <= num_several or not found.script:
        told = f"{what}, with boxes or tags of several classes in {num_several} of {len(classes)}"
        if len(labels) < _MIN_CLASSES:
            told = f"{what}, but all are of one class"
        return ToolAnnotations(f"{told}. A classifier needs one class for each", labels, "", table)
    told = f"{what}, with one class in {num_one} of {len(classes)}"
    if num_one < len(classes):
        told += "; the others are left out"
    words = (*map(typed, (table, found.place)), *map(shlex.quote, found.words))
    script = _HEAD + found.script + _TAIL
    return ToolAnnotations(
        told, labels, f"python -c {shlex.quote(script)} {' '.join(words)}", table
    )


def _places(root: Path) -> Iterator[Path]:
    for folder in (root, root.parent):
        yield folder
        try:
            inside = sorted(one for one in islice(folder.iterdir(), 20 * _MAX_FOLDERS))
        except OSError:
            continue
        for one in inside[:_MAX_FOLDERS]:
            if one.is_dir() and one != root and not is_hidden(one.name):
                yield one


def _files(folder: Path, ending: str) -> list[Path]:
    found = (one for one in folder.iterdir() if one.name.lower().endswith(ending))
    return sorted(one for one in islice(found, _MAX_FILES) if one.stat().st_size < _MAX_BYTES)


def _cvat(folder: Path, root: Path) -> _Found | None:
    del root
    for file in _files(folder, ".xml")[:2]:
        tree = ElementTree.parse(file).getroot()
        images = list(tree.iter("image"))
        if tree.tag != "annotations" or not images:
            continue
        tags = {
            PurePosixPath(one.get("name", "")).stem: [tag for tag in one if tag.get("label")]
            for one in images
        }
        by_label = {
            stem: frozenset(tag.get("label", "") for tag in some) for stem, some in tags.items()
        }
        names = [one.get("name", "") for one in tree.iter("attribute") if one.text]
        for name in dict.fromkeys(names):
            found = {
                stem: frozenset(
                    text
                    for tag in some
                    for one in tag.iter("attribute")
                    if one.get("name") == name and (text := one.text or "")
                )
                for stem, some in tags.items()
            }
            if (
                len(frozenset().union(*by_label.values()))
                < _MIN_CLASSES
                <= len(frozenset().union(*found.values()))
            ):
                return _Found(f"CVAT (attribute {name})", file, found, _CVAT, (name,))
        return _Found("CVAT", file, by_label, _CVAT)
    return None


def _voc(folder: Path, root: Path) -> _Found | None:
    del root
    classes = {}
    for file in _files(folder, ".xml"):
        tree = ElementTree.parse(file).getroot()
        if tree.tag != "annotation":
            return None
        names = (one.findtext("name", "") for one in tree.iter("object"))
        classes[file.stem] = frozenset(names) - {""}
    return _Found("Pascal VOC", folder, classes, _VOC) if classes else None


def _yolo(folder: Path, root: Path) -> _Found | None:
    numbers: dict[str, frozenset[str]] = {}
    places = set()
    inside = [folder, *sorted(one for one in folder.iterdir() if one.is_dir())[:3]]
    for file in (file for one in inside for file in _files(one, ".txt")):
        if file.name in {"classes.txt", "train.txt", "val.txt", "test.txt"}:
            continue
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
        if not all(map(_YOLO_LINE.fullmatch, lines)):
            return None
        places.add(file.parent)
        numbers[file.stem] = frozenset(line.split()[0] for line in lines)
    if not any(numbers.values()):
        return None
    place = places.pop() if len(places) == 1 else folder
    names = _yolo_names((place, place.parent, place.parent.parent, root, root.parent))
    known = dict(enumerate(names))
    classes = {
        stem: frozenset(known.get(int(one), one) for one in some) for stem, some in numbers.items()
    }
    return _Found("YOLO", place, classes, _YOLO, tuple(names))


def _yolo_names(folders: Sequence[Path]) -> list[str]:
    for file in (folder / name for folder in folders for name in _YOLO_NAMES):
        if not file.is_file():
            continue
        text = file.read_text("utf-8-sig")
        if file.suffix in {".txt", ".names"}:
            return [line.strip() for line in text.splitlines() if line.strip()]
        names = (yaml.safe_load(text) or {}).get("names")
        if isinstance(names, dict):
            return [str(names.get(idx, idx)) for idx in range(max(names) + 1)]
        if isinstance(names, list):
            return [str(one) for one in names]
    return []


def _coco(folder: Path, root: Path) -> _Found | None:
    del root
    for file in _files(folder, ".json")[:5]:
        record = json.loads(file.read_text("utf-8-sig"))
        if not is_coco(record):
            continue
        names = {one["id"]: str(one["name"]) for one in record.get("categories", [])}
        of_image: dict[object, set[str]] = {}
        for one in record.get("annotations", []):
            of_image.setdefault(one["image_id"], set()).add(names[one["category_id"]])
        classes = {
            PurePosixPath(one["file_name"]).stem: frozenset(of_image.get(one["id"], ()))
            for one in record["images"]
        }
        return _Found("COCO", file, classes)
    return None
