"""Torch's anomaly mode: which calls of a script switch it on, and how it is kept off."""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
from torch.autograd import anomaly_mode

from stepladder.records.script import Place
from stepladder.scripts.inside.places import Places, call_place

_MAX_CALLS: Final = 16


class AnomalyCalls:
    """Notes the calls that switch the mode on after an optimizer was made.

    Attributes:
        found: their places, without repetitions; None: not in the script's own files.
    """

    def __init__(self, places: Places) -> None:
        self.found: list[Place | None] = []
        self._places = places

    def install(self) -> None:
        """Wrap the two context managers, which are also called as functions."""
        for kind in (anomaly_mode.detect_anomaly, anomaly_mode.set_detect_anomaly):
            self._wrap(kind)

    def _wrap(self, kind: type) -> None:
        original = vars(kind)["__init__"]
        is_switch = kind is anomaly_mode.set_detect_anomaly

        @functools.wraps(original)
        def wrapper(this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            is_on = not is_switch or bool(args[0] if args else kwargs.get("mode"))
            if is_on and self._places.optimizers and len(self.found) < _MAX_CALLS:
                place, _ = call_place(self._places.own)
                if place not in self.found:
                    self.found.append(place)

        kind.__init__ = wrapper  # type: ignore[misc]


def keep_off() -> None:
    """Switch the mode off, for good."""
    torch.set_anomaly_enabled(False)
    torch.set_anomaly_enabled = _stay_off


def _stay_off(enabled: bool, check_nan: bool = True) -> None:
    pass
