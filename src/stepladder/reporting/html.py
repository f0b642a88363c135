"""Shared code of all pages: load templates, format text as HTML, write the file."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from stepladder.errors import ResourceError
from stepladder.records import write_bytes
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.titles import titled
from stepladder.training.output.wording import percent

_CODE = re.compile(r"`([^`\n]+)`")


def coded(text: str) -> Markup:
    """Return a sentence as HTML, with text in backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


@cache
def template(name: str) -> Template:
    """Load a template, with autoescaping.

    Its filters are `short`, `coded`, `titled`, and `percent` (with a non-breaking space).
    """
    environment = Environment(
        loader=PackageLoader("stepladder.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = short
    environment.filters["coded"] = coded
    environment.filters["titled"] = titled
    environment.filters["percent"] = _percent
    return environment.get_template(name)


def write_page(path: Path, page: str, *, option: str) -> Path:
    """Write a page to a file named by the user, and return its path.

    Args:
        option: the flag that sets the file.

    Raises:
        ResourceError: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, page.encode("utf-8", "replace"))
    except OSError as error:
        raise ResourceError(
            f"the page cannot be written ({error.strerror or error})",
            where=str(path),
            fix=f"Choose another file: {option} FILE.html.",
        ) from error
    return path


def _percent(share: float, digits: int = 0) -> str:
    return percent(share, digits).replace(" ", "\u00a0")
