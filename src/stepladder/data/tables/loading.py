"""A loader of one shard of a table, for training loops that are not ours."""

from __future__ import annotations

from stepladder.config.choices import OrderMode
from stepladder.data.reading.arguments import require_at_least
from stepladder.data.reading.examples import Source
from stepladder.data.reading.loader import Loader
from stepladder.errors import UsageError


def shard_loader(
    source: Source,
    *,
    batch_size: int,
    cur_shard: int = 0,
    shard_count: int = 1,
    num_epochs: int | None = None,
    seed: int = 42,
    shuffle: bool = True,
    threads: int = 0,
    order: OrderMode | str = OrderMode.AUTO,
    window_rows: int = 0,
) -> Loader:
    """Give a loader of dictionaries of tensors: one shard's part of each global batch.

    A global batch is batch_size rows for each shard, so all shards give the same number of batches
    an epoch, and nobody waits for another in vain. Fewer rows than there are shards, at the end of
    an epoch, would leave a shard with an empty batch: they are left out of that epoch. So it is
    wherever an epoch is gone on with, on any number of shards.

    Raises:
        UsageError: if there are more shards than rows, or no such shard, or a number is too small.
    """
    require_at_least(1, batch_size=batch_size, shard_count=shard_count)
    require_at_least(0, cur_shard=cur_shard)
    if not cur_shard < shard_count <= len(source):
        raise UsageError(
            f"shard {cur_shard} of {shard_count} of {len(source)} rows cannot be read",
            where="cur_shard, shard_count",
            fix="Give cur_shard from 0 to shard_count - 1, and no more shards than rows.",
        )
    return Loader(
        source,
        batch_size=batch_size * shard_count,
        shuffle=shuffle,
        seed=seed,
        rank=cur_shard,
        world_size=shard_count,
        num_epochs=num_epochs,
        min_last=shard_count,
        threads=threads,
        order=order,
        window_rows=window_rows,
    )
