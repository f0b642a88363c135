"""`stepladder publish`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from stepladder.api.runs import publish
from stepladder.cli.parse import Output, Unprefixed, parse
from stepladder.config.choices import PublishFormat


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Make a store readable as a table of another kind too; its files stay as they are.

    Examples:
      stepladder publish store --as delta      for Spark, Trino, DuckDB and other readers of Delta
    """

    store: Positional[Path]
    """Folder that `stepladder prepare` wrote."""
    to: Annotated[PublishFormat, tyro.conf.arg(name="as")] = PublishFormat.DELTA
    """Kind of the table."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Publish a store and say what it is now."""
    flags = parse(Flags, argv, command="publish")
    table = publish(flags.store, flags.to)
    done = "published" if table.is_new else "published already"
    rows = f"{table.num_rows:,} rows in {table.num_files:,} files"
    text = f"{table.folder}: {done} as a Delta table, version {table.version}; {rows}"
    flags.output.print_done({"event": "published", **vars(table)}, text)
    return 0
