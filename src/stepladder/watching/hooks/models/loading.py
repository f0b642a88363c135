"""Watch whether weights that are read and loaded arrive in a model."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.models.states import are_shared, pairs_of
from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.patches import DONE
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.seen.weights import FitSeen, LoadKind, LoadSeen
from stepladder.watching.watcher import Watcher

_MAX_NAMES: Final = 4000
_MAX_SOURCES: Final = 8
_MAX_TRIES: Final = 32
_MAX_USED: Final = 256
_MARKED: Final = 8  # weights by which a model is recognised, and values of each
_ROUNDED: Final = 2e-2  # of the largest value: weights may be stored in 16 bits
_FEW: Final = 0.1  # of a model's weights: fewer were hardly meant
_MOST: Final = 0.5  # of a model's weights that would fit under other names
_OWN: Final = object()
_PARTS: Final = 3  # of a name that may have to be dropped or added
Shapes = dict[str, tuple[int, ...]]


def fit_of(given: Shapes, own: Shapes, entry: str = "") -> FitSeen | None:
    """Find the change of the beginning of names under which most weights fit, with their shapes."""
    by_rest: dict[str, list[str]] = {}
    for name in own:
        for rest in _rests(name):
            by_rest.setdefault(rest, []).append(name)
    counts: Counter[tuple[str, str]] = Counter()
    for name, shape in given.items():
        for rest in _rests(name):
            for other in by_rest.get(rest, ())[:_MARKED]:
                if own[other] == shape:
                    change = name.removesuffix(rest), other.removesuffix(rest)
                    counts[change] += 1
    if not counts:
        return None
    drop, put = max(counts, key=lambda change: (counts[change], -sum(map(len, change))))
    return FitSeen(drop=drop, put=put, entry=entry, num=counts[drop, put])


def _rests(name: str) -> Iterator[str]:
    """Yield a name, and the same without its first parts."""
    yield name
    for _ in range(_PARTS):
        _, dot, name = name.partition(".")
        if not dot:
            return
        yield name


@dataclass(frozen=True)
class _Source:
    """Weights that were read from a file, or taken from a model.

    Attributes:
        entry: their name in what was read; empty if they are all of it.
        is_file: they were read from a file.
        values, tensors: some values of some weights, by name, and these tensors.
    """

    where: str | None
    entry: str
    shapes: Shapes
    is_file: bool = False
    values: dict[str, list[float]] = field(default_factory=dict)
    tensors: list[weakref.ref[Tensor]] = field(default_factory=list)


@dataclass
class _Try:
    """A load that loaded nothing.

    Attributes:
        marks: values of some weights of the model before it, by name.
        given: what could have been loaded: entry, and shapes by name.
        tensors: some of what was given.
        missing: names of the model that were not loaded; None if that is all of them.
    """

    module: weakref.ref[nn.Module]
    seen: LoadSeen
    marks: dict[str, list[float]]
    given: list[tuple[str, Shapes]]
    tensors: list[weakref.ref[Tensor]]
    missing: Container[str] | None = None
    is_judged: bool = False


class LoadWatch:
    """Wraps `load_state_dict` and `torch.load`, and compares weights when training begins."""

    def __init__(self, names: Names, optimizers: OptimizerWatch) -> None:
        self._names = names
        self._optimizers = optimizers
        self._watcher: Watcher
        self._tries: list[_Try] = []
        self._sources: list[_Source] = []
        self._loaded_at: set[tuple[int, str | None]] = set()
        self._used: list[weakref.ref[Tensor]] = []
        self._num_sought = 0
        self._given_by: dict[int, weakref.ref[nn.Module]] = {}
        self._loaded: dict[int, weakref.ref[nn.Module]] = {}

    def install(self, watcher: Watcher) -> None:
        """Install the wrappers."""
        self._watcher = watcher
        patches = watcher.patches
        patches.wrap(nn.Module, "load_state_dict", before=self._loading, after=self._was_loaded)
        patches.wrap(nn.Module, "state_dict", after=self._taken, unless="destination")
        patches.wrap(torch, "load", after=self._opened)
        watcher.on_first_step.append(self._begin)
        watcher.on_evaluation.append(self._evaluated)

    def settle(self) -> None:
        """Judge what was loaded after training had begun, or without any training."""
        self._judge()

    def _opened(self, _note: Any, _args: Any, _kwargs: Any, result: Any) -> None:
        for entry, state in _states_in(result) if self._watcher.own.is_own_call() else ():
            shapes = _shapes(state)
            some = [n for n in shapes if len(shapes[n]) > 1 and is_plain(state[n])][:_MARKED]
            self._keep(
                _Source(
                    self._watcher.own.here(),
                    entry,
                    shapes,
                    is_file=True,
                    values={name: _values(state[name]) for name in some},
                    tensors=[weakref.ref(state[name]) for name in some],
                )
            )

    def _taken(
        self, _note: Any, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any
    ) -> None:
        if len(args) == 1 and not _has(self._given_by, args[0]) and _is_of_model(result):
            self._given_by[id(args[0])] = weakref.ref(args[0])
            self._keep(_Source(None, "", _shapes(result)))

    def _keep(self, source: _Source) -> None:
        self._sources.append(source)
        if len(self._sources) > _MAX_SOURCES:
            del self._sources[0]
            self._num_sought = max(0, self._num_sought - 1)

    def _loading(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, given = args[0], args[1] if len(args) > 1 else kwargs.get("state_dict")
        is_strict = args[2] if len(args) > 2 else kwargs.get("strict", True)
        if not isinstance(given, Mapping) or next(module.parameters(), None) is None:
            return DONE
        self._watcher.seen.num_loads += 1
        if are_shared(pairs_of(module, given)):
            return _OWN
        return None if is_strict else _marks(module)

    def _was_loaded(
        self, note: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        module: nn.Module = args[0]
        given: Mapping[str, Any] = args[1] if len(args) > 1 else kwargs["state_dict"]
        where = self._watcher.own.here()
        if note is _OWN:
            self._try(module, given, where, LoadKind.OWN, marks=_marks(module))
            return
        for listener in self._watcher.on_loaded:
            listener(module)
        missing = set(getattr(result, "missing_keys", ()))
        own = [name for name, _ in module.named_parameters()]
        num = sum(name not in missing for name in own)
        buffers = sum(name in given for name, _ in module.named_buffers())
        if note is None or num or buffers:
            self._loaded_at.add((id(module), where))
            self._loaded[id(module)] = weakref.ref(module)
            unexpected = set(getattr(result, "unexpected_keys", ()))
            self._use({key: one for key, one in given.items() if key not in unexpected})
            others = {key: one for key, one in given.items() if key in unexpected}
            if num and others and missing:
                self._try(
                    module, others, where, LoadKind.FEW, marks=_marks(module), missing=missing
                )
            return
        if (id(module), where) not in self._loaded_at:  # one of several parts that it loads
            kind = LoadKind.NAMES if given else LoadKind.EMPTY
            self._try(module, given, where, kind, marks=note)

    def _try(
        self,
        module: nn.Module,
        given: Mapping[str, Any],
        where: str | None,
        kind: LoadKind,
        *,
        marks: dict[str, list[float]],
        missing: Container[str] | None = None,
    ) -> None:
        if len(self._tries) >= _MAX_TRIES:
            return
        own = [name for name, _ in module.named_parameters()]
        seen = LoadSeen(
            where=where,
            model=type(getattr(module, "_orig_mod", module)).__name__,
            kind=kind,
            num_given=len(given),
            num_own=len(own),
            num_loaded=0 if missing is None else sum(name not in missing for name in own),
            given=next((str(name) for name in given if name not in own), ""),
            own=own[0],
        )
        could = [("", _shapes(given))]
        if kind is LoadKind.NAMES:
            could += [(entry, _shapes(state)) for entry, state in _states_in(given) if entry]
        tensors = [one for one in given.values() if isinstance(one, Tensor)][:_MARKED]
        refs = [weakref.ref(one) for one in tensors]
        self._tries.append(_Try(weakref.ref(module), seen, marks, could, refs, missing))

    def _use(self, given: Mapping[str, Any]) -> None:
        """Note that some tensors were loaded into a model."""
        some = [one for one in given.values() if isinstance(one, Tensor)][:_MARKED]
        self._used = [*self._used, *map(weakref.ref, some)][-_MAX_USED:]

    def _begin(self) -> None:
        self._judge()
        files = [one for one in self._sources[self._num_sought :] if one.values]
        self._num_sought = len(self._sources)
        in_use = {one.where for one in files if self._is_found(one)}
        for source in files:
            if source.where not in in_use:
                self._seek(source)

    def _evaluated(self, is_on: bool) -> None:
        if not is_on and any(not one.is_judged for one in self._tries):
            self._judge()

    def _judge(self) -> None:
        """Find the loads after which a model that is in use has the values it had before."""
        for one in self._tries:
            module = one.module()
            if one.is_judged or module is None or not self._is_in_use(module):
                continue
            one.is_judged = True
            is_filtered = one.seen.kind in (LoadKind.EMPTY, LoadKind.OWN)
            if _has(self._loaded, module) if is_filtered else self._are_used(one.tensors):
                continue  # other weights were loaded, or these were into another model
            if _marks(module, one.marks) == one.marks:
                self._explain(one, _shapes_of(module))

    def _are_used(self, tensors: list[weakref.ref[Tensor]]) -> bool:
        """Return whether some of these were loaded into a model."""
        used = {id(one) for ref in self._used if (one := ref()) is not None}
        return any(id(one) in used for ref in tensors if (one := ref()) is not None)

    def _is_in_use(self, module: nn.Module) -> bool:
        """Return whether weights of a model are in an optimizer, or in a model that was called."""
        ids = {id(param) for param in module.parameters()}
        is_called = any(not root.ids.isdisjoint(ids) for root in self._names.roots)
        return is_called or self._optimizers.holds(ids)

    def _explain(self, one: _Try, own: Shapes) -> None:
        """Find the names or shapes that are the cause, and decide whether it is one at all."""
        seen, kind = one.seen, one.seen.kind
        is_filtered = kind in (LoadKind.EMPTY, LoadKind.OWN)
        known = [s for s in self._sources if s.is_file or not own.items() <= s.shapes.items()]
        sources = [(source.entry, source.shapes) for source in known]
        given = sources if is_filtered else one.given
        if one.missing is not None:
            own = {name: shape for name, shape in own.items() if name in one.missing}
        fits = [fit for entry, shapes in given if (fit := fit_of(shapes, own, entry)) is not None]
        fits = [fit for fit in fits if fit.drop or fit.put or fit.entry]
        seen.fit = max(fits, key=lambda fit: fit.num, default=None)
        if is_filtered and seen.fit is None:
            seen.shapes = next((x for _, s in sources if (x := _misshapen(s, own))), None)
        has_fit = seen.fit is not None and seen.fit.num >= _MOST * seen.num_own
        is_known = {
            LoadKind.OWN: has_fit or seen.shapes is not None,
            LoadKind.EMPTY: bool(sources),
            LoadKind.FEW: has_fit,
        }
        if is_known.get(kind, True):
            self._watcher.seen.loads.append(seen)

    def _is_found(self, source: _Source) -> bool:
        """Return whether weights of a file are in a model, or were loaded into one."""
        if self._are_used(source.tensors):
            return True
        models = (model for root in self._names.roots if (model := root.ref()) is not None)
        by_shape: dict[tuple[int, ...], list[list[float]]] = {}
        wanted = {source.shapes[name] for name in source.values}
        for param in (param for model in models for param in model.parameters()):
            if is_plain(param) and tuple(param.shape) in wanted:
                by_shape.setdefault(tuple(param.shape), []).append(_values(param))
        named = source.values.items()
        return any(_is_like(v, o) for n, v in named for o in by_shape.get(source.shapes[n], ()))

    def _seek(self, source: _Source) -> None:
        """Find a model that weights of a file would fit under other names."""
        for root in self._names.roots:
            model = root.ref()
            if model is None or any(_has(self._loaded, one) for one in model.modules()):
                continue
            own = _shapes_of(model)
            fit = fit_of(source.shapes, own, source.entry) if own else None
            if fit is None or not (fit.drop or fit.put) or fit.num < _MOST * len(own):
                continue
            if any(one.where and one.fit is not None for one in self._watcher.seen.loads):
                return  # of which this file is the source
            self._watcher.seen.loads.append(
                LoadSeen(
                    where=source.where,
                    model=root.seen.built,
                    kind=LoadKind.UNUSED,
                    num_given=len(source.shapes),
                    num_own=len(own),
                    given=next(iter(source.shapes)),
                    own=next(iter(own)),
                    fit=fit,
                )
            )
            return


def _shapes(state: Mapping[Any, Any]) -> Shapes:
    """Return the shapes of the tensors in a state dict, at most of the first 4,000."""
    named = list(state.items())[:_MAX_NAMES]
    return {str(name): tuple(one.shape) for name, one in named if is_plain(one)}


def _shapes_of(module: nn.Module) -> Shapes:
    return _shapes(dict(module.named_parameters()))


def _misshapen(given: Shapes, own: Shapes) -> tuple[str, tuple[int, ...], tuple[int, ...]] | None:
    """Return a weight of which only the name fits, if most names do and hardly any shape."""
    both = [name for name in own if name in given]
    wrong = [name for name in both if given[name] != own[name]]
    if len(both) < _MOST * len(own) or len(both) - len(wrong) > _FEW * len(own):
        return None
    return wrong[0], given[wrong[0]], own[wrong[0]]


def _is_of_model(value: Any) -> bool:
    """Return whether it has the names and tensors of a model's state."""
    if not isinstance(value, Mapping):
        return False
    tensors = [str(name) for name, one in value.items() if isinstance(one, Tensor)]
    return sum(name.endswith(("weight", "bias")) for name in tensors) >= 2


def _states_in(value: Any, entry: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the states of models in what was read, with the name of their entry."""
    if _is_of_model(value):
        yield entry, value
    elif isinstance(value, Mapping) and not entry:
        for name, item in list(value.items())[:_MAX_TRIES]:
            if isinstance(name, str):
                yield from _states_in(item, name)


def _has(modules: Mapping[int, weakref.ref[nn.Module]], module: nn.Module) -> bool:
    ref = modules.get(id(module))
    return ref is not None and ref() is module


def _is_like(some: list[float], others: list[float]) -> bool:
    """Return whether these are the same values, in whatever precision."""
    most = _ROUNDED * max(map(abs, some), default=0.0)
    return all(abs(a - b) <= most for a, b in zip(some, others, strict=False))


def _values(tensor: Tensor) -> list[float]:
    some: list[float] = part(tensor, _MARKED).float().tolist()
    return some


def _marks(module: nn.Module, like: Mapping[str, Any] | None = None) -> dict[str, list[float]]:
    """Return some values of some weights by name: evenly chosen, or the same as before."""
    own = dict(module.named_parameters())
    names = [name for name, one in own.items() if is_plain(one)]
    some = (
        names[:: max(1, len(names) // _MARKED)] if like is None else [n for n in like if n in own]
    )
    return {name: _values(own[name]) for name in some}
