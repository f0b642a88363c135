"""Parse a YAML file to nodes with line numbers, without the features that are risky.

Not allowed: anchors, aliases and merges (an alias bomb needs them), tags (they name Python code),
several documents, encodings other than UTF-8, and keys that are not names or are repeated.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import yaml

from stepladder.errors import UsageError
from stepladder.records.near_paths import did_you_mean_path, near_path

MAX_BYTES = 1_000_000
_MAX_DEPTH = 20


def read_yaml(path: Path) -> yaml.MappingNode | None:
    """Return the mapping at the top of a file; None if the file is empty.

    Raises:
        UsageError: if the file is missing, too large or not allowed YAML; names file:line.
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
            f"the character U+{ord(text[error.position]):04X} is not allowed in YAML",
            where=f"{path}:{line}",
            fix="Remove it, or write it as an escape sequence in double quotes.",
        ) from None
    if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
        return None
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(
            f"the file of options contains {_kind(node)} instead of options with their values",
            where=place(path, node),
            fix="Write one option per line, such as `seed: 1`.",
        )
    return node


def entries(path: Path, node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """Yield (name with underscores, key node, value node) of a mapping.

    Raises:
        UsageError: if a key is not a name, or is repeated.
    """
    seen: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            shown = f"{key.value} is" if isinstance(key, yaml.ScalarNode) else f"is {_kind(key)},"
            is_bool = key.tag.endswith(":bool")
            raise UsageError(
                f"the key {shown} not a string",
                where=place(path, key),
                fix="Use the name of an option or group as the key, for example batch."
                + (
                    " (YAML reads unquoted on, off, yes and no as true or false.)"
                    if is_bool
                    else ""
                ),
            )
        name = key.value.replace("-", "_")
        if name in seen:
            raise UsageError(
                f"the option {name} is set twice in this file",
                where=place(path, key),
                why=f"It is already set in line {_line(seen[name])}.",
                fix="Remove one of the two lines.",
            )
        seen[name] = key
        yield name, key, value


def place(path: Path, node: yaml.Node) -> str:
    """Return the file and line of a node."""
    return f"{path}:{_line(node)}"


class _StrictLoader(yaml.SafeLoader):
    """Composes nodes; rejects anchors, aliases, tags and deep nesting."""

    file: Path
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        where = f"{self.file}:{event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UsageError(
                "anchors (&) and aliases (*) are not supported",
                where=where,
                fix="Write the value itself in each place where it is used.",
            )
        if getattr(event, "tag", None):
            raise UsageError(
                f"the tag {event.tag} is not supported",
                where=where,
                why="A config contains only values and never runs code.",
                fix="Remove the tag, and write only the value.",
            )
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise UsageError(
                f"this value is nested more than {_MAX_DEPTH} levels deep",
                where=where,
                fix="Options can be grouped only one level deep: the name of the group on one "
                "line, and its options indented on the lines below, such as `batch:` and below it "
                "`  lr: 0.01`",
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise UsageError(
            "this is a folder, but a YAML file of options is needed",
            where=str(path),
            fix="Pass a YAML file. To make a store from a folder of pictures: stepladder prepare "
            "FOLDER",
        )
    if not path.is_file():
        raise UsageError(
            "the file of options does not exist", where=str(path), fix=nearest_file(path)
        )
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"the file cannot be read ({error.strerror})",
            where=str(path),
            fix=f"Check its permissions: ls -l {shlex.quote(str(path))}",
        ) from None
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"the file is larger than {MAX_BYTES:,} bytes, which is too large for a config",
            where=str(path),
            fix="Pass a YAML file of options; stepladder train --show-config prints all options.",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            "the file is not UTF-8 text", where=f"{path}:{line}", fix="Save the file as UTF-8."
        ) from None


def _refuse_syntax(path: Path, error: yaml.MarkedYAMLError) -> NoReturn:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    problem = error.problem or "not valid YAML"
    if r"'\t'" in problem:
        raise UsageError(
            "YAML must be indented with spaces, not with tabs",
            where=where,
            fix="Indent with two spaces.",
        ) from None
    if "single document" in (error.context or ""):
        raise UsageError(
            "a second YAML document begins here, but a file of options has only one",
            where=where,
            fix="Remove this line, which is `---`, and options that are not needed.",
        ) from None
    raise UsageError(
        f"not valid YAML: {problem}", where=where, fix="Check this line and the one before it."
    ) from None


def nearest_file(
    path: Path,
    otherwise: str = "Name an existing file, or create a project with one: stepladder init NAME",
) -> str:
    """Return a hint for a missing file: the file whose path is most similar.

    Args:
        path: the missing file.
        otherwise: the hint if no file has a similar name.
    """
    if not path.parent.is_dir() and near_path(path, fits=Path.is_file) is None:
        return f"The folder {path.parent} does not exist either."
    return did_you_mean_path(path, otherwise, fits=Path.is_file)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "a group" if isinstance(node, yaml.MappingNode) else "a single value"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
