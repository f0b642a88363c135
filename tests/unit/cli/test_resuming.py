"""The command that resumes a run does not start it from scratch."""

from __future__ import annotations

import pytest

from stepladder.cli.resuming import with_resuming_command
from stepladder.errors import ResourceError
from stepladder.training.run import _RESUME

TRAIN = ["train", "job.yaml", "--overwrite"]


@pytest.mark.parametrize(
    ("fix", "words", "expected"),
    [
        (_RESUME, TRAIN, "To resume, type the same command without --overwrite."),
        (_RESUME, TRAIN[:2], _RESUME),
        (
            "Read its log (logs/rank-1.log), then type the same command to resume.",
            TRAIN,
            "Read its log (logs/rank-1.log), then type the same command without --overwrite to "
            "resume.",
        ),
        ("Free some space.", TRAIN, "Free some space."),
        ("To resume, type the same command without --overwrite.", TRAIN, None),
        (None, TRAIN, None),
    ],
)
def test_overwrite_is_left_out(fix: str | None, words: list[str], expected: str | None) -> None:
    error = ResourceError("a rank is lost", fix=fix)
    with_resuming_command(error, words)
    assert error.fix == (fix if expected is None else expected)
