"""Apply settings to a script from outside, where it makes its optimizer and its loaders."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from stepladder.records.script import Place
from stepladder.scripts.inside.anomaly import keep_off
from stepladder.scripts.inside.compiled import compile_training
from stepladder.scripts.inside.decoded import keep_decoded, read_all
from stepladder.scripts.inside.in_memory import InMemory, RowsInMemory
from stepladder.scripts.inside.logs import Logs
from stepladder.scripts.inside.places import (
    OF_WORKERS,
    Places,
    call_place,
    checkpoints_by,
    named_model,
    params_of,
)
from stepladder.scripts.inside.precision import compute_in_single
from stepladder.scripts.inside.recomputation import keep_activations
from stepladder.scripts.inside.repeats import OncePerInput
from stepladder.scripts.inside.saves import BackgroundSaves
from stepladder.scripts.inside.tables import make_sparse
from stepladder.scripts.settings import Settings

_FUSED: Final = ("Adam", "AdamW", "SGD", "Adagrad")
_FOR_FUSED: Final = ("foreach", "fused", "capturable", "differentiable")


class Applied:
    """Changes what a script makes, as its settings say.

    Attributes:
        problems: what could not be applied, one sentence each.
    """

    def __init__(self, settings: Settings, places: Places) -> None:
        self.problems: list[str] = []
        self._settings = settings
        self._places = places
        self._depth = 0
        self._models: set[int] = set()
        self._found: set[str] = set()  # places of loaders

    def at_start(self) -> None:
        """Apply what concerns the process, once torch is imported."""
        settings = self._settings
        if settings.keep_freed_memory:
            from stepladder.machine import keep_freed_memory

            if not keep_freed_memory():
                self.problems.append("malloc could not be configured")
        if settings.fast_matmul:
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.allow_tf32 = True
        if settings.cudnn_benchmark:
            torch.backends.cudnn.benchmark = True

    def install(self) -> None:
        """Wrap the constructors of optimizers and of DataLoader."""
        kinds = {one for one in vars(torch.optim).values() if isinstance(one, type)}
        for kind in kinds:
            if issubclass(kind, Optimizer) and "__init__" in vars(kind):
                self._wrap(kind, self._make_optimizer)
        self._wrap(DataLoader, self._make_loader)
        settings = self._settings
        if settings.background_saves:
            torch.save = BackgroundSaves(torch.save).save
        if settings.kept_activations:
            keep_activations()
        if settings.log_every > 1:
            Logs(self._places.own, every=settings.log_every, places=settings.log_places).install()

    def unfound(self) -> list[str]:
        """Return the places of loaders, as `train.py:12`, where the script has made none."""
        missing = [key for key in self._settings.loader_places if key not in self._found]
        return [os.path.relpath(key.rpartition(":")[0]) for key in missing]

    def _wrap(self, owner: Any, make: Callable[..., None]) -> None:
        original = owner.__init__

        @functools.wraps(original)
        def wrapper(this: Any, *args: Any, **kwargs: Any) -> None:
            if self._depth:
                original(this, *args, **kwargs)
                return
            self._depth += 1
            try:
                make(original, this, args, kwargs)
            finally:
                self._depth -= 1

        owner.__init__ = wrapper

    def _make_optimizer(
        self, original: Callable[..., None], this: Any, args: Any, kwargs: Any
    ) -> None:
        place, frame = call_place(self._places.own)
        groups = kwargs.get("params", args[0] if args else ())
        named = None
        if not isinstance(groups, Tensor):
            groups = list(groups)
            args, kwargs = _with_groups(groups, args, kwargs)
            named = named_model(frame, params_of(groups))
        if named is not None:
            self._change_model(*named, _device_of(named[1]))
        if self._settings.threads is not None:
            torch.set_num_threads(self._settings.threads)
        if self._settings.no_anomaly_mode:
            keep_off()
        args, kwargs = self._with_rate(original, this, args, kwargs)
        changed = self._fused(type(this), kwargs)
        try:
            original(this, *args, **changed)
        except (RuntimeError, TypeError, ValueError) as error:
            if changed is kwargs:
                raise
            self.problems.append(f"the optimizer refused fused=True: {error}")
            original(this, *args, **kwargs)
        self._places.note_optimizer(this, place, named)

    def _with_rate(
        self, original: Callable[..., None], this: Any, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Return the arguments with a scaled learning rate, of all groups."""
        factor = self._settings.lr_factor
        if factor == 1:
            return args, kwargs
        bound = inspect.signature(original).bind(this, *args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        if not isinstance(values.get("lr"), (int, float)):
            self.problems.append("the learning rate is not a number that can be scaled")
            return args, kwargs
        values["lr"] = factor * values["lr"]
        for group in values["params"]:
            if isinstance(group, dict) and "lr" in group:
                group["lr"] = factor * group["lr"]
        return bound.args[1:], bound.kwargs

    def _fused(self, kind: type, kwargs: dict[str, Any]) -> dict[str, Any]:
        is_known = any(one.__name__ in _FUSED for one in kind.__mro__)
        if not self._settings.fused_optimizer or not is_known:
            return kwargs
        if any(kwargs.get(name) for name in _FOR_FUSED):
            return kwargs
        if "fused" not in inspect.signature(kind).parameters:
            return kwargs
        return {**kwargs, "fused": True}

    def _change_model(self, called: str, model: nn.Module, device: str) -> None:
        """Apply what concerns the model, as the lines before the optimizer would.

        Args:
            called: what the script calls it.
        """
        if id(model) in self._models:
            return
        self._models.add(id(model))
        settings = self._settings
        if settings.single_precision:
            compute_in_single(model)
        if settings.sparse_tables:
            make_sparse(called, model, settings.sparse_tables)
        if settings.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if settings.autocast:
            autocast = torch.autocast(device, dtype=torch.bfloat16)
            model.forward = autocast(model.forward)
            model.register_forward_hook(_as_float)
        if settings.checkpointing and (name := checkpoints_by(model)) is not None:
            getattr(model, name)()
        if settings.once_per_input:
            model.forward = OncePerInput(model)
        if settings.compiled:
            compile_training(model)

    def _make_loader(
        self, original: Callable[..., None], this: Any, args: Any, kwargs: Any
    ) -> None:
        place, frame = call_place(self._places.own)
        settings = self._settings
        bound = inspect.signature(original).bind(this, *args, **kwargs)
        given = dict(bound.arguments)
        if place is not None:
            self._found.add(place.key)
        if place is not None and place.key in settings.memory_loaders:
            has_rows = place.key in settings.row_loaders
            self._keep_examples(bound.arguments, has_rows=has_rows)
        if place is not None and place.key == settings.loader:
            self._change_loader(bound.arguments)
        if settings.decoded_method is not None:
            self._keep_decoded(bound.arguments["dataset"], place)
        original(*bound.args, **bound.kwargs)
        self._places.note_loader(this, place, given, frame)

    def _keep_examples(self, values: dict[str, Any], *, has_rows: bool) -> None:
        """Keep the examples of a loader, by the arguments that it is made with."""
        dataset, readers = values["dataset"], self._settings.memory_readers
        if has_rows:
            values["dataset"] = RowsInMemory(dataset, readers, self.problems)
            values["collate_fn"] = RowsInMemory.collate
        else:
            values["dataset"] = InMemory(dataset, self.problems)
        if values.get("num_workers") and not values.get("persistent_workers"):
            values["num_workers"] = 0
            for name in OF_WORKERS:
                values.pop(name, None)

    def _keep_decoded(self, dataset: Any, place: Place | None) -> None:
        settings = self._settings
        keep_decoded(
            dataset,
            self._places.own,
            settings.decoded_method or "",
            settings.decoded_statements,
        )
        if settings.decoded_first and place is not None and place.key == settings.loader:
            read_all(dataset)

    def _change_loader(self, values: dict[str, Any]) -> None:
        settings = self._settings
        if settings.workers is not None:
            values["num_workers"], values["persistent_workers"] = settings.workers, True
        if settings.pinned:
            values["pin_memory"] = True
        if settings.batch_factor > 1:
            if isinstance(size := values.get("batch_size", 1), int):
                values["batch_size"] = settings.batch_factor * size
            else:
                self.problems.append("the loader has no batch size that can be changed")


def _with_groups(groups: list[Any], args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """Return the arguments with a list instead of what may be a generator."""
    if "params" in kwargs:
        return args, {**kwargs, "params": groups}
    return (groups, *itertools.islice(args, 1, None)), kwargs


def _device_of(model: nn.Module) -> str:
    param = next(model.parameters(), None)
    return "cpu" if param is None else param.device.type


def _as_float(_module: nn.Module, _inputs: Any, output: Any) -> Any:
    return output.float() if isinstance(output, Tensor) else output
