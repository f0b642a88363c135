"""Bound how long idle OpenMP threads spin, so that one busy neighbor does not stall a training.

After each operation the threads of a team wait for the next one. libgomp lets them spin for many
milliseconds: beside another busy process they then use the core that the last thread of the team
needs, and a step takes up to twenty times as long (`bench/results/openmp_waiting.md`). After a
short spin they sleep instead.

Source: libgomp manual, GOMP_SPINCOUNT and OMP_WAIT_POLICY.
"""

from __future__ import annotations

import os
import sys
from typing import Final

WAITING_VARIABLES: Final = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Variables that decide how threads wait; a user's own setting of any of them is left alone."""
SPIN_COUNT: Final = "10000"


def bound_spinning() -> bool:
    """Set GOMP_SPINCOUNT for this process and its children, before torch is loaded.

    Returns:
        Whether it was set: not if torch is loaded already, as libgomp has read the variables, or if
        the user has set how threads wait.
    """
    if "torch" in sys.modules or any(name in os.environ for name in WAITING_VARIABLES):
        return False
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    return True


def waiting_settings() -> dict[str, str]:
    """Return the variables that are set, by name."""
    return {name: os.environ[name] for name in WAITING_VARIABLES if name in os.environ}
