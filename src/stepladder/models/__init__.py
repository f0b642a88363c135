"""Trunks, heads, classifiers; the first import warns of a torchvision that does not fit torch."""

from __future__ import annotations

import warnings

from stepladder.machine.torchvision_build import new_torchvision_problem

if (_problem := new_torchvision_problem()) is not None:
    warnings.warn(_problem, stacklevel=1)  # the user's code has no part in it
