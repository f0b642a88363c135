"""Shared code of all pages: load templates, format text as HTML, write the file."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from stepladder.errors import ResourceError
from stepladder.reporting.charts.heatmap import short
from stepladder.reporting.links import LINKS, save_page
from stepladder.reporting.titles import titled
from stepladder.training.output.wording import percent

_SCRIPT_FILE = "templates/charts.js"
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, kw_only=True)
class Script:
    """The script of the charts; a page runs no other.

    Attributes:
        source: its hash, as in a Content-Security-Policy.
    """

    text: Markup
    source: str


@cache
def script() -> Script:
    """Return the script of the charts."""
    text = files("stepladder.reporting").joinpath(_SCRIPT_FILE).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(text=Markup(text), source=f"sha256-{digest}")


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
    environment.globals |= {"script": script(), "links": LINKS}
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
        save_page(path, page)
    except OSError as error:
        raise ResourceError(
            f"the page cannot be written ({error.strerror or error})",
            where=str(path),
            fix=f"Choose another file: {option} FILE.html.",
        ) from error
    return path


def _percent(share: float, digits: int = 0) -> str:
    return percent(share, digits).replace(" ", "\u00a0")
