"""Published throughput on several devices, as a table beside this file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from stepladder.errors import DataError

RATES: Final = ("img/s", "tok/s")
MAX_EFFICIENCY: Final = 1.05
"""Above this, a speed-up is not one of the hardware: memory, batch or baseline have changed."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A published measurement.

    Attributes:
        id: of the row; source: where it was published.
        is_verified: read in the source; otherwise from memory, shown and not counted.
        model: in words; num_bytes: of the gradients that are exchanged.
        gpu, gpus_per_host, gpus: devices.
        batch: examples of a device in a step; precision: of the arithmetic.
        method: how gradients are added up; network: over what.
        value, unit: as published; resolution: of the last digit.
        base_gpus, speedup: over so many devices.
    """

    id: str
    source: str
    is_verified: bool
    model: str
    num_bytes: float
    gpu: str
    gpus_per_host: int
    gpus: int
    batch: float
    precision: str
    method: str
    network: str
    value: float
    resolution: float
    unit: str
    base_gpus: int
    speedup: float

    @property
    def efficiency(self) -> float:
        """Speed-up for each device, over the smaller number of devices."""
        return self.speedup * self.base_gpus / self.gpus

    @property
    def is_superlinear(self) -> bool:
        """True if more is gained than devices were added."""
        return self.efficiency > MAX_EFFICIENCY


@cache
def published() -> dict[str, Point]:
    """Return all rows by id."""
    text = files("stepladder.planning.published").joinpath("points.csv").read_text(encoding="utf-8")
    return {row["id"]: _point(row) for row in csv.DictReader(text.splitlines())}


def points_of(path: Path) -> dict[str, Point]:
    """Return the rows of a file with the columns of the table of this package.

    Raises:
        DataError: if it cannot be read, or a row is not whole.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        found = {row["id"]: _point(row) for row in rows}
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"the published points cannot be read ({type(error).__name__}: {error})",
            where=str(path),
            fix="Use the columns of src/stepladder/planning/published/points.csv, a row a point.",
        ) from None
    for line, point in enumerate(found.values(), start=2):
        if not min(point.gpus, point.gpus_per_host, point.batch, point.value) > 0:
            raise DataError(
                f"{point.id} has no devices, no batch or no throughput",
                where=f"{path}:{line}",
                fix="Write numbers above 0.",
            )
        if point.unit not in RATES:
            raise DataError(
                f"the unit {point.unit!r} of {point.id} does not say how long a step takes",
                where=f"{path}:{line}",
                fix=f"Write a rate in {' or '.join(RATES)}.",
            )
    return found


def _point(row: dict[str, str]) -> Point:
    return Point(
        id=row["id"],
        source=row["source"],
        is_verified=row["verified"] == "yes",
        model=row["model"],
        num_bytes=float(row["params_bytes"].partition("(")[0]),
        gpu=row["gpu"],
        gpus_per_host=int(row["gpus_per_node"]),
        gpus=int(row["gpus"]),
        batch=float(row["batch_per_gpu"]),
        precision=row["precision"],
        method=row["algorithm"],
        network=row["interconnect"],
        value=float(row["throughput"]),
        resolution=10.0 ** -len(row["throughput"].partition(".")[2]),
        unit=row["unit"],
        base_gpus=int(row["rel_to_gpus"]),
        speedup=float(row["speedup"]),
    )
