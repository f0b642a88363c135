"""The script of the pages: one, small, known to the page by its hash, and self-contained."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from stepladder.reporting.html import script, template

MAX_SCRIPT_BYTES = 12_000


def test_the_script_is_small_and_loads_nothing() -> None:
    text = script().text
    assert 0 < len(text.encode()) <= MAX_SCRIPT_BYTES
    for name in ("http", "fetch", "XMLHttpRequest", "import", "eval", "url("):
        assert not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text), name
    assert "</script" not in text
    assert "<!--" not in text


def test_its_hash_is_that_of_its_text() -> None:
    digest = base64.b64encode(hashlib.sha256(script().text.encode()).digest()).decode()
    assert script().source == f"sha256-{digest}"


def test_every_page_extends_the_one_with_the_policy() -> None:
    folder = files("stepladder.reporting") / "templates"
    pages = [
        item.name
        for item in folder.iterdir()
        if item.name.endswith(".html") and "<head>" in item.read_text(encoding="utf-8")
    ]
    assert pages == ["page.html"]
    assert "script-src '{{ script.source }}'" in (folder / "page.html").read_text(encoding="utf-8")
    assert template("page.html").render().count("<script>") == 1
