"""The floor: decode each picture once, and run one forward pass in the trunk's fastest form.

The forms are timed on the first batches. Finding the fastest form and compiling it are not on the
clock, as this is a lower bound. Nothing is trained.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn

from bench.accuracy.contenders.contest import frozen_trunk, now, parser_of, read_pictures, report
from stepladder.config.choices import Fit
from stepladder.data.decoding.decode import decode_picture
from stepladder.machine import keep_freed_memory
from stepladder.models.folding import fold_batchnorm

IMPORTED_AT = now()
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
BATCH = 32
Form = Callable[[Tensor], Tensor]


def forms(trunk: nn.Module, size: int, *, may_compile: bool) -> dict[str, Form]:
    """Return the variants of the trunk that can be run, by name."""
    last = frozen_trunk().to(memory_format=torch.channels_last)

    def in_bf16(model: Form) -> Form:
        def forward(x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return model(x)

        return forward

    example = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    folded = fold_batchnorm(frozen_trunk(), example).to(memory_format=torch.channels_last)
    found: dict[str, Form] = {"plain": trunk, "channels_last": last}
    found["channels_last, folded"] = folded
    if may_compile:
        found["channels_last, compiled"] = torch.compile(last)
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        found |= {f"{name}, bf16": in_bf16(form) for name, form in found.items() if name != "plain"}
    return found


@torch.inference_mode()
def seconds_of(form: Form, batches: list[Tensor]) -> float:
    started = now()
    for x in batches:
        form(x)
    return now() - started


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--compile", action="store_true", help="try compiled forms too")
    options = parser.parse_args()
    keep_freed_memory()
    splits, _ = read_pictures(options.pictures)
    files = [picture.path for name in ("train", "val") for picture in splits[name]]

    def decode(path: object) -> np.ndarray:
        return decode_picture(path.read_bytes(), size=options.size, fit=Fit.PAD)  # type: ignore[attr-defined]

    started = now()
    with ThreadPoolExecutor(CORES) as pool:
        pixels = np.stack(list(pool.map(decode, files)))
    decode_s = now() - started
    whole = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    nchw, nhwc = list(whole.contiguous().split(BATCH)), list(whole.split(BATCH))
    tried = forms(frozen_trunk(), options.size, may_compile=options.compile)
    rates = {}
    for name, form in tried.items():
        probe = (nchw if name == "plain" else nhwc)[:3]
        seconds_of(form, probe[:1])
        rates[name] = sum(map(len, probe)) / min(seconds_of(form, probe) for _ in range(5))
    fastest = max(rates, key=lambda name: rates[name])
    batches = nchw if fastest == "plain" else nhwc
    seconds_of(tried[fastest], batches[-1:])  # a shorter batch would recompile on the clock
    forward_s = seconds_of(tried[fastest], batches)
    report(
        imported_at=IMPORTED_AT,
        seconds=decode_s + forward_s,
        epochs=0,
        test_accuracy=None,
        decode_s=decode_s,
        forward_s=forward_s,
        fastest=fastest,
        images_per_s=rates,
    )


if __name__ == "__main__":
    main()
