"""The detectors over ranks, in the order of `FAULTS`; those of one process are in DETECTORS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer
from stepladder.watching.ranks import faults, waits
from stepladder.watching.ranks.seen import Ranks

_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
_DDP = 'PyTorch, "DistributedDataParallel"'
_LI = "Li et al. 2020, arXiv:2006.15704"
_SAMPLER = 'PyTorch, "torch.utils.data": DistributedSampler'


@dataclass(frozen=True)
class RankDetector:
    """Compares what the ranks of a script recorded, for one fault.

    Attributes:
        name, severity, source: as those of a Detector.
        look: a pure function of all records; the first line of its docstring says how it works.
    """

    name: str
    severity: Severity
    source: str
    look: Callable[[Ranks], Answer]


RANK_DETECTORS: Final[tuple[RankDetector, ...]] = (
    RankDetector("ranks_differ", _ERROR, _DDP, faults.ranks_differ),
    RankDetector("ranks_read_same_data", _WARNING, _SAMPLER, faults.ranks_read_same_data),
    RankDetector("validation_padded", _WARNING, _SAMPLER, faults.validation_padded),
    RankDetector(
        "schedule_stepped_per_rank",
        _WARNING,
        'Accelerate, "Comparing performance across distributed setups"',
        faults.schedule_stepped_per_rank,
    ),
    RankDetector("slow_rank", _WARNING, _LI, waits.slow_rank),
    RankDetector("communication_exposed", _INFO, _LI, waits.communication_exposed),
    RankDetector("unused_search", _INFO, _DDP, waits.unused_search),
)
