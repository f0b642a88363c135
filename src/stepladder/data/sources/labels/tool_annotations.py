"""Find the annotations of a tool beside pictures: of CVAT, Pascal VOC, YOLO, LabelMe or COCO.

If each picture has objects of one class only, it is the picture's label, and a command writes these
labels as a table. Else the annotations are of a detector, which a classifier cannot learn from.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final
from xml.etree import ElementTree

import yaml

from stepladder.data.sources.label_tables.coco import is_coco
from stepladder.data.sources.listing import name_some
from stepladder.data.sources.splits.picture_lists import find_lists
from stepladder.data.sources.walk import is_hidden

_MAX_FOLDERS: Final = 50
_MAX_FILES: Final = 20_000
_MAX_BYTES: Final = 1 << 27
_MAX_NAMED: Final = 3
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
    'g=lambda f:{x.findtext("name") for x in E.parse(f).iter("object")}-{None,""};e=".xml";'
)
_YOLO: Final = (
    "n=dict(enumerate(s[4:]));g=lambda f:{n.get(int(l.split()[0]),l.split()[0]) for l in "
    'f.read_text().splitlines() if l.strip()};e=".txt";'
)
_FILES: Final = (
    'import collections as C,re;K=lambda p:"/".join(q for q in p.with_suffix("").parts if '
    'q.lower() not in ("images","labels","annotations","jpegimages"));'
    'F={K(f.relative_to(a)):f for f in sorted(a.rglob("*"+e))};'
    'I=[p.relative_to(o.parent) for p in sorted(o.parent.rglob("*")) if p.suffix.lower() in '
    '(".jpg",".jpeg",".png",".bmp",".webp",".tif",".tiff",".gif")];'
    "c=C.Counter(p.stem for p in I);d=C.Counter(f.stem for f in F.values());"
    "S={f.stem:f for f in F.values() if d[f.stem]==1};"
    "L=[(p,F.get(K(p)) or (S.get(p.stem) if c[p.stem]==1 else None)) for p in I];"
    "R=[(p,*g(f)) for p,f in L if f];"
    't={"train":"train","val":"val","valid":"val","validation":"val","test":"test"};'
    'M={P(re.sub(r"\\s+-?[01]$","",l).strip()).name:v for k,v in (("trainval","train"),*t.items()) '
    'for f in sorted(P(s[3]).glob("*.txt") if s[3] else ()) if '
    '("_"+f.stem.lower()).endswith("_"+k) '
    "for l in f.read_text().splitlines() if l.strip()};"
    "h=lambda p:next((t[q.lower()] for q in p.parts[:-1] if q.lower() in t),"
    'M.get(p.stem) or M.get(p.name) or "");'
    "R=[(*r,h(r[0])) for r in R if len(r)==2];R=[r for r in R if r[2] or not M];"
    'T={r[2] for r in R};N=2+(len(T)>1 and "" not in T);'
    'w=csv.writer(o.open("w",encoding="utf-8",newline=""));'
    'w.writerow(["path","label","split"][:N]);[w.writerow([r[0].as_posix(),*r[1:]][:N]) for r in R]'
)
_LABELME: Final = (
    'import json;g=lambda f:(lambda d:{k for k,v in (d.get("flags") or {}).items() if v is True} '
    'if s[4]=="flags" else {x["label"] for x in d.get("shapes") or ()})'
    '(json.loads(f.read_text("utf-8-sig")));e=".json";'
)
_PLACE_NAMES: Final = frozenset({"images", "labels", "annotations", "jpegimages"})


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
    classes: Mapping[str, frozenset[str]]  # by the `_key` of a picture, or by its stem
    script: str = ""
    words: tuple[str, ...] = ()
    named: str = ""  # the places of the files, if there are several
    is_by_key: bool = False  # its files have the folders of the pictures


def find_annotations(
    root: Path, paths: Sequence[str], typed: Callable[[Path], str]
) -> ToolAnnotations | None:
    """Look for annotations in a folder of pictures, above it and in the folders of both.

    Args:
        root: the source's folder.
        paths: the pictures, relative to it.
        typed: writes a path in a command.
    """
    for folder in _places(root):
        for find in (_cvat, _voc, _yolo, _coco, _labelme):
            try:
                found = find(folder, root)
            except (OSError, ValueError, AttributeError, TypeError, KeyError):
                continue
            except (ElementTree.ParseError, yaml.YAMLError, RecursionError):
                continue
            if not found:
                continue
            classes = _of_pictures(found, paths)
            if len(classes) >= _MIN_NAMED_FRAC * min(len(paths), _MAX_FILES):
                return _described(found, root, paths, classes, typed)
    return None


def _of_pictures(found: _Found, paths: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the classes of each picture that has annotations."""
    num_of_stem = Counter(PurePosixPath(path).stem for path in paths)
    classes = {}
    for path in paths:
        stem = PurePosixPath(path).stem
        one = found.classes.get(_key(path))
        if one is None and (num_of_stem[stem] == 1 or not found.is_by_key):
            one = found.classes.get(stem)
        if one is not None:
            classes[path] = one
    return classes


def _key(path: str) -> str:
    """Return a path without its ending and without folders that tell pictures from annotations."""
    parts = PurePosixPath(path).with_suffix("").parts
    return "/".join(part for part in parts if part.lower() not in _PLACE_NAMES)


def _described(
    found: _Found,
    root: Path,
    paths: Sequence[str],
    classes: Mapping[str, frozenset[str]],
    typed: Callable[[Path], str],
) -> ToolAnnotations:
    labels = frozenset().union(*classes.values())
    one = [path for path, some in classes.items() if len(some) == 1]
    several = [path for path, some in classes.items() if len(some) > 1]
    verb = "have" if found.named else "has"
    what = (
        f"{found.named or found.place.name} {verb} annotations of {found.name} for these pictures"
    )
    table = root / "labels.csv"
    if table.exists():
        table = root / "labels-of-annotations.csv"
    if len(labels) < _MIN_CLASSES or len(one) <= len(several) or not found.script:
        told = f"{what}, with boxes or tags of several classes in {len(several)} of {len(classes)}"
        if len(labels) < _MIN_CLASSES:
            told = f"{what}, but all are of one class"
        return ToolAnnotations(f"{told}. A classifier needs one class for each", labels, "", table)
    told = f"{what}, with one class in {len(one)} of {len(paths)}"
    left_out = [
        f"{len(some)} {kind} ({name_some(some[:_MAX_NAMED])}{', …' * (len(some) > _MAX_NAMED)})"
        for some, kind in (
            (several, "with several classes"),
            ([path for path, some in classes.items() if not some], "without a class"),
            ([path for path in paths if path not in classes], "without annotations"),
        )
        if some
    ]
    told += f"; left out: {', '.join(left_out)}" if left_out else ""
    lists = None
    if found.is_by_key:
        lists = find_lists(root, paths)
        told += "" if lists is None else f". {lists.described}"
    words = [typed(table), typed(found.place)]
    if found.is_by_key:
        words.append("''" if lists is None else typed(lists.folder))
    words += map(shlex.quote, found.words)
    script = _HEAD + found.script + (_FILES if found.is_by_key else _TAIL)
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
    found = {}
    for file in _files_below(folder, root, ".xml"):
        tree = ElementTree.parse(file).getroot()
        if tree.tag == "annotation":
            names = (one.findtext("name", "") for one in tree.iter("object"))
            found[file] = frozenset(names) - {""}
    return _by_key("Pascal VOC", folder, found, _VOC) if found else None


def _yolo(folder: Path, root: Path) -> _Found | None:
    found: dict[Path, frozenset[str]] = {}
    others: Counter[Path] = Counter()
    for file in _files_below(folder, root, ".txt"):
        if file.name in {"classes.txt", "train.txt", "val.txt", "test.txt"}:
            continue
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
        if all(map(_YOLO_LINE.fullmatch, lines)):
            found[file] = frozenset(line.split()[0] for line in lines)
        else:
            others[file.parent] += 1
    nums = Counter(file.parent for file in found)
    found = {one: some for one, some in found.items() if nums[one.parent] > others[one.parent]}
    if not any(found.values()):
        return None
    place = _common_place(folder, found)
    names = _yolo_names((place, place.parent, place.parent.parent, root, root.parent))
    known = dict(enumerate(names))
    named = {
        file: frozenset(known.get(int(one), one) for one in some) for file, some in found.items()
    }
    return _by_key("YOLO", folder, named, _YOLO, tuple(names))


def _by_key(
    name: str,
    folder: Path,
    found: Mapping[Path, frozenset[str]],
    script: str,
    words: tuple[str, ...] = (),
) -> _Found:
    """Return annotations with a file for each picture, by their paths, and by their stems."""
    place = _common_place(folder, found)
    num_of_stem = Counter(file.stem for file in found)
    classes = {}
    for file, some in found.items():
        classes[_key(file.relative_to(place).as_posix())] = some
        if num_of_stem[file.stem] == 1:
            classes[file.stem] = some
    places = sorted({file.parent for file in found})
    shown = [one.relative_to(folder).as_posix() for one in places]
    named = name_some(shown) if len(places) > 1 else ""
    return _Found(name, place, classes, script, words, named, is_by_key=True)


def _common_place(folder: Path, files: Iterable[Path]) -> Path:
    places = {file.parent for file in files}
    return places.pop() if len(places) == 1 else folder


def _files_below(folder: Path, root: Path, ending: str) -> Iterator[Path]:
    """Yield files in a folder and in those in it; of the source's folder, also one level below."""
    num_levels = 2 if folder == root else 1
    level = [folder]
    for _ in range(num_levels + 1):
        for one in level:
            yield from _files(one, ending)
        below = (inside for one in level for inside in sorted(one.iterdir()) if inside.is_dir())
        level = [inside for inside in islice(below, _MAX_FOLDERS) if not is_hidden(inside.name)]


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


def _labelme(folder: Path, root: Path) -> _Found | None:
    """Find the JSON of LabelMe: flags that are true, or else the labels of shapes, are classes."""
    del root
    records = {}
    inside = [folder, *sorted(one for one in folder.iterdir() if one.is_dir())[:_MAX_FOLDERS]]
    for file in (file for one in inside for file in _files(one, ".json")):
        record = json.loads(file.read_text("utf-8-sig"))
        if isinstance(record, dict) and {"imagePath", "shapes"} <= record.keys():
            records[file] = (record.get("flags") or {}, record["shapes"] or ())
        elif not records:
            return None
    flags = {
        file: frozenset(name for name, value in some.items() if value is True)
        for file, (some, _) in records.items()
    }
    shapes = {file: frozenset(one["label"] for one in some) for file, (_, some) in records.items()}
    is_flagged, has_shapes = any(flags.values()), any(shapes.values())
    of = "flags" if is_flagged else "labels of shapes"
    name = f"LabelMe ({of}{'; their shapes have labels, too' * (is_flagged and has_shapes)})"
    if not records:
        return None
    found = flags if is_flagged else shapes
    return _by_key(name, folder, found, _LABELME, (of.partition(" ")[0],))


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
