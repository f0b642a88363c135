"""One split's features: found on disk and checked, or computed and written there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from stepladder.config.choices import OrderMode, Sampling, Split, Where
from stepladder.config.recipe import DataConfig, Recipe
from stepladder.data.features.feature_files import FeatureFolder, FeatureWriter
from stepladder.data.features.feature_source import HeldFeatures
from stepladder.data.order.order_choice import resolve_order
from stepladder.data.reading.reader import Reader, Source
from stepladder.errors import DataError, UsageError
from stepladder.models.features import evaluating
from stepladder.records import Json, to_json
from stepladder.training.evaluate import EvaluationCancelled
from stepladder.training.features.feature_pass import TrunkPass, batch_size_on
from stepladder.training.features.feature_rules import NOT_OWN, NOT_OWN_FIX, agree

_NUM_CHECKED = 2


class FeatureEngine(Protocol):
    """Computes features in other processes than this one."""

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
        """Compute the features of rows, and hand them over in order.

        Args:
            recipe: of the job, by which other processes build the trunk.
            way: how examples reach the head.
            split: of the rows.
            rows: of the split, all of them.
            fingerprint: of the split; others must not be taken for it.
            num_views: see `TrunkPass.features`.
            num_done: how many of them, from the first on, are there already.
            folder: for files of its own, kept until all rows are there.
            append: takes the features and the targets of the next rows.
            check: called often; raises where the user has had enough.
        """


@dataclass(kw_only=True)
class FeatureOpener:
    """Opens the features of one split after the other.

    Attributes:
        recipe: of the job; its options are part of the key of the features.
        way: how examples reach the head.
        folder: of all features of this data.
        trunk: hash of the trunk.
        total: examples of the splits that progress is told of; done: those that are ready.
        engine: that computes them elsewhere; None: this process does.
    """

    recipe: Recipe
    way: TrunkPass
    folder: Path
    trunk: str
    total: int
    on_progress: Callable[[int, int], None]
    on_message: Callable[[str], None]
    is_cancelled: Callable[[], bool]
    engine: FeatureEngine | None = None
    done: int = 0
    is_waiting: bool = False

    def open(self, split: Split, source: Source) -> HeldFeatures:
        """Return a split's features, from the disk or through the trunk.

        Raises:
            UsageError: if all rows were computed just now, and two come out otherwise once more.
            DataError: if what was written just now is damaged.
            ResourceError: if they cannot be written.
            EvaluationCancelled: if is_cancelled says so; what is computed is kept.
        """
        is_train = split is Split.TRAIN
        num_views = self.way.num_views if is_train else 0
        reader = self._reader(source, is_train=is_train)
        place = FeatureFolder(self.folder, self._facts(split, source, num_views))
        before = self.done
        held = self._load(place, source, num_views, reader)
        while held is None:
            with place.writing(reader.num_examples, on_wait=self._wait) as writer:
                is_fresh = writer is not None and writer.num_done == 0
                if writer is not None:
                    self.done = before
                    self._compute(split, source, reader, writer, num_views)
                    writer.publish()
            held = self._load(place, source, num_views, reader, is_fresh=is_fresh)
        reader.close()
        self.done = before + reader.num_examples
        return held

    def _reader(self, source: Source, *, is_train: bool) -> Reader:
        """Read in the stored order, and of train only what is used."""
        recipe = self.recipe
        micro = recipe.batch.micro_batch_size or 1
        size = batch_size_on(self.way.device)
        return Reader(
            source,
            seed=0,
            global_batch_size=max(size, micro),
            mode=OrderMode.SEQUENTIAL,
            threads=recipe.loader.threads,
            prefetch_batches=recipe.loader.prefetch_batches,
            fraction=recipe.data.fraction if is_train else 1.0,
            fraction_seed=recipe.data.seed,
            sample=recipe.data.sample,
            where=Where.STREAM,
        )

    def _facts(self, split: Split, source: Source, num_views: int) -> dict[str, Json]:
        recipe, kind = self.recipe, type(self.way.task)
        data = recipe.data
        is_part = split is Split.TRAIN and data.fraction < 1
        facts = {
            "task": f"{kind.__module__}.{kind.__qualname__}",
            "trunk": self.trunk,
            "device": self.way.device.type,
            "is_folded": recipe.model.fold_batchnorm,
            "precision": recipe.device.precision,
            "memory_format": recipe.device.memory_format,
            "scaled_decode": recipe.loader.scaled_decode,
            "split": split,
            "fingerprint": source.fingerprint,
            "num_examples": len(source),
            "sample": _sample(data, source) if is_part else None,
            "views": num_views,
            "augment": {**asdict(recipe.augment), "seed": recipe.seed} if num_views else None,
        }
        return dict(to_json(facts))

    def _load(
        self,
        place: FeatureFolder,
        source: Source,
        num_views: int,
        reader: Reader,
        *,
        is_fresh: bool = False,
    ) -> HeldFeatures | None:
        """Return stored features that are whole and those of this trunk; others are removed.

        Args:
            is_fresh: this process has computed them just now: to do so again would not help.
        """
        try:
            found = place.load()
        except DataError as error:
            if is_fresh:
                raise
            self._remove(place, error.what)
            return None
        if found is None:
            return None
        rows = reader.order.samples(0, 0, reader.num_examples)
        held = HeldFeatures(source, found, rows if len(rows) < len(source) else None)
        if self._is_current(held, source, rows, num_views):
            return held
        if is_fresh:
            place.remove()
            raise _not_own(source, rows)
        self._remove(place, "the features on disk are of another trunk or other data")
        return None

    def _remove(self, place: FeatureFolder, why: str) -> None:
        self.on_message(f"{why}: they are computed again ({place.path})")
        place.remove()

    def _is_current(
        self, held: HeldFeatures, source: Source, rows: np.ndarray, num_views: int
    ) -> bool:
        """Compute two rows again: the key cannot know what code or a user's data has changed.

        On a GPU those on disk may come from operations in TF32 and the two rows from others, as
        the size of the batch chooses among them.
        """
        if len(held.features) != len(rows):
            return False
        some = _first_and_last(rows)
        fresh = self.way.fresh(source, some, num_views=num_views)
        features, targets = held.read(some)
        precision, is_cuda = self.way.precision, self.way.device.type == "cuda"
        is_same = agree(features, fresh.inputs, precision, is_tf32=is_cuda)
        return is_same and (targets is None or torch.equal(targets, fresh.targets))

    def _compute(
        self, split: Split, source: Source, reader: Reader, writer: FeatureWriter, num_views: int
    ) -> None:
        """Put the rows that are still missing through the trunk."""
        self.done += writer.num_done
        start_s = time.perf_counter()

        def append(features: Tensor, targets: Tensor | None) -> None:
            nonlocal start_s
            now = time.perf_counter()
            writer.append(features, targets, seconds=now - start_s)
            start_s = now
            self.done += len(features)
            self.on_progress(self.done, self.total)

        if self.engine is None:
            self._compute_here(reader, writer.num_done, num_views, append)
        else:
            self.engine.compute(
                self.recipe,
                self.way,
                split,
                reader.order.samples(0, 0, reader.num_examples),
                fingerprint=source.fingerprint,
                num_views=num_views,
                num_done=writer.num_done,
                folder=writer.folder,
                append=append,
                check=self._check_cancelled,
            )

    def _compute_here(
        self,
        reader: Reader,
        num_done: int,
        num_views: int,
        append: Callable[[Tensor, Tensor | None], None],
    ) -> None:
        batches = reader.epoch(0, num_done)
        try:
            with evaluating(self.way.model):
                for batch in batches:
                    self._check_cancelled()
                    append(self.way.features(batch, num_views=num_views), batch.targets)
        finally:
            batches.close()

    def _wait(self) -> None:
        """Say once that another process is at it."""
        self._check_cancelled()
        if not self.is_waiting:
            self.is_waiting = True
            self.on_message(f"another process computes these features; waiting ({self.folder})")

    def _check_cancelled(self) -> None:
        if self.is_cancelled():
            raise EvaluationCancelled


def _sample(data: DataConfig, source: Source) -> dict[str, Json]:
    """Say which rows of train are used."""
    sample: dict[str, Json] = {"fraction": data.fraction, "seed": data.seed}
    if resolve_order(data, source).sample is Sampling.FILES:
        sample["of"] = Sampling.FILES
    return sample


def _first_and_last(rows: np.ndarray) -> np.ndarray:
    """Return the first and the last of some rows; of one row, that one."""
    return rows[:: max(1, len(rows) - 1)][:_NUM_CHECKED]


def _not_own(source: Source, rows: np.ndarray) -> UsageError:
    names = " and ".join(source.describe(int(row)) for row in _first_and_last(rows))
    return UsageError(
        f"features cannot be computed once: {NOT_OWN}",
        where="features.cached",
        why=f"Computed once more, two of them came out otherwise: {names}.",
        fix=NOT_OWN_FIX,
    )
