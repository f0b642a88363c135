"""Packages import in one direction and without cycles, and private names stay in their file."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import stepladder

ROOT = Path(stepladder.__file__).parent
ROOMS = (
    "errors",
    "records",
    "stats",
    "machine",
    "config",
    "data",
    "models",
    "task",
    "optim",
    "parallel",
    "training",
    "exporting",
    "measuring",
    "diagnosis",
    "checks",
    "planning",
    "populations",
    "rungs",
    "ladder",
    "watching",
    "scripts",
    "reporting",
    "api",
    "compat",
    "cli",
)
DOORS = ("__init__.py", "__main__.py")  # these name things in all packages
MAX_LINES = 600  # above this, check whether a file has two subjects
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


class LongFile(UserWarning):
    """A file that may have more than one subject: a warning, not an error."""


class Import(NamedTuple):
    name: str
    where: str
    level: int = 0
    is_for_types: bool = False


@cache
def imports(file: Path) -> tuple[Import, ...]:
    """Return each dotted name that a file imports."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for_types = type_checking_lines(tree)
    found: list[Import] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, level = [name.name for name in node.names], 0
        elif isinstance(node, ast.ImportFrom):
            names, level = [f"{node.module}.{name.name}" for name in node.names], node.level
        else:
            continue
        where, is_for_types = f"{file}:{node.lineno}", node.lineno in for_types
        found += [Import(name, where, level, is_for_types) for name in names]
    return tuple(found)


def type_checking_lines(tree: ast.AST) -> set[int]:
    """Return the lines that only a type checker reads, which import nothing."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def room(file: Path) -> str:
    return file.parts[0].removesuffix(".py")


def is_from_below(file: Path, found: Import) -> bool:
    parts = found.name.split(".")
    if parts[0] != "stepladder" or found.is_for_types:
        return False
    if len(parts) == 1 or parts[1] not in ROOMS:
        return False  # stepladder.__version__
    return ROOMS.index(parts[1]) > ROOMS.index(room(file))


def listed(wrong: list[str]) -> str:
    return "\n".join(wrong)  # all of them, as pytest shows only the first


def those_that(is_wrong: Callable[[Path, Import], bool], files: list[Path] = FILES) -> list[str]:
    """List the imports that match a predicate, each with its place."""
    return [
        f"{found.where}: {found.name}"
        for file in files
        for found in imports(file)
        if is_wrong(file, found)
    ]


def test_every_file_is_in_a_room_of_the_design() -> None:
    outside = [str(file) for file in FILES if room(file) not in ROOMS]
    assert sorted(outside) == sorted(DOORS)


def test_imports_are_absolute() -> None:
    wrong = those_that(lambda _, found: found.level > 0)
    assert not wrong, listed(wrong)


def test_a_room_imports_only_rooms_above_it() -> None:
    in_rooms = [file for file in FILES if str(file) not in DOORS]
    wrong = those_that(is_from_below, in_rooms)
    assert not wrong, listed(wrong)


def test_nothing_private_is_imported() -> None:
    def is_private(_: Path, found: Import) -> bool:
        parts = [part for part in found.name.split(".") if part != "__version__"]
        return parts[0] == "stepladder" and any(part.startswith("_") for part in parts)

    wrong = those_that(is_private)
    assert not wrong, listed(wrong)


def test_torchvision_is_imported_nowhere() -> None:
    wrong = those_that(lambda _, found: found.name.split(".")[0] == "torchvision")
    assert not wrong, listed(wrong)


def test_only_the_command_line_knows_tyro() -> None:
    users = {room(file) for file in FILES for found in imports(file) if "tyro" in found.name}
    assert users == {"cli"}


def module_name(file: Path) -> str:
    return ".".join(("stepladder", *file.with_suffix("").parts)).removesuffix(".__init__")


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of names that reach each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges.get(name, ()):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            position = stack.index(name)
            group = stack[position:]
            del stack[position:]
            if len(group) > 1:
                found.append(sorted(group))

    for name in edges:
        if name not in index:
            visit(name)
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports under TYPE_CHECKING are included."""
    modules = {module_name(file) for file in FILES}
    edges: dict[str, set[str]] = {name: set() for name in modules}
    for file in FILES:
        for found in imports(file):
            name = found.name if found.name in modules else found.name.rpartition(".")[0]
            if name in modules and str(file) not in DOORS:
                edges[module_name(file)].add(name)
    wrong = [" ↔ ".join(group) for group in circles(edges)]
    assert not wrong, listed(wrong)


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_long_file_is_named() -> None:
    lines = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in FILES}
    long = [f"{file}: {num} lines" for file, num in lines.items() if num > MAX_LINES]
    if long:
        warnings.warn(f"more than one subject? {listed(long)}", LongFile, stacklevel=1)


def test_rooms_are_those_of_the_design() -> None:
    text = (ROOT.parent.parent / "docs" / "design.md").read_text(encoding="utf-8")
    block = text.partition("## Packages")[2].split("```")[1]
    named = [
        line.split()[0]
        for line in block.splitlines()
        if line.strip() and line[0] != " " and "(planned)" not in line
    ]
    assert tuple(named) == ROOMS
