"""Hook of mkdocs: links to files outside of docs/ become their names, as the site has no copy."""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)]*)\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace each link to a file of the repository by the file's path."""
    return _OUTSIDE.sub(
        lambda found: (
            f"`{found[2]}`" if found[1].strip("`") in found[2] else f"{found[1]} (`{found[2]}`)"
        ),
        markdown,
    )
