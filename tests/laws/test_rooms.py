"""Rooms import one way, nothing private leaves its file, and files stay small."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

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
    "train",
    "export",
    "measure",
    "diagnosis",
    "checks",
    "rungs",
    "ladder",
    "watch",
    "report",
    "api",
    "compat",
    "cli",
)
DOORS = ("__init__.py", "__main__.py")  # they name what lies in every room
MAX_LINES = 400
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


class Import(NamedTuple):
    name: str
    where: str
    level: int = 0
    is_for_types: bool = False


@cache
def imports(file: Path) -> tuple[Import, ...]:
    """Give each dotted name that a file imports."""
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
    """Give the lines that only a type checker reads: no import happens there."""
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
    return "\n".join(wrong)  # all of them, where pytest shows the first alone


def those_that(is_wrong: Callable[[Path, Import], bool], files: list[Path] = FILES) -> list[str]:
    """List the imports of which something holds, each with its place."""
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


def test_a_file_stays_small() -> None:
    lines = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in FILES}
    wrong = [f"{file}: {num} lines" for file, num in lines.items() if num > MAX_LINES]
    assert not wrong, listed(wrong)


def test_rooms_are_those_of_the_design() -> None:
    text = (ROOT.parent.parent / "docs" / "design.md").read_text(encoding="utf-8")
    block = text.partition("## Rooms")[2].split("```")[1]
    named = [
        line.split()[0] for line in block.splitlines() if line.strip() and "(planned)" not in line
    ]
    assert tuple(named) == ROOMS
