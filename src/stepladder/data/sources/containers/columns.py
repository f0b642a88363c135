"""Choose the columns of a table of pictures: the picture, the label and optional ones."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.split import FOLDER
from stepladder.data.sources.safe_arrow import extension_of
from stepladder.errors import DataError, UsageError

if TYPE_CHECKING:
    from pyarrow import DataType, Schema
else:
    DataType = Schema = Any

_IMAGE_NAMES = (
    "image", "img", "picture", "photo", "content", "bytes", "image_bytes", "jpg", "jpeg", "png",
    "data", "pixels",
)  # fmt: skip
LABEL_NAMES = ("labels", "class", "class_name", "category", "target")
_SPARK_IMAGE = {"height", "width", "nChannels", "mode", "data"}
_PICKLED_EXTENSION = "arrow.py_extension_type"
_DEFAULTS = {field.name: field.default for field in fields(PrepareConfig)}


class ImageKind(StrEnum):
    """How a column stores pictures."""

    BYTES = "bytes"
    STRUCT = "struct of bytes"
    SPARK = "Spark image"
    FLAT = "flat pixels"
    NESTED = "nested pixels"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that are read from a table.

    Attributes:
        image: column of pictures.
        kind: how the image column stores pictures.
        label, split, path, group, height, width: column names; None if there is no such column.
        types: Arrow type names of these columns.
        class_names: class name of each label number, or None.
    """

    image: str
    kind: ImageKind
    label: str
    split: str | None
    path: str | None
    group: str | None
    height: str | None
    width: str | None
    types: dict[str, str]
    class_names: tuple[str, ...] | None

    @property
    def names(self) -> list[str]:
        """All columns."""
        return list(self.types)


def choose_columns(
    schema: Schema, config: PrepareConfig, *, constants: Mapping[str, Any], where: str
) -> Columns:
    """Choose the columns that options name, else by type and common names.

    Args:
        schema: schema of the first file.
        config: options.
        constants: columns from the folder names of the file's path, with their value for this file.
        where: the file, for errors.

    Raises:
        UsageError: if a named column is missing, or the column of pictures or labels cannot be
            determined; lists the columns.
        DataError: if a column has an extension type.
    """
    refuse_pickled(schema, where)
    image = _choose_image(schema, config, where)
    features = hugging_face_features(schema)
    label = _choose_label(schema, config, constants, features, where)
    group = config.group_by
    if group is not None and (group == FOLDER or group not in {*schema.names, *constants}):
        group = None
    chosen = {
        "image": image,
        "label": label,
        "split": _optional(schema, constants, config, "split_column", where),
        "path": _optional(schema, constants, config, "path_column", where),
        "group": group,
        "height": "height" if "height" in schema.names else None,
        "width": "width" if "width" in schema.names else None,
    }
    names = [name for name in chosen.values() if name is not None]
    in_file = [name for name in dict.fromkeys(names) if name in schema.names]
    for name in in_file:
        _refuse_twins(schema, name, where)
        _refuse_extension(schema, name, where)
    kind = image_kind(schema.field(image).type)
    assert kind is not None
    _check_label(schema, label, constants, where)
    return Columns(
        **chosen,  # type: ignore[arg-type]
        kind=kind,
        types={name: _plain(schema.field(name).type) for name in in_file},
        class_names=_class_names(features, label),
    )


def check_drift(schema: Schema, columns: Columns, *, where: str, first: str) -> None:
    """Check that another file has the same columns as the first.

    Raises:
        DataError: if it does not; names the file and the column.
    """
    refuse_pickled(schema, where)
    for name, wanted in columns.types.items():
        found = _plain(schema.field(name).type) if name in schema.names else None
        if found != wanted:
            raise DataError(
                f"column {name!r} {f'has type {found}' if found else 'is missing'}; "
                f"in {first} it has type {wanted}",
                where=f"{where}: from row 0 on",
                why="All files of a source must have the same columns.",
                fix="Rewrite the file with these columns, or use a pattern that excludes it.",
            )
    if _class_names(hugging_face_features(schema), columns.label) != columns.class_names:
        raise DataError(
            f"the class names of column {columns.label!r} differ from those in {first}",
            where=f"{where}: from row 0 on",
            fix="Rewrite the file with the class names of the others.",
        )


def image_kind(kind: DataType) -> ImageKind | None:
    """Return how a column of this type can store pictures; None if it cannot."""
    from pyarrow import types

    if types.is_struct(kind):
        names = {field.name for field in kind}
        if names >= _SPARK_IMAGE:
            return ImageKind.SPARK
        has_bytes = "bytes" in names and _is_binary(kind.field("bytes").type)
        return ImageKind.STRUCT if has_bytes else None
    if types.is_fixed_size_binary(kind):
        return ImageKind.FLAT
    if _is_binary(kind):
        return ImageKind.BYTES
    depth = 0
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    if not types.is_uint8(kind) or not 1 <= depth <= 3:
        return None
    return ImageKind.FLAT if depth == 1 else ImageKind.NESTED


def hugging_face_features(schema: Schema) -> dict[str, Any]:
    """Return the features that Hugging Face `datasets` stored in a file; empty if missing.

    Source: Hugging Face, "Dataset features": the key `huggingface` of the schema's metadata.
    """
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(text)["info"]["features"] if text else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def refuse_pickled(schema: Schema, where: str) -> None:
    """Raise an error if a file has a column of pickled Python objects.

    Raises:
        DataError: if it does; names the column.

    Source: CVE-2023-47248.
    """
    for field in schema:
        if extension_of(field) == _PICKLED_EXTENSION:
            raise DataError(
                f"column {field.name!r} has a pickled extension type, which could execute code",
                where=where,
                fix="Rewrite the file with plain columns: binary for pictures.",
            )


def _choose_image(schema: Schema, config: PrepareConfig, where: str) -> str:
    able = [field.name for field in schema if image_kind(field.type) is not None]
    named = config.image_column
    if named is not None:
        if named in able:
            return named
        kind = f"has type {schema.field(named).type}" if named in schema.names else "is missing"
        raise UsageError(
            f"column {named!r} {kind}; pictures must be binary, uint8 lists or structs of bytes",
            where=where,
            fix=f"Name the column: --image-column {able[0]}" if able else _columns_are(schema),
        )
    known = [name for name in _IMAGE_NAMES if name in able]
    structs = [name for name in able if image_kind(schema.field(name).type) in _SURE]
    for found in (structs if len(structs) == 1 else [], known[:1], able if len(able) == 1 else []):
        if found:
            return found[0]
    raise UsageError(
        "no column of pictures" if not able else f"several columns may contain pictures: {able}",
        where=where,
        why=_columns_are(schema),
        fix=f"Name the column: --image-column {able[0] if able else 'NAME'}",
    )


_SURE = (ImageKind.STRUCT, ImageKind.SPARK)


def _choose_label(
    schema: Schema,
    config: PrepareConfig,
    constants: Mapping[str, Any],
    features: dict[str, Any],
    where: str,
) -> str:
    present = [*schema.names, *constants]
    if config.label_column in present:
        return config.label_column
    is_default = config.label_column == _DEFAULTS["label_column"]
    coded = [name for name in features if name in present and _class_names(features, name)]
    usual = [name for name in LABEL_NAMES if name in present]
    near = difflib.get_close_matches(config.label_column, present, n=1, cutoff=0.5)
    for found in (coded, usual):
        if is_default and len(found) == 1:
            return found[0]
    raise UsageError(
        f"no column {config.label_column!r}",
        where=where,
        why=_columns_are(schema, constants),
        fix=f"Name the column: --label-column {(coded or usual or near or ['NAME'])[0]}",
    )


def _check_label(schema: Schema, label: str, constants: Mapping[str, Any], where: str) -> None:
    from pyarrow import types

    if label in constants and label not in schema.names:
        return
    kind = schema.field(label).type
    plain = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(plain) or types.is_large_string(plain) or types.is_string_view(plain)
    if not (types.is_integer(plain) or is_text):
        raise UsageError(
            f"column {label!r} has type {kind}; a label must be an integer or a string",
            where=where,
            fix="Choose another column: --label-column NAME",
        )


def _optional(
    schema: Schema, constants: Mapping[str, Any], config: PrepareConfig, option: str, where: str
) -> str | None:
    """Return the text column that an option names; None if the default column is missing."""
    from pyarrow import types

    name: str = getattr(config, option)
    if name in schema.names:
        kind = schema.field(name).type
        if types.is_dictionary(kind):
            kind = kind.value_type
        if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
            return name
    elif name in constants:
        return name
    if name == _DEFAULTS[option]:
        return None
    raise UsageError(
        f"no string column {name!r}",
        where=where,
        why=_columns_are(schema, constants),
        fix=f"Choose another column: --{option.replace('_', '-')} NAME",
    )


def _refuse_twins(schema: Schema, name: str, where: str) -> None:
    if schema.names.count(name) > 1:
        raise DataError(
            f"two columns are named {name!r}",
            where=where,
            fix="Rewrite the file with unique column names.",
        )


def _plain(kind: DataType) -> str:
    """Return the type name without the in-memory layout: large_ and _view are not in a file."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return re.sub(r"\b(?:large_)?(string|binary|list)(?:_view)?\b", r"\1", str(kind))


def _refuse_extension(schema: Schema, name: str, where: str) -> None:
    extension = extension_of(schema.field(name))
    if extension is not None:
        raise DataError(
            f"column {name!r} has the extension type {extension!r}",
            where=where,
            fix="Rewrite the file with plain columns: binary for pictures.",
        )


def _class_names(features: dict[str, Any], name: str) -> tuple[str, ...] | None:
    feature = features.get(name)
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return None
    names = feature.get("names")
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        return None
    return tuple(names)


def _is_binary(kind: DataType) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _columns_are(schema: Schema, constants: Mapping[str, Any] | None = None) -> str:
    shown = [f"{field.name} ({str(field.type)[:40]})" for field in schema]
    shown += [f"{name} (from folder names)" for name in constants or {}]
    return f"The columns are {', '.join(shown[:20])}{', …' if len(shown) > 20 else ''}."
