"""One pass over a held-out split: per-example losses, metrics and predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stepladder.config.choices import Monitor, Precision
from stepladder.data.batch import Batch
from stepladder.data.reading.reader import Reader
from stepladder.machine.activity import doing, on_its_own
from stepladder.parallel.divided.contract import DividedModel
from stepladder.parallel.world import ALONE, World
from stepladder.stats import Estimate, mean_estimate
from stepladder.task.contract import Task
from stepladder.training.step import autocast

EVALUATION_BATCH_SIZE = 32  # larger is no faster on a CPU, and takes more memory
FEATURE_EVALUATION_BATCH_SIZE = 256  # only the head runs: Python overhead dominates


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Results of a pass over n held-out examples, in the order of the split.

    Attributes:
        rows: the examples' rows in their split, int64 (n,).
        losses: loss of each example, float32 (n,).
        values: metrics by name, such as accuracy in [0, 1].
        predicted, probability: index and probability of the most likely class, (n,); None if the
            task returns no class scores.
        targets: int64 (n,), or None.
    """

    rows: NDArray[np.int64]
    losses: NDArray[np.float32]
    values: Mapping[str, float]
    predicted: NDArray[np.int64] | None
    probability: NDArray[np.float32] | None
    targets: NDArray[np.int64] | None

    def loss(self) -> Estimate:
        """Return the mean loss and its standard error."""
        return mean_estimate(self.losses)

    def monitored(self, monitor: Monitor) -> NDArray[np.float32]:
        """Return the value of each example that early stopping monitors; lower is better.

        The loss; or for accuracy, 0 for a correct prediction and 1 for a wrong one. A task without
        class scores is always judged by its loss.
        """
        if monitor is Monitor.VAL_LOSS or self.predicted is None or self.targets is None:
            return self.losses
        return np.not_equal(self.predicted, self.targets).astype(np.float32)


class EvaluationCancelled(Exception):  # noqa: N818  (not an error: it was requested)
    """A pass over a split was cancelled, because the run is ending."""


class _Sums:
    """Sums metrics over batches."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, Tensor], counts: Mapping[str, Tensor]) -> None:
        for name, value in sums.items():
            old = self.sums.get(name)
            self.sums[name] = value.double() if old is None else old + value
            old = self.counts.get(name)
            self.counts[name] = counts[name].double() if old is None else old + counts[name]

    def add_up(self, world: World) -> None:
        """Add up the sums of all ranks, in their order; a rank without examples has none."""
        if world.is_alone:
            return
        own = [{name: t.cpu() for name, t in side.items()} for side in (self.sums, self.counts)]
        all_ranks = world.gather(own)
        self.sums, self.counts = {}, {}
        for sums, counts in all_ranks:
            self.add(sums, counts)

    def values(self) -> dict[str, float]:
        result = {}
        for name, total in self.sums.items():
            seen = self.counts[name] > 0
            ratios = total[seen] / self.counts[name][seen]
            result[name] = float(ratios.mean()) if ratios.numel() else float("nan")
        return result


def evaluate(
    task: Task,
    model: nn.Module,
    reader: Reader,
    *,
    device: torch.device,
    precision: Precision = Precision.FP32,
    memory_format: torch.memory_format | None = None,
    max_batches: int | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
    world: World = ALONE,
    divided: DividedModel | None = None,
    stand_in: Callable[[], Batch] | None = None,
) -> Evaluation:
    """Evaluate a model on a split, in eval mode and without gradients.

    The training flags of its modules are restored. In a world of several ranks each evaluates its
    part of every batch, and all of them get the results of all examples.

    Args:
        reader: reads the split in stored order.
        max_batches: evaluate only the first batches; None: all.
        is_cancelled: called before each batch; has to be the same on all ranks.
        world: the ranks that the reader's batches are divided among.
        divided: the model, if it is divided among the ranks, which then compute every batch
            together.
        stand_in: returns an example on the device, for a rank whose part of a batch is empty.

    Raises:
        EvaluationCancelled: if is_cancelled returns True.
    """
    flags = {module: module.training for module in model.modules()}
    model.eval()
    sums = _Sums()
    parts: dict[str, list[Tensor]] = {
        name: [] for name in ("rows", "losses", "predicted", "probability", "targets")
    }
    batches = reader.epoch(0)
    num_batches = reader.steps_per_epoch
    total = num_batches if max_batches is None else min(max_batches, num_batches)
    try:
        # weights that are put together cannot be tensors of inference mode
        no_gradients = torch.inference_mode() if divided is None else torch.no_grad()
        with doing("evaluating", total=total) as activity, no_gradients:
            for idx, batch in enumerate(_read(batches)):
                activity.done = idx
                if idx == max_batches:
                    break
                if is_cancelled():
                    raise EvaluationCancelled
                is_empty = not batch.ids.numel()  # the part of this rank
                if is_empty and (divided is None or stand_in is None):
                    continue
                on_device = (
                    stand_in()
                    if is_empty and stand_in is not None
                    else batch.to(device, memory_format=memory_format)
                )
                with autocast(device, precision):
                    if divided is None:
                        metrics = task.metrics(model, on_device)
                    else:
                        metrics = divided.metrics(task.metrics, on_device, is_stand_in=is_empty)
                sums.add(metrics.sums, metrics.counts)
                if is_empty:
                    continue
                parts["rows"].append(batch.ids)
                parts["losses"].append(metrics.losses.float())
                _add_prediction(parts, metrics.outputs, on_device)
    finally:
        batches.close()
        for module, is_training in flags.items():
            module.training = is_training
    arrays = {
        name: torch.cat(values).cpu().numpy() if values else None for name, values in parts.items()
    }
    sums.add_up(world)
    arrays = _of_all(arrays, world)
    return Evaluation(
        rows=arrays["rows"] if arrays["rows"] is not None else np.empty(0, np.int64),
        losses=arrays["losses"] if arrays["losses"] is not None else np.empty(0, np.float32),
        values=sums.values(),
        predicted=arrays["predicted"],
        probability=arrays["probability"],
        targets=arrays["targets"],
    )


def _read(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches, with a name for the time in which they are read."""
    while True:
        with on_its_own("reading held-out examples"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


_Arrays = dict[str, NDArray[Any] | None]


def _of_all(arrays: _Arrays, world: World) -> _Arrays:
    """Return the arrays of all ranks, in the order of the rows."""
    if world.is_alone:
        return arrays
    all_ranks = [one for one in world.gather(arrays) if one["rows"] is not None]
    if not all_ranks:
        return arrays
    joined: _Arrays = {}
    for name in arrays:
        some = [one[name] for one in all_ranks]
        known = [values for values in some if values is not None]
        joined[name] = np.concatenate(known) if len(known) == len(some) else None
    assert joined["rows"] is not None
    order = np.argsort(joined["rows"], kind="stable")
    return {name: None if array is None else array[order] for name, array in joined.items()}


def _add_prediction(parts: dict[str, list[Tensor]], outputs: Tensor | None, batch: Batch) -> None:
    if outputs is None or outputs.dim() != 2:
        return
    if not isinstance(batch.targets, Tensor) or batch.targets.dim() != 1:
        return
    probability, predicted = outputs.float().softmax(dim=1).max(dim=1)  # (n,)
    parts["predicted"].append(predicted)
    parts["probability"].append(probability)
    parts["targets"].append(batch.targets)
