"""A YAML file as nodes that know their line, with everything left out that can surprise or harm.

No anchors, aliases or merges (an alias bomb needs them), no tags (they name Python code), one
document, UTF-8, keys that are names and stand once.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import yaml

from stepladder.errors import UsageError

MAX_BYTES = 1_000_000
_MAX_DEPTH = 20


def read_yaml(path: Path) -> yaml.MappingNode | None:
    """Read the mapping at the top of a file; None if the file says nothing.

    Raises:
        UsageError: if the file is missing, too large, not YAML or more than we take; has file:line.
    """
    text = _read_text(path)
    try:
        loader = _StrictLoader(text)
        loader.file = path
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        _refuse_syntax(path, error)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(
            f"the character U+{ord(text[error.position]):04X} cannot stand in YAML",
            where=f"{path}:{line}",
            fix="Take it out, or write it as an escape in double quotes.",
        ) from None
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
        return None
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(
            f"the file is {_kind(node)}, not names with values",
            where=place(path, node),
            fix="Write lines such as `seed: 1`.",
        )
    return node


def entries(path: Path, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """Yield (name with underscores, key node, value node) of a mapping.

    Raises:
        UsageError: if a key is not a name, or stands twice.
    """
    seen: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            shown = key.value if isinstance(key, yaml.ScalarNode) else _kind(key)
            raise UsageError(
                f"{shown} is not a name",
                where=place(path, key),
                fix="A key is the name of an option or of a group, such as `batch`.",
            )
        name = key.value.replace("-", "_")
        if name in seen:
            raise UsageError(
                f"{name} stands here a second time",
                where=place(path, key),
                why=f"The first is in line {_line(seen[name])}; only one of them can hold.",
                fix="Remove one of the two.",
            )
        seen[name] = key
        yield name, key, value


def place(path: Path, node: yaml.Node) -> str:
    """Name the file and the line of a node."""
    return f"{path}:{_line(node)}"


class _StrictLoader(yaml.SafeLoader):
    """Composes nodes, but refuses anchors, aliases, tags and deep nesting."""

    file: Path
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        where = f"{self.file}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UsageError(
                "anchors (&) and aliases (*) are not taken", where=where, fix="Write the value out."
            )
        if getattr(event, "tag", None):
            raise UsageError(
                f"the tag {event.tag} is not taken",
                where=where,
                why="A config says values and never runs code.",
                fix="Write the plain value.",
            )
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise UsageError(
                f"nested deeper than {_MAX_DEPTH} levels",
                where=where,
                fix="Options are in groups of one level: batch, then below it lr: 0.01.",
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise UsageError(
            "this is a folder, not a YAML file",
            where=str(path),
            fix="Name a file, or a folder's pictures: stepladder prepare FOLDER",
        )
    if not path.is_file():
        raise UsageError("there is no such file", where=str(path), fix=nearest_file(path))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"cannot be read ({error.strerror})",
            where=str(path),
            fix=f"Look at its permissions: ls -l {shlex.quote(str(path))}",
        ) from None
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"larger than {MAX_BYTES:,} bytes, too large for a config",
            where=str(path),
            fix="Name a file of options; stepladder train --show-config prints all there are.",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            "not UTF-8 text", where=f"{path}:{line}", fix="Save the file as UTF-8."
        ) from None


def _refuse_syntax(path: Path, error: yaml.MarkedYAMLError) -> NoReturn:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    problem = error.problem or "not valid YAML"
    if r"'\t'" in problem:
        raise UsageError(
            "there is a tab, where YAML takes spaces only",
            where=where,
            fix="Indent by two spaces.",
        ) from None
    if "single document" in (error.context or ""):
        raise UsageError(
            "a second document begins here", where=where, fix="Keep one and remove the line `---`."
        ) from None
    raise UsageError(
        f"not valid YAML: {problem}", where=where, fix="Look at this line and the one before."
    ) from None


def nearest_file(
    path: Path,
    otherwise: str = "Name a file that is there, or have one written: stepladder init NAME",
) -> str:
    """Ask for the file beside a missing one that is named most like it.

    Args:
        path: the missing one.
        otherwise: what to say where none is named like it.
    """
    try:
        names = [item.name for item in path.parent.iterdir() if item.is_file()]
    except OSError:
        return f"There is no folder {path.parent} either."
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"Did you mean {path.with_name(close[0])}?" if close else otherwise


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "a group" if isinstance(node, yaml.MappingNode) else "a single value"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
