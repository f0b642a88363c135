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
    """Classify pictures with the best weights of a run.

    Examples:
      stepladder predict runs/first a.jpg b.png
      stepladder predict runs/first new_photos --json
    """

    run: Annotated[Positional[Path], RUN]
    """Run folder, written by `stepladder train`."""
    pictures: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="PICTURE...")]
    """Pictures, or folders of pictures."""
    task: str | None = None
    """Your own Task, if the run used one: FILE.py:NAME; the file is executed."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command: print path, class and probability of each picture."""
    flags = parse(Flags, argv, command="predict")
    if not flags.pictures:
        raise UsageError(
            "no pictures were given",
            fix="Type stepladder predict RUN PATH [PATH ...], where PATH is a picture or a folder.",
        )
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
