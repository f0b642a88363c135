"""Compute features with Spark: executors run the trunk and write to the cache of any run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from stepladder.config.choices import Split, WeightsSource
from stepladder.config.recipe import Recipe
from stepladder.data.reading.reader import Source
from stepladder.data.reading.threads import one_torch_thread
from stepladder.data.remote.places import object_place
from stepladder.data.spark.session import spark_session
from stepladder.data.spark.site import Site, open_site, require_shared, run_told
from stepladder.errors import ResourceError, UsageError
from stepladder.models.features import evaluating, hash_trunk
from stepladder.task.contract import Task
from stepladder.task.load import BUILT_IN, load_task
from stepladder.training.features.feature_pass import (
    TrunkPass,
    batch_size_on,
    read_batch,
    trunk_of,
)
from stepladder.training.setup.build import keep_memory, make_model, make_trunk_pass
from stepladder.training.setup.table_version import open_at_version

if TYPE_CHECKING:
    from pyspark import Broadcast
else:
    Broadcast = Any

_ROWS_PER_TASK = 256  # a few seconds of work
_ROWS, _PARTS, _FOLDER = "rows.npy", "parts", "spark"
_CPU = torch.device("cpu")


class SparkFeatures:
    """Computes features on Spark executors; each Python worker builds the trunk once.

    Args:
        task_name: as for `load_task`; executors open the same file.
    """

    def __init__(self, task_name: str) -> None:
        file, colon, name = task_name.rpartition(":")
        is_built_in = task_name == BUILT_IN
        self._task_name = task_name if is_built_in else f"{Path(file).absolute()}{colon}{name}"
        if not is_built_in and not Path(file).is_file():
            raise UsageError(
                f"Spark's executors cannot load the Task {task_name}, because its class is not in "
                "a Python file",
                where="task",
                fix="Put its class into a Python file, and pass it as FILE.py:NAME.",
            )

    def compute(
        self,
        recipe: Recipe,
        way: TrunkPass,
        split: Split,
        rows: np.ndarray,
        *,
        fingerprint: str,
        num_views: int,
        num_done: int,
        folder: Path,
        append: Callable[[Tensor, Tensor | None], None],
        check: Callable[[], None],
    ) -> None:
        """Compute parts of the rows in Spark tasks, and append them in order.

        Parts of an interrupted call are reused.

        Raises:
            UsageError: if the job runs on a GPU.
            ResourceError: if Spark fails, or the executors do not share the folder.
        """
        if way.device.type != "cpu":
            raise UsageError(
                "with --engine spark, features are computed on CPUs, but this job trains on a GPU, "
                "which would not use them",
                where="device.kind",
                why="Features that were computed on a GPU differ in their last digits, so the two "
                "kinds are cached separately.",
                fix="Use --device.kind cpu here and in training, or compute the features on this "
                "machine: --engine local",
            )
        shared = folder / _FOLDER
        with spark_session() as spark:
            site = open_site(shared)
            np.save(shared / _ROWS, rows)
            recipe = _for_executors(recipe)
            require_shared(spark, site, example=_local(recipe.data.store))
            spans = _spans(num_done, len(rows))
            trunk = trunk_of(way.task, way.model)
            broadcast = spark.sparkContext.broadcast(_to_bytes(trunk))
            work = FeatureTasks(
                site=site,
                recipe=recipe,
                task_name=self._task_name,
                split=split,
                fingerprint=fingerprint,
                num_views=num_views,
                spans=spans,
                weights=broadcast,
                trunk=hash_trunk(trunk),
                threads=int(spark.conf.get("spark.task.cpus", "1") or 1),
            )
            parts = _Parts(site, spans, append)
            wanted = parts.missing()

            def look() -> None:
                check()
                parts.look()

            look()
            run_told(spark, site, len(wanted), partial(_compute_at, work, wanted), on_poll=look)
            broadcast.unpersist()
        parts.finish()
        shutil.rmtree(shared, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class FeatureTasks:
    """The work of all Spark tasks.

    Attributes:
        site: the shared folder.
        recipe: of the job; the initial weights of its trunk do not matter.
        task_name: see `load_task`.
        split, num_views: what is computed.
        fingerprint: of the split.
        spans: (first row, row after the last) of each part.
        weights: of the trunk, as safetensors.
        trunk: hash of the trunk with these weights.
        threads: of torch.
    """

    site: Site
    recipe: Recipe
    task_name: str
    split: Split
    fingerprint: str
    num_views: int
    spans: list[tuple[int, int]]
    weights: Broadcast[bytes]
    trunk: str
    threads: int

    def compute(self, part: int) -> None:
        """Compute the features of one part, and write them to the shared folder."""
        from safetensors.torch import save_file

        way, source = self._way()
        rows = np.load(self.site.root / _ROWS, mmap_mode="r")[slice(*self.spans[part])]
        tensors: dict[str, list[Tensor]] = {"features": [], "targets": []}
        with one_torch_thread(), evaluating(way.model):
            torch.set_num_threads(self.threads)
            for batch_rows in _batches(np.array(rows), batch_size_on(_CPU)):
                batch = read_batch(source, batch_rows)
                tensors["features"].append(way.features(batch, num_views=self.num_views))
                if batch.targets is not None:
                    tensors["targets"].append(batch.targets)
        made = {name: torch.cat(some) for name, some in tensors.items() if some}
        path = _part(self.site, self.spans[part])
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        save_file(made, temporary)
        self.site.publish(temporary, path)

    def _way(self) -> tuple[TrunkPass, Source]:
        """Build the trunk and open the data, once per Python worker."""
        key = f"{self.site.token} {self.split}"
        if key not in _BUILT:
            _BUILT.clear()
            keep_memory(self.recipe)
            _BUILT[key] = self._build()
        return _BUILT[key]

    def _build(self) -> tuple[TrunkPass, Source]:
        task = load_task(self.task_name, store=self.recipe.data.store, recipe=self.recipe)
        source = self._open(task)
        model = make_model(self.recipe, task, _CPU)
        trunk = trunk_of(task, model)
        _from_bytes(trunk, self.weights.value)
        if hash_trunk(trunk) != self.trunk:
            raise ResourceError(
                "one of Spark's executors built another network (other layers or weights) than "
                "this machine, so its features would differ",
                where="spark",
                fix="Install the same versions of stepladder, torch and timm on the executors.",
            )
        way = make_trunk_pass(self.recipe, task, model, device=_CPU)
        return way, source

    def _open(self, task: Task) -> Source:
        sources = open_at_version(task, self.recipe.data.table_version)
        source: Source | None = getattr(sources, self.split.value)
        if source is None or source.fingerprint != self.fingerprint:
            raise ResourceError(
                f"one of Spark's executors read other examples of the split {self.split} than this "
                "machine",
                where="spark",
                why="The features that it computes would belong to other examples.",
                fix="The Task must read the same, unchanging files on all machines, from shared "
                "storage. For a Delta table, set the version: open_table(..., version=N).",
            )
        return source


_BUILT: dict[str, tuple[TrunkPass, Source]] = {}


class _Parts:
    """Appends parts in the order of their rows, as they are written."""

    def __init__(
        self,
        site: Site,
        spans: list[tuple[int, int]],
        append: Callable[[Tensor, Tensor | None], None],
    ) -> None:
        self._site, self._spans, self._append = site, spans, append
        self._next = 0
        site.folder(_PARTS)

    def missing(self) -> list[int]:
        """Return the parts that are not computed yet."""
        return [at for at, span in enumerate(self._spans) if not _part(self._site, span).exists()]

    def look(self) -> None:
        """Append the parts that are there."""
        from safetensors.torch import load_file

        while self._next < len(self._spans):
            path = _part(self._site, self._spans[self._next])
            if not path.exists():
                return
            made = load_file(path)
            self._append(made["features"], made.get("targets"))
            path.unlink()
            self._next += 1

    def finish(self) -> None:
        """Append the last parts.

        Raises:
            ResourceError: if some are missing.
        """
        self.look()
        if self._next < len(self._spans):
            raise ResourceError(
                "the features that Spark's executors wrote to this folder cannot be seen on this "
                "machine",
                where=str(self._site.root),
                why="Shared storage may take a while to show new files to other machines.",
                fix="Type the same command again in a minute.",
            )


def _compute_at(work: FeatureTasks, wanted: list[int], task: int) -> None:
    work.compute(wanted[task])


def _spans(start: int, stop: int) -> list[tuple[int, int]]:
    starts = range(start, stop, _ROWS_PER_TASK)
    return [(start, min(start + _ROWS_PER_TASK, stop)) for start in starts]


def _part(site: Site, span: tuple[int, int]) -> Path:
    return site.root / _PARTS / f"{span[0]}-{span[1]}.safetensors"


def _batches(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (rows[at : at + size] for at in range(0, len(rows), size))


def _for_executors(recipe: Recipe) -> Recipe:
    """Return the recipe with an absolute path, and weights that need no download."""
    store = recipe.data.store
    if object_place(store) is None:
        store = store.expanduser().absolute()
    return replace(
        recipe,
        data=replace(recipe.data, store=store),
        model=replace(recipe.model, weights=WeightsSource.NONE),
        device=replace(recipe.device, compile=False),
    )


def _local(store: Path) -> Path | None:
    return store if object_place(store) is None and store.exists() else None


def _tensors(trunk: nn.Module) -> dict[str, Tensor]:
    return {**dict(trunk.named_parameters()), **dict(trunk.named_buffers())}


def _to_bytes(trunk: nn.Module) -> bytes:
    from safetensors.torch import save

    plain = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in _tensors(trunk).items()
    }
    return save(plain)


def _from_bytes(trunk: nn.Module, data: bytes) -> None:
    from safetensors.torch import load

    found = load(data)
    with torch.no_grad():
        for name, tensor in _tensors(trunk).items():
            if name in found and found[name].shape == tensor.shape:
                tensor.copy_(found[name])
