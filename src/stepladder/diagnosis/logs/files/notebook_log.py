"""Jupyter notebooks: what their code cells printed, and the tables of trainers shown in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from html import unescape
from typing import Any

_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL | re.IGNORECASE)
_ROW = re.compile(r"<tr\b[^>]*>(.*?)</tr>", re.DOTALL | re.IGNORECASE)
_CELL = re.compile(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<[^>]+>")
_PLACES = {"epoch", "step"}


def read_notebook(text: str) -> Mapping[str, Any] | None:
    """Return the content of a notebook; None if a text is not one."""
    if '"cells"' not in text:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return None
    is_notebook = isinstance(value, Mapping) and "nbformat" in value
    return value if is_notebook else None


def printed_text(notebook: Mapping[str, Any]) -> str:
    """Return what the code cells printed and returned, in the order of the notebook."""
    return "\n".join(
        _joined(output.get("text", data.get("text/plain", "")))
        for output, data in _outputs(notebook)
    )


def shown_tables(notebook: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of epochs or steps that trainers show as HTML, as CSV.

    The Trainer of Hugging Face and the Learner of fastai show one for each training.
    """
    for _, data in _outputs(notebook):
        for table in _TABLE.findall(_joined(data.get("text/html", ""))):
            rows = [
                [unescape(_TAG.sub("", cell)).strip() for cell in _CELL.findall(row)]
                for row in _ROW.findall(table)
            ]
            rows = [row for row in rows if row]
            if len(rows) > 1 and _PLACES & {name.lower() for name in rows[0]}:
                names = [name.lower().replace(" ", "_") for name in rows[0]]
                yield "\n".join(";".join(row) for row in [names, *rows[1:]])


def _outputs(notebook: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each output of the code cells, and its data by type."""
    sheets = [notebook, *notebook.get("worksheets", ())]  # until version 3 of the format
    for cell in (cell for sheet in sheets for cell in sheet.get("cells", ())):
        if cell.get("cell_type") == "code":
            for output in cell.get("outputs", ()):
                yield output, output.get("data", {})


def _joined(text: object) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text)
