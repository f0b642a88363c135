"""`stepladder init`."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from stepladder import __version__
from stepladder.cli.parse import Output, Unprefixed, parse
from stepladder.errors import ResourceError, UsageError

_NAME = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII)
# The template's files end in .txt, so that no tool takes them for ours: a linter, a packager, git.
_RENAMED = {"gitignore.txt": ".gitignore", "github": ".github"}


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Write a small project of your own: config, Task, tests, CI. Its tests pass as written.

    Examples:
      stepladder init shapes            writes the folder shapes, ready to train and to test
    """

    name: Annotated[Positional[Path], tyro.conf.arg(metavar="NAME")]
    """Folder to write; its last part is the project's name."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Write the project and say what to do with it."""
    flags = parse(Flags, argv, command="init")
    files = write_project(flags.name)
    text = "\n".join([f"{flags.name}:", *(f"  {file}" for file in files), _NEXT.format(flags)])
    flags.output.print_done({"folder": flags.name, "files": files}, text)
    return 0


_NEXT = """Next:
  cd {0.name}
  stepladder train config.yaml --task task.py:Shapes
  python -m pytest"""


def write_project(folder: Path) -> list[Path]:
    """Write the template's files into a new or empty folder; gives their paths inside it.

    Raises:
        UsageError: if the name cannot be a project's.
        ResourceError: if the folder holds something.
    """
    name = folder.absolute().name
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name} cannot be a project's name",
            fix="Use small letters, digits, - and _, beginning with a letter, as in `shapes`.",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ResourceError(
            "there is something here already, and nothing was written",
            where=str(folder),
            fix="Give the name of a new folder.",
        )
    written = []
    for place, text in sorted(_template_files(resources.files("stepladder.cli") / "template")):
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(
            text.replace("__NAME__", name).replace("__VERSION__", __version__), encoding="utf-8"
        )
        written.append(place)
    return written


def _template_files(folder: Traversable, inside: Path = Path()) -> Iterator[tuple[Path, str]]:
    for item in folder.iterdir():
        place = inside / _RENAMED.get(item.name, item.name.removesuffix(".txt"))
        if item.is_dir():
            yield from _template_files(item, place)
        else:
            yield place, item.read_text(encoding="utf-8")
