"""Causes in the model and the optimizer: calls that could be saved, and settings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from stepladder.watching.causes.calls import called, share_of_calls, usual_calls
from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.causes.lines import heaviest, shown
from stepladder.watching.seen.costs import OPTIMIZER, SampleSeen

_MIN_SHARE: Final = 0.03
_OFTEN: Final = 0.5  # of the steps in which modules were timed
_MOST_DOUBLE: Final = 0.5  # of the weights are in float64
_MIN_ENLARGED: Final = 0.8
_MIN_PADDED: Final = 0.25  # of the positions of a batch
_MIN_BATCHES: Final = 5  # whose padding was measured
_TRACEBACK: Final = re.compile(r"\b(traceback|linecache)\.py:")


def model_causes(evidence: Evidence) -> list[Cause]:
    """Name what the model computes in vain, or slowly."""
    return [
        *_repeated(evidence),
        *_frozen(evidence),
        *_unheld(evidence),
        *_padded(evidence),
        *_enlarged(evidence),
        *_doubles(evidence),
        *_modes(evidence),
    ]


def _repeated(evidence: Evidence) -> list[Cause]:
    calls = usual_calls(evidence, evidence.seen.costs.calls.repeated.values())
    share = share_of_calls(evidence, calls)
    if share < _MIN_SHARE:
        return []
    first = calls[0]
    text = (
        f"{percent(share)} of the time is spent on calling {called(first)} at {first.where} on "
        "inputs that it has just received: keep the output of the first call, with "
        ".detach() where no gradient is needed"
    )
    return [Cause(name="one_forward", share=share, text=text)]


def _frozen(evidence: Evidence) -> list[Cause]:
    seen = evidence.seen.costs.calls
    still = usual_calls(evidence, seen.frozen.values())
    live = usual_calls(evidence, seen.frozen_training.values())
    calls = sorted([*still, *live], key=lambda one: -one.seconds)
    share = share_of_calls(evidence, calls)
    if share < _MIN_SHARE:
        return []
    first = calls[0]
    eval_first = "put it in evaluation mode, " if first in live else ""
    text = (
        f"{percent(share)} of the time is spent in {called(first)} at {first.where}, whose weights "
        f"are frozen: {eval_first}compute its outputs once for all examples and train on these, "
        "if the inputs are the same in each epoch"
    )
    return [Cause(name="cached_features", share=share, text=text)]


def _unheld(evidence: Evidence) -> list[Cause]:
    """Name gradients of parts that no optimizer holds, by their share of forward."""
    seen = evidence.seen.costs.calls
    calls = usual_calls(evidence, seen.unheld.values())
    if not calls or not seen.learned_s or not evidence.seen.optimizers:
        return []
    part = min(1.0, sum(one.seconds for one in calls) / seen.learned_s)
    share = part * evidence.shares.get("backward", 0.0)
    if share < _MIN_SHARE:
        return []
    first = calls[0]
    text = (
        f"up to {percent(share)} of the time is spent on gradients of {called(first)} (called at "
        f"{first.where}), which no optimizer uses: call requires_grad_(False) on it, and if its "
        "inputs are the same in each epoch, compute its outputs once and train on these"
    )
    return [Cause(name="no_unused_gradients", share=share, text=text)]


def _padded(evidence: Evidence) -> list[Cause]:
    """Name sequences that are padded to one length, of which hardly a batch needs all."""
    seen = evidence.seen.costs.padding
    is_known = seen.num_looked >= _MIN_BATCHES and not seen.is_fixed
    if not is_known or evidence.seen.is_compiled or len(seen.lengths) > 1 or len(seen.used) < 2:
        return []
    unused = 1 - seen.num_used / seen.num_positions
    share = evidence.compute * unused
    if unused < _MIN_PADDED or share < _MIN_SHARE:
        return []
    length, mean = max(seen.lengths), seen.num_used / seen.num_looked
    text = (
        f"all batches have {length} positions (at {seen.where}), of which {percent(unused)} are "
        f"padding in every row, and {percent(evidence.compute)} of the time is spent in the model: "
        f"pad each batch to its own longest sequence, {mean:.0f} positions on average"
    )
    return [Cause(name="shorter_padding", share=share, text=text)]


def _enlarged(evidence: Evidence) -> list[Cause]:
    """Name images that are enlarged before they reach the model."""
    found = [
        one
        for one in evidence.seen.costs.resized.values()
        if one.num
        and one.num_enlarged >= _MIN_ENLARGED * one.num
        and one.num >= _OFTEN * min(evidence.num_steps, 64)
    ]
    where = ""
    if found:
        one = max(found, key=lambda each: each.num)
        before, after, where = one.before, one.after, f" at {one.where}"
    else:
        seen = [pair for pair in evidence.seen.costs.enlarged if pair is not None]
        if not seen or len(seen) < len(evidence.seen.costs.enlarged):
            return []
        after, before = seen[-1]
    kept = (before[0] * before[1]) / (after[0] * after[1])
    share = evidence.compute * (1 - kept)
    if share < _MIN_SHARE:
        return []
    text = (
        f"images of {'' if where else 'about '}{before[0]} × {before[1]} pixels are enlarged to "
        f"{after[0]} × {after[1]}{where}, and {percent(evidence.compute)} of the time is spent in "
        "the model: "
        "train on smaller ones, which contain as much, and compare the accuracy"
    )
    return [Cause(name="smaller_images", share=share, text=text, is_loose=True)]


def _doubles(evidence: Evidence) -> list[Cause]:
    costs = evidence.seen.costs
    if not costs.num_floats or costs.num_doubles < _MOST_DOUBLE * costs.num_floats:
        return []
    share = (evidence.compute + evidence.shares.get("optimizer", 0.0)) / 2
    text = (
        f"{costs.num_doubles:,} of {costs.num_floats:,} weights are in float64: use float32, with "
        "model.float() and inputs.float(), unless the task needs this precision"
    )
    return [Cause(name="single_precision", share=share, text=text)]


def _modes(evidence: Evidence) -> list[Cause]:
    """Name modes for debugging that were left on; what they cost is only bounded."""
    costs, compute = evidence.seen.costs, evidence.compute
    found = []
    if costs.num_modes and costs.num_anomaly >= _OFTEN * costs.num_modes:
        known = evidence.share_of(
            sum(
                one.seconds
                for one in evidence.samples
                if any(_TRACEBACK.search(call) for call in one.calls)
            )
        )
        at_least = f" in {percent(known)} of the time" if known >= _MIN_SHARE else ""
        text = (
            "torch.autograd.set_detect_anomaly is on, which stores a traceback for each operation"
            f"{at_least}, and checks each gradient: switch it on only to look for a NaN"
        )
        share = max(compute / 2, known)
        found.append(Cause(name="no_anomaly_mode", share=share, text=text))
    if costs.num_modes >= 4 and costs.num_profiled >= 0.9 * costs.num_modes:
        text = "torch's profiler records all steps: give it a schedule of a few steps, or remove it"
        found.append(Cause(name="no_profiler", share=compute / 2, text=text, is_loose=True))
    if evidence.has_gpu and costs.is_deterministic:
        text = (
            "deterministic algorithms are on, which are slower: switch them off where runs need "
            "not be repeatable, and set torch.backends.cudnn.benchmark = True"
        )
        share = 0.3 * compute
        found.append(Cause(name="any_algorithm", share=share, text=text, is_loose=True))
    return found


def _is_own_update(sample: SampleSeen) -> bool:
    """Return whether the innermost line is in a loop over weights of an optimizer's own step."""
    headers = sample.spots[-1].loops if sample.spots else ()
    return any("param" in header or "group" in header for header in headers)


def optimizer_causes(evidence: Evidence) -> list[Cause]:
    """Name what would make the optimizer's step faster."""
    step = evidence.shares.get("optimizer", 0.0)
    if not 0 < step < 1:
        return []
    own = [one for one in evidence.samples if one.part == OPTIMIZER and _is_own_update(one)]
    own_share = min(step, evidence.share_of(sum(one.seconds for one in own)))
    if own_share >= _MIN_SHARE and own_share >= _OFTEN * step:
        spot, _ = heaviest(replace(one, spots=one.spots[-1:]) for one in own)
        text = (
            f"{percent(own_share)} of the time is spent in the script's own optimizer, in a loop "
            f"over weights at {shown(spot)}: use the functions torch._foreach_*, or an optimizer "
            "of torch with fused=True"
        )
        return [Cause(name="foreach", share=own_share, text=text)]
    fused = evidence.facts.get("fused")
    if fused is False:
        text = f"the optimizer takes {percent(step)} of the time: pass fused=True to it"
        return [Cause(name="fused_optimizer", share=step, text=text, is_loose=True)]
    loops = [
        one
        for one in evidence.samples
        if one.part == OPTIMIZER and any(":_single_tensor_" in call for call in one.calls)
    ]
    share = min(step, evidence.share_of(sum(one.seconds for one in loops)))
    if fused is None and share >= _MIN_SHARE:
        text = (
            f"the optimizer updates one weight after another, in {percent(share)} of the time: "
            "pass foreach=True to it"
        )
        return [Cause(name="foreach", share=share, text=text, is_loose=True)]
    return []
