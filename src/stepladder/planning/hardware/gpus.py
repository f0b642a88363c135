"""GPUs with their data-sheet rates, and prices from the user's own list."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from stepladder.config.choices import Precision
from stepladder.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, from its data sheet.

    Attributes:
        name: as reported by the driver, without the vendor.
        half_flops_per_s: dense matrix products in 16 bits, without sparsity.
        fp32_flops_per_s: in 32 bits, without tensor cores.
        bytes_per_s: memory bandwidth.
        price_per_hour: of a machine with `devices` of them, in the user's currency; None: not
            known.
        tf32_flops_per_s: dense, of 32-bit operations on tensor cores, used for convolutions; None:
            not supported, or not known.
        devices: number of these GPUs in the machine that has this price.
        memory_bytes: of one of them; None: not known.
    """

    name: str
    half_flops_per_s: float
    fp32_flops_per_s: float
    bytes_per_s: float
    price_per_hour: float | None = None
    tf32_flops_per_s: float | None = None
    devices: int = 1
    memory_bytes: float | None = None

    def flops_per_s(self, precision: Precision, *, has_conv: bool = False) -> float:
        """Return the peak in a precision, for a model with or without convolutions."""
        if precision is not Precision.FP32:
            return self.half_flops_per_s
        tf32 = self.tf32_flops_per_s if has_conv else None
        return self.fp32_flops_per_s if tf32 is None else tf32


def _gpu(  # noqa: PLR0917  (a row of the table below)
    name: str,
    half_tflops: float,
    tf32_tflops: float | None,
    fp32_tflops: float,
    gb_per_s: float,
    memory_gb: float,
) -> Gpu:
    return Gpu(
        name=name,
        half_flops_per_s=half_tflops * 1e12,
        fp32_flops_per_s=fp32_tflops * 1e12,
        bytes_per_s=gb_per_s * 1e9,
        tf32_flops_per_s=None if tf32_tflops is None else tf32_tflops * 1e12,
        memory_bytes=memory_gb * 1024**3,
    )


GPUS: tuple[Gpu, ...] = (
    _gpu("T4", 65, None, 8.1, 320, 16),  # NVIDIA T4 Tensor Core GPU, data sheet, 2019
    _gpu("V100", 125, None, 15.7, 900, 16),  # V100 SXM2, data sheet, 2020
    _gpu("A10", 125, 62.5, 31.2, 600, 24),  # A10, data sheet, 2021
    _gpu("L4", 121, 60, 30.3, 300, 24),  # L4, data sheet, 2023 (twice as much with sparsity)
    _gpu("L40S", 362, 183, 91.6, 864, 48),  # L40S, data sheet, 2023 (twice with sparsity)
    _gpu("A100", 312, 156, 19.5, 1555, 40),  # A100 40 GB SXM, data sheet, 2020
    _gpu("A100 80GB", 312, 156, 19.5, 2039, 80),  # A100 80 GB SXM, data sheet, 2021
    _gpu("H100 PCIe", 756, 378, 51, 2000, 80),  # H100, data sheet, 2023 (twice with sparsity)
    _gpu("H100", 989, 494, 67, 3350, 80),  # H100 SXM, data sheet, 2023 (twice with sparsity)
    _gpu("H200", 989, 494, 67, 4800, 141),  # H200 SXM, data sheet, 2024 (twice with sparsity)
)
"""GPUs in common use, without prices, which change with time and place."""

OLDER_GPUS: tuple[Gpu, ...] = (
    _gpu("K20", 3.52, None, 3.52, 208, 5),  # Tesla K20, data sheet, 2012
    _gpu("K80", 4.37, None, 4.37, 240, 12),  # half of a Tesla K80, with boost, data sheet, 2015
    _gpu("P100", 21.2, None, 10.6, 732, 16),  # Tesla P100 SXM2, data sheet, 2016
)
"""GPUs of published measurements, which nobody plans for any more."""


def gpu_named(gpus: Iterable[Gpu], device_name: str) -> Gpu | None:
    """Return the GPU of a device: the longest name whose words are all in that of the device."""
    here = set(device_name.upper().replace("-", " ").split())
    found = [gpu for gpu in gpus if set(gpu.name.upper().split()) <= here]
    return max(found, key=lambda gpu: len(gpu.name), default=None)


def price_per_hour(
    gpus: Iterable[Gpu], device_name: str, *, machines: int = 1, devices: int = 1
) -> float | None:
    """Return the price per hour of machines with several devices each; None: not known.

    That of the row with as many devices; without one, of the cheapest number of rows that has them.

    Args:
        devices: of each machine.
    """
    rows = list(gpus)
    own = gpu_named(rows, device_name)
    priced = [
        (row.devices, row.price_per_hour)
        for row in rows
        if own is not None and row.name == own.name and row.price_per_hour is not None
    ]
    exact = [price for num, price in priced if num == devices]
    enough = exact or [price * math.ceil(devices / num) for num, price in priced]
    return machines * min(enough) if enough else None


_OPTIONAL = ("tf32_flops_per_s", "devices", "memory_bytes")  # columns that a list may leave out


def read_gpus(path: Path, *, option: str = "--ladder.prices") -> tuple[Gpu, ...]:
    """Read a list of GPUs with prices from a CSV whose columns are the fields of Gpu.

    An empty price is unknown. The column tf32_flops_per_s is optional: by default, the value of the
    GPU of that name in the built-in list is used. So are memory_bytes, and devices, by default 1:
    several rows of one name are machines with different numbers of it.

    Args:
        option: that names the file.

    Raises:
        DataError: if the file or a column is missing, or a value is not a number above 0.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # as spreadsheets write it
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"the list of GPUs cannot be read ({error})",
            where=str(path),
            fix=f"Pass a CSV in UTF-8 to {option} (see docs/planner.md), or leave it out.",
        ) from None
    wanted = [field.name for field in fields(Gpu) if field.name not in _OPTIONAL]
    missing = [name for name in wanted if not rows or name not in rows[0]]
    if missing:
        raise DataError(
            "the list of GPUs has no rows"
            if not rows
            else f"the list of GPUs lacks the column{'s' if len(missing) > 1 else ''} "
            f"{', '.join(missing)}",
            where=str(path),
            fix=f"The first line has to be {','.join(wanted)}, followed by one GPU per line.",
        )
    return tuple(_from_row(row, f"{path}:{line}") for line, row in enumerate(rows, start=2))


def _from_row(row: dict[str, str | None], where: str) -> Gpu:
    def number(name: str) -> float:
        text = (row[name] or "").strip()
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (value > 0 and math.isfinite(value)):
            fix = "Write a number such as 6.5e13; leave an unknown price empty."
            raise DataError(f"{name}: {text!r} is not a number above 0", where=where, fix=fix)
        return value

    def number_if_given(name: str) -> float | None:
        return number(name) if (row.get(name) or "").strip() else None

    def count(name: str) -> int:
        value = number_if_given(name) or 1.0
        if not value.is_integer():
            fix = "Write how many devices the machine of this price has, such as 4."
            raise DataError(f"{name}: {value:g} is not a whole number", where=where, fix=fix)
        return int(value)

    name = (row["name"] or "").strip()
    known = next((gpu for gpu in GPUS if gpu.name == name), None)
    return Gpu(
        name=name,
        half_flops_per_s=number("half_flops_per_s"),
        fp32_flops_per_s=number("fp32_flops_per_s"),
        bytes_per_s=number("bytes_per_s"),
        price_per_hour=number_if_given("price_per_hour"),
        tf32_flops_per_s=number_if_given("tf32_flops_per_s")
        or (None if known is None else known.tf32_flops_per_s),
        devices=count("devices"),
        memory_bytes=number_if_given("memory_bytes")
        or (None if known is None else known.memory_bytes),
    )
