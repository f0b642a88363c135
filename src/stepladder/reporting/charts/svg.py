"""Elements of inline SVG. Colours and type come from the page's style sheet, by class."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape


def element(name: str, *inside: object, **attributes: object) -> Markup:
    """Write an element: `class_` is its class, and an underscore in a name a hyphen."""
    pairs = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
    )
    if not inside:
        return Markup("<{}{}/>").format(name, pairs)
    content = Markup("").join(escape(part) for part in inside)
    return Markup("<{0}{1}>{2}</{0}>").format(name, pairs, content)


def chart(style: str, size: tuple[object, object], parts: Iterable[Markup], label: str) -> Markup:
    """Put parts into a picture of a width and a height that a screen reader announces."""
    box = f"0 0 {size[0]} {size[1]}"
    text = Markup("").join(parts)
    return Markup('<svg class="{}" viewBox="{}" role="img" aria-label="{}">{}</svg>').format(
        style, box, label, text
    )


def path(style: str, d: str) -> Markup:
    """Write a path of a class."""
    return element("path", class_=style, d=d)


def circle(style: str, x: float, y: float, radius: float, tip: str) -> Markup:
    """Draw a circle of a class that shows a pointer some words."""
    at = {"cx": coordinate(x), "cy": coordinate(y), "r": radius}
    return element("circle", element("title", tip), class_=style, **at)


def coordinate(value: float) -> str:
    """Write a coordinate with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")
