"""Links between the pages in a folder: each page names the others, with their results."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import quote

from markupsafe import Markup

from stepladder.records import write_bytes
from stepladder.reporting.charts.heatmap import short

REPORT_FILE: Final = "report.html"
LINKS: Final = Markup('<nav class="pages" aria-label="Pages of this folder"></nav>')  # no others
_MAX_FILES, _MAX_PAGE_BYTES, _MAX_RESULT = 100, 5_000_000, 60
_KINDS: Final = {  # by the command that writes the page, in the order of the links
    "report": "Training",
    "check": "Checks",
    "diagnose": "Diagnosis",
    "compare": "Comparison",
    "audit": "Audit",
    "watch": "Watched script",
    "climb": "Climb",
    "scaling": "Scaling",
    "population": "Population",
}
_CLIMB, _TRIALS = "Climb", "trials.jsonl"
_TITLE = re.compile(r"<title>[^<]* · stepladder ([a-z]+)</title>")
_RESULT = re.compile(r"<h1>(.*?)</h1>", re.DOTALL)
_NAV = re.compile(r'<nav class="pages"[^>]*>.*?</nav>', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class _Page:
    """A page of stepladder.

    Attributes:
        kind: key of _KINDS.
        result: its headline, as text.
    """

    file: Path
    kind: str
    result: str
    text: str


def save_page(path: Path, page: str) -> None:
    """Write a page, and update the links between all pages in its folder.

    Raises:
        OSError: if the page cannot be written. Other pages that cannot be updated are left as is.
    """
    write_bytes(path, page.encode("utf-8", "replace"))
    link_pages(path.parent)


def link_pages(folder: Path) -> None:
    """Write links into each page in a folder; other files are not changed."""
    pages = [page for file in _candidates(folder) if (page := _read(file)) is not None]
    pages.sort(key=lambda page: [*_KINDS].index(page.kind))
    for page in pages:
        place = _NAV.search(page.text)
        if place is None:
            continue
        text = f"{page.text[: place.start()]}{_links(page, pages)}{page.text[place.end() :]}"
        if text != page.text:
            with suppress(OSError):
                write_bytes(page.file, text.encode("utf-8"))


def _candidates(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(islice(folder.glob("*.html"), _MAX_FILES))
    return []


def _read(file: Path) -> _Page | None:
    """Return a page; None if it is not a page of stepladder."""
    try:
        if file.stat().st_size > _MAX_PAGE_BYTES:
            return None
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    title, result = _TITLE.search(text), _RESULT.search(text)
    if title is None or title[1] not in _KINDS or result is None:
        return None
    words = short(Markup(result[1]).striptags(), _MAX_RESULT)
    return _Page(file=file, kind=title[1], result=words, text=text)


def _links(current: _Page, pages: list[_Page]) -> Markup:
    """Return the links of a page; without other pages, none."""
    if len(pages) < 2:
        return LINKS
    counts = Counter(page.kind for page in pages)
    items = []
    for page in pages:
        is_climb = page.kind == "report" and (page.file.parent / _TRIALS).exists()
        name = _CLIMB if is_climb else _KINDS[page.kind]
        if counts[page.kind] > 1:
            name = f"{name} ({page.file.stem})"
        if page is current:
            items.append(Markup('<b aria-current="page">{}</b>').format(name))
        else:
            link = Markup('<a href="{}">{}</a> <em>{}</em>')
            items.append(link.format(quote(page.file.name), name, page.result))
    start, end = LINKS.split("></", 1)
    inside = Markup("").join(Markup("<span>{}</span>").format(item) for item in items)
    return Markup("{}>{}</{}").format(Markup(start), inside, Markup(end))
