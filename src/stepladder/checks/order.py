"""All checks, in the order in which they run: cheap ones first, those that train last."""

from __future__ import annotations

from stepladder.checks import chance_level
from stepladder.checks.contract import Check

CHECKS: tuple[Check, ...] = (chance_level.CHECK,)
