"""Which command resumes a run: the one that was typed, without options that start from scratch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from stepladder.errors import StepladderError

_AFTER: Final = re.compile(r"\b([Tt]ype|[Rr]un) the same command (?=to resume\b)")
_BEFORE: Final = re.compile(r"\bTo resume, type the same command\b(?! without)")
_FLAG: Final = "--overwrite"


def with_resuming_command(error: StepladderError, words: Sequence[str]) -> None:
    """Let an error say that the same command resumes only without `--overwrite`, if it had that.

    Args:
        error: the error to print; its fix is changed.
        words: what the user typed after `stepladder`.
    """
    if error.fix is None or words[:1] != ["train"] or _FLAG not in words:
        return
    fix = _AFTER.sub(rf"\1 the same command without {_FLAG} ", error.fix)
    error.fix = _BEFORE.sub(rf"\g<0> without {_FLAG}", fix)
