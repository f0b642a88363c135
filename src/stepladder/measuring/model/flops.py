"""FLOPs of a model, peak FLOP/s of the machine, and model FLOPs utilization."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from stepladder.config.choices import Precision
from stepladder.measuring.blocks.timing import time_in_turn

DTYPES = {
    Precision.FP32: torch.float32,
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
    Precision.FP16_MASTER: torch.float16,
}
_TF32 = "tf32"


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Measured peaks of this machine: FLOP/s of a matrix product, bytes/s of a copy."""

    flops_per_s: float
    bandwidth_bytes_per_s: float


def count_flops(run: Callable[[], object]) -> int:
    """Count the floating-point operations of matrix products and convolutions in a call.

    As torch counts them: a multiply-add counts as two, pointwise operations are not counted.
    """
    return sum(count_flops_by_operation(run).values())


def count_flops_by_operation(run: Callable[[], object]) -> dict[str, int]:
    """Count the floating-point operations by torch's name of the operation."""
    with FlopCounterMode(display=False) as counter:
        run()
    found = counter.get_flop_counts().get("Global", {})
    return {str(operation): int(number) for operation, number in found.items()}


def runs_in_tf32(precision: Precision, *, has_conv: bool, cudnn: bool, matmul: bool) -> bool:
    """Return True if most of a model's 32-bit operations may run in TF32 on a GPU that has it.

    Args:
        has_conv: whether convolutions are most of the model's work.
        cudnn, matmul: whether torch allows TF32 in convolutions (on by default) and in matrix
            products (off by default).
    """
    return precision is Precision.FP32 and (cudnn if has_conv else matmul)


def measure_peaks(
    device: torch.device, precision: Precision, *, has_conv: bool, budget_s: float
) -> Peaks:
    """Measure the peak rates of a large matrix product in a precision, and of a large copy.

    These are measured rates of the fastest call, not those of a data sheet. On a GPU the product
    uses TF32 if the model's operations do, see `runs_in_tf32`.
    """
    is_cuda = device.type == "cuda"
    dtype = DTYPES[precision]
    side = 8192 if is_cuda else 256 if dtype is torch.float16 else 1024  # fp16 is slow on most CPUs
    num_bytes = (1 << 30) if is_cuda else (1 << 26)  # far larger than a cache
    a = torch.ones(side, side, dtype=dtype, device=device)
    b, product = torch.ones_like(a), torch.empty_like(a)
    block = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(block)

    def multiply() -> Tensor:
        return torch.mm(a, b, out=product)

    def copy() -> Tensor:
        return target.copy_(block)

    is_tf32 = is_cuda and runs_in_tf32(
        precision,
        has_conv=has_conv,
        cudnn=torch.backends.cudnn.conv.fp32_precision == _TF32,  # type: ignore[attr-defined]
        matmul=torch.backends.cuda.matmul.fp32_precision == _TF32,
    )
    with products_in_tf32(is_tf32):
        times = time_in_turn({"multiply": multiply, "copy": copy}, device, budget_s=budget_s)
    return Peaks(
        flops_per_s=2 * side**3 / min(times["multiply"]),
        bandwidth_bytes_per_s=2 * num_bytes / min(times["copy"]),
    )


@contextmanager
def products_in_tf32(is_on: bool) -> Iterator[None]:
    """Turn TF32 for CUDA's 32-bit matrix products on or off within the block."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if is_on != (before == _TF32):
        matmul.fp32_precision = _TF32 if is_on else "ieee"
    try:
        yield
    finally:
        if matmul.fp32_precision != before:
            matmul.fp32_precision = before


def model_flops_utilisation(flops: float, seconds: float, *, peak_flops_per_s: float) -> float:
    """Return the model's FLOPs divided by those that the machine could do in the same time.

    Source: Chowdhery et al. 2022, "PaLM", appendix B, arXiv:2204.02311.
    """
    return flops / (seconds * peak_flops_per_s)
