"""`stepladder publish`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from stepladder import api
from stepladder.cli.parse import Output, Unprefixed, parse, write
from stepladder.config.choices import PublishFormat
from stepladder.records import to_json

_EXAMPLES = """
  stepladder publish store --as delta      for Spark, Trino, DuckDB and other readers of Delta
"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Make a store readable as a table of another kind too; its files stay as they are."""

    store: Positional[Path]
    """Folder that `stepladder prepare` wrote."""
    to: Annotated[PublishFormat, tyro.conf.arg(name="as")] = PublishFormat.DELTA
    """Kind of the table."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Publish a store and say what it is now."""
    flags = parse(Flags, argv, command="publish", examples=_EXAMPLES)
    table = api.publish(flags.store, flags.to)
    if flags.output.json:
        write(json.dumps({"event": "published", **to_json(dataclasses.asdict(table))}))
    elif not flags.output.quiet:
        done = "published" if table.is_new else "published already"
        rows = f"{table.num_rows:,} rows in {table.num_files:,} files"
        write(f"{table.folder}: {done} as a Delta table, version {table.version}; {rows}")
    return 0
