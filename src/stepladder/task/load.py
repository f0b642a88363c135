"""Load a user's Task from `FILE.py:NAME` on the command line."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

from stepladder.config.recipe import Recipe
from stepladder.errors import USER_TASK, UsageError
from stepladder.machine.torchvision_build import new_torchvision_problem
from stepladder.records.near_paths import did_you_mean_path
from stepladder.task.blame import exit_words, exits_told
from stepladder.task.contract import Task

BUILT_IN = "image_classification"


def load_task(name: str, *, store: Path, recipe: Recipe | None = None) -> Task:
    """Load a Task: the built-in one, or a class of a Python file.

    The file is executed, and its folder is added to sys.path as by `python FILE.py`. For this
    reason, such a name is accepted on the command line or in a call, but never in a config. A class
    is called with the store's path if it has a parameter `store`, else without arguments.

    Args:
        name: "image_classification", or "FILE.py:NAME".
        store: folder of the store.
        recipe: how the built-in Task reads the store; None: the default.

    Raises:
        UsageError: if file or name is missing, the file fails, or the name is not a Task.
    """
    if name == BUILT_IN:
        from stepladder.task.image_classification import ImageClassification

        return ImageClassification(store, recipe)
    file, _, attribute = name.rpartition(":")
    if not file or not file.endswith(".py") or not attribute:
        raise UsageError(
            f"--task {name} does not name a Task, which is a class in a Python file",
            fix="Type --task FILE.py:NAME, such as --task task.py:Digits.",
        )
    return _make(_find(_run_file(Path(file)), attribute, file), name, store)


def name_of(task: Task) -> str:
    """Return the name for `load_task` of a Task created in Python."""
    kind = type(task)
    if kind.__module__ == "stepladder.task.image_classification":
        return BUILT_IN
    return f"{source_of(task) or kind.__module__}:{kind.__qualname__}"


def source_of(task: Task) -> Path | None:
    """Return the file with the class of a Task, or None if it has none, as in a notebook."""
    try:
        file = inspect.getsourcefile(type(task))
    except (TypeError, OSError):
        return None
    return None if file is None else Path(file)


def name_for_others(task: Task) -> str:
    """Return the name by which another process makes a task.

    Raises:
        UsageError: if it has none, such as a class of a notebook.
    """
    name = name_of(task)
    file = Path(name.rpartition(":")[0])
    if name != BUILT_IN and (not file.is_file() or "<locals>" in name):
        raise UsageError(
            f"the other processes of the run cannot create the Task {type(task).__name__}, because "
            "it is not a class at the top level of a Python file",
            where="task",
            fix='Put its class into a Python file, and pass it as task="FILE.py:NAME".',
        )
    return name


def _run_file(file: Path) -> ModuleType:
    path = file.absolute()
    if not path.is_file():
        raise UsageError(
            "the Task's file does not exist",
            where=str(file),
            fix=did_you_mean_path(
                file,
                "Type the path of the Python file with the Task, a colon and its name.",
                fits=lambda path: path.suffix == ".py",
            ),
        )
    name = f"{USER_TASK}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        try:
            spec.loader.exec_module(module)
        finally:
            _warn_of_torchvision()
    except Exception as error:
        del sys.modules[name]
        raise UsageError(
            "the Python file of the Task raised an error when it was imported: "
            f"{type(error).__name__}: {error}",
            where=f"{file}:{_line_in(path, error)}",
            fix="Correct this line; with --debug, the whole traceback is printed.",
        ) from error
    except SystemExit as error:
        del sys.modules[name]
        raise UsageError(
            f"the Task's file {exit_words(error)}",
            where=f"{file}:{_line_in(path, error)}",
            fix='Move code that is not part of the Task under `if __name__ == "__main__":`.',
        ) from error
    return module


def _warn_of_torchvision() -> None:
    """Warn of a torchvision that does not fit torch, if the Task's file imports it."""
    if any(name.partition(".")[0] == "torchvision" for name in sys.modules):
        problem = new_torchvision_problem()
        if problem is not None:
            warnings.warn(problem, stacklevel=1)


def _find(module: ModuleType, attribute: str, file: str) -> object:
    value = getattr(module, attribute, None)
    if inspect.isclass(value) and issubclass(value, Task) and not inspect.isabstract(value):
        return value
    if isinstance(value, Task):
        return value
    if inspect.isabstract(value):
        missing = ", ".join(sorted(getattr(value, "__abstractmethods__", ())))
        raise UsageError(
            f"the Task {attribute} cannot be used, because it does not define {missing}",
            where=file,
            fix=f"Define it as methods of class {attribute}; examples/own_task.py is a complete "
            "example.",
        )
    tasks = [
        key
        for key, item in vars(module).items()
        if inspect.isclass(item) and issubclass(item, Task) and not inspect.isabstract(item)
    ]
    close = difflib.get_close_matches(attribute, tasks, n=1)
    fix = f"Did you mean {close[0]}?" if close else f"Tasks in it: {', '.join(tasks) or 'none'}."
    what = f"the file has no class {attribute}" if value is None else f"{attribute} is not a Task"
    raise UsageError(what, where=file, fix=fix)


def _make(found: object, name: str, store: Path) -> Task:
    if isinstance(found, Task):
        return found
    make = cast("Callable[..., Task]", found)
    takes_store = "store" in inspect.signature(make).parameters
    try:
        with exits_told(cast("type", found), name):
            return make(store=store) if takes_store else make()
    except TypeError as error:
        if not _needs_more_than_store(make):
            raise  # of the user's own code, which the traceback names
        raise UsageError(
            f"the Task cannot be created: {error}",
            where=name,
            fix="Give every parameter of __init__ except `store` a default value.",
        ) from error


def _needs_more_than_store(make: Callable[..., Task]) -> bool:
    parameters = inspect.signature(make).parameters.values()
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(
        one.default is one.empty and one.kind not in many and one.name != "store"
        for one in parameters
    )


def _line_in(path: Path, error: BaseException) -> int:
    """Return the last line of the file in the error's traceback."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return lines[-1] or 1 if lines else 1
