"""Read COCO annotations as labels, if each picture has one category: also those of camera traps.

{"images": [{"id": 7, "file_name": "1.jpg"}], "annotations": [{"image_id": 7, "category_id": 2}],
 "categories": [{"id": 2, "name": "cat"}]}
"""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stepladder.data.sources.label_tables.labels import ONE_LABEL
from stepladder.data.sources.label_tables.reading import prepare_command
from stepladder.data.sources.walk import printable
from stepladder.errors import DataError

_MAX_LETTERS: Final = 80
_SCRIPT: Final = (
    'import csv,json,sys;w=csv.writer(open(sys.argv[1],"w",encoding="utf-8",newline=""));'
    'w.writerow(["path","label","split"]);'
    '[w.writerow([f+i["file_name"],*k[i["id"]],s]) for p,f,s in zip(*[iter(sys.argv[2:])]*3) '
    'for d in [json.load(open(p,encoding="utf-8-sig"))] for n in [{c["id"]:c["name"] for c in '
    'd.get("categories",[])}] for k in [{}] for _ in [[k.setdefault(a["image_id"],set()).add('
    'n.get(a["category_id"],a["category_id"])) for a in d["annotations"] if "category_id" in a]] '
    'for i in d["images"] if len(k.get(i["id"],()))==1]'
)


class SeveralCategoriesError(DataError):
    """Some images of COCO annotations have several categories."""


def is_coco(record: Any) -> bool:
    """Return True if an object has a list of images with names, as COCO's has."""
    images = record.get("images") if isinstance(record, dict) else None
    return (
        isinstance(images, list)
        and bool(images)
        and all(isinstance(one, dict) and isinstance(one.get("file_name"), str) for one in images)
        and _are_objects(record.get("annotations", []))
        and _are_objects(record.get("categories", []))
        and ("annotations" in record or "categories" in record)
    )


def is_coco_file(path: Path) -> bool:
    """Return True if a file has COCO annotations.

    Raises:
        OSError: if it cannot be read.
    """
    try:
        return is_coco(json.loads(path.read_text("utf-8-sig")))
    except (ValueError, RecursionError):
        return False


def rows_of_coco(record: Mapping[str, Any], path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return what COCO annotations are read as, and a row for each image with a category.

    Several boxes of one category count once. What else is known of an image is in other columns.

    Raises:
        SeveralCategoriesError: if an image has several categories.
        DataError: if no image has one.
    """
    images, names = record["images"], _names(record)
    labels: dict[Any, set[str]] = defaultdict(set)
    of_images = [{"image_id": one.get("id"), **one} for one in images]  # with their own category
    for one in (*record.get("annotations", []), *of_images):
        if one.get("category_id") is not None:
            labels[one.get("image_id")].add(names.get(one["category_id"], str(one["category_id"])))
    found = [(one, sorted(labels.get(one.get("id"), ()))) for one in images]
    several = [(one, some) for one, some in found if len(some) > 1]
    single = [(one, some[0]) for one, some in found if len(some) == 1]
    if several:
        name, both = several[0][0]["file_name"], " and ".join(map(repr, several[0][1]))
        raise SeveralCategoriesError(
            f"{len(several)} of {len(images)} images have several categories, such as "
            f"{name[:_MAX_LETTERS]!r}: {both[:_MAX_LETTERS]}",
            where=str(path),
            why=ONE_LABEL,
            fix=of_one_category(path.with_name("one-category.csv"), [(path, "", "")])
            if single
            else "Leave the annotations of one category for each image.",
        )
    if not single:
        raise DataError(
            f"COCO annotations without a category for any of {len(images)} images",
            where=str(path),
            fix="Choose the file whose annotations have a category_id, such as "
            "instances_train2017.json; captions and files of a test set have none.",
        )
    rows = [{**_facts(one), "file_name": one["file_name"], "label": label} for one, label in single]
    kind = "COCO annotations, with the category of each image as its label"
    num_without = len(images) - len(single)
    if num_without:
        kind += f"; left out {num_without} of {len(images)} images, which have no annotation"
    return kind, rows


def of_one_category(out: Path, tables: Sequence[tuple[Path, str, str]]) -> str:
    """Return the remedy for several categories: the command that reads the images with one.

    Args:
        out: the table that it writes.
        tables: each COCO file, the start of its paths relative to that table, and its split.
    """
    typed = " ".join(shlex.quote(printable(str(one))) for table in tables for one in table)
    place = shlex.quote(printable(str(out)))
    return (
        f"To read only the images with one category: python -c {shlex.quote(_SCRIPT)} {place} "
        f"{typed} && {prepare_command(out)}"
    )


def _names(record: Mapping[str, Any]) -> dict[Any, str]:
    """Return the name of each category by its id."""
    some = record.get("categories", [])
    return {one.get("id"): str(one.get("name", one.get("id"))).strip() for one in some}


def _facts(image: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of an image, such as its sequence, without lists and ids."""
    return {
        key: value
        for key, value in image.items()
        if not isinstance(value, (list, dict)) and key not in {"id", "category_id", "path"}
    }


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)
