"""The page of all options, written from their dataclasses: `python -m stepladder.config.reference`.

A test compares docs/config.md with it.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Iterable

from stepladder.config.schema import Option, field_docs, options
from stepladder.records import to_json

_HEAD = """# Options

Written from the code by `python -m stepladder.config.reference > docs/config.md`.

The same names stand in YAML (`batch:`, and `lr: 0.01` indented below it), on the command line
(`--batch.lr 0.01`) and in Python (`stepladder.train(**{"batch.lr": 0.01})`). Defaults < YAML <
flags; `stepladder train --show-config` prints each value and where it came from. An unknown name is
an error that names the nearest one. On the command line of `stepladder prepare` the options of
`prepare` stand without their group: `--size 96`.

A file is read strictly: `none` or an empty value where an option may be none; numbers in decimal
(`1e-3` is one); text that YAML would read as something else (`no`, `12`, `2024-01-01`) in quotes;
no anchors, tags or second documents. Paths are relative to the folder in which the command runs.
"""


def page() -> str:
    """Write the page as Markdown."""
    parts = [_HEAD]
    for group, members in itertools.groupby(options().values(), key=lambda option: option.group):
        listed = list(members)
        name = listed[0].key.rpartition(".")[0]
        title = f"`{name}`" if name else "Top level"
        summary = inspect.getdoc(group) if name else "Options of the run that have no group."
        parts.append(f"## {title}\n\n{summary}\n\n{_table(listed)}")
    return "\n".join(parts)


def _table(listed: Iterable[Option]) -> str:
    rows = ["| option | takes | default | meaning |", "|---|---|---|---|"]
    for option in listed:
        doc = field_docs(option.group)[option.path[-1]].replace("|", "\\|").replace("\n", " ")
        default = "none" if option.default is None else str(to_json(option.default))
        if isinstance(option.default, bool):
            default = default.lower()
        rows.append(f"| `{option.key}` | {option.wanted} | {default} | {doc} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
