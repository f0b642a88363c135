"""Where a run is and what reading took, as its display and its events tell it."""

from __future__ import annotations

import math

from stepladder.data.reading.reader import Reader, ReaderStats
from stepladder.training.clock import Phase
from stepladder.training.output.display import ProgressState
from stepladder.training.stage import stages_of
from stepladder.training.training import Training


def progress_of(run: Training, *, last_loss: float, last_accuracy: float | None) -> ProgressState:
    """Say where a run is; on a CPU the loss is that of now, as a look at it costs nothing.

    Args:
        last_loss, last_accuracy: of the last log line.
    """
    at, schedule, reader = run.position, run.recipe.schedule, run.train_reader
    per_s = run.samples_per_s()
    epoch_s = run.num_train / per_s if per_s else math.nan
    left_s = epoch_s * (1 - at.offset / run.num_train)
    validation_s = run.clock.total_s(Phase.VALIDATION) / max(at.epoch, 1)
    stages_left = len(stages_of(run.recipe)) - at.stage
    max_epochs = at.epoch - at.stage_epoch + stages_left * schedule.max_epochs
    epochs_left = max(max_epochs - at.epoch - 1, 0)
    is_free = run.device.type == "cpu"  # elsewhere a look waits for the device
    files = reader.files_stats()
    stats = ReaderStats() if reader.is_held else reader.stats  # what memory holds is not read
    return ProgressState(
        epoch=at.epoch + 1,
        max_epochs=max_epochs,
        step=at.step,
        step_in_epoch=math.ceil(at.offset / run.recipe.batch.global_batch_size),
        steps_per_epoch=reader.steps_per_epoch,
        loss=run.parts.step.peek_loss(last_loss) if is_free else last_loss,
        accuracy=last_accuracy,
        samples_per_s=per_s,
        data_wait_frac=run.clock.truth().data_wait_frac(),
        read_bytes_per_s=_bytes_per_s(reader, per_s),
        cache_hit_frac=files.hit_frac if files is not None else None,
        fetch_example_s=stats.fetch_example_s,
        decode_example_s=stats.decode_example_s,
        epoch_left_s=left_s,
        may_stop_early=run.recipe.stopping.early and run.val_reader is not None,
        run_left_s=left_s + validation_s + epochs_left * (epoch_s + validation_s),
    )


def reading_totals(reader: Reader) -> dict[str, float]:
    """Give what reading took since the attempt began; empty where nothing was read.

    Examples whose features or pictures lie in memory are not read again.
    """
    stats, files = reader.stats, reader.files_stats()
    if not stats.num_read:
        return {}
    totals: dict[str, float] = {
        "num_read": stats.num_read,
        "read_bytes": stats.num_bytes,
        "fetch_s": stats.fetch_s,
        "decode_s": stats.decode_s,
        "wait_s": stats.wait_s,
        "num_threads": reader.num_threads,
    }
    if files is None:
        return totals
    return {
        **totals,
        "num_requests": files.num_requests,
        "num_retries": files.num_retries,
        "received_bytes": files.num_bytes,
        "cache_hits": files.num_hits,
        "cache_misses": files.num_misses,
    }


def _bytes_per_s(reader: Reader, samples_per_s: float) -> float | None:
    """Give the stored bytes that steps take a second; None: from memory, or not known."""
    if reader.is_held or reader.stats.example_bytes is None:
        return None
    return reader.stats.example_bytes * samples_per_s
