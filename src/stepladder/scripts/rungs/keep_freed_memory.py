"""Keep freed memory in the process, so that tensors do not page-fault on every use."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

_LINES = (
    "ctypes.CDLL(None).mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD\n"
    "ctypes.CDLL(None).mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD"
)


class KeepFreedMemory(ScriptRung):
    """Let glibc's malloc keep large freed blocks, instead of requesting zeroed pages each time.

    Trades: the process keeps its peak memory.
    Source: mallopt(3).
    """

    name: ClassVar[str] = "keep_freed_memory"
    level: ClassVar[int] = 6
    exactness: ClassVar[Exactness] = Exactness.BITWISE
    is_for_process: ClassVar[bool] = True

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        if facts.keeps_freed_memory or settings.keep_freed_memory:
            return "already on"
        if facts.has_gpu:
            return "the script computes on a GPU, whose memory torch keeps anyway"
        return None

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict that the kernel's share of the CPU time is saved, a bound."""
        share = min(0.9, facts.kernel_share)
        return Prediction(
            rung=self.name,
            gain=1 / (1 - share),
            provenance=Provenance.MODELLED,
            inputs={"kernel_share": share},
            note="at most the share of the CPU time that the kernel takes",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:  # noqa: ARG002
        """Return the settings with it."""
        return replace(settings, keep_freed_memory=True)

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return two calls of mallopt, after the imports."""
        return (Edit(rung=self.name, spot=Spot.START, text=_LINES, imports=("ctypes",)),)
