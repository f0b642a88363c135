"""Read a Jupyter notebook as a script: each code cell is a file of its own, with its own lines."""

from __future__ import annotations

import ast
import io
import json
import linecache
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepladder.errors import UsageError

SUFFIX: Final = ".ipynb"
_CELL: Final = re.compile(r"(?P<notebook>.+\.ipynb) cell (?P<number>\d+)")
_COMMAND: Final = re.compile(
    r"(?P<indent>[ \t]*)(?P<command>%%?[A-Za-z].*|!!? *\S.*|\?\S+|\S+\?\??)"
)
_MARK: Final = "# IPython: "
_MARKED: Final = re.compile(rf"(pass  )?{_MARK}")
_OF_TIMING: Final = ("time", "timeit", "capture", "prun", "memit")
"""Commands for a whole cell, after which its lines are Python."""
_HARMLESS: Final = re.compile(
    r"[%!]+ *(matplotlib|load_ext|reload_ext|autoreload|config|pip3?|conda|mamba|uv|apt(-get)?|"
    r"nvidia-smi|time|timeit|capture|prun|memit|who|pwd|ls|tensorboard|pylab)\b|\?|\S+\?"
)
_INDENTS: Final = (1, 2, 4, None)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A code cell.

    Attributes:
        number: among the code cells, from 1.
        file: the name under which its lines are shown, as in `train.ipynb cell 3`; absolute.
        text: its source as Python, with as many lines.
        left_out: lines that Python cannot run, and that may matter.
    """

    number: int
    file: str
    text: str
    left_out: tuple[str, ...] = ()


def is_notebook(file: str | Path) -> bool:
    """Return True if the name is that of a notebook."""
    return Path(file).suffix == SUFFIX


def cells_of(file: Path) -> list[Cell]:
    """Return the code cells of a notebook.

    Raises:
        UsageError: if it is not a notebook for Python, or has no code.
    """
    whole = str(file.resolve())
    found = []
    for number, source in enumerate(_sources(_document(file), file), start=1):
        lines, left_out = _as_python(source)
        found.append(
            Cell(
                number=number,
                file=f"{whole} cell {number}",
                text="\n".join(lines),
                left_out=left_out,
            )
        )
    if not any(cell.text.strip() for cell in found):
        raise UsageError(
            "the notebook has no code", where=str(file), fix="Pass the notebook that trains."
        )
    return found


def run_cells(file: Path, names: dict[str, Any], say: Callable[[str], object]) -> None:
    """Run the code cells in turn.

    Args:
        file: the notebook.
        names: of the module in which they run.
        say: is called with a sentence for each line that is left out.
    """
    names["display"] = _display
    for cell in cells_of(file):
        lines = cell.text.splitlines(keepends=True)
        linecache.cache[cell.file] = (len(cell.text), None, lines, cell.file)
        for line in cell.left_out:
            say(f"stepladder: {Path(cell.file).name} leaves out: {line.strip()}")
        exec(compile(cell.text, cell.file, "exec", dont_inherit=True), names)


def notebook_of(file: Path) -> tuple[Path, int] | None:
    """Return notebook and number of a cell, from the name of the cell; None: it is a file."""
    found = _CELL.fullmatch(str(file))
    return (Path(found["notebook"]), int(found["number"])) if found else None


def cell_with_imports(file: Path) -> Path:
    """Return the name of the first cell that imports something, or of the first one."""
    cells = cells_of(file)
    importing = (c for c in cells if re.search(r"^(import|from)\s", c.text, re.MULTILINE))
    return Path(next(importing, cells[0]).file)


def source_of(file: Path) -> str:
    """Return the Python text of a file, or of a cell by its name."""
    found = notebook_of(file)
    if found is None:
        with io.open_code(str(file)) as opened:
            return opened.read().decode("utf-8")
    notebook, number = found
    return cells_of(notebook)[number - 1].text


def whole_files(texts: Mapping[Path, str]) -> dict[Path, str]:
    """Return changed files, with the cells among them put into their notebooks."""
    found: dict[Path, str] = {}
    cells: dict[Path, dict[int, str]] = {}
    for file, text in texts.items():
        cell = notebook_of(file)
        if cell is None:
            found[file] = text
        else:
            cells.setdefault(cell[0], {})[cell[1]] = text
    for notebook, changed in cells.items():
        found[notebook] = _with_cells(notebook, changed)
    return found


def _with_cells(notebook: Path, texts: Mapping[int, str]) -> str:
    before = notebook.read_text(encoding="utf-8")
    document = json.loads(before)
    dump = _dump_like(before, document)
    code = [cell for cell in document["cells"] if cell.get("cell_type") == "code"]
    for number, text in texts.items():
        source = _MARKED.sub("", text)
        is_list = isinstance(code[number - 1]["source"], list)
        code[number - 1]["source"] = source.splitlines(keepends=True) if is_list else source
    return dump(document)


def _dump_like(text: str, document: Any) -> Callable[[Any], str]:
    """Return a function that writes a document like a text, with its indents."""
    end = text[len(text.rstrip()) :]

    def dump(value: Any, indent: int | None = _INDENTS[0], *, is_ascii: bool = False) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=is_ascii) + end

    for indent in _INDENTS:
        for is_ascii in (False, True):
            if dump(document, indent, is_ascii=is_ascii) == text:
                return lambda value: dump(value, indent, is_ascii=is_ascii)
    return dump


def _document(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    cells = found.get("cells") if isinstance(found, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise UsageError(
            "this is not a notebook that can be read (format 4 of Jupyter)",
            where=str(file),
            fix=f"Convert it: jupyter nbconvert --to notebook --nbformat 4 {file}, or pass a "
            "script.",
        )
    document: dict[str, Any] = found
    spec = (document.get("metadata") or {}).get("kernelspec") or {}
    language = spec.get("language") or "python"
    if language.lower() != "python":
        raise UsageError(
            f"the notebook is written in {language}, not in Python",
            where=str(file),
            fix="Pass a notebook, or a script, in Python.",
        )
    return document


def _sources(document: dict[str, Any], file: Path) -> Iterator[str]:
    for cell in document["cells"]:
        if cell.get("cell_type") == "code":
            source = cell.get("source", "")
            if not isinstance(source, (str, list)):
                raise UsageError(
                    "a cell of the notebook has no text",
                    where=str(file),
                    fix="Save it again with Jupyter.",
                )
            yield source if isinstance(source, str) else "".join(source)


def _as_python(source: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the lines of a cell with commands of IPython as comments, and those that may matter.

    A cell that is Python without that stays as it is.
    """
    lines = source.split("\n")
    if _is_python(source):
        return lines, ()
    head = next((idx for idx, line in enumerate(lines) if line.strip()), None)
    if head is not None and lines[head].startswith("%%"):
        word = re.match(r"%%(\w*)", lines[head])
        if word is None or word[1] not in _OF_TIMING:
            return [f"{_MARK}{line}" for line in lines], (lines[head],)
    kept, left_out = [], []
    for line in lines:
        found = _COMMAND.fullmatch(line)
        if found is None:
            kept.append(line)
            continue
        indent = found["indent"]
        kept.append(f"{indent}{'pass  ' if indent else ''}{_MARK}{found['command']}")
        if not _HARMLESS.match(found["command"]):
            left_out.append(line)
    return kept, tuple(left_out)


def _is_python(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def _display(*values: Any, **_: Any) -> None:
    """Print what a notebook would show."""
    print(*values)
