"""Keras 3 on its torch backend, or an error that says what to type."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from stepladder.errors import MissingExtraError, UsageError

_VARIABLE: Final = "KERAS_BACKEND"
_TORCH: Final = "torch"


def import_keras() -> Any:
    """Return the module keras; its backend is torch unless something else was chosen.

    Raises:
        MissingExtraError: if Keras is not installed.
        UsageError: if its backend is not torch, or it is older than Keras 3.
    """
    if "keras" not in sys.modules:
        chosen = os.environ.setdefault(_VARIABLE, _TORCH)
        if chosen != _TORCH:
            raise _wrong_backend(chosen)
    try:
        import keras
    except ImportError:
        raise MissingExtraError("Horovod's interface for Keras", "keras") from None
    if int(keras.__version__.partition(".")[0]) < 3:
        raise UsageError(
            f"Keras {keras.__version__} is too old: 3 or later is needed",
            fix="pip install --upgrade 'stepladder[keras]'",
        )
    if keras.config.backend() != _TORCH:
        raise _wrong_backend(keras.config.backend())
    return keras


def _wrong_backend(name: str) -> UsageError:
    return UsageError(
        f"Horovod's interface for Keras needs Keras's torch backend, but the backend is {name}",
        where=_VARIABLE,
        fix="Set KERAS_BACKEND=torch before Keras is imported.",
    )
