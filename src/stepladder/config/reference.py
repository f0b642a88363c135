"""Generate docs/config.md from the dataclasses: `python -m stepladder.config.reference`.

A test checks that docs/config.md is up to date.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Iterable

from stepladder.config.schema import Option, field_docs, options
from stepladder.records import to_json

_HEAD = """# Options

Generated from the code by `python -m stepladder.config.reference > docs/config.md`.

Use the same names in YAML (`batch:`, and `lr: 0.01` indented below it), on the command line
(`--batch.lr 0.01`) and in Python (`stepladder.train(**{"batch.lr": 0.01})`). Flags override the
YAML file, which overrides the defaults; `stepladder train --show-config` prints each value and
where it was set. An unknown name is an error that suggests the closest option. On the command line
of `stepladder prepare`, leave out the group of its options: `--size 96`.

YAML files are parsed strictly. Write `none` or leave the value empty if an option may be none;
write numbers in decimal (`1e-3` is valid); quote text that YAML would read as something else
(`no`, `12`, `2024-01-01`). Anchors, tags and multiple documents are not allowed. Paths are relative
to the current folder.
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for group, members in itertools.groupby(options().values(), key=lambda option: option.group):
        listed = list(members)
        name = listed[0].key.rpartition(".")[0]
        title = f"`{name}`" if name else "Top level"
        summary = inspect.getdoc(group) if name else "Options that have no group."
        parts.append(f"## {title}\n\n{summary}\n\n{_table(listed)}")
    return "\n".join(parts)


def _table(listed: Iterable[Option]) -> str:
    rows = ["| option | values | default | description |", "|---|---|---|---|"]
    for option in listed:
        doc = field_docs(option.group)[option.path[-1]].replace("|", "\\|").replace("\n", " ")
        default = "none" if option.default is None else str(to_json(option.default))
        if isinstance(option.default, bool):
            default = default.lower()
        rows.append(f"| `{option.key}` | {option.wanted} | {default} | {doc} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
