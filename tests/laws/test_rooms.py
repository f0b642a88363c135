"""Rooms import one way, nothing private leaves its file, and files stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each imported dotted name of ours, and the statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for name in node.names:
                yield f"{node.module}.{name.name}", node


def type_checking_lines(tree: ast.AST) -> set[int]:
    """Give the lines that only a type checker reads: no import happens there."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def room(file: Path) -> str:
    return file.parts[0].removesuffix(".py")


def read(file: Path) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", [file for file in FILES if str(file) not in DOORS], ids=str)
def test_a_room_imports_only_rooms_above_it(file: Path) -> None:
    assert room(file) in ROOMS, f"{file} is in no room of docs/design.md"
    tree = read(file)
    for_types = type_checking_lines(tree)
    for name, node in imports(tree):
        parts = name.split(".")
        if parts[0] != "stepladder" or node.lineno in for_types:
            continue
        if len(parts) == 1 or parts[1] not in ROOMS:
            continue  # stepladder.__version__
        above = ROOMS.index(parts[1]) <= ROOMS.index(room(file))
        assert above, f"{file}:{node.lineno}: {room(file)} imports {name}"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_nothing_private_is_imported(file: Path) -> None:
    for name, node in imports(read(file)):
        if name.startswith("stepladder."):
            private = [
                part for part in name.split(".") if part.startswith("_") and part != "__version__"
            ]
            assert not private, f"{file}:{node.lineno}: {name}"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_torchvision_is_imported_nowhere(file: Path) -> None:
    for name, node in imports(read(file)):
        assert name.split(".")[0] != "torchvision", f"{file}:{node.lineno}"


def test_only_the_command_line_knows_tyro() -> None:
    users = {room(file) for file in FILES for name, _ in imports(read(file)) if "tyro" in name}
    assert users == {"cli"}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_file_stays_small(file: Path) -> None:
    assert len((ROOT / file).read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_rooms_are_those_of_the_design() -> None:
    text = (ROOT.parent.parent / "docs" / "design.md").read_text(encoding="utf-8")
    block = text.partition("## Rooms")[2].split("```")[1]
    named = [
        line.split()[0] for line in block.splitlines() if line.strip() and "(planned)" not in line
    ]
    assert tuple(named) == ROOMS
