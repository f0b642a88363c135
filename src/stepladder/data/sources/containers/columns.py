"""Choose the columns of a table of pictures: the picture, the label and optional ones."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.split import FOLDER
from stepladder.data.sources.label_tables.labels import label_names, other_names
from stepladder.data.sources.safe_arrow import extension_of
from stepladder.errors import DataError, UsageError

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema
else:
    Array = DataType = RecordBatch = Schema = Any

_IMAGE_NAMES = (
    "image", "img", "picture", "photo", "content", "bytes", "image_bytes", "jpg", "jpeg", "png",
    "data", "pixels",
)  # fmt: skip
_PATH_NAMES = ("path", "file", "filename", "file_name", "filepath", "file_path", "image_path")
LABEL_NAMES = ("labels", "class", "class_name", "category", "target")
_SPARK_IMAGE = {"height", "width", "nChannels", "mode", "data"}
_PICKLED_EXTENSION = "arrow.py_extension_type"
_DEFAULTS = {field.name: field.default for field in fields(PrepareConfig)}


class ImageKind(StrEnum):
    """How a column stores pictures."""

    BYTES = "bytes"
    STRUCT = "struct of bytes"
    SPARK = "Spark image"
    PATH = "path of a file"
    FLAT = "flat pixels"
    NESTED = "nested pixels"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that are read from a table.

    Attributes:
        image: column of pictures. A field of a struct is named `column.field`, here and below.
        kind: how the image column stores pictures.
        is_list: whether each row of it is a list of pictures.
        label, split, path, group, height, width: column names; None if there is no such column.
        types: Arrow type names of these columns.
        class_names: class name of each label number, or None.
    """

    image: str
    kind: ImageKind
    is_list: bool
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
    is_column = group in constants or (group is not None and type_of(schema, group) is not None)
    if group == FOLDER or not is_column:
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
    types = {name: kind for name in names if (kind := type_of(schema, name)) is not None}
    for name in types:
        column = name if name in schema.names else name.partition(".")[0]
        _refuse_twins(schema, column, where)
        _refuse_extension(schema, column, where)
    kind = image_kind(types[image], is_named=config.image_column is not None)
    assert kind is not None
    _check_label(schema, label, constants, where)
    return Columns(
        **chosen,  # type: ignore[arg-type]
        kind=kind,
        is_list=is_list(types[image]) and kind not in {ImageKind.FLAT, ImageKind.NESTED},
        types={name: _plain(kind) for name, kind in types.items()},
        class_names=_class_names(features, label),
    )


def check_drift(schema: Schema, columns: Columns, *, where: str, first: str) -> None:
    """Check that another file has the same columns as the first.

    Raises:
        DataError: if it does not; names the file and the column.
    """
    refuse_pickled(schema, where)
    for name, wanted in columns.types.items():
        kind = type_of(schema, name)
        found = None if kind is None else _plain(kind)
        if found != wanted:
            raise DataError(
                f"column {name!r} {f'has type {found}' if found else 'is missing'} in this file, "
                f"but has type {wanted} in {first}",
                where=f"{where}: from row 0 on",
                why="All files of a source must have the same columns.",
                fix="Write the file again with the columns of the other files, or set --source to "
                "a quoted pattern that leaves it out.",
            )
    if _class_names(hugging_face_features(schema), columns.label) != columns.class_names:
        raise DataError(
            f"this file has other class names for its label column {columns.label!r} than {first}",
            where=f"{where}: from row 0 on",
            why="The same label number would mean different classes in the two files.",
            fix="Write the file again with the class names (and numbers) of the other files.",
        )


def type_of(schema: Schema, name: str) -> DataType | None:
    """Return the type of a column, or of a field `column.field` of structs; None if missing."""
    from pyarrow import types

    if name in schema.names:
        return schema.field(schema.names.index(name)).type
    column, _, rest = name.partition(".")
    if not rest or schema.names.count(column) != 1:
        return None
    kind = schema.field(column).type
    for part in rest.split("."):
        if not types.is_struct(kind) or kind.get_field_index(part) < 0:
            return None
        kind = kind.field(part).type
    return kind


def column_of(batch: RecordBatch, name: str) -> Array:
    """Return a column, or a field `column.field` of structs; null where the struct is."""
    from pyarrow import compute

    if name in batch.schema.names:
        return batch.column(name)
    column, *parts = name.split(".")
    return compute.struct_field(batch.column(column), parts)


def image_kind(kind: DataType, *, is_named: bool = False) -> ImageKind | None:
    """Return how a column of this type can store pictures, or lists of them; None if it cannot.

    Args:
        is_named: whether the user named the column; strings are then paths of files.
    """
    from pyarrow import types

    if types.is_struct(kind):
        return _kind_of_struct(kind)
    if is_list(kind) and (types.is_struct(kind.value_type) or _is_binary(kind.value_type)):
        return image_kind(kind.value_type)
    if _is_text(kind):
        return ImageKind.PATH if is_named else None
    if types.is_fixed_size_binary(kind) or _is_binary(kind):
        return ImageKind.BYTES if _is_binary(kind) else ImageKind.FLAT
    depth = 0
    while is_list(kind):
        kind, depth = kind.value_type, depth + 1
    if not types.is_uint8(kind) or not 1 <= depth <= 3:
        return None
    return ImageKind.FLAT if depth == 1 else ImageKind.NESTED


def _kind_of_struct(kind: DataType) -> ImageKind | None:
    names = {field.name for field in kind}
    if names >= _SPARK_IMAGE:
        return ImageKind.SPARK
    if "bytes" in names and _is_binary(kind.field("bytes").type):
        return ImageKind.STRUCT
    has_path = "path" in names and _is_text(kind.field("path").type)
    return ImageKind.PATH if has_path else None


def is_list(kind: DataType) -> bool:
    """Return True for a type of lists."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


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
                f"column {field.name!r} contains pickled Python objects, and reading them could "
                "execute code that is hidden in the file",
                where=where,
                fix="Write the file again without pickled objects: pictures as binary columns of "
                "JPEG or PNG bytes, labels as integers or strings.",
            )


def _choose_image(schema: Schema, config: PrepareConfig, where: str) -> str:
    able = [field.name for field in schema if image_kind(field.type) is not None]
    named = config.image_column
    if named is not None:
        found = type_of(schema, named)
        if found is not None and image_kind(found, is_named=True) is not None:
            return named
        what = f"there is no column {named!r}, which --image-column names"
        if found is not None:
            what = (
                f"column {named!r}, which --image-column names, has type {found}; pictures must "
                "be binary (the bytes of JPEG or PNG files), lists of uint8 or structs of bytes"
            )
        raise UsageError(
            what,
            where=where,
            why=_columns_are(schema),
            fix=f"Name the column of pictures: --image-column {able[0]}"
            if able
            else "Write the file again with a column of JPEG or PNG bytes.",
        )
    known = [name for name in _IMAGE_NAMES if name in able]
    structs = [name for name in able if image_kind(schema.field(name).type) in _SURE]
    for found in (structs if len(structs) == 1 else [], known[:1], able if len(able) == 1 else []):
        if found:
            return found[0]
    texts = [field.name for field in schema if _is_text(field.type)]
    paths = [name for name in (*_PATH_NAMES, *_IMAGE_NAMES) if name in texts]
    nested = [name for name in _nested_names(schema) if _can_hold(schema, name)]
    choice = [*able, *nested, *paths]
    raise UsageError(
        f"several columns may contain the pictures: {', '.join(able[:_MAX_COLUMNS_NAMED])}"
        if able
        else "the file has no column that is known to contain pictures",
        where=where,
        why=_columns_are(schema),
        fix=f"Name the column of pictures, such as --image-column {choice[0]}"
        if choice
        else "Write the file again with a column of JPEG or PNG bytes, or of paths of picture "
        "files.",
    )


_MAX_COLUMNS_NAMED = 5
_SURE = (ImageKind.STRUCT, ImageKind.SPARK, ImageKind.PATH)


def _can_hold(schema: Schema, name: str) -> bool:
    kind = type_of(schema, name)
    return kind is not None and image_kind(kind) is not None


def _nested_names(schema: Schema) -> list[str]:
    """List the fields of structs as `column.field`, at any depth."""
    from pyarrow import types

    def below(name: str, kind: DataType) -> list[str]:
        if not types.is_struct(kind) or image_kind(kind) is not None:
            return [name]
        return [leaf for field in kind for leaf in below(f"{name}.{field.name}", field.type)]

    return [
        leaf
        for field in schema
        if types.is_struct(field.type) and image_kind(field.type) is None
        for leaf in below(field.name, field.type)
    ]


def _choose_label(
    schema: Schema,
    config: PrepareConfig,
    constants: Mapping[str, Any],
    features: dict[str, Any],
    where: str,
) -> str:
    present = [*schema.names, *constants]
    if config.label_column in present or type_of(schema, config.label_column) is not None:
        return config.label_column
    is_default = config.label_column == _DEFAULTS["label_column"]
    inner = _nested_names(schema)
    deep = [name for name in inner if _class_names(features, name)]
    deep += [name for name in inner if name.rpartition(".")[2] in ("label", *LABEL_NAMES)]
    deep += [name for name in inner if _is_label(type_of(schema, name))]
    coded = [name for name in features if name in present and _class_names(features, name)]
    able = [name for name in present if name in constants or _is_label(type_of(schema, name))]
    usual, likely = label_names(able)
    near = difflib.get_close_matches(config.label_column, able, n=1, cutoff=0.5)
    for found in (coded, usual, likely):
        if is_default and len(found) == 1:
            return found[0]
    some = coded or usual or likely
    what = f"the column of labels, {config.label_column!r}, is missing"
    if len(some) > 1:
        what = f"several columns may contain the classes: {', '.join(some[:_MAX_COLUMNS_NAMED])}"
    choice = some or deep or ([] if is_default else near) or other_names(able)
    raise UsageError(
        what,
        where=where,
        why=_columns_are(schema, constants),
        fix="Name the column that contains the class of each picture"
        f"{', such as' if not some else ':'} --label-column {shlex.quote(choice[0])}"
        if choice
        else "Write the file again with a column of strings or integers, the class of each "
        "picture.",
    )


def _check_label(schema: Schema, label: str, constants: Mapping[str, Any], where: str) -> None:
    if label in constants and label not in schema.names:
        return
    kind = type_of(schema, label)
    assert kind is not None
    if not _is_label(kind):
        names = [*(field.name for field in schema), *_nested_names(schema)]
        able = [name for name in names if _is_label(type_of(schema, name))]
        inside = [name for name in able if name.startswith(f"{label}.")]
        inside.sort(key=lambda name: name.rpartition(".")[2] not in ("label", *LABEL_NAMES))
        raise UsageError(
            f"the column of labels, {label!r}, has type {kind}; a label must be an integer or a "
            "string",
            where=where,
            why=_columns_are(schema, constants),
            fix="Name the column that contains the class of each picture, such as --label-column "
            f"{(inside or able)[0]}"
            if inside or able
            else "Write the file again with a column that contains the class of each picture.",
        )


def _optional(
    schema: Schema, constants: Mapping[str, Any], config: PrepareConfig, option: str, where: str
) -> str | None:
    """Return the text column that an option names; None if the default column is missing."""
    from pyarrow import types

    name: str = getattr(config, option)
    kind = type_of(schema, name)
    if kind is not None:
        if types.is_dictionary(kind):
            kind = kind.value_type
        if _is_text(kind):
            return name
    elif name in constants:
        return name
    if name == _DEFAULTS[option]:
        return None
    flag = f"--{option.replace('_', '-')}"
    what = f"there is no column {name!r}, which {flag} names"
    if kind is not None:
        what = f"column {name!r}, which {flag} names, has type {kind}; it must contain strings"
    raise UsageError(
        what,
        where=where,
        why=_columns_are(schema, constants),
        fix=f"Name a column of strings: {flag} NAME. Or leave out {flag}.",
    )


def _refuse_twins(schema: Schema, name: str, where: str) -> None:
    if schema.names.count(name) > 1:
        raise DataError(
            f"two columns are named {name!r}",
            where=where,
            why="It is therefore unknown which of both is meant.",
            fix="Write the file again with a different name for each column.",
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
            f"column {name!r} has the Arrow extension type {extension!r}, which cannot be read",
            where=where,
            fix="Write the file again with pictures as binary columns of JPEG or PNG bytes, and "
            "labels as integers or strings.",
        )


def _class_names(features: dict[str, Any], name: str) -> tuple[str, ...] | None:
    feature: Any = features.get(name)
    if feature is None:
        feature = features
        for part in name.split("."):
            feature = feature.get(part) if isinstance(feature, dict) else None
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return None
    names = feature.get("names")
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        return None
    return tuple(names)


def _is_binary(kind: DataType) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_label(kind: DataType) -> bool:
    from pyarrow import types

    plain = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_integer(plain)) or _is_text(plain)


def _is_text(kind: DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _columns_are(schema: Schema, constants: Mapping[str, Any] | None = None) -> str:
    shown = [f"{field.name} ({str(field.type)[:40]})" for field in schema]
    shown += [f"{name} ({str(type_of(schema, name))[:40]})" for name in _nested_names(schema)]
    shown += [f"{name} (from folder names)" for name in constants or {}]
    rest = len(shown) - _MAX_COLUMNS_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return f"The columns are {', '.join(shown[:_MAX_COLUMNS_NAMED])}{more}."
