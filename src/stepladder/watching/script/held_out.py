"""Whether lines of a script evaluate held-out examples, by the names of their variables."""

from __future__ import annotations

import ast
import linecache
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

_HELD_OUT: Final = re.compile(
    r"(\w+_|x|y)?(val|valid|validation|test|heldout|held_out|holdout)"
    r"(_\w+|x|y|set|data|loader)?|dev_?(set|data|loader|x|y|loss|acc\w*)|[xy]_?dev"
)  # `dev` alone is a device, and an evaluation may be one of training examples
_SETTING: Final = re.compile(
    r"\w*_(iters?|interval|every|steps?|freq\w*|size|epochs?|mode|dtype|dev|device)"
)
_TEXT: Final = re.compile(r"\"[^\"]*\"|'[^']*'")
_NAME: Final = re.compile(r"[A-Za-z_]\w*\b(?!\s*\()")
_MAX_CHARS: Final = 400_000  # of a file that is parsed
Lines = Sequence[tuple[str, int]]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_held_out(names: Iterable[str]) -> bool:
    """Return whether names of variables say that an evaluation is of held-out examples."""
    words = list(names)
    return not _has_training(words) and any(map(_is_telling, words))


def _has_training(names: Iterable[str]) -> bool:
    return any("train" in name.lower() for name in names)


def _is_telling(name: str) -> bool:
    word = name.lower()
    return _HELD_OUT.fullmatch(word) is not None and _SETTING.fullmatch(word) is None


class NamedData:
    """Reads the names of variables in lines of a script."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}

    def is_held_out(self, lines: Lines, loader: tuple[str, int] | None = None) -> bool:
        """Return whether an evaluation is of held-out examples.

        A name in the innermost line that has one decides if its function does not bind it, or if
        the lines that called the function pass a variable of this name. Otherwise all lines count:
        `test_x` in an evaluation that is called with `x_train` is not held out.

        Args:
            lines: that led to the call of the model, innermost first.
            loader: the line that iterates the loader of its examples.
        """
        pooled: set[str] = set()
        followed: set[str] = set()
        for at, line in enumerate(lines):
            here = [line, loader] if at == 0 and loader is not None else [line]
            passed = {name for one in here for name in self._file(one[0]).passed[one[1]]}
            if followed & passed:
                followed &= passed
            else:
                pooled |= {name for one in here for name in self._names(one)}
                if _has_training(pooled):
                    return False
                followed = set() if _has_training(passed) else set(filter(_is_telling, passed))
            bound, parameters = self._file(line[0]).bound(line[1])
            if followed - bound:
                return True
            followed &= parameters
        return is_held_out(pooled)

    def _names(self, line: tuple[str, int]) -> set[str]:
        """Return the variables in a line: not functions that are called, nor in texts.

        Of a formatted text, those that it passes to a function.
        """
        text = _TEXT.sub("", linecache.getline(*line)).partition("#")[0]
        return set(_NAME.findall(text)) | self._file(line[0]).in_texts[line[1]]

    def _file(self, name: str) -> _File:
        if name not in self._files:
            self._files[name] = _File("".join(linecache.getlines(name)))
        return self._files[name]


class _File:
    """A file of the script, by line.

    Attributes:
        passed: variables that a line passes to functions, or iterates.
        in_texts: those that it passes to functions within a formatted text.
    """

    def __init__(self, text: str) -> None:
        self.passed: dict[int, set[str]] = defaultdict(set)
        self.in_texts: dict[int, set[str]] = defaultdict(set)
        self._functions: list[_Function] = []
        try:
            tree = ast.parse(text) if len(text) <= _MAX_CHARS else None
        except (SyntaxError, ValueError, RecursionError):
            return  # a cell with commands of the notebook
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Call):
                _add(self.passed, node)
            elif isinstance(node, ast.JoinedStr):
                for call in ast.walk(node):
                    if isinstance(call, ast.Call):
                        _add(self.in_texts, call)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                self.passed[node.lineno] |= _variables(node.iter)
            elif isinstance(node, _Function):
                self._functions.append(node)

    def bound(self, line: int) -> tuple[set[str], set[str]]:
        """Return the names that the innermost function of a line binds, and its parameters."""
        around = [
            one for one in self._functions if one.lineno <= line <= (one.end_lineno or one.lineno)
        ]
        if not around:
            return set(), set()
        innermost = max(around, key=lambda one: one.lineno)
        parameters = {node.arg for node in ast.walk(innermost.args) if isinstance(node, ast.arg)}
        stored = {
            node.id
            for node in ast.walk(innermost)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        return parameters | stored, parameters


def _add(found: dict[int, set[str]], call: ast.Call) -> None:
    """Add the arguments of a call to the lines that its frame may show."""
    names = _arguments(call)
    for line in {call.lineno, call.func.end_lineno or call.lineno}:
        found[line] |= names


def _arguments(call: ast.Call) -> set[str]:
    """Return the variables among the arguments of a call.

    What is printed or appended beside the result of another call is not an argument of that call.
    """
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    is_print = isinstance(call.func, ast.Name) and call.func.id == "print"
    is_method = isinstance(call.func, ast.Attribute)
    has_call = any(isinstance(node, ast.Call) for one in arguments for node in ast.walk(one))
    if has_call and (is_print or is_method):
        return set()
    return {name for one in arguments for name in _variables(one)}


def _variables(tree: ast.expr) -> set[str]:
    """Return the variables and attributes in an expression: not functions that it calls, or texts.

    A text may show the results of several calls.
    """
    found: set[str] = set()
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.JoinedStr):
            continue
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        called = node.func if isinstance(node, ast.Call) else None
        left += [child for child in ast.iter_child_nodes(node) if child is not called]
        if isinstance(called, ast.Attribute):
            left.append(called.value)
    return found
