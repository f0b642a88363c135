"""The first failure of several ranks is found, and shown with its rank and its last lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from stepladder.errors import DataError, DivergedError, InterruptedRun, ResourceError
from stepladder.parallel.failures import (
    Failure,
    RankLost,
    clear_failures,
    first_failure,
    forget_earlier,
    is_loss_of_rank,
    log_file,
    lost,
    record_failure,
    record_loss,
    silent,
    stalled,
    stalled_error,
)


def failure(rank: int, at: float, message: str = "no such file") -> Failure:
    made = Failure.of(DataError(message, where="store"), rank=rank, attempt=0)
    return replace(made, at=at)


def test_the_earliest_failure_counts(tmp_path: Path) -> None:
    for rank, at in ((0, 30.0), (1, 10.0), (2, 20.0)):
        record_failure(tmp_path, failure(rank, at, f"message {rank}"))
    found = first_failure(tmp_path, attempt=0, wait_s=0)
    assert found is not None
    assert found.rank == 1
    error = found.error(tmp_path)
    assert error.exit_code == DataError.exit_code
    assert error.brief() == str(error)
    assert "rank 1 on" in str(error)
    assert "store: message 1" in str(error)
    assert str(tmp_path / "logs" / "rank-1.log") in str(error)


def test_of_the_same_message_that_of_rank_0_counts(tmp_path: Path) -> None:
    for rank, at in ((0, 30.0), (1, 10.0)):
        record_failure(tmp_path, failure(rank, at))
    found = first_failure(tmp_path, attempt=0, wait_s=0)
    assert found is not None
    assert found.rank == 0


def test_of_several_ranks_that_hang_the_one_that_was_found_first_is_named(tmp_path: Path) -> None:
    """A rank that hangs loses rank 0, which has ended because of it."""
    for rank, at in ((0, 30.0), (1, 10.0)):
        record_failure(tmp_path, replace(failure(rank, at), is_final=False, lines=(f"{rank}",)))
    assert stalled(tmp_path, attempt=0) == "1"
    said = str(stalled_error(tmp_path, attempt=0))
    assert "the run ended because 1" in said
    assert str(log_file(tmp_path, 1)) in said


def test_attempts_are_told_apart_and_cleared(tmp_path: Path) -> None:
    record_failure(tmp_path, failure(0, 1.0))
    assert first_failure(tmp_path, attempt=1, wait_s=0) is None
    clear_failures(tmp_path)
    assert first_failure(tmp_path, attempt=0, wait_s=0) is None


def test_a_rank_that_only_lost_another_one_is_not_the_first(tmp_path: Path) -> None:
    record_failure(tmp_path, Failure.of(RankLost("gone"), rank=0, attempt=0))
    assert first_failure(tmp_path, attempt=0, wait_s=0) is None
    assert stalled(tmp_path, attempt=0) == "gone"


def test_a_rank_that_was_killed_has_no_message(tmp_path: Path) -> None:
    error = lost(tmp_path, rank=2, attempt=0)
    assert isinstance(error, RankLost)
    assert "ended without a message" in str(error)
    assert str(tmp_path / "logs") in str(error)


def test_the_only_rank_that_is_not_heard_of_is_named_with_its_last_lines(tmp_path: Path) -> None:
    hosts = ["a", "b", "c"]
    record_failure(tmp_path, Failure.of(RankLost("gone"), rank=9, attempt=1))  # makes the folder
    record_loss(tmp_path, rank=0, attempt=0, hosts=hosts)
    assert silent(tmp_path, attempt=0) is None  # rank 1 or rank 2
    record_loss(tmp_path, rank=2, attempt=0, hosts=hosts)
    assert silent(tmp_path, attempt=0) == (1, "b")
    log_file(tmp_path, 1).write_text("\n".join(f"line {idx}" for idx in range(40)))
    lines = str(lost(tmp_path, rank=0, attempt=0)).splitlines()
    assert "rank 1 on b, ended without a message" in lines[0]
    assert "line 39" in lines[5]
    assert len(lines) <= 15
    clear_failures(tmp_path)
    assert silent(tmp_path, attempt=0) is None


def test_a_rank_forgets_what_an_earlier_run_has_left_about_it(tmp_path: Path) -> None:
    """Under torchrun nobody else does, and an old error would be taken for the new one."""
    for rank in range(3):
        record_failure(tmp_path, failure(rank, 1.0, f"message {rank}"))
    forget_earlier(tmp_path, rank=0, size=2, attempt=0)  # also those of ranks that are no more
    found = first_failure(tmp_path, attempt=0, wait_s=0)
    assert found is not None
    assert found.rank == 1
    forget_earlier(tmp_path, rank=1, size=2, attempt=0)
    assert first_failure(tmp_path, attempt=0, wait_s=0) is None


def test_of_losses_that_are_not_finite_that_of_rank_0_counts(tmp_path: Path) -> None:
    """All ranks see them at the same step, and rank 0 reports the samples."""
    for rank, at in ((0, 30.0), (1, 10.0)):
        made = Failure.of(DivergedError(f"seen by rank {rank}"), rank=rank, attempt=0)
        record_failure(tmp_path, replace(made, at=at))
    found = first_failure(tmp_path, attempt=0, wait_s=0)
    assert found is not None
    assert found.rank == 0


def test_a_signal_at_another_rank_is_no_failure(tmp_path: Path) -> None:
    error = InterruptedRun("SIGTERM ended the run", signal_number=15)
    record_failure(tmp_path, Failure.of(error, rank=1, attempt=0))
    assert lost(tmp_path, rank=0, attempt=0).exit_code == 143


def test_an_unexpected_error_is_recorded_with_the_end_of_its_trace(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        divmod(1, 0)
    made = Failure.of(caught.value, rank=1, attempt=0)
    assert made.lines[-1].startswith("ZeroDivisionError: ")
    assert made.is_final
    assert len(made.lines) <= 10


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError("[pair.cc:534] Connection closed by peer [127.0.0.1]:4242"), True),
        (RuntimeError("[tcp] Connection reset by peer"), True),
        (dist.DistBackendError("the process group was closed"), True),
        (RankLost("rank 1"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ResourceError("no space left"), False),
        (ValueError("gloo"), False),
    ],
)
def test_errors_that_say_that_a_rank_has_gone(error: Exception, is_lost: bool) -> None:
    assert is_loss_of_rank(error) is is_lost
