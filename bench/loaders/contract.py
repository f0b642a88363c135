"""The interface of a contender in bench/loaders, and the pictures that all of them read.

A contender is a module of this package. It runs in its own process, with its own Python if its
package conflicts with the others. It imports the package only inside its functions, so that its
lines can be listed where it is not installed. It has

    PACKAGE: the distribution whose version is recorded, or None.
    WRITER: the module that writes the format it reads.
    LINES: its lines in the tables.
    open_epochs(job, setting): returns a function that reads one epoch, as pairs of pictures (uint8,
        n h w c or n c h w) and their numbers.
    write(job, setting): writes the format; only for writers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 64
BUFFER = 512
"""Pictures in a shuffle buffer, for contenders that use one."""

Setting = Mapping[str, Any]
Batches = Iterable[tuple[Any, Any]]
Epoch = Callable[[], Batches]


class Kind(StrEnum):
    """What a store holds: pixels, photographs, or photographs of the target size."""

    PIXELS = "pixels"
    JPEG = "jpeg"
    PRESIZED = "presized"


class Shuffle(StrEnum):
    """How far a picture can move: anywhere, or within shards and a buffer."""

    GLOBAL = "global"
    SHARDS = "shards and buffer"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a table.

    Attributes:
        name: as printed.
        kind: what is read.
        shuffle: how it shuffles.
        settings: candidates to choose the best from; each can be passed to open_epochs.
        is_same_pixels: True if it decodes with our function, so that pixels must be equal.
    """

    name: str
    kind: Kind
    shuffle: Shuffle
    settings: tuple[Setting, ...]
    is_same_pixels: bool = True


@dataclass(frozen=True, kw_only=True)
class Job:
    """The pictures of one measurement.

    Attributes:
        folder: holds photos/ and presized/, JPEG files by number, and the formats made of them.
        kind: what is read.
        num_pictures: per epoch.
        size: height and width of the pictures that are read.
    """

    folder: Path
    kind: Kind
    num_pictures: int
    size: int

    def place(self, name: str) -> Path:
        """Return the folder of a format."""
        return self.folder / "formats" / self.kind / name

    def photo(self, idx: int) -> Path:
        """Return the JPEG file of a picture."""
        name = "presized" if self.kind is Kind.PRESIZED else "photos"
        return self.folder / name / f"{idx:05d}.jpg"

    def decode(self, data: bytes) -> np.ndarray:
        """Decode a JPEG to the square with the function that all contenders share."""
        from stepladder.config.choices import Fit
        from stepladder.data.decoding.decode import decode_picture

        return decode_picture(data, size=self.size, fit=Fit.PAD)

    def picture(self, data: Any) -> np.ndarray:
        """Convert a stored picture to pixels: decoded, or viewed without a copy."""
        if self.kind is Kind.PIXELS:
            return np.frombuffer(data, dtype=np.uint8).reshape(self.size, self.size, 3)
        return self.decode(bytes(data))

    def tensor(self, data: Any) -> Any:
        """Convert a stored picture to a tensor, for torch to collate."""
        import torch

        return torch.from_numpy(self.picture(data))

    def item(self, idx: int) -> bytes:
        """Return what a format stores of a picture: the pixels, or the JPEG file."""
        data = self.photo(idx).read_bytes()
        return self.decode(data).tobytes() if self.kind is Kind.PIXELS else data

    def items(self, part: range | None = None, *, threads: int = 2) -> Iterator[tuple[int, bytes]]:
        """Yield pictures in order, decoded ahead in threads."""
        part = range(self.num_pictures) if part is None else part
        if threads == 0:
            yield from ((idx, self.item(idx)) for idx in part)
            return
        with ThreadPoolExecutor(threads) as pool:
            ahead = 8 * threads
            pending = [pool.submit(self.item, idx) for idx in part[:ahead]]
            for position, idx in enumerate(part):
                yield idx, pending[position % ahead].result()
                if position + ahead < len(part):
                    pending[position % ahead] = pool.submit(self.item, part[position + ahead])

    def parts(self, num_parts: int) -> list[range]:
        """Split the pictures into contiguous parts whose sizes differ by at most one."""
        ends = [self.num_pictures * part // num_parts for part in range(num_parts + 1)]
        return [range(*pair) for pair in itertools.pairwise(ends)]


def in_processes(write_part: Callable[..., None], job: Job, folder: Path, num: int) -> None:
    """Call write_part(job, folder, part index, part) for each part in a process of its own."""
    import multiprocessing

    context = multiprocessing.get_context("fork")  # as the contenders' own tools do
    parts = [(job, folder, idx, part) for idx, part in enumerate(job.parts(num))]
    processes = [context.Process(target=write_part, args=part) for part in parts]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a writer process exited with code {process.exitcode}")


def workers_settings(*counts: int, **more: Any) -> tuple[Setting, ...]:
    """Return a setting for each number of worker processes."""
    return tuple({"workers": count, **more} for count in counts)


def loader_options(setting: Setting) -> dict[str, Any]:
    """Return arguments of torch's DataLoader for a setting's number of workers."""
    workers = setting["workers"]
    if workers == 0:
        return {"num_workers": 0}
    prefetch = setting.get("prefetch", 2)
    return {"num_workers": workers, "persistent_workers": True, "prefetch_factor": prefetch}
