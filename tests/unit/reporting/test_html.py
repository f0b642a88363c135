"""Shared parts of all pages: code in sentences, and files that cannot be written."""

from __future__ import annotations

import pytest

from stepladder.reporting.html import coded, template


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("type `stepladder clean`.", "type <code>stepladder clean</code>."),
        ("`a` and `b`", "<code>a</code> and <code>b</code>"),
        ("`<b>` & co", "<code>&lt;b&gt;</code> &amp; co"),
        ("one ` alone", "one ` alone"),
        ("cut off at `stepl…", "cut off at `stepl…"),
        ("over `two\nlines`", "over `two\nlines`"),
        ("none``", "none``"),
    ],
)
def test_text_between_backticks_is_code_and_all_is_escaped(text: str, html: str) -> None:
    assert coded(text) == html


def test_a_template_escapes_what_it_is_given() -> None:
    class Item:
        title, keys, svg, note = "<i>", (("val", "<u>"),), None, "`x`"

    page = template("figure.html").module.figure(Item)  # type: ignore[attr-defined]
    assert "&lt;i&gt;" in page
    assert "&lt;u&gt;" in page
    assert "<i>" not in page
