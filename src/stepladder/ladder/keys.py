"""Keys of a recipe, a job and a machine: if they are equal, a verdict is still valid."""

from __future__ import annotations

import ast
import copy
import dis
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import numpy as np
import torch
from torch import nn

import stepladder
from stepladder.config.choices import ClimbAim, MemoryFormat
from stepladder.config.options import JobConfig, LadderConfig
from stepladder.config.recipe import (
    BatchConfig,
    DeviceConfig,
    LoaderConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.config.schema import values_of
from stepladder.data.reading.datasets import DatasetSource
from stepladder.data.reading.examples import Source
from stepladder.machine import environment, gpus, num_cores
from stepladder.machine.environment import git_state
from stepladder.machine.filesystem import sha256_of
from stepladder.machine.openmp import user_waiting_settings
from stepladder.measuring.probe import untouched
from stepladder.optim.table import spec_of
from stepladder.records import Json
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.setup.build import Sources

_LENGTH = 16
_NOT_OF_THE_RECIPE = ("prepare.", "run.", "ladder.")
_DECIDING = (
    "min_gain",
    "max_accuracy_loss",
    "time_per_point",
    "num_blocks",
    "num_seeds",
    "block_s",
)
"""Options of the ladder that decide a verdict; the others decide what is tried at all."""
_CHECKED = (
    "ladder.max_accuracy_loss",
    "run.keep_last",
    "run.mirror",
    "run.save_top_k",
    "run.checkpoint_every_s",
    "run.baseline",
    "run.baseline_at",
    "run.baseline_patience",
)
"""Options outside the recipe that checks depend on; so does the folder of the run."""


def recipe_values(recipe: Recipe) -> dict[str, Json]:
    """Return each option of a recipe as plain JSON, by dotted key."""
    values = values_of(JobConfig(recipe=recipe))
    return {key: value for key, value in values.items() if not key.startswith(_NOT_OF_THE_RECIPE)}


def recipe_key(recipe: Recipe) -> str:
    """Return the key of a recipe, without the store's path: the job's key covers its content."""
    values = recipe_values(recipe)
    for key in ("data.store", "data.cache_dir", "data.max_cache_bytes"):
        del values[key]
    return _digest(values)


def job_key(
    task_name: str,
    recipe: Recipe,
    *,
    num_train: int,
    fingerprints: Mapping[str, str | None],
    facts: Mapping[str, Json] | None = None,
) -> str:
    """Return the key of a job: its task, its data, and its original recipe.

    The file of a task is identified by its content and the modules in its folder that it imports;
    a file of weights by its content.

    Args:
        task_name: "image_classification", or "FILE.py:NAME".
        fingerprints: of the data, by split.
        facts: what distinguishes Tasks of the same class (see `task_facts`).
    """
    file = Path(task_name.rpartition(":")[0])
    code: list[Json] = [*sorted(map(sha256_of, _with_imports(file)))] if file.is_file() else []
    weights = recipe.model.weights
    parts: dict[str, Json] = {
        "task": task_name.rpartition(":")[2] if code else task_name,
        "code": code,
        "recipe": recipe_key(recipe),
        "weights": sha256_of(weights) if isinstance(weights, Path) and weights.is_file() else None,
        "num_train": num_train,
        **{f"data.{split}": mark for split, mark in fingerprints.items()},
        **{f"task.{name}": value for name, value in (facts or {}).items()},
    }
    return _digest(parts)


def sources_key(task_name: str, recipe: Recipe, sources: Sources, facts: Mapping[str, Json]) -> str:
    """Return the key of a job from its opened splits.

    Args:
        facts: what distinguishes Tasks of the same class (see `task_facts`).
    """
    fingerprints = {
        split: _fingerprint(source) if source is not None else None
        for split, source in vars(sources).items()
    }
    num_train = len(sources.train)
    return job_key(task_name, recipe, num_train=num_train, fingerprints=fingerprints, facts=facts)


def _fingerprint(source: Source) -> str:
    """Return the fingerprint of data; for a user's Dataset, it includes a few examples."""
    some = source.some_examples if isinstance(source, DatasetSource) else None
    return f"{source.fingerprint} {some}" if some else source.fingerprint


def findings_key(
    task_name: str, job: JobConfig, sources: Sources, facts: Mapping[str, Json]
) -> str:
    """Return the key of what checks depend on: job, run options, this code, and the machine."""
    values = values_of(job)
    parts: dict[str, Json] = {
        "job": sources_key(task_name, job.recipe, sources, facts),
        **{name: values[name] for name in _CHECKED},
        "run.dir": str(job.run.dir.absolute()),
        "machine": machine_key(),
        "code": code_key(Path(stepladder.__file__).parent),
    }
    return _digest(parts)


def options_key(options: LadderConfig) -> str:
    """Return the key of the ladder's options that decide a verdict."""
    parts: dict[str, Json] = {name: getattr(options, name) for name in _DECIDING}
    if options.aim is not ClimbAim.TIME:  # other rungs, and other rules for the same ones
        parts |= {"aim": options.aim, "target_error": options.target_error}
    return _digest(parts)


def prices_key(options: LadderConfig) -> str | None:
    """Return the key of the user's list of GPUs; None without one."""
    return sha256_of(options.prices) if options.prices is not None else None


def machine_key() -> str:
    """Return the key of what speed depends on: processor, cores, GPUs, torch, waiting threads."""
    facts = environment()
    parts: dict[str, Json] = {
        "cpu": str(facts["cpu"]),
        "cores": num_cores(),
        "gpus": [gpu.name for gpu in gpus()],
        "torch": torch.__version__,
        "waiting": str(user_waiting_settings()),
    }
    return _digest(parts)


def code_key(package: Path) -> str:
    """Return the key of code: its commit, or the version if it is installed.

    If files differ from the commit, or git fails, the key includes a hash of their content.

    Args:
        package: the folder of modules, at src/NAME in a repository or elsewhere.
    """
    if not (package.parents[1] / ".git").exists():
        return str(stepladder.__version__)
    state = git_state(package, only="*.py")
    if state is not None and state["is_changed"] is False:
        return str(state["commit"])
    files = {str(path.relative_to(package)): sha256_of(path) for path in package.rglob("*.py")}
    return f"{state['commit'] if state else stepladder.__version__}+{_digest(files)}"


def _with_imports(file: Path) -> set[Path]:
    """Return a file, the modules in its folder that it imports, and those that these import."""
    root = file.absolute().parent
    found: set[Path] = set()
    left = [file.absolute()]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += _imports(path, root)
    return found


def _imports(path: Path, root: Path) -> Iterator[Path]:
    """Yield the files under a folder that a file imports, including parent packages."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return
    for node in nodes:
        folder, names = root, []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                folder = path.parents[min(node.level, len(path.parents)) - 1]
            names = [f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names]
        for name in names:
            place = folder
            for part in name.split("."):
                place /= part
                files = (place.with_suffix(".py"), place / "__init__.py")
                yield from (found for found in files if found.is_file())


def _digest(value: Mapping[str, Json]) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def learning_key(recipe: Recipe) -> Recipe:
    """Return the recipe with all options reset that do not influence what is learnt.

    Recipes with equal keys learn the same up to rounding: ignored are how and from where data is
    read, layout, compiling, threads, folding, fused kernels, and caching features without random
    views, and on how many devices, however they add up gradients: a rung that uses several
    synchronises BatchNorm. The number format is kept, and so are compressed gradients, and scaled
    decoding, which changes pixels.
    """
    data, defaults = recipe.data, Recipe()
    features = recipe.features
    if not (features.cached and features.cached_views):
        features = defaults.features
    return replace(
        recipe,
        deterministic=defaults.deterministic,
        data=replace(
            defaults.data,
            store=data.store,
            fraction=data.fraction,
            seed=data.seed,
            sample=data.sample,
            order=data.order,
            window_rows=data.window_rows,
            hosts=data.hosts,
        ),
        loader=LoaderConfig(scaled_decode=recipe.loader.scaled_decode),
        model=replace(recipe.model, fold_batchnorm=False),
        features=features,
        optimizer=replace(recipe.optimizer, fused=False),
        device=DeviceConfig(
            precision=recipe.device.precision,
            gradient_compression=recipe.device.gradient_compression,
        ),
    )


def execution_key(recipe: Recipe) -> Recipe:
    """Return the recipe with all options reset that do not influence the speed of a step.

    Recipes with equal keys take the same time for a step and a validation: they may differ in the
    length of training and in values such as the learning rate.
    """
    rates = BatchConfig()
    return replace(
        recipe,
        schedule=ScheduleConfig(),
        stopping=StoppingConfig(),
        batch=replace(
            rates,
            global_batch_size=recipe.batch.global_batch_size,
            micro_batch_size=recipe.batch.micro_batch_size,
        ),
    )


def features_key(recipe: Recipe) -> Recipe | None:
    """Return the part of a recipe on which the time of cached features depends; None if none are.

    Recipes with equal keys compute the same features in the same way.
    """
    if not recipe.features.cached:
        return None
    return replace(
        recipe,
        batch=BatchConfig(),
        optimizer=OptimizerConfig(),
        schedule=ScheduleConfig(),
        stopping=StoppingConfig(),
    )


def model_key(recipe: Recipe) -> Recipe:
    """Return the recipe with all options reset that do not influence how the model is built."""
    return replace(
        learning_key(recipe),
        batch=BatchConfig(),
        optimizer=OptimizerConfig(),
        schedule=ScheduleConfig(),
        stopping=StoppingConfig(),
    )


def instrument_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe to compute features for replay with: the same, in a fast layout."""
    is_cached = recipe.features.cached
    device = replace(
        DeviceConfig(precision=recipe.device.precision, kind=recipe.device.kind),
        threads=recipe.device.threads,
        memory_format=MemoryFormat.CHANNELS_LAST,
    )
    return replace(
        recipe,
        model=replace(recipe.model, fold_batchnorm=False),
        features=replace(
            recipe.features, cached_views=recipe.features.cached_views if is_cached else 0
        ),
        device=device,
    )


def replay_recipe(recipe: Recipe, device: torch.device) -> Recipe:
    """Return the recipe to train a head on features with, without options of the trunk.

    Updates are fused if possible: the result is the same up to rounding.
    """
    fused = spec_of(recipe.optimizer.name).can_fuse(device.type)
    return replace(
        recipe,
        optimizer=replace(recipe.optimizer, fused=fused),
        model=replace(recipe.model, fold_batchnorm=False),
        features=Recipe().features,
        device=replace(recipe.device, compile=False, gradient_checkpointing=False),
    )


_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_OF_THE_MODULE: Final = ("LOAD_GLOBAL", "LOAD_NAME")
_SCALARS: Final = (bool, int, float, str, bytes, type(None))


def task_facts(task: Task, recipe: Recipe) -> dict[str, Json]:
    """Return what distinguishes Tasks of the same class; nothing for the built-in one.

    - `arguments`: of its constructor, if the Task stores them under their own names and they are
      plain values, tensors or arrays; paths are ignored.
    - `model`: the layers that it builds, their options and shapes; None: it cannot be built, which
      the next training reports.
    - `loose_code`: the compiled code of its class and of all that it calls, if it was defined in a
      notebook or a prompt. (Code in files is part of the job's key.)

    The Task and all random states are not changed.
    """
    if type(task) is ImageClassification:
        return {}
    return {
        "arguments": _arguments(task),
        "model": _model(task, recipe),
        "loose_code": _hash_text("\n".join(loose_code(type(task)))),
    }


def loose_code(start: type) -> list[str]:
    """Return the compiled code of a class that is not defined in a file, and of what it calls.

    Methods by their instructions, constants and defaults; plain values; functions that a decorator
    wraps. As sorted strings that are the same in each process.
    """
    seen: dict[int, object] = {}  # holds the objects, so that their ids are not reused
    words: list[str] = []
    left: list[object] = [start]
    while left:
        value = left.pop()
        if id(value) in seen or not isinstance(value, type | FunctionType):
            continue
        seen[id(value)] = value
        name = f"{value.__module__}.{value.__qualname__}"
        named: list[tuple[str, object]] = []
        if isinstance(value, type):
            named += vars(value).items() if _is_loose(value.__module__) else ()
            left += value.__mro__[1:]
        else:
            named += _closed_over(value)
            if _is_loose(value.__globals__.get("__name__")):
                words.append(f"{name} {_code_words(value)}")
                named += _named_by(value)
        for key, item in named:
            plain = None if key.startswith("__") else _plain(item)
            words += [f"{name}: {key} {plain}"] if plain is not None else []
            left += _callables_in(item)
    return sorted(words)


def _is_loose(module_name: object) -> bool:
    """Return True if a module has no file, such as that of a notebook or a prompt."""
    if module_name in sys.builtin_module_names:
        return False
    return getattr(sys.modules.get(str(module_name)), "__file__", None) is None


def _callables_in(item: object) -> tuple[object, ...]:
    if isinstance(item, property):
        return item.fget, item.fset, item.fdel
    return (item.__func__,) if isinstance(item, staticmethod | classmethod) else (item,)


def _named_by(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the globals that a function uses."""
    for code in _codes(function.__code__):
        for step in dis.get_instructions(code):
            if step.opname in _OF_THE_MODULE and step.argval in function.__globals__:
                yield step.argval, function.__globals__[step.argval]


def _closed_over(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the variables in a function's closure."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            continue


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _code_words(function: FunctionType) -> str:
    """Return a function's instructions, constants and defaults as text, equal in each process."""
    parts = []
    for code in _codes(function.__code__):
        consts = [_words(const) for const in code.co_consts if not isinstance(const, CodeType)]
        parts.append(f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {consts}")
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return f"{parts} {[_words(value) for value in defaults]}"


def _words(value: object) -> str:
    if isinstance(value, set | frozenset):
        return f"{sorted(map(_words, value))}"
    if isinstance(value, tuple | list):
        return f"{[_words(item) for item in value]}"
    return _ADDRESS.sub("", repr(value))


def _arguments(task: Task) -> dict[str, Json]:
    kept: Mapping[str, object] = getattr(task, "__dict__", {})
    try:
        names = tuple(inspect.signature(type(task)).parameters)
    except (TypeError, ValueError):  # its constructor has no readable signature
        return {}
    found = {name: _plain(kept[name]) for name in names if name in kept}
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: object) -> str | None:
    """Return a value as text that is the same for equal values; None if it is not supported."""
    if isinstance(value, Path):
        return None
    if isinstance(value, _SCALARS):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return _tensor_words(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        parts = [_plain(item) for item in value]
        return None if None in parts else f"[{', '.join(map(str, parts))}]"
    return None


def _tensor_words(value: torch.Tensor) -> str | None:
    try:
        dense = value.detach().cpu().to_dense().resolve_conj().resolve_neg().reshape(-1)
        numbers = dense.view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError):  # without values, on the meta device
        numbers = b""
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(numbers).hexdigest()}"


def _model(task: Task, recipe: Recipe) -> str | None:
    try:
        with untouched():
            torch.manual_seed(recipe.seed)
            model = copy.copy(task).build_model(recipe)
        return _hash_text(_layers(model))
    except Exception:  # the next one to build it reports the error
        return None


def _layers(model: nn.Module) -> str:
    tensors = {name: x for name, x in model.state_dict().items() if torch.is_tensor(x)}
    shapes = [(name, str(x.dtype), *x.shape) for name, x in tensors.items()]
    return f"{_ADDRESS.sub('', repr(model))}\n{shapes}"


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
