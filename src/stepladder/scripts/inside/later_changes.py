"""Find where a script changes a dataset after it has made a loader of it."""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Final

from stepladder.watching.script.own_code import OwnCode

_MADE: Final = ("__init__", "__new__", "__post_init__")


def names_of(dataset: Any, frame: FrameType | None) -> tuple[str, ...]:
    """Return what the code of a frame calls a dataset, or one inside it, as in a `Subset`."""
    if frame is None:
        return ()
    chain = set(map(id, _chain(dataset)))
    scopes: Iterable[Mapping[str, Any]] = (frame.f_locals, frame.f_globals)
    return tuple(
        dict.fromkeys(
            name for scope in scopes for name, value in list(scope.items()) if id(value) in chain
        )
    )


def later_change(dataset: Any, names: Iterable[str], own: OwnCode) -> str | None:
    """Return the line, such as `train.py:12`, that changes what examples of a dataset are like.

    It sets an attribute that the dataset's own methods use, or calls a method that does:
    `data.size = 64`, `loader.dataset.set_epoch(3)`.

    Args:
        names: of the dataset in the script.
    """
    used: set[str] = set()
    setters: set[str] = set()
    for one in _chain(dataset):
        for kind in type(one).__mro__:
            for method in _methods(kind):
                of_self = list(_of_self(method))
                if method.name not in _MADE:
                    used |= {node.attr for node in of_self if isinstance(node.ctx, ast.Load)}
                    if any(isinstance(node.ctx, ast.Store) for node in of_self):
                        setters.add(method.name)
    setters -= {"__getitem__", "__len__"}
    known = set(names)
    for file, shown in own.files():
        for node in ast.walk(_tree("".join(linecache.getlines(file)))):
            target = node.func if isinstance(node, ast.Call) else node
            if not isinstance(target, ast.Attribute) or not _is_of(target.value, known):
                continue
            is_set = isinstance(target.ctx, ast.Store) and target.attr in used
            if is_set or (target is not node and target.attr in setters):
                return f"{shown}:{target.lineno}"
    return None


def _chain(dataset: Any) -> Iterator[Any]:
    seen: set[int] = set()
    while dataset is not None and id(dataset) not in seen:
        seen.add(id(dataset))
        yield dataset
        dataset = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None


def _methods(kind: type) -> Iterator[ast.FunctionDef]:
    """Yield the methods of a class whose text is known, but for those of libraries."""
    if kind.__module__.partition(".")[0] in ("builtins", "typing", "torch", "abc"):
        return
    try:
        tree = _tree(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        return
    for node in tree.body[:1]:
        if isinstance(node, ast.ClassDef):
            yield from (one for one in node.body if isinstance(one, ast.FunctionDef))


def _of_self(method: ast.FunctionDef) -> Iterator[ast.Attribute]:
    owner = method.args.args[0].arg if method.args.args else ""
    for node in ast.walk(method):
        is_of = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if is_of and node.value.id == owner:  # type: ignore[attr-defined]
            yield node  # type: ignore[misc]


def _is_of(value: ast.expr, names: set[str]) -> bool:
    """Return whether an expression is a dataset: one of its names, or `….dataset`."""
    if isinstance(value, ast.Attribute):
        return value.attr == "dataset"
    return isinstance(value, ast.Name) and value.id in names


def _tree(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])
