"""Whose loss is not finite: a step is looked at once more, example by example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stepladder.data.batch import Batch
from stepladder.data.reading.examples import PictureSource, Source
from stepladder.errors import DivergedError
from stepladder.measuring.subject import Subject

_MAX_NAMED: Final = 8


def diverged_error(subject: Subject, *, step: int, rows: NDArray[np.int64] | None) -> DivergedError:
    """Say at which step a loss was not finite, and which of its examples are to blame.

    No weight has changed since, so that the step's losses can be had once more.

    Args:
        step: the first one that was not finite.
        rows: of its examples, in the training split; None where they are not known.
    """
    fix = (
        f"Lower the learning rate (--batch.lr {subject.lr / 10:g}) or clip the gradient "
        "(--optimizer.clip-norm 1)."
    )
    why = None
    if rows is not None:
        bad, kind = _bad_examples(subject, rows)
        is_data = 0 < len(bad) < len(rows) or kind == "inputs"
        why = _words(subject.sources.train, rows, bad, kind)
        fix = "Mend these training examples, or leave them out." if is_data else fix
    return DivergedError(
        f"the loss or its gradient is not a finite number at step {step} of training",
        where=type(subject.task).__name__,
        why=why,
        fix=fix,
    )


def _words(source: Source, rows: NDArray[np.int64], bad: NDArray[np.int64], kind: str) -> str:
    shown = bad if len(bad) else rows
    named = ", ".join(f"{row} ({source.describe(row)})" for row in shown[:_MAX_NAMED].tolist())
    named += ", ..." if len(shown) > _MAX_NAMED else ""
    if not len(bad):
        return f"The losses of its {len(rows)} examples are finite, their gradient is not: {named}."
    have = "has" if len(bad) == 1 else "have"
    return f"Of its {len(rows)} training examples, {len(bad)} {have} no finite {kind}: {named}."


def _bad_examples(subject: Subject, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], str]:
    """Give the rows whose inputs are not finite or, where all are, whose losses are not."""
    batch = subject.to_device(_read(subject.sources.train, rows))
    is_finite = _finite_rows(batch.inputs, len(rows))
    kind = "inputs"
    if is_finite.all():
        kind = "loss"
        batch = subject.task.augment(batch, seed=subject.recipe.seed, epoch=0)
        with torch.no_grad(), subject.autocast():
            result = subject.task.loss(subject.model, batch)
        losses: Tensor = result[0] if isinstance(result, tuple) else result
        is_finite = torch.isfinite(losses).cpu()
    return rows[~is_finite.numpy()], kind


def _read(source: Source, rows: NDArray[np.int64]) -> Batch:
    """Read rows as a reader gives them: pictures as uint8 NCHW."""
    inputs, targets = source.read(rows)
    if isinstance(source, PictureSource):
        inputs = torch.from_numpy(inputs).permute(0, 3, 1, 2)
        targets = torch.from_numpy(targets)
    return Batch(inputs, targets, torch.from_numpy(rows))


def _finite_rows(value: Any, num: int) -> Tensor:
    """Say of each example whether all of its numbers are finite, whatever holds them."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or value.dim() == 0 or len(value) != num:
            return torch.ones(num, dtype=torch.bool)
        return torch.isfinite(value).reshape(num, -1).all(1).cpu()
    parts = list(value.values()) if isinstance(value, Mapping) else value
    found = torch.ones(num, dtype=torch.bool)
    if isinstance(parts, (list, tuple)):
        for part in parts:
            found &= _finite_rows(part, num)
    return found
