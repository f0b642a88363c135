"""Find the divergence of a variational autoencoder in an autograd graph, and its weight."""

from __future__ import annotations

import math
from typing import Any, Final

from stepladder.watching.hooks.graph import kind_of, scale_of, shape_of
from stepladder.watching.seen.losses import GaussianSeen, SummedDivergenceSeen

_MAX_NODES: Final = 60


def summed_divergence(root: Any) -> SummedDivergenceSeen | None:
    """Find a Gaussian divergence that is summed over all examples and added to other terms.

    It is a sum of u, exp(u) and v squared, where u and v have one shape, as in
    -0.5 * sum(1 + log_var - mean**2 - exp(log_var)): the same u is added and is in the exponent.
    """
    stack, num = [(root, 1.0)], 0
    while stack and num < _MAX_NODES:
        node, factor = stack.pop()
        num += 1
        if node is None or shape_of(node):
            continue  # no longer a single number
        kind = kind_of(node)
        inputs = [parent for parent, _ in node.next_functions if parent is not None]
        if kind == "Sum":
            found = _divergence(node, factor)
            if found is not None:
                return found
        elif kind in ("Mul", "Div") and len(inputs) == 1:
            by = scale_of(node, kind)
            if by is not None:
                stack.append((inputs[0], factor * by))
        elif kind in ("Add", "Sub", "Rsub", "Neg"):
            stack += [(parent, factor) for parent in inputs]
    return None


def _divergence(root: Any, factor: float) -> SummedDivergenceSeen | None:
    """Return the divergence that a sum over everything computes, or None."""
    found = gaussian_divergence(root)
    if found is None:
        return None
    weight = abs(factor * found.exponent)
    if not math.isclose(weight, abs(factor * found.square), rel_tol=1e-4):
        return None
    return SummedDivergenceSeen(shape=found.shape, weight=2 * weight)


def _is_square(node: Any, inputs: list[Any]) -> bool:
    kind = kind_of(node)
    if kind == "Pow":
        return bool(getattr(node, "_saved_exponent", 0) == 2)
    return kind == "Mul" and len(inputs) == 2 and inputs[0] is inputs[1]


def gaussian_divergence(root: Any) -> GaussianSeen | None:
    """Find the terms u, exp(k u) and v squared of a loss, for the same u, and their factors.

    In the divergence of a Gaussian from the standard one, u is the logarithm of the variance and
    k is 1, or it is that of the standard deviation and k is 2; v is the mean.
    """
    ends: dict[Any, float] = {}
    exponents: dict[Any, tuple[float, float]] = {}
    squares: list[tuple[tuple[int, ...], float]] = []
    stack, num = [((root, 0), 1.0)], 0
    while stack and num < _MAX_NODES:
        (node, idx), by = stack.pop()
        num += 1
        kind, inputs = kind_of(node), _edges(node)
        if kind in ("Add", "Sub", "Rsub", "Neg", "Sum", "Mean"):
            stack += [(edge, by * _factor(node, kind, at)) for at, edge in enumerate(inputs)]
        elif kind in ("Mul", "Div") and len(inputs) == 1 and (scale := scale_of(node, kind)):
            stack.append((inputs[0], by * scale))
        elif (found := _exponent(node, kind, inputs)) is not None:
            exponents[found[0]] = found[1], by
        elif _is_square(node, [parent for parent, _ in inputs]):
            squares.append((shape_of(node), by))
        else:
            ends[node, idx] = ends.get((node, idx), 0.0) + by
    both = exponents.keys() & ends.keys()
    if len(both) != 1:
        return None
    (log_scale,) = both
    shape = shape_of(*log_scale)
    means = [by for of, by in squares if of == shape]
    if kind_of(log_scale[0]) == "AccumulateGrad" or len(shape) < 2 or len(means) != 1:
        return None
    power, exponent = exponents[log_scale]
    return GaussianSeen(
        shape=shape, linear=ends[log_scale], power=power, exponent=exponent, square=means[0]
    )


def _edges(node: Any) -> list[tuple[Any, int]]:
    return [(parent, idx) for parent, idx in node.next_functions if parent is not None]


def _factor(node: Any, kind: str, at: int) -> float:
    """Return what an input of a sum, difference or mean is multiplied by."""
    if kind == "Mean":
        given = shape_of(node.next_functions[0][0], node.next_functions[0][1])
        return math.prod(shape_of(node)) / max(1, math.prod(given))
    if kind == "Neg" or (kind == "Sub" and at == 1):
        return -1.0
    return -1.0 if kind == "Rsub" and at == 0 else 1.0


def _exponent(
    node: Any, kind: str, inputs: list[tuple[Any, int]]
) -> tuple[tuple[Any, int], float] | None:
    """Return u and k of exp(k u), which may be squared."""
    power = 1.0
    if _is_square(node, [parent for parent, _ in inputs]):
        power, node = 2.0, inputs[0][0]
        kind, inputs = kind_of(node), _edges(node)
    if kind != "Exp":
        return None
    edge = inputs[0]
    while kind_of(edge[0]) in ("Mul", "Div"):
        scale, before = scale_of(edge[0], kind_of(edge[0])), _edges(edge[0])
        if not scale or len(before) != 1:
            break
        power, edge = power * scale, before[0]
    return edge, power
