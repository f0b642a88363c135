"""Damped inverses of the two factors of a layer's curvature."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

_MORE_DAMPING: Final = (1.0, 10.0, 100.0, 1000.0)


def damped_inverses(inputs: Tensor, grads: Tensor, damping: float) -> tuple[Tensor, Tensor] | None:
    """Return (A + π √λ I)^-1 and (G + √λ / π I)^-1; None if no damping makes them definite.

    π² is the mean eigenvalue of A over that of G, so that the damping is divided by their sizes.

    Args:
        inputs, grads: A and G, shapes (num_in, num_in) and (num_out, num_out).
        damping: λ.

    Source: Martens and Grosse 2015, section 6.3, arXiv:1503.05671.
    """
    sizes = [float(one.diagonal().mean()) for one in (inputs, grads)]
    share = math.sqrt(sizes[0] / sizes[1]) if min(sizes) > 0 else 1.0
    root = math.sqrt(damping)
    first, second = _inverse(inputs, share * root), _inverse(grads, root / share)
    return None if first is None or second is None else (first, second)


def _inverse(matrix: Tensor, damping: float) -> Tensor | None:
    """Return the inverse by Cholesky's decomposition, in fp64 or with more damping if it fails."""
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    tries = [(matrix.dtype, 1.0), *((torch.float64, factor) for factor in _MORE_DAMPING)]
    for dtype, factor in tries:
        damped = (matrix + factor * damping * eye).to(dtype)
        lower, info = torch.linalg.cholesky_ex(damped)
        if int(info) == 0:
            return torch.cholesky_inverse(lower).to(matrix.dtype)
    return None


def decomposed(matrix: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return eigenvalues, 0 or more, and eigenvectors, in fp64 if that fails; None if it does, too.

    Shapes: values (n,), vectors (n, n), in columns.
    """
    for dtype in (matrix.dtype, torch.float64):
        try:
            values, vectors = torch.linalg.eigh(matrix.to(dtype))
        except RuntimeError:
            continue
        return values.clamp_(min=0).to(matrix.dtype), vectors.to(matrix.dtype)
    return None
