"""Find datasets that draw their examples at random, and a worker_init_fn that restarts this."""

from __future__ import annotations

import dis
import functools
import inspect
import random
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

_SEEDS: Final = {"np.random": "seed", "random": "seed", "torch": "manual_seed"}
_FRESH: Final = frozenset(
    {"initial_seed", "seed_all", "get_worker_info", "urandom", "time", "time_ns", "getpid"}
    | {"default_rng", "SeedSequence", "randint", "randrange", "random_sample", "getrandbits"}
)  # in worker_init_fn: the seed may be another one for each epoch
_TORCH_DRAWS: Final = frozenset(
    {"rand", "randn", "randint", "randperm", "normal", "rand_like", "randn_like", "bernoulli"}
    | {"multinomial", "randint_like"}
)
_NOT_DRAWS: Final = frozenset({"seed", "get_state", "set_state", "getstate", "setstate"})
_GENERATOR_OF: Final = {  # of functions that were imported by name
    id(getattr(function, "__self__", function)): owner
    for function, owner in ((np.random.randint, "np.random"), (random.randint, "random"))
}
_MAX_FUNCTIONS: Final = 64
_MAX_DEPTH: Final = 4


def restarted_draws(loader: Any) -> tuple[str, CodeType] | None:
    """Return in words which generator worker_init_fn seeds, and the code of that function.

    None unless the seed depends on the worker alone, the workers are started for each epoch, and
    the dataset draws from this generator for its examples.
    """
    init = loader.worker_init_fn
    while isinstance(init, functools.partial):
        init = init.func
    function = _function_of(init)
    if loader.num_workers == 0 or loader.persistent_workers or function is None:
        return None
    code = function.__code__
    if _FRESH & set(code.co_names):
        return None
    seeded = {owner for owner, name in _uses(function, code) if name == _SEEDS[owner]}
    if not seeded:
        return None
    drawn = _drawn_by(loader.dataset)
    found = next((owner for owner in _SEEDS if owner in seeded & drawn), None)
    if found is None:
        return None
    kind = type(loader.dataset).__name__
    return f"{found}, which worker_init_fn seeds and {kind} draws from,", code


def ignores_index(dataset: Any) -> bool:
    """Return whether a dataset does not use the index of an example, so that it has no order."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    function = getattr(type(dataset), "__getitem__", None)
    if not isinstance(function, FunctionType) or function.__code__.co_argcount != 2:
        return False
    code = function.__code__
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return False
    index = code.co_varnames[1]
    if index in code.co_cellvars:
        return False
    return not any(_loads(at, index) for at in dis.get_instructions(code))


def _loads(at: dis.Instruction, name: str) -> bool:
    names = at.argval if isinstance(at.argval, tuple) else (at.argval,)
    return at.opname.startswith("LOAD_FAST") and name in names


def _drawn_by(dataset: Any) -> set[str]:
    """Return the global generators that a dataset and its transforms draw from."""
    found: set[str] = set()
    for function in _functions(dataset):
        for owner, name in _uses(function, function.__code__):
            is_draw = name in _TORCH_DRAWS if owner == "torch" else name not in _NOT_DRAWS
            if is_draw and not name[:1].isupper() and name != "default_rng":
                found.add(owner)
    return found


def _functions(dataset: Any) -> Iterator[FunctionType]:
    """Yield functions of the script that may run for an example: methods, and what they call."""
    left: list[tuple[Any, int]] = [(dataset, 0)]
    known: set[int] = set()
    while left and len(known) < _MAX_FUNCTIONS:
        value, depth = left.pop()
        if id(value) in known or depth > _MAX_DEPTH:
            continue
        known.add(id(value))
        function = _function_of(value)
        if function is not None:
            yield function
            names = set(function.__code__.co_names) & set(function.__globals__)
            called = [function.__globals__[name] for name in names]
            left += [(one, depth + 1) for one in called if isinstance(one, FunctionType)]
        elif isinstance(value, (list, tuple)):
            left += [(one, depth + 1) for one in value[:8]]
        elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
            left += _parts_of(value, depth)


def _parts_of(value: Any, depth: int) -> Iterator[tuple[Any, int]]:
    """Yield the methods of an object, and the objects that it holds."""
    for kind in type(value).__mro__:
        if kind in (object, Dataset) or kind.__module__.startswith(("torch.nn", "builtins")):
            continue
        for name, method in vars(kind).items():
            if isinstance(method, FunctionType) and name != "__init__":
                yield method, depth + 1
    for held in vars(value).values():
        if callable(held) or isinstance(held, (Dataset, list, tuple)):
            yield held, depth + 1


def _function_of(value: Any) -> FunctionType | None:
    if isinstance(value, MethodType):
        value = value.__func__
    return value if isinstance(value, FunctionType) else None


def _uses(function: FunctionType, code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield what a function uses of the modules with global generators: module and name."""
    owner = ""
    for at in dis.get_instructions(code):
        name = at.argval
        if at.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            value = function.__globals__.get(name) if isinstance(name, str) else None
            owner = _owner(value)
            held = _GENERATOR_OF.get(id(getattr(value, "__self__", None)))
            if held is not None:
                yield held, str(getattr(value, "__name__", ""))
        elif at.opname in ("LOAD_ATTR", "LOAD_METHOD") and owner:
            if owner == "np":
                owner = "np.random" if name == "random" else ""
                continue
            yield owner, name
            owner = ""
        elif at.opname not in ("PRECALL", "PUSH_NULL", "CACHE", "EXTENDED_ARG"):
            owner = ""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _uses(function, inner)


def _owner(value: Any) -> str:
    """Return the name of a module that has a global generator; `np` has it in `np.random`."""
    modules = {id(np): "np", id(np.random): "np.random", id(random): "random", id(torch): "torch"}
    return modules.get(id(value), "") if isinstance(value, ModuleType) else ""
