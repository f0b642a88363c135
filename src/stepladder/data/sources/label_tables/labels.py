"""Find the labels of a table: their column, or one column of 0 and 1 per class."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Final

from stepladder.config.choices import Split
from stepladder.data.sources.label_tables.cells import TableCells
from stepladder.data.sources.labels.captions import CAPTION_NAMES
from stepladder.data.sources.splits.split_names import split_of_word

ONE_LABEL: Final = "A picture has one label here; training with several of them is not supported."
"""Why a table with several labels for a picture is refused."""
LABEL_NAMES: Final = (
    *("class", "class_name", "classname", "class_id", "category", "category_name", "target"),
    *("labels", "label_name", "classes", "breed", "species", "diagnosis", "disease", "dx"),
    *("finding", "type"),
)
"""Other usual names of the column of labels; the likeliest first."""
_NAMES: Final = ("label", *LABEL_NAMES)
_LABEL_WORDS: Final = frozenset(
    {"label", "labels", "class", "classes", "cls", "category", "categories", "target"}
    | {"breed", "species", "diagnosis", "disease", "dx", "finding"}
    | {"classe", "clase", "klasse", "kategorie", "categoria", "categoría", "étiquette", "etiqueta"}
    | {"类别", "类", "分类", "标签", "類別", "分類", "標籤", "ラベル", "クラス", "カテゴリ"}
    | {"라벨", "레이블", "분류", "클래스", "класс", "категория", "метка"}
)
_PIXEL_WORDS: Final = frozenset(
    {"width", "height", "depth", "channels", "size", "bytes", "pixels", "resolution", "roi"}
    | {"x", "y", "w", "h", "xmin", "xmax", "ymin", "ymax", "left", "right", "top", "bottom"}
    | {"bbox", "box", "lat", "latitude", "lon", "lng", "longitude"}
)
"""Words in the names of columns of sizes and coordinates, which are never labels."""
_OTHER_WORDS: Final = frozenset(
    {"id", "uuid", "index", "count", "num", "number", "date", "time", "timestamp", "year", "month"}
    | {"confidence", "score", "prob", "probability", "quality", "source", "author", "license"}
    | {"patient", "subject", "user", "session", "camera", "device", "site", "age", "sex", "gender"}
    | {"path", "file", "filename", "url", "hash", "md5", "split", "set", "fold"}
)
"""Words in the names of columns that describe a picture otherwise."""
_SPLIT_WORDS: Final = frozenset(
    {"split", "set", "dataset", "subset", "partition", "fold", "usage", "purpose", "phase", "part"}
)
"""Words in the names of columns of splits."""
_GROUP_WORDS: Final = frozenset(
    {"patient", "subject", "participant", "person", "animal", "individual", "specimen", "lesion"}
    | {"video", "clip", "sequence", "seq", "burst", "scene", "session", "series", "study", "track"}
)
"""Words in the names of columns of what has several pictures."""
_NUMBER_WORDS: Final = frozenset(
    {"id", "ids", "no", "num", "number", "name", "code", "key", "uid", "index"}
)
UNREAD_SPLITS: Final = frozenset(
    {"split", "subset", "partition", "fold", "kfold", "data_set", "is_valid", "is_val", "is_train"}
    | {"is_training", "is_training_image", "is_test", "train", "valid", "val", "test"}
)
"""Names of columns that mean splits, but may have other cells, such as numbers of folds."""
SPLIT_FLAGS: Final = {
    **dict.fromkeys(("is_valid", "is_val", "is_validation"), Split.VAL),
    "is_test": Split.TEST,
}
"""Names of columns of 0 and 1, or of false and true, with the split of the rows that have 1.

Other rows are train. A column `is_train` is not one of them: its 0 may be val or test.
"""
_INDEX_NAMES: Final = frozenset({"", "unnamed_0", "id", "index", "idx"})
_BITS: Final = {
    **dict.fromkeys(("0", "0.0", "false", "-1", "-1.0"), False),
    **dict.fromkeys(("1", "1.0", "true"), True),
}
_FINDINGS: Final = {
    **dict.fromkeys(("", "nan", "<na>"), None),
    **dict.fromkeys(("0", "0.0", "false"), 0),
    **dict.fromkeys(("1", "1.0", "true"), 1),
    **dict.fromkeys(("-1", "-1.0"), -1),
}
_MIN_CLASSES: Final = 2
_MANY_BITS: Final = 4
_MIN_DISTINCT: Final = 3  # rows that show that a column is different in each of them


def words_of(name: str) -> list[str]:
    """Return the words of a column's name in lower case: those of `ClassId` and `class-id`."""
    apart = re.sub(r"(?<=[^\W\dA-Z_])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return [word.lower() for word in re.split(r"[\W_]+", apart) if word]


def plain_name(name: str) -> str:
    """Return a column's name as Python would write it: `class_id` for `ClassId`."""
    return "_".join(words_of(name))


def label_candidates(table: TableCells, taken: Set[int]) -> list[int]:
    """Return the columns that may hold labels, the likeliest first.

    Names decide: one that is usual, then one with a word such as class or species. Otherwise, the
    cells do: a label repeats. Columns of sizes and coordinates are not labels.

    Args:
        table: the cells.
        taken: columns that mean something else.
    """
    names = [plain_name(name) for name in table.header]
    free = [
        at for at in range(len(names)) if at not in taken and table.header[at] not in table.nested
    ]
    has_names = table.header_row > 0 or table.unit != "row"
    if has_names:
        named = [at for at in free if names[at] in _NAMES]
        if len(named) == 1:
            return named
        named = [at for at in named if names[at] != "type"]
        if len(named) == 1:
            return named
        free = [
            at
            for at in free
            if names[at] not in _INDEX_NAMES and not _is_of_pixels(table.header[at])
        ]
    cells = {at: [row[at].strip() for _, row in table.body] for at in free}
    counts = {at: Counter(cells[at]) for at in free}
    num_rows = len(table.body)
    repeated = [
        at for at in free if num_rows < _MIN_DISTINCT or 2 * len(counts[at]) <= num_rows + 1
    ]
    varied = [at for at in repeated if len(counts[at]) > 1 or num_rows == 1]
    found = varied if len(free) > 1 or not repeated else repeated
    if has_names:
        usual = [at for at in named if at in found]
        found = usual or [at for at in found if _is_like_label(table.header[at])] or found
    found = sorted(found, key=lambda at: _rank(table.header[at], cells[at]))
    same = {tuple(_partition(cells[at])) for at in found}
    texts = [at for at in found if not all(map(is_number, counts[at]))]
    is_repeated = any(len(counts[at]) < num_rows for at in found)
    are_named = all(names[at] in _NAMES for at in found)
    is_same = len(same) == 1 and (is_repeated or are_named)
    if is_same and are_named:
        return (texts or found)[:1]
    return texts if is_same and len(texts) == 1 else found


def label_names(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the usual names of a column of labels, the likeliest first, and those like a label's.

    A column `type` is one only if there is no other.
    """
    usual = [name for name in names if plain_name(name) in _NAMES]
    if len(usual) > 1:
        usual = [name for name in usual if plain_name(name) != "type"]
    usual.sort(key=lambda name: _NAMES.index(plain_name(name)))
    return usual, [name for name in names if _is_like_label(name) and not _is_of_pixels(name)]


def other_names(names: Sequence[str]) -> list[str]:
    """Return the names that may be those of labels, without indices, sizes, captions, etc."""
    return [
        name
        for name in names
        if plain_name(name) not in _INDEX_NAMES | CAPTION_NAMES
        and not _is_of_pixels(name)
        and not _OTHER_WORDS & set(words_of(name))
    ]


def _is_of_pixels(name: str) -> bool:
    """Return whether a name is one of a size or a coordinate: `Roi.X1`, `img_width`."""
    words = [word.rstrip("0123456789") for word in words_of(name)]
    return any(word in _PIXEL_WORDS for word in words) and not _LABEL_WORDS & set(words)


def _is_like_label(name: str) -> bool:
    words = set(words_of(name))
    return bool(_LABEL_WORDS & words) and not (_OTHER_WORDS - {"id"}) & words


def _rank(name: str, cells: Sequence[str]) -> tuple[object, ...]:
    """Return a sort key: the likeliest column of labels is the least."""
    plain, distinct = plain_name(name), set(cells)
    is_text = not all(map(is_number, distinct))
    numbers = [] if is_text else [float(cell) for cell in cells]
    is_sorted = len(distinct) > _MIN_DISTINCT and numbers == sorted(numbers)
    return (
        _NAMES.index(plain) if plain in _NAMES else len(_NAMES),
        not _is_like_label(name),
        bool(_OTHER_WORDS & set(words_of(name))),
        any(not number.is_integer() for number in numbers),
        is_sorted,
        not is_text,
        len(distinct),
    )


def _partition(cells: Sequence[str]) -> Iterator[int]:
    """Yield a number for each cell; those of equal cells are equal."""
    first: dict[str, int] = {}
    for cell in cells:
        yield first.setdefault(cell.strip(), len(first))


def is_number(cell: str) -> bool:
    """Return True if a cell is a number."""
    return re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?", cell) is not None


def split_candidates_of(table: TableCells, taken: Set[int | None]) -> list[int]:
    """Return the columns whose cells are train and another split; of several, those named so."""
    found = []
    for at in range(len(table.header)):
        if at not in taken:
            splits = {word: split_of_word(word) for word in {cells[at] for _, cells in table.body}}
            if None not in splits.values() and {Split.TRAIN} < set(splits.values()):
                found.append(at)
    named = [at for at in found if is_named_as_splits(table.header[at])]
    return named or found


def is_named_as_splits(name: str) -> bool:
    """Return True if a column's name says that it may contain splits, such as `data_set`."""
    return not _SPLIT_WORDS.isdisjoint(words_of(name))


def is_named_as_group(name: str) -> bool:
    """Return True if a column's name is one of what has several pictures, such as `Patient ID`."""
    words = set(words_of(name))
    return bool(words & _GROUP_WORDS) and words <= _GROUP_WORDS | _NUMBER_WORDS


def split_flags_of(table: TableCells, taken: Set[int | None]) -> list[int]:
    """Return the columns such as is_valid with both 0 and 1, or false and true."""
    return [
        at
        for at, name in enumerate(table.header)
        if at not in taken
        and plain_name(name) in SPLIT_FLAGS
        and {_BITS.get(cells[at].strip().lower()) for _, cells in table.body} == {False, True}
    ]


def with_split_words(table: TableCells, at: int) -> TableCells:
    """Return the table with train and val, or test, in a column of split_flags_of."""
    true = SPLIT_FLAGS[plain_name(table.header[at])].value
    body = []
    for number, cells in table.body:
        word = true if _BITS[cells[at].strip().lower()] else Split.TRAIN.value
        body.append((number, [*cells[:at], word, *cells[at + 1 :]]))
    return replace(table, body=body)


def class_columns(table: TableCells, taken: Set[int]) -> list[int]:
    """Return the columns of 0 and 1 of a table with one such column for each class.

    Other columns than an index are allowed only if each row has exactly one 1, or there are many.
    """
    free = [at for at in range(len(table.header)) if at not in taken and table.header[at]]
    bits = [at for at in free if all(cells[at].strip().lower() in _BITS for _, cells in table.body)]
    if len(bits) < _MIN_CLASSES:
        return []
    others = [
        at for at in free if at not in bits and plain_name(table.header[at]) not in _INDEX_NAMES
    ]
    is_sure = all(len(classes_of(cells, bits)) == 1 for _, cells in table.body)
    return bits if is_sure or not others or len(bits) >= _MANY_BITS else []


def classes_of(cells: Sequence[str], columns: Sequence[int]) -> list[int]:
    """Return the columns of a row that are 1."""
    return [at for at in columns if _BITS[cells[at].strip().lower()]]


def is_finding(cell: str) -> bool:
    """Return True if a cell is 0, 1, -1 or empty."""
    return cell.strip().lower() in _FINDINGS


def finding_of(cell: str) -> int | None:
    """Return 0, 1 or -1; None if a cell is empty."""
    return _FINDINGS.get(cell.strip().lower())
