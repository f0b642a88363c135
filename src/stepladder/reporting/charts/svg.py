"""Elements of inline SVG. The style sheet of the page sets colours and fonts by class."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape


def element(name: str, *inside: object, **attributes: object) -> Markup:
    """Return an element; `class_` sets its class, and underscores in names become hyphens."""
    pairs = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
    )
    if not inside:
        return Markup("<{}{}/>").format(name, pairs)
    content = Markup("").join(escape(part) for part in inside)
    return Markup("<{0}{1}>{2}</{0}>").format(name, pairs, content)


def chart(
    style: str, size: tuple[object, object], parts: Iterable[Markup], label: str, **data: str
) -> Markup:
    """Return an SVG of a width and height, with a label for screen readers, and data attributes."""
    at = {"viewBox": f"0 0 {size[0]} {size[1]}", "role": "img", "aria_label": label}
    return element("svg", Markup("").join(parts), class_=style, **at, **data)


def path(style: str, d: str) -> Markup:
    """Return a path with a CSS class."""
    return element("path", class_=style, d=d)


def circle(style: str, x: float, y: float, radius: float, tip: str) -> Markup:
    """Return a circle with a CSS class and a tooltip."""
    at = {"cx": coordinate(x), "cy": coordinate(y), "r": radius}
    return element("circle", element("title", tip), class_=style, **at)


def coordinate(value: float) -> str:
    """Format a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
