"""Examples as read by worker processes that are forked from this process."""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from stepladder.checks.evidence.sample import digest_of, tensors_of
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.data.reading.datasets import DatasetSource
from stepladder.measuring.probe import untouched

NO_FORK = "worker processes cannot be forked here (no fork, CUDA in use, or not the main thread)"
_TIMEOUT_S = 20.0


class _Digests(Dataset[str]):
    """Return a digest of an example instead of the example, so that little is sent."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getitem__(self, row: int) -> str:
        return digest_of(tensors_of(_tensors(self.data[row]))).hex()


def random_dataset(job: CheckedJob) -> Any | None:
    """Return the training Dataset if reading an example twice differs; else None."""
    source = job.source(Split.TRAIN)
    return source.data if isinstance(source, DatasetSource) and source.is_stochastic else None


def can_fork() -> bool:
    """Return True if worker processes can be forked here."""
    has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    is_main = threading.current_thread() is threading.main_thread()
    return "fork" in multiprocessing.get_all_start_methods() and is_main and not has_cuda


def read_in_workers(data: Any, rows: list[int], *, num_workers: int, seed: int) -> list[str]:
    """Read rows in worker processes in turn, and return a digest of each example.

    Workers are seeded by torch's DataLoader: each with the seed and its number.
    """
    generator = torch.Generator().manual_seed(seed)
    with untouched(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about forks with threads: workers use none of them
        loader: DataLoader[str] = DataLoader(
            _Digests(data),
            sampler=rows,
            batch_size=1,
            num_workers=num_workers,
            multiprocessing_context="fork",
            generator=generator,
            collate_fn=_first,
            timeout=_TIMEOUT_S,
        )
        return list(loader)


def _first(items: list[str]) -> str:
    return items[0]


def _tensors(item: Any) -> Any:
    """Turn the arrays and numbers of an example into tensors."""
    if isinstance(item, Tensor):
        return item
    if isinstance(item, dict):
        return {key: _tensors(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [_tensors(value) for value in item]
    try:
        return torch.as_tensor(item)
    except (TypeError, ValueError, RuntimeError):
        return None
