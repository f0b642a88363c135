"""Find where a script changes a dataset after it has made a loader of it."""

from __future__ import annotations

import ast
import functools
import linecache
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from stepladder.records.script import Place
from stepladder.scripts.inside.state import (
    globals_in_code,
    held_by,
    is_installed,
    names_in_code,
    own_kinds,
    with_called,
)
from stepladder.watching.script.own_code import OwnCode

_MADE: Final = ("__init__", "__new__", "__post_init__")
_READS: Final = ("__getitem__", "__getitems__", "__len__", "__iter__")
_MUTATORS: Final = {
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "remove",
    "reverse",
    "shuffle",
    "sort",
    "update",
}
_COMMON: Final = {"data", "grad", "requires_grad", "training", "__dict__"}
"""Attributes that other objects of a script often have, and that are set."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class KnownNames:
    """What names of a frame are, when a loader is made there.

    Attributes:
        of_dataset: the dataset, and its class.
        of_parts: what the dataset holds, such as a list of files, and the classes of that.
        of_others: other objects.
    """

    of_dataset: frozenset[str] = frozenset()
    of_parts: frozenset[str] = frozenset()
    of_others: frozenset[str] = frozenset()


def names_of(dataset: Any, frame: FrameType | None) -> KnownNames:
    """Return what the names in a frame are."""
    if frame is None:
        return KnownNames()
    names = {**frame.f_globals, **frame.f_locals}
    chain = list(_chain_of(dataset))
    held = [one for one in held_by(chain) if _is_mutable(one)]

    def called(objects: Iterable[Any]) -> frozenset[str]:
        found = list(objects)
        ids = {id(one) for one in found}
        ids |= {id(kind) for one in found for kind in own_kinds(type(one))}
        return frozenset(name for name, value in names.items() if id(value) in ids)

    of_dataset = called(chain)
    of_parts = called(held) - of_dataset
    return KnownNames(of_dataset, of_parts, frozenset(names) - of_dataset - of_parts)


def _chain_of(dataset: Any) -> Iterator[Any]:
    """Yield a dataset, and those inside it, as in a `Subset`."""
    seen: set[int] = set()
    while dataset is not None and id(dataset) not in seen:
        seen.add(id(dataset))
        yield dataset
        dataset = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None


def _is_mutable(one: Any) -> bool:
    is_code = isinstance(one, (FunctionType, ModuleType, type))
    is_data = isinstance(one, (list, dict, set, Tensor, np.ndarray))
    return is_data or (hasattr(one, "__dict__") and not is_code)


def later_change(
    dataset: Any, names: KnownNames, own: OwnCode, place: Place | None = None
) -> str | None:
    """Return the line, such as `train.py:12`, that may change what examples are like.

    It sets, by whatever name, an attribute or a global variable that the dataset's methods use, or
    those of objects that it holds; or it calls a method that does: `data.size = 64`,
    `loader.dataset.set_epoch(3)`, `random.shuffle(data.files)`.

    Args:
        place: where the loader is made; lines that run once before are left out.
    """
    used = _used_by(dataset, own)
    for file, shown in own.files():
        tree = _tree("".join(linecache.getlines(file)))
        is_same = place is not None and place.file == os.path.realpath(file)
        at = _here_of(tree, place.line) if place is not None and is_same else _Here()
        line_of = place.line if place is not None and is_same else 0
        for line, here in _Changes(used, names, tree, at, line_of).lines(tree):
            if place is None or not _is_before(here, line, at, place, is_same=is_same):
                return f"{shown}:{line}"
    return None


def reads_several(dataset: Any) -> bool:
    """Return whether a dataset has a method of its own that reads all examples of a batch."""
    return any(
        "__getitems__" in vars(kind) for one in _chain_of(dataset) for kind in own_kinds(type(one))
    )


def asks_for_worker(dataset: Any, own: OwnCode) -> bool:
    """Return whether the code of a dataset asks in which worker process it runs."""
    return any(
        "get_worker_info" in names_in_code(one.__code__)
        for kind in _kinds_of(dataset, own)
        for function in _functions(kind)
        for one in with_called(function)
    )


@dataclass
class _Used:
    """What the methods of a dataset, and of the objects that it holds, use.

    Attributes:
        attributes: of themselves.
        setters: methods that change these.
        variables: global ones.
        classes: names of theirs.
    """

    attributes: set[str] = field(default_factory=set)
    setters: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)


def _used_by(dataset: Any, own: OwnCode) -> _Used:
    used, methods = _Used(), list[ast.FunctionDef]()
    for kind in _kinds_of(dataset, own):
        used.classes.add(kind.__name__)
        for function in _functions(kind):
            if function.__name__ not in _MADE:
                for one in with_called(function):
                    used.variables |= set(_variables(one))
            node = _node_of(function)
            if node is not None and node.name not in _MADE:
                methods.append(node)
    for node in methods:
        used.attributes |= set(_of_self(node))
    while more := {one.name for one in methods if _sets(one, used.setters)} - used.setters:
        used.setters |= more
    used.setters -= {*_READS}
    return used


def _variables(function: FunctionType) -> Iterator[str]:
    """Yield the global variables that a function uses."""
    for name in globals_in_code(function.__code__):
        value = function.__globals__.get(name, function)
        is_own_module = isinstance(value, ModuleType) and not is_installed(value)
        if is_own_module or not isinstance(value, (FunctionType, ModuleType, type)):
            yield name


def _kinds_of(dataset: Any, own: OwnCode) -> list[type]:
    """Return the classes of a dataset, and of what it holds, that are the script's own."""
    found: dict[type, None] = {}
    for one in held_by([dataset]):
        for kind in own_kinds(type(one)):
            if any(own.is_own(each.__code__.co_filename) for each in _functions(kind)):
                found[kind] = None
    return list(found)


def _functions(kind: type) -> Iterator[FunctionType]:
    for value in vars(kind).values():
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        inner = getattr(inner, "__wrapped__", inner)
        if isinstance(inner, FunctionType):
            yield inner


def _node_of(function: FunctionType) -> ast.FunctionDef | None:
    code = function.__code__
    tree = _tree("".join(linecache.getlines(code.co_filename)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _of_self(method: ast.FunctionDef) -> Iterator[str]:
    """Yield the attributes that a method uses, as both of `self.options.size`."""
    owner = _owner_of(method)
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            root, attributes = _chain(node)
            if root == owner:
                yield from attributes


def _owner_of(method: ast.FunctionDef) -> str:
    return method.args.args[0].arg if method.args.args else ""


def _sets(method: ast.FunctionDef, setters: set[str]) -> bool:
    """Return whether a method changes an attribute of its object, or calls one that does."""
    owner = _owner_of(method)
    for node in ast.walk(method):
        is_part = isinstance(node, (ast.Attribute, ast.Subscript))
        if is_part and not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
            root, attributes = _chain(node)
            if root == owner and attributes:
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            root, attributes = _chain(node.func)
            changes = attributes[-1] in setters and len(attributes) == 1
            if root == owner and (changes or (attributes[-1] in _MUTATORS and attributes[1:])):
                return True
    return False


@dataclass(frozen=True)
class _Here:
    """Where a statement is.

    Attributes:
        scope: the function; None: the module.
        loops: around it, in this function.
        owner: what a method calls its object; empty: it is in no method.
        of_class: of the method.
        shared: global variables that the function sets.
        statement: that it is a part of.
    """

    scope: ast.AST | None = None
    loops: tuple[ast.AST, ...] = ()
    owner: str = ""
    of_class: str = ""
    shared: frozenset[str] = frozenset()
    statement: ast.AST | None = None


def _inside(tree: ast.AST, here: _Here) -> Iterator[tuple[ast.AST, _Here]]:
    """Yield all nodes, with where they are."""
    for node in ast.iter_child_nodes(tree):
        yield node, here
        inner = replace(here, statement=node) if isinstance(node, ast.stmt) else here
        if isinstance(node, ast.ClassDef):
            inner = replace(here, of_class=node.name)
        elif isinstance(node, _Function):
            inner = _in_function(node, tree, here)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            inner = replace(here, loops=(*here.loops, node), statement=node)
        yield from _inside(node, inner)


def _in_function(node: _Function, parent: ast.AST, here: _Here) -> _Here:
    is_method = isinstance(parent, ast.ClassDef) and bool(node.args.args)
    shared = (name for one in ast.walk(node) if isinstance(one, ast.Global) for name in one.names)
    return _Here(
        scope=node,
        owner=node.args.args[0].arg if is_method else here.owner,
        of_class=here.of_class,
        shared=frozenset(shared),
    )


def _here_of(tree: ast.AST, line: int) -> _Here:
    """Return where the statement of a line is."""
    found = _Here()
    for node, here in _inside(tree, found):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = here
    return found


def _is_before(here: _Here, line: int, at: _Here, place: Place, *, is_same: bool) -> bool:
    """Return whether a line runs once, before a loader is made."""
    if is_same and here.scope is at.scope:
        return line < place.line and not {*here.loops} & {*at.loops}
    return here.scope is None and not here.loops and (at.scope is not None or not is_same)


class _Changes:
    """Finds the lines that change what is used."""

    def __init__(
        self, used: _Used, names: KnownNames, tree: ast.Module, at: _Here, line: int
    ) -> None:
        self._used = used
        self._names = names
        self._at = at
        self._line = line
        self._bound: dict[str, list[int]] = {}
        for node, here in _inside(tree, _Here()):
            is_set = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            if is_set and here.scope is at.scope and not isinstance(here.statement, ast.AugAssign):
                self._bound.setdefault(node.id, []).append(node.lineno)  # type: ignore[attr-defined]

    def lines(self, tree: ast.AST) -> Iterator[tuple[int, _Here]]:
        """Yield the lines, with where they are."""
        for node, here in _inside(tree, _Here()):
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                changes = self._is_part(node.target.id, node, here)
            elif isinstance(node, ast.Call):
                changes = self._calls(node, here)
            elif isinstance(node, ast.Name):
                is_global = here.scope is None or node.id in here.shared
                is_set = not isinstance(node.ctx, ast.Load)
                changes = is_set and is_global and node.id in self._used.variables
            else:
                is_part = isinstance(node, (ast.Attribute, ast.Subscript))
                is_set = is_part and not isinstance(node.ctx, ast.Load)  # type: ignore[attr-defined]
                changes = is_set and self._changes(node, here)
            if changes:
                yield getattr(node, "lineno", 0), here

    def _calls(self, node: ast.Call, here: _Here) -> bool:
        """Return whether a call changes what is used."""
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        if called in ("setattr", "delattr") and len(node.args) > 1:
            root, attributes = _chain(node.args[0])
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
            return self._is_used(root, [*attributes, str(name)], here)
        if called in ("shuffle", "copyto") and any(
            self._changes(one, here) for one in node.args[:1]
        ):
            return True
        if not isinstance(node.func, ast.Attribute):
            return False
        if called in self._used.setters and self._is_called(node.func, here):
            return True
        is_in_place = called.endswith("_") and not called.startswith("_")
        is_in_place = is_in_place or any(
            one.arg == "inplace" and getattr(one.value, "value", False) for one in node.keywords
        )
        return (called in _MUTATORS or is_in_place) and self._changes(node.func.value, here)

    def _is_called(self, function: ast.Attribute, here: _Here) -> bool:
        """Return whether a method may be that of the dataset, rather than one of that name."""
        root, attributes = _chain(function.value)
        if root == here.owner and not attributes:
            return False
        if root in self._names.of_others and not attributes:
            return False
        is_common = hasattr(nn.Module, function.attr) or hasattr(Optimizer, function.attr)
        is_known = root in self._names.of_dataset | self._names.of_parts or "dataset" in attributes
        return is_known or not (is_common or function.attr in _MUTATORS)

    def _changes(self, node: ast.AST, here: _Here) -> bool:
        root, attributes = _chain(node)
        return self._is_part(root, node, here) or self._is_used(root, attributes, here)

    def _is_part(self, name: str, node: ast.AST, here: _Here) -> bool:
        """Return whether a name is still what the dataset holds, where it is changed."""
        if name not in self._names.of_parts:
            return False
        if here.scope is not self._at.scope:
            return here.scope is None or name not in _local_names(here.scope)
        line = getattr(node, "lineno", 0)
        again = self._bound.get(name, ())
        return not any(self._line < one <= line for one in again)

    def _is_used(self, root: str, attributes: list[str], here: _Here) -> bool:
        used, names = self._used, self._names
        if root and root == here.owner:
            if here.of_class in used.classes or not attributes:
                return False  # its callers change the dataset
            attributes = attributes[1:]
        elif root in used.variables:
            return True
        elif root in names.of_others and len(attributes) == 1:
            return False
        is_known = root in names.of_dataset or "dataset" in attributes
        wanted = used.attributes | {"__dict__"}
        return bool({*attributes} & (wanted if is_known else wanted - _COMMON))


@functools.lru_cache(maxsize=256)
def _local_names(scope: ast.AST) -> frozenset[str]:
    """Return the arguments and variables of a function."""
    arguments = {one.arg for one in ast.walk(scope) if isinstance(one, ast.arg)}
    names = (one for one in ast.walk(scope) if isinstance(one, ast.Name))
    return frozenset(arguments | {one.id for one in names if isinstance(one.ctx, ast.Store)})


def _chain(node: ast.AST) -> tuple[str, list[str]]:
    """Return the variable and the attributes of an expression such as `loader.dataset.files[3]`."""
    attributes: list[str] = []
    while True:
        match node:
            case ast.Attribute():
                attributes.insert(0, node.attr)
                node = node.value
            case ast.Subscript(slice=ast.Constant(value=str(name)), value=ast.Call()):
                attributes.insert(0, name)  # as in vars(data)["size"]
                node = node.value
            case ast.Subscript() | ast.Starred():
                node = node.value
            case ast.Call(func=ast.Name(id="vars"), args=[inner]):
                node = inner
            case ast.Name():
                return node.id, attributes
            case _:
                return "", attributes


@functools.lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])
