"""How much faster another device computes, by the roofline of both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from stepladder.config.choices import Precision
from stepladder.planning.hardware.gpus import GPUS, OLDER_GPUS, Gpu, gpu_named
from stepladder.planning.hardware.ranges import Range
from stepladder.records.profile import Profile, Provenance, is_mostly_conv

_NO_BF16: Final = ("K20", "K80", "P100", "V100", "T4")
COMPUTE_BOUND_MFU: Final = 0.5
"""Model FLOPs utilisation from which the peak, not the bandwidth, is the limit."""
_REACHED: Final = (1.0, 0.7, 0.5)
"""Share of the roofline's gain that is reached: kernels start as slowly as before."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What the device of a measurement reaches.

    Attributes:
        name: of the device, by its driver.
        peak_flops_per_s, bandwidth_bytes_per_s: measured; None: not known.
        mfu: model FLOPs utilisation of a step; None: not known.
        is_conv: convolutions do most of the arithmetic.
        half_gain: gain of 16 bits on this device, by replayed operations; None: not measured.
    """

    name: str
    peak_flops_per_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    mfu: float | None = None
    is_conv: bool = False
    half_gain: float | None = None

    @classmethod
    def of_profile(cls, profile: Profile) -> Rates:
        """Return the rates of a profile's device."""
        ratio = profile.op_replays.get("bf16")
        return cls(
            name=profile.device_name if profile.device == "cuda" else profile.device,
            peak_flops_per_s=profile.peak_flops_per_s,
            bandwidth_bytes_per_s=profile.bandwidth_bytes_per_s,
            mfu=profile.mfu,
            is_conv=is_mostly_conv(profile.conv_frac),
            half_gain=1 / ratio if ratio else None,
        )


@dataclass(frozen=True, kw_only=True)
class Gain:
    """How much faster a device is: by peak, by bandwidth, and by the one that limits."""

    more_flops: float
    more_bytes: float
    speed: float


def roofline_gain(
    rates: Rates, gpu: Gpu, precision: Precision, *, own: Gpu | None = None
) -> Gain | None:
    """Return the gain of another device; None if this one's rates are not known.

        attained = min(peak, intensity x bandwidth)

    If this device attains half of its peak, the peaks are compared; otherwise the intensity is
    derived from the attained FLOP/s and the bandwidth, as if memory were the only limit.

    Args:
        own: this device by data sheet: like is compared with like; None: not in a list.

    Source: Williams et al. 2009, "Roofline: An Insightful Visual Performance Model", CACM 52(4).
    """
    has_conv = rates.is_conv and gpu.tf32_flops_per_s is not None
    if own is not None:
        peak: float | None = own.flops_per_s(precision, has_conv=has_conv)
        bandwidth: float | None = own.bytes_per_s
    else:
        peak, bandwidth = rates.peak_flops_per_s, rates.bandwidth_bytes_per_s
        if peak and precision is Precision.FP32 and rates.is_conv and not has_conv:
            peak = min(peak, gpu.fp32_flops_per_s)  # this GPU may use TF32: a cautious estimate
    if not peak or not bandwidth:
        return None
    more_flops = gpu.flops_per_s(precision, has_conv=has_conv) / peak
    more_bytes = gpu.bytes_per_s / bandwidth
    if rates.mfu is None:
        speed = min(more_flops, more_bytes)
    elif rates.mfu >= COMPUTE_BOUND_MFU:
        speed = more_flops
    else:
        speed = min(more_flops / max(rates.mfu, 1e-6), more_bytes)
    return Gain(more_flops=more_flops, more_bytes=more_bytes, speed=speed)


def has_no_bf16(gpu: Gpu | None, precision: Precision) -> bool:
    """Return True if a device is known to compute in bfloat16 more slowly than in 32 bits."""
    return gpu is not None and gpu.name in _NO_BF16 and precision is Precision.BF16


def precision_gain(
    rates: Rates | None, gpu: Gpu | None, *, measured: Precision, asked: Precision
) -> Range | None:
    """Return how many times as fast a step is in another precision than that of the measurement.

    Returns:
        None if it cannot be predicted: from 16 bits back to 32.
    """
    if measured is asked:
        return Range.exact(1.0, Provenance.MEASURED, "the precision of the measurement")
    if measured is not Precision.FP32:
        return None
    if gpu is None and rates is not None and rates.half_gain:
        return Range.exact(rates.half_gain, Provenance.REPLAYED, "profile: operations in bf16")
    own = gpu
    if own is None and rates is not None:
        own = gpu_named((*GPUS, *OLDER_GPUS), rates.name)
    if own is None:
        return None
    is_conv = rates is not None and rates.is_conv
    most = own.half_flops_per_s / own.flops_per_s(Precision.FP32, has_conv=is_conv)
    return Range(
        best=max(1.0, most),
        likely=max(1.0, math.sqrt(most)),
        worst=1.0,
        provenance=Provenance.ASSUMED,
        source=f"data sheet of a {own.name}: at most the ratio of its peaks",
    )


def speed_of(rates: Rates | None, gpu: Gpu | None, precision: Precision) -> Range | None:
    """Return how many times as fast a machine's device computes as that of the measurement.

    Args:
        gpu: of the machine; None: the same device.
        precision: of the measurement, so that like is compared with like.

    Returns:
        1 for the same device; None if it cannot be predicted.
    """
    if gpu is None:
        return Range.exact(1.0, Provenance.MEASURED, "the same device")
    if rates is None:
        return None
    own = gpu_named((*GPUS, *OLDER_GPUS), rates.name)
    if own is not None and own.name == gpu.name:
        return Range.exact(1.0, Provenance.MEASURED, "the same device")
    gain = roofline_gain(rates, gpu, precision, own=own)
    if gain is None or not math.isfinite(gain.speed):
        return None
    best, likely, worst = (share * gain.speed for share in _REACHED)
    return Range(
        best=best,
        likely=likely,
        worst=worst,
        provenance=Provenance.MODELLED,
        source=f"data sheet of a {gpu.name}, roofline; 50 to 100 % of it, assumed",
    )
