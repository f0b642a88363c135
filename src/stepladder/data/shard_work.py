"""Make one file of a store, and the record that says it is finished."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepladder.config.choices import Encoding, JpegSize
from stepladder.config.options import PrepareConfig
from stepladder.data.decode import decode_content, decode_picture
from stepladder.data.formats import NPY_MAGIC, BadPictureError
from stepladder.data.near_duplicates import LOOK_LENGTH, look
from stepladder.data.ordered import map_in_order
from stepladder.data.plan import Row, ShardPlan
from stepladder.data.quarantine import Bad
from stepladder.data.resize import WHITE, Pixels, pad_white
from stepladder.data.traits import Trait, find_traits
from stepladder.data.writer import ShardWriter
from stepladder.records import ShardInfo, read_json, write_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Sums = NDArray[np.int64]
    Looks = NDArray[np.uint8]
else:
    Sums = Looks = Any


@dataclass(frozen=True)
class Finished:
    """What is known of a finished shard.

    Attributes:
        info: None if no picture of it could be used, and there is no file.
        labels: of its rows, in order.
        channel_sum, channel_sq_sum: over all pixels, (3,), int64.
        looks: of its rows, (num_rows, 75), uint8.
        bad: pictures put aside.
        traits: how many pictures have each.
    """

    key: str
    info: ShardInfo | None
    labels: tuple[int, ...]
    channel_sum: Sums
    channel_sq_sum: Sums
    looks: Looks
    bad: tuple[Bad, ...]
    traits: Mapping[Trait, int]


@dataclass(frozen=True, eq=False)
class ReadyPicture:
    """A picture as it goes into the file."""

    row: Row
    picture: bytes | Pixels
    look: Looks
    channel_sum: Sums
    channel_sq_sum: Sums
    traits: frozenset[Trait]


@dataclass(frozen=True)
class ShardMaker:
    """Makes shards.

    Attributes:
        read: gives a row's bytes, in any thread; raises BadPictureError.
        folder: where shards go.
        records: where their records go.
        config: how pictures are kept.
        pool: threads to decode in.
        ahead: pictures under way at once.
    """

    read: Callable[[Row], bytes]
    folder: Path
    records: Path
    config: PrepareConfig
    pool: Executor
    ahead: int

    def find(self, plan: ShardPlan, *, rereads_bad: bool = True) -> Finished | None:
        """Give a shard that an earlier run finished, if every byte of it is still right.

        Args:
            plan: which shard.
            rereads_bad: look whether its bad pictures are still bad: a disk or a permission may
                have been to blame.
        """
        finished = self.recorded(plan)
        if finished is None or (rereads_bad and not self._are_still_bad(plan, finished.bad)):
            return None
        if finished.info is None:
            return finished
        try:
            with (self.folder / plan.name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return None
        return finished if digest == finished.info.sha256 else None

    def recorded(self, plan: ShardPlan) -> Finished | None:
        """Give what the record of a shard says, if there is one and it is of this plan."""
        record = self._record(plan)
        if not record.exists():
            return None
        try:
            finished = _from_json(read_json(record))
        except (KeyError, TypeError, ValueError):
            return None
        return finished if finished.key == plan.key else None

    def make(self, plan: ShardPlan, *, on_row: Callable[[Bad | None], None]) -> Finished:
        """Decode a shard's pictures and write them; the record comes last.

        Args:
            plan: which pictures.
            on_row: called after each, with the picture if it is bad.
        """
        self._record(plan).unlink(missing_ok=True)
        ready: list[ReadyPicture] = []
        bad: list[Bad] = []
        info = None
        with contextlib.ExitStack() as stack:
            writer: ShardWriter | None = None
            for result in map_in_order(self.pool, self._prepare_row, plan.rows, ahead=self.ahead):
                if isinstance(result, Bad):
                    bad.append(result)
                    on_row(result)
                    continue
                if writer is None:
                    writer = stack.enter_context(self._writer(plan))
                row = result.row
                writer.add(
                    sha256=row.sha256, path=row.path, label=row.label, picture=result.picture
                )
                ready.append(_without_picture(result))
                on_row(None)
            if writer is not None:
                info = writer.close()
        finished = _finish(plan.key, info, ready, bad)
        write_json(self._record(plan), _to_json(finished))
        return finished

    def _are_still_bad(self, plan: ShardPlan, bad: tuple[Bad, ...]) -> bool:
        rows = {row.path: row for row in plan.rows}
        return all(self._prepare_row(rows[item.path]) == item for item in bad)

    def _record(self, plan: ShardPlan) -> Path:
        return self.records / f"{plan.name}.json"

    def _writer(self, plan: ShardPlan) -> ShardWriter:
        path = self.folder / plan.name
        config = self.config
        return ShardWriter(
            path, encoding=config.encoding, size=config.size, compression=config.compression
        )

    def _prepare_row(self, row: Row) -> ReadyPicture | Bad:
        try:
            data = self.read(row)
        except BadPictureError as error:
            return Bad(row.path, error.what)
        return ready_picture(row, data, config=self.config)


def ready_picture(row: Row, data: bytes, *, config: PrepareConfig) -> ReadyPicture | Bad:
    """Turn a picture's bytes into what a store keeps of it, wherever the bytes come from."""
    is_kept = config.encoding is Encoding.JPEG and config.jpeg_size is JpegSize.ORIGINAL
    if is_kept and data.startswith(NPY_MAGIC):
        return Bad(row.path, "is NPY; its bytes cannot be kept as a JPEG (--jpeg-size resized)")
    try:
        content = decode_content(
            data, size=config.size, fit=config.fit, max_pixels=config.max_pixels
        )
    except BadPictureError as error:
        return Bad(row.path, error.what)
    if config.encoding is Encoding.PIXELS:
        picture: bytes | Pixels = pad_white(content, config.size)
        sums = _padded_sums(content, config.size)
    elif config.jpeg_size is JpegSize.ORIGINAL:
        picture, sums = data, _padded_sums(content, config.size)
    else:
        picture = _encode_jpeg(pad_white(content, config.size), config.jpeg_quality)
        sums = channel_sums(decode_picture(picture, size=config.size, fit=config.fit))
    return ReadyPicture(row, picture, look(content), *sums, find_traits(data, row.path))


def channel_sums(pixels: Pixels) -> tuple[Sums, Sums]:
    """Sum values and squares over a picture (h, w, 3), exactly: (3,) each, by channel."""
    height = pixels.shape[0]
    # rows first, in 32 bits (65,025 x 4,096 rows fit): several times faster than by pixel
    wide = pixels.reshape(height, -1).astype(np.uint32)
    sums = wide.sum(axis=0, dtype=np.uint32)
    squares = np.einsum("ij,ij->j", wide, wide)
    return (
        sums.reshape(-1, 3).sum(axis=0, dtype=np.int64),
        squares.reshape(-1, 3).sum(axis=0, dtype=np.int64),
    )


def _padded_sums(content: Pixels, size: int) -> tuple[Sums, Sums]:
    """Sum over a picture in its white square, as `channel_sums` of the square would."""
    sums, squares = channel_sums(content)
    num_white = size * size - content.shape[0] * content.shape[1]
    return sums + num_white * WHITE, squares + num_white * WHITE * WHITE


def _encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    import simplejpeg

    encoded: bytes = simplejpeg.encode_jpeg(
        pixels, quality=quality, colorspace="RGB", colorsubsampling="444"
    )
    return encoded


def _without_picture(ready: ReadyPicture) -> ReadyPicture:
    return replace(ready, picture=b"")


def _finish(
    key: str, info: ShardInfo | None, ready: list[ReadyPicture], bad: list[Bad]
) -> Finished:
    zeros = np.zeros(3, dtype=np.int64)
    no_looks = np.zeros((0, LOOK_LENGTH), dtype=np.uint8)
    return Finished(
        key=key,
        info=info,
        labels=tuple(item.row.label for item in ready),
        channel_sum=sum((item.channel_sum for item in ready), zeros),
        channel_sq_sum=sum((item.channel_sq_sum for item in ready), zeros),
        looks=np.stack([item.look for item in ready]) if ready else no_looks,
        bad=tuple(bad),
        traits=Counter(trait for item in ready for trait in item.traits),
    )


def _to_json(finished: Finished) -> dict[str, Any]:
    return {
        "key": finished.key,
        "info": finished.info,
        "labels": finished.labels,
        "channel_sum": finished.channel_sum.tolist(),
        "channel_sq_sum": finished.channel_sq_sum.tolist(),
        "looks": base64.b64encode(finished.looks.tobytes()).decode(),
        "bad": finished.bad,
        "traits": {trait.value: count for trait, count in sorted(finished.traits.items())},
    }


def _from_json(value: Any) -> Finished:
    looks = np.frombuffer(base64.b64decode(value["looks"]), dtype=np.uint8)
    return Finished(
        key=str(value["key"]),
        info=None if value["info"] is None else ShardInfo(**value["info"]),
        labels=tuple(value["labels"]),
        channel_sum=np.array(value["channel_sum"], dtype=np.int64),
        channel_sq_sum=np.array(value["channel_sq_sum"], dtype=np.int64),
        looks=looks.reshape(-1, LOOK_LENGTH),
        bad=tuple(Bad(path, reason) for path, reason in value["bad"]),
        traits={Trait(name): int(count) for name, count in value["traits"].items()},
    )
