"""Causes in the loader: its workers, its iterators, and the lines of the dataset."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.causes.growth import halves_of
from stepladder.watching.causes.lines import heaviest, shown
from stepladder.watching.seen.costs import DATA, SampleSeen
from stepladder.watching.seen.loaders import LoaderSeen, PassSeen

_MIN_SHARE: Final = 0.05
_MIN_STARTS: Final = 2  # passes that started workers
_MANY_PASSES: Final = 0.4  # of the steps began a pass
_MIN_SHRUNK: Final = 4.0  # an image is much larger than one with this share of its pixels
_MOST: Final = 0.4  # of the loader's time is of one kind
_MIN_COMPARED: Final = 40  # examples that were fetched again
_MIN_LATER: Final = (
    0.3  # of the loader's time is in the second half of the steps: nothing is cached
)
_MOST_ROWS: Final = 0.9  # of the time in a dataset's lines: the rest may be that of len()
_OF_MEMORY: Final = 0.25  # of what is available, for all examples
_DECODERS: Final = (
    "PIL/Image.py:open",
    "PIL/Image.py:load",
    "PIL/ImageFile.py",
    "PIL/JpegImagePlugin",
    "PIL/PngImagePlugin",
    "PIL/Image.py:convert",
    "torchvision/io",
    "cv2/",
    "imageio/",
    "skimage/io",
    "simplejpeg/",
    "torchaudio/",
    "soundfile",
    "librosa/",
)
_READERS: Final = ("numpy/lib/", "pandas/", "h5py/", "json/", "csv.py", "pickle.py", "zipfile.py")
_LIBRARIES: Final = (
    "torchvision/",
    "albumentations/",
    "PIL/",
    "numpy/",
    "scipy/",
    "skimage/",
    "torch/",
    "cv2/",
    "pandas/",
    "transformers/",
    "tokenizers/",
)
_STORED: Final = ("TensorDataset",)


def loader_causes(evidence: Evidence, wait: float) -> list[Cause]:
    """Name the causes of waiting for data.

    Args:
        wait: the share of the time in which training waits, or what replays leave of it.
    """
    loader = next((one for one in evidence.seen.loaders if one.training), None)
    if loader is None or not 0 < wait < 1:
        return []
    starting = _starts(evidence, loader, wait)
    rest = wait - (starting.share if starting is not None else 0.0)
    causes = [] if starting is None else [starting]
    if loader.num_workers == 0:
        return [*causes, *_in_main_process(evidence, loader, rest)]
    return [*causes, *_by_workers(evidence, loader, rest)]


def _starts(evidence: Evidence, loader: LoaderSeen, wait: float) -> Cause | None:
    """Name what starting passes takes: new workers, or a new iterator in each step."""
    passes = [one for one in loader.passes if one.is_training and one.start_s > 0]
    if len(passes) < _MIN_STARTS or evidence.whole_s <= 0:
        return None
    usual_s = _usual_wait(passes)
    extra_s = sum(max(0.0, one.start_s - usual_s) for one in passes)
    is_each_step = sum(one.num_batches for one in passes) * _MANY_PASSES <= len(passes)
    has_workers = loader.num_workers > 0 and not loader.keeps_workers
    if not has_workers:
        return None
    if is_each_step:
        extra_s = sum(one.start_s for one in passes)
    share = min(wait, extra_s / evidence.whole_s)
    if share < _MIN_SHARE:
        return None
    workers = f"{loader.num_workers} worker process{'es' if loader.num_workers > 1 else ''}"
    if is_each_step:
        return Cause(
            name="one_iterator",
            share=share,
            text=f"{percent(share)} of the time is spent on starting {workers} "
            f"for nearly each batch at {loader.where}, {len(passes):,} times: create the iterator "
            "once per epoch, as `for batch in loader` does",
        )
    return Cause(
        name="persistent_workers",
        share=share,
        text=f"{percent(share)} of the time is spent on starting {workers} again for "
        f"each of {len(passes):,} passes over the loader at {loader.where}: pass "
        "persistent_workers=True to it",
    )


def _usual_wait(passes: Sequence[PassSeen]) -> float:
    """Return the mean seconds for a batch that is not the first of its pass."""
    num = sum(max(0, one.num_batches - 1) for one in passes)
    return sum(one.wait_s - one.start_s for one in passes) / num if num else 0.0


def _in_main_process(evidence: Evidence, loader: LoaderSeen, wait: float) -> list[Cause]:
    """Name the lines that prepare batches in the training process."""
    samples = [o for o in evidence.samples if o.part == DATA and not o.is_validation]
    total_s = sum(one.seconds for one in samples)
    if wait < _MIN_SHARE or not total_s:
        return _more_workers(loader, wait)
    is_stored = loader.dataset in _STORED or _only_take_rows(samples)
    kinds: dict[str, list[SampleSeen]] = {}
    for one in samples:
        is_row = is_stored and one.num_inside > 0
        kinds.setdefault("collate" if is_row else _kind(one), []).append(one)
    name, group = max(kinds.items(), key=lambda item: sum(one.seconds for one in item[1]))
    seconds = sum(one.seconds for one in group)
    part = seconds / total_s
    if part < _MOST or (name == "collate" and not is_stored):
        return _more_workers(loader, wait)
    share = min(wait, evidence.share_of(seconds))
    if name == "order":
        return _new_orders(evidence, loader, share)
    if name == "collate":
        return [
            Cause(
                name="whole_batches",
                share=share,
                text=f"{percent(share)} of the time is spent on fetching single examples "
                f"of {_in_memory(loader)} and stacking them ({loader.where}): index the tensors by "
                "whole batches, as in `for idx in torch.randperm(n).split(batch_size): x[idx]`",
            )
        ]
    spot, _ = heaviest(_within(group))
    special = _resize_first(evidence, group, share) if name == "transform" else None
    if special is None and name in ("python", "transform"):
        special = _computed_once(evidence, loader, group, share, is_loop=name == "python")
    if special is not None:
        return [special]
    ways = {
        "decode": "decode each image once and keep the pixels in memory or in an array on disk, "
        "or decode in processes with num_workers and persistent_workers",
        "read": "read each file once and keep its content in memory, or set num_workers and "
        "persistent_workers",
        "python": "replace the loop by array operations, on all values at once, or "
        "do it once for all examples before training",
        "transform": "do it once for all examples if it is not random, on whole batches, or in "
        "processes with num_workers and persistent_workers",
    }
    names = {
        "decode": "decoded_once",
        "read": "read_once",
        "python": "vectorise",
        "transform": "loader_threads",
    }
    return [
        Cause(
            name=names[name],
            share=share,
            text=f"training waits for the data loader in {percent(wait)} of the time, which has "
            f"no worker processes, mostly {_loops_of(group) if name == 'python' else ''}at "
            f"{shown(spot)}: {ways[name]}",
        )
    ]


def _computed_once(
    evidence: Evidence,
    loader: LoaderSeen,
    group: Sequence[SampleSeen],
    share: float,
    *,
    is_loop: bool,
) -> Cause | None:
    """Name lines that compute the same examples in each epoch, if all of these fit into memory."""
    seen, its_id = loader.repeats, loader.dataset_id
    num_passes = sum(len(o.training) for o in evidence.seen.loaders if o.dataset_id == its_id)
    if seen is None or num_passes < 2 or seen.has_drawn or seen.num_compared < _MIN_COMPARED:
        return None
    all_bytes = seen.num_examples * seen.example_bytes
    if seen.num_equal < seen.num_compared or all_bytes > _OF_MEMORY * seen.memory_bytes:
        return None
    first_s, later_s = halves_of(group, evidence.seen.costs.stacks)
    inside = _within(group)
    spot, _ = heaviest(inside)
    if later_s < _MIN_LATER * (first_s + later_s):
        return None
    outer = next((one.spots[0] for one in inside if spot in one.spots), spot)
    caller = f", called by `{outer.function}` at {outer.where}" if outer != spot else ""
    caller = caller or f" in `{outer.function}`"
    text = (
        f"{percent(share)} of the time is spent on computing the same examples in each epoch "
        f"({seen.num_equal:,} of {seen.num_compared:,} that were compared are equal), mostly "
        f"{_loops_of(group) if is_loop else ''}at {shown(spot)}{caller}: compute each example "
        f"once, in __init__ or with a cache (all {seen.num_examples:,} take about "
        f"{_size(all_bytes)} of memory){', or use array operations' if is_loop else ''}"
    )
    return Cause(name="computed_once", share=share * (1 - 1 / num_passes), text=text)


def _size(num_bytes: int) -> str:
    """Return a number of bytes in words."""
    megabytes = num_bytes / 1e6
    if megabytes >= 1000:
        return f"{megabytes / 1000:.1f} GB"
    return f"{megabytes:.0f} MB" if megabytes >= 10 else f"{max(megabytes, 0.1):.1f} MB"


def _loops_of(group: Sequence[SampleSeen]) -> str:
    """Return in words how many Python loops are around the lines that take most of the time."""
    seconds: dict[int, float] = {}
    for one in group:
        num = min(len(one.spots[-1].loops) + (" for " in one.spots[-1].text), 2)
        seconds[num] = seconds.get(num, 0.0) + one.seconds
    num = max(seconds, key=lambda key: seconds[key])
    return "in nested Python loops over single values " if num == 2 else "in a Python loop "


def _resize_first(evidence: Evidence, group: Sequence[SampleSeen], share: float) -> Cause | None:
    """Name transforms of images that are much larger than all images that are resized."""
    costs = evidence.seen.costs
    sizes = [one.after for one in costs.resized.values() if one.function == "resize"]
    large = {where: size for where, size in costs.transformed.items() if where is not None}
    if not sizes or not large:
        return None
    small = max(sizes, key=lambda size: size[0] * size[1])
    kept = {
        where: (small[0] * small[1]) / (size[0] * size[1])
        for where, size in large.items()
        if small[0] * small[1] * _MIN_SHRUNK <= size[0] * size[1]
    }
    inside = [one for one in group if any(spot.where in kept for spot in one.spots)]
    seconds = sum(one.seconds for one in inside)
    if not inside or seconds < _MOST * sum(one.seconds for one in group):
        return None
    spot, _ = heaviest(_within(inside))
    where = max(kept, key=lambda key: large[key]) if spot.where not in kept else spot.where
    size, part = large[where], seconds / sum(one.seconds for one in group)
    text = (
        f"{percent(share * part)} of the time is spent on images of {size[0]} × "
        f"{size[1]} pixels at {shown(spot)}, and images are resized to {small[0]} × {small[1]}: "
        "resize first, then transform, and scale lengths in pixels with the image"
    )
    return Cause(name="resize_first", share=share * part * (1 - kept[where]), text=text)


def _new_orders(evidence: Evidence, loader: LoaderSeen, share: float) -> list[Cause]:
    """Name new iterators, each of which permutes the whole dataset."""
    passes = [one for one in loader.passes if one.is_training]
    if len(passes) < _MANY_PASSES * evidence.num_steps:
        return _more_workers(loader, share)
    text = (
        f"{percent(share)} of the time is spent on permuting the dataset, as nearly each batch is "
        f"the first of a new iterator ({loader.where}): create the iterator once per epoch, as "
        "`for batch in loader` does"
    )
    return [Cause(name="one_iterator", share=share, text=text)]


def _in_memory(loader: LoaderSeen) -> str:
    if loader.dataset in _STORED:
        return f"a {loader.dataset}"
    return f"{loader.dataset}, which only takes rows of tensors in memory,"


def _only_take_rows(samples: Sequence[SampleSeen]) -> bool:
    """Return whether the lines of a dataset only index what it stores, as in `self.x[idx]`."""
    inside = [one for one in samples if one.num_inside]
    rows_s = sum(one.seconds for one in inside if _takes_rows(one.spots[-1].text))
    return rows_s > 0 and rows_s >= _MOST_ROWS * sum(one.seconds for one in inside)


def _takes_rows(line: str) -> bool:
    if line.strip().startswith("def "):  # the call itself
        return True
    try:
        (statement,) = ast.parse(line.strip()).body
    except (SyntaxError, ValueError):
        return False
    value = getattr(statement, "value", None)
    is_plain = isinstance(statement, (ast.Return, ast.Assign)) and value is not None
    return is_plain and all(_is_row(one) for one in _parts(value))


def _parts(value: Any) -> list[Any]:
    if isinstance(value, ast.Dict):
        return value.values
    return value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]


def _is_row(value: Any) -> bool:
    if isinstance(value, ast.Subscript):
        of, at = value.value, value.slice
        is_own = isinstance(of, ast.Attribute) and isinstance(of.value, ast.Name)
        return is_own and isinstance(at, ast.Name)
    return isinstance(value, ast.Name)


def _kind(sample: SampleSeen) -> str:
    """Return what a loader does: order, decode, read, transform, python or collate."""
    calls = sample.calls
    if calls and calls[-1].startswith("torch/utils/data/sampler.py"):
        return "order"
    if any(name in call for call in calls for name in _DECODERS):
        return "decode"
    if any(name in call for call in calls for name in _READERS):
        return "read"
    return _kind_of_line(sample) if sample.num_inside else "collate"


def _kind_of_line(sample: SampleSeen) -> str:
    """Return what the innermost line does: decode, read, transform or python."""
    innermost, calls = sample.spots[-1].text, sample.calls
    if "open(" in innermost or ".convert(" in innermost or "imread(" in innermost:
        return "decode"
    if "np.load(" in innermost or "torch.load(" in innermost or "read_" in innermost:
        return "read"
    is_loop = bool(sample.spots[-1].loops) or " for " in innermost
    is_library = any(call.startswith(_LIBRARIES) for call in calls)
    is_value = all(call.startswith("torch/_tensor.py") for call in calls)
    return "python" if is_loop and (is_value or not is_library) else "transform"


def _within(group: Sequence[SampleSeen]) -> list[SampleSeen]:
    """Return samples with the lines only that the loader has called."""
    return [replace(one, spots=one.spots[-max(one.num_inside, 1) :]) for one in group]


def _more_workers(loader: LoaderSeen, wait: float) -> list[Cause]:
    if wait <= 0:
        return []
    return [
        Cause(
            name="loader_threads",
            share=wait,
            is_loose=True,
            text=f"training waits for the data loader in {percent(wait)} of the time"
            f"{_at(loader)}: set num_workers and persistent_workers, decode smaller images, or "
            "cache decoded pixels",
        )
    ]


def _by_workers(evidence: Evidence, loader: LoaderSeen, wait: float) -> list[Cause]:
    """Name what slows a loader with worker processes."""
    if wait <= 0:
        return []
    head = f"training waits for the data loader in {percent(wait)} of the time{_at(loader)}"
    cores, workers = evidence.facts.get("cores"), loader.num_workers
    if loader.dataset in _STORED:
        text = (
            f"{head}, whose {workers} worker processes only copy examples of a TensorDataset: "
            "set num_workers=0, or index the tensors by whole batches"
        )
        return [Cause(name="fewer_workers", share=wait, text=text)]
    if isinstance(cores, int) and workers > 2 * cores:
        text = f"{head}, whose {workers} worker processes share {cores} cores: use {cores}"
        return [Cause(name="fewer_workers", share=wait, text=text, is_loose=True)]
    has_all = isinstance(cores, int) and workers >= cores
    more = "" if has_all else "use more or faster workers, "
    full = f"; each of the {cores} cores already has a worker process" if has_all else ""
    return [
        Cause(
            name="loader_threads",
            share=wait,
            is_loose=True,
            text=f"{head}: {more}decode smaller images, or cache decoded pixels{full}",
        )
    ]


def _at(loader: LoaderSeen) -> str:
    return f" ({loader.where})" if loader.where is not None else ""
