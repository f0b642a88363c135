"""Find attributes that were meant as `requires_grad`, and that torch ignores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from torch import Tensor, nn

from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.seen.weights import MisnamedSeen
from stepladder.watching.watcher import Watcher

_MAX_WEIGHTS: Final = 4000
_MAX_SEEN: Final = 64
_MISSPELLED: Final = (
    "require_grad",
    "required_grad",
    "requires_grads",
    "requires_gradient",
    "require_gradient",
    "requiresgrad",
    "requires_gard",
    "require_grads",
    "requiresGrad",
)
_OF_WEIGHTS: Final = (*_MISSPELLED, "trainable")
_OF_MODULES: Final = ("requires_grad", *_MISSPELLED)


class MisnamedWatch:
    """Reads the attributes of weights and layers, as each optimizer begins, and at the end."""

    def __init__(self, names: Names, optimizers: OptimizerWatch) -> None:
        self._names = names
        self._optimizers = optimizers
        self._watcher: Watcher
        self._known: set[tuple[str, str]] = set()

    def install(self, watcher: Watcher) -> None:
        """Listen for first steps."""
        self._watcher = watcher
        watcher.on_first_step.append(self._look)

    def settle(self) -> None:
        """Read the attributes of what still exists."""
        self._look()

    def _look(self) -> None:
        for model in self._names.layers():
            for name, param in list(model.named_parameters())[:_MAX_WEIGHTS]:
                self._note(name, param, [param], _OF_WEIGHTS)
            for name, module in list(model.named_modules())[:_MAX_WEIGHTS]:
                self._note(name or type(module).__name__, module, module.parameters(), _OF_MODULES)

    def _note(
        self, name: str, owner: Any, params: Iterable[Tensor], attributes: tuple[str, ...]
    ) -> None:
        own = vars(owner)
        found = [one for one in attributes if one in own and own[one] is False] if own else []
        if not found or (name, found[0]) in self._known or len(self._known) >= _MAX_SEEN:
            return
        weights = list(params)
        is_trained = all(p.requires_grad and self._optimizers.holds({id(p)}) for p in weights)
        if not weights or not is_trained:
            return
        self._known.add((name, found[0]))
        self._watcher.seen.misnamed.append(
            MisnamedSeen(
                name=name,
                attribute=found[0],
                is_module=isinstance(owner, nn.Module),
                num_weights=len(weights),
            )
        )
