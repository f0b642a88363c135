"""Find slips in a script's source: lines that do nothing, or something else than they seem to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stepladder.watching.script.bootstraps import is_undiscounted

UNUSED: Final = "unused"
UNCALLED: Final = "uncalled"
PRECEDENCE: Final = "precedence"
SAME_LAYER: Final = "same_layer"
UNDISCOUNTED: Final = "undiscounted"
# Methods of tensors and tables that return a changed copy, and that little else has.
_COPYING: Final = frozenset({
    "masked_fill", "masked_scatter", "index_fill", "index_copy", "scatter_add", "clamp",
    "clamp_min", "clamp_max", "unsqueeze", "squeeze", "permute", "softmax", "log_softmax",
    "sigmoid", "detach", "contiguous", "nan_to_num", "dropna", "fillna", "drop_duplicates",
    "sort_values", "astype",
})  # fmt: skip
_IN_PLACE: Final = frozenset({"inplace", "out"})
_CALLS: Final = frozenset({"zero_grad", "backward", "step", "eval", "train"})
_MEAN: Final = frozenset({"mean", "nanmean"})
_SPREAD: Final = frozenset({"std", "nanstd"})
_NAMED_MEAN: Final = re.compile(r"(\w+_)?(mean|mu)s?(_\w+)?", re.IGNORECASE)
_NAMED_SPREAD: Final = re.compile(r"(\w+_)?(std|sigma|stddev)s?(_\w+)?", re.IGNORECASE)
_LISTS: Final = frozenset({"ModuleList", "Sequential"})


@dataclass(frozen=True)
class Slip:
    """A line of a script.

    Attributes:
        kind: UNUSED, UNCALLED, PRECEDENCE, SAME_LAYER or UNDISCOUNTED.
        line: its number.
        code: the expression.
        name: of the method or layer.
    """

    kind: str
    line: int
    code: str
    name: str


def slips(source: str) -> list[Slip]:
    """Return the slips of a file, in order.

    Raises:
        SyntaxError: it is no Python, such as a notebook with magic commands.
    """
    found = [one for node in ast.walk(ast.parse(source)) for one in _of(node)]
    return sorted(found, key=lambda one: one.line)


def _of(node: ast.AST) -> Iterator[Slip]:
    if isinstance(node, ast.Expr):
        yield from _of_line(node)
    elif isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Sub) and _is_misread(node):
            yield Slip(PRECEDENCE, node.lineno, ast.unparse(node), "")
        elif isinstance(node.op, ast.Add) and is_undiscounted(node):
            yield Slip(UNDISCOUNTED, node.lineno, ast.unparse(node), "")
    elif isinstance(node, ast.Call) and _last_name(node.func) in _LISTS:
        for given in node.args:
            inner = given.value if isinstance(given, ast.Starred) else given
            layer = _repeated(inner)
            if layer is not None:
                yield Slip(SAME_LAYER, node.lineno, ast.unparse(inner), ast.unparse(layer))


def _of_line(node: ast.Expr) -> Iterator[Slip]:
    """Yield the slip of an expression whose value nobody takes."""
    value = node.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        name, words = value.func.attr, {one.arg for one in value.keywords}
        if name in _COPYING and not words & _IN_PLACE and not _is_module(value.func.value):
            yield Slip(UNUSED, node.lineno, ast.unparse(value), name)
    elif isinstance(value, ast.Attribute) and value.attr in _CALLS:
        yield Slip(UNCALLED, node.lineno, ast.unparse(value), value.attr)


def _is_module(node: ast.expr) -> bool:
    """Return whether it is a library, such as torch or np, whose function a line calls."""
    return isinstance(node, ast.Name) and node.id in ("torch", "np", "numpy", "F", "pd")


def _is_misread(node: ast.BinOp) -> bool:
    """Return whether it is `x - x.mean() / x.std()`, of the same x, or with their names."""
    quotient = node.right
    if not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div):
        return False
    mean, spread = quotient.left, quotient.right
    what = ast.dump(node.left)
    if _statistic_of(mean, _MEAN) == what:
        return any(_statistic_of(one, _SPREAD) == what for one in ast.walk(spread))
    return bool(_NAMED_MEAN.fullmatch(_last_name(mean))) and any(
        _NAMED_SPREAD.fullmatch(_last_name(one)) for one in ast.walk(spread)
    )


def _statistic_of(node: ast.AST, names: frozenset[str]) -> str | None:
    """Return what a mean or standard deviation is computed of; None if it is another expression."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr not in names:
        return None
    if _is_module(node.func.value):
        return ast.dump(node.args[0]) if node.args else None
    return ast.dump(node.func.value)


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _repeated(node: ast.expr) -> ast.expr | None:
    """Return the layer in `[Layer(…)] * n`, which makes one layer and lists it n times."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for side in (node.left, node.right):
        if isinstance(side, ast.List):
            calls = [one for one in side.elts if isinstance(one, ast.Call)]
            return calls[0] if calls else None
    return None
