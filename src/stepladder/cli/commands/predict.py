"""`stepladder predict`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional

from stepladder.api.runs import predict
from stepladder.cli.parse import RUN, Output, Unprefixed, parse, write
from stepladder.errors import UsageError
from stepladder.records import to_json

if TYPE_CHECKING:
    from stepladder.exporting import PicturePrediction


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Classify pictures by the best weights of a run.

    Examples:
      stepladder predict runs/first a.jpg b.png
      stepladder predict runs/first new_photos --json
    """

    run: Annotated[Positional[Path], RUN]
    """Folder that `stepladder train` wrote."""
    pictures: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="PICTURE...")]
    """Pictures, or folders of them."""
    task: str | None = None
    """For a run of your own Task: FILE.py:NAME; that file is run."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Print one line a picture: path, class, probability."""
    flags = parse(Flags, argv, command="predict")
    if not flags.pictures:
        raise UsageError("no picture is given", fix="Name pictures, or folders of them.")
    predictions = predict(flags.run, flags.pictures, task=flags.task)
    if flags.output.json:
        write("\n".join(json.dumps(to_json(item)) for item in predictions))
        return 0
    write("\n".join(_line(item) for item in predictions))
    return 0


def _line(item: PicturePrediction) -> str:
    if item.error is not None:
        return f"{item.path}\t-\t{item.error}"
    return f"{item.path}\t{item.label}\t{100 * item.probability:.1f} %"
