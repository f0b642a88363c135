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
    """Publish a store as a Delta table; its files are not copied or changed.

    Examples:
      stepladder publish store --as delta      for Spark, Trino, DuckDB and other Delta readers
    """

    store: Positional[Path]
    """Store folder, written by `stepladder prepare`."""
    to: Annotated[PublishFormat, tyro.conf.arg(name="as")] = PublishFormat.DELTA
    """Format of the table."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="publish")
    table = publish(flags.store, flags.to)
    done = "published" if table.is_new else "already published"
    rows = f"{table.num_rows:,} rows in {table.num_files:,} files"
    text = f"{table.folder}: {done} as a Delta table, version {table.version}; {rows}"
    flags.output.print_done({"event": "published", **vars(table)}, text)
    return 0
