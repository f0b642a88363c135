"""Watch the BatchNorm statistics of models that are evaluated but only follow another model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from stepladder.watching.hooks.names import Names, Root
from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.seen.models import StatisticsSeen
from stepladder.watching.watcher import Watcher

_MAX_LAYERS: Final = 4  # of each kind that are compared
_VALUES: Final = 64
_MANY_CHANGES: Final = 10  # an initialisation changes a weight a few times, an average each step


@dataclass(frozen=True)
class _Copy:
    """Some weights of a model and means and variances of its BatchNorm layers."""

    weights: list[Tensor]
    means: list[Tensor]
    variances: list[Tensor]

    def has_statistics_of(self, other: _Copy) -> bool:
        """Return whether the statistics are the same, bit for bit."""
        return _are_equal(self.means, other.means) and _are_equal(self.variances, other.variances)

    @property
    def is_initial(self) -> bool:
        """Return whether the statistics are those before any batch: mean 0 and variance 1."""
        has_mean = any(bool(mean.any()) for mean in self.means)
        return not has_mean and all(bool((var == 1).all()) for var in self.variances)


@dataclass(frozen=True)
class _Note:
    """A model at the beginning of an evaluation, and the trained model with the same layers."""

    step: int
    num_changes: int
    where: str | None
    own: _Copy
    trained: _Copy


class StatisticsWatch:
    """Compares a model that no gradient trains with the one that it follows, when evaluated."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._watcher: Watcher
        self._notes: dict[int, tuple[Root, _Note, _Note, int]] = {}

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls in evaluation mode."""
        self._watcher = watcher
        watcher.on_evaluation.append(self._evaluated)

    def settle(self) -> None:
        """Compare the first evaluation with the last."""
        for root, first, last, num in self._notes.values():
            if not _is_trained(root):  # nor later, such as the model of a second fold
                root.seen.statistics = _compared(root.ref(), first, last, num)

    def _evaluated(self, is_on: bool) -> None:
        step = self._watcher.step
        module = self._watcher.evaluated() if is_on and step else None
        root = None if module is None else self._names.root_of(module)
        if module is None or root is None or not root.seen.has_batch_norm or _is_trained(root):
            return
        known = self._notes.get(id(root))
        if known is not None and known[2].step == step:
            return
        trained = self._trained_like(module)
        if trained is None:
            return
        where = self._watcher.own.here()
        params = [p for p in module.parameters() if not p.is_inference()]
        num_changes = max((p._version for p in params), default=0)
        note = _Note(step, num_changes, where, _copy(module), _copy(trained))
        first, num = (note, 0) if known is None else (known[1], known[3])
        self._notes[id(root)] = (root, first, note, num + 1)

    def _trained_like(self, module: nn.Module) -> nn.Module | None:
        """Return the trained model with the same BatchNorm layers."""
        sizes = [norm.num_features for norm in _norms(module)]
        for root in self._names.roots:
            other = root.ref()
            if other is None or other is module or not root.seen.num_train_mode:
                continue
            if sizes and [norm.num_features for norm in _norms(other)] == sizes:
                return other
        return None


def _is_trained(root: Root) -> bool:
    return root.seen.num_train_mode + root.seen.num_eval_mode > 0


def _compared(module: nn.Module | None, first: _Note, last: _Note, num: int) -> StatisticsSeen:
    """Decide whether the statistics are those of the weights that were evaluated."""
    own, trained = last.own, last.trained
    is_initial = own.is_initial and not trained.is_initial
    is_same = _are_equal(own.weights, trained.weights)
    has_moved = not _are_equal(first.own.weights, own.weights)
    has_followed = has_moved or is_same or last.num_changes >= _MANY_CHANGES
    is_kept = has_moved and own.has_statistics_of(first.own) and not own.has_statistics_of(trained)
    is_averaged = (
        isinstance(module, torch.optim.swa_utils.AveragedModel)
        and module.avg_fn is None
        and module.multi_avg_fn is None
        and not module.use_buffers
        and last.num_changes > 1
    )
    return StatisticsSeen(
        where=last.where,
        first_step=first.step,
        last_step=last.step,
        num_evaluations=num,
        is_initial=is_initial and has_followed,
        is_kept=is_kept,
        is_of_last_weights=is_averaged and not is_same and own.has_statistics_of(trained),
        distance=max(
            float(((a - b).abs() / (v + 1e-5).sqrt()).max())
            for a, b, v in zip(own.means, trained.means, trained.variances, strict=True)
        ),
    )


def _norms(module: nn.Module) -> list[Any]:
    norms = [one for one in module.modules() if isinstance(one, _BatchNorm)]
    return [one for one in norms if is_plain(one.running_mean) and is_plain(one.running_var)]


def _copy(module: nn.Module) -> _Copy:
    params = _some([p for p in module.parameters() if is_plain(p)])
    norms = _some(_norms(module))
    return _Copy(
        weights=[part(p, _VALUES).clone() for p in params],
        means=[part(one.running_mean, _VALUES).clone() for one in norms],
        variances=[part(one.running_var, _VALUES).clone() for one in norms],
    )


def _some(items: list[Any]) -> list[Any]:
    return items[:: max(1, len(items) // _MAX_LAYERS)][:_MAX_LAYERS]


def _are_equal(some: list[Tensor], others: list[Tensor]) -> bool:
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(
        a.shape == b.shape and torch.equal(a, b.to(a.device)) for a, b in pairs
    )
