"""The features of one split: loaded from disk and checked, or computed and written."""

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
from stepladder.data.features.feature_files import FeatureFolder, Features, FeatureWriter
from stepladder.data.features.feature_source import HeldFeatures
from stepladder.data.order.order_choice import resolve_order
from stepladder.data.reading.reader import Reader, Source
from stepladder.errors import DataError, UsageError
from stepladder.machine.activity import on_its_own
from stepladder.models.features import evaluating
from stepladder.records import Json, to_json
from stepladder.training.evaluate import EvaluationCancelled
from stepladder.training.features.feature_pass import TrunkPass, batch_size_on
from stepladder.training.features.feature_rules import NOT_OWN, NOT_OWN_FIX, agree

_NUM_CHECKED = 2


class FeatureEngine(Protocol):
    """Computes features in other processes."""

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
        """Compute the features of rows, and append them in order.

        Args:
            recipe: of the job; other processes build the trunk from it.
            way: how examples reach the head.
            split: of the rows.
            rows: all rows to compute in the split.
            fingerprint: of the split, to verify the data.
            num_views: see `TrunkPass.features`.
            num_done: number of rows, from the first, that are already computed.
            folder: for temporary files of the engine, kept until all rows are computed.
            append: called with the features and the targets of the next rows.
            check: called often; raises if the user cancels.
        """


@dataclass(kw_only=True)
class FeatureOpener:
    """Opens the features of the splits, one at a time.

    Attributes:
        recipe: of the job; its options are part of the key of the features.
        way: how examples reach the head.
        folder: of all features of this data.
        known: another such folder, which is only read.
        trunk: hash of the trunk.
        total: examples of the splits with progress; done: those that are computed.
        engine: computes them in other processes; None: computed in this process.
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
    known: Path | None = None
    done: int = 0
    is_waiting: bool = False

    def open(self, split: Split, source: Source) -> HeldFeatures:
        """Return a split's features, from disk or computed by the trunk.

        Raises:
            UsageError: if all rows were just computed, and two of them differ when computed again.
            DataError: if the features just written are damaged.
            ResourceError: if they cannot be written.
            EvaluationCancelled: if is_cancelled returns True; computed features are kept.
        """
        is_train = split is Split.TRAIN
        num_views = self.way.num_views if is_train else 0
        reader = self._reader(source, is_train=is_train)
        facts = self._facts(split, source, num_views)
        place = FeatureFolder(self.folder, facts)
        before = self.done
        held = self._load(place, source, num_views, reader)
        if held is None and self.known is not None:
            held = self._load_known(FeatureFolder(self.known, facts), source, num_views, reader)
        while held is None:
            with place.writing(reader.num_examples, on_wait=self._wait) as writer:
                is_fresh = writer is not None and writer.num_done == 0
                if writer is not None:
                    self.done = before
                    self._compute(split, source, reader, writer, num_views)
                    with on_its_own("writing features"):
                        writer.publish()
            held = self._load(place, source, num_views, reader, is_fresh=is_fresh)
        reader.close()
        self.done = before + reader.num_examples
        return held

    def _reader(self, source: Source, *, is_train: bool) -> Reader:
        """Return a reader in stored order; for train, only of the rows that are used."""
        recipe = self.recipe
        micro = recipe.batch.micro_batch_size or 1
        size = batch_size_on(self.way.device)
        return Reader(
            source,
            seed=0,
            global_batch_size=max(size, micro),
            mode=OrderMode.SEQUENTIAL,
            threads=recipe.loader.num_threads,
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
        """Return stored features if they are complete and of this trunk; remove others.

        Args:
            is_fresh: this process has just computed them, so computing them again is no help.
        """
        try:
            with on_its_own("opening the features"):
                found = place.load()
        except DataError as error:
            if is_fresh:
                raise
            self._remove(place, error.what)
            return None
        if found is None:
            return None
        held = self._current(found, source, num_views, reader)
        if held is not None:
            return held
        if is_fresh:
            place.remove()
            raise _not_own(source, reader.order.samples(0, 0, reader.num_examples))
        self._remove(place, "the features on disk belong to another trunk or other data")
        return None

    def _load_known(
        self, place: FeatureFolder, source: Source, num_views: int, reader: Reader
    ) -> HeldFeatures | None:
        """Return features of another folder if they are complete and of this trunk."""
        try:
            found = place.load()
        except DataError:
            return None
        return None if found is None else self._current(found, source, num_views, reader)

    def _current(
        self, found: Features, source: Source, num_views: int, reader: Reader
    ) -> HeldFeatures | None:
        """Return stored features as those of a source, or None if they are not."""
        rows = reader.order.samples(0, 0, reader.num_examples)
        held = HeldFeatures(source, found, rows if len(rows) < len(source) else None)
        return held if self._is_current(held, source, rows, num_views) else None

    def _remove(self, place: FeatureFolder, why: str) -> None:
        self.on_message(f"{why}; computing them again ({place.path})")
        place.remove()

    def _is_current(
        self, held: HeldFeatures, source: Source, rows: np.ndarray, num_views: int
    ) -> bool:
        """Compute two rows again, because the key does not cover changes of code or a user's data.

        On a GPU those on disk may come from TF32 operations and the two rows from others, because
        the choice depends on the batch size.
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
        """Compute the features of the missing rows."""
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
        """Show once that another process is computing the features."""
        self._check_cancelled()
        if not self.is_waiting:
            self.is_waiting = True
            self.on_message(f"another process is computing these features; waiting ({self.folder})")

    def _check_cancelled(self) -> None:
        if self.is_cancelled():
            raise EvaluationCancelled


def _sample(data: DataConfig, source: Source) -> dict[str, Json]:
    """Return which rows of train are used, for the key."""
    sample: dict[str, Json] = {"fraction": data.fraction, "seed": data.seed}
    if resolve_order(data, source).sample is Sampling.FILES:
        sample["of"] = Sampling.FILES
    return sample


def _first_and_last(rows: np.ndarray) -> np.ndarray:
    """Return the first and the last row; for one row, that one."""
    return rows[:: max(1, len(rows) - 1)][:_NUM_CHECKED]


def _not_own(source: Source, rows: np.ndarray) -> UsageError:
    names = " and ".join(source.describe(int(row)) for row in _first_and_last(rows))
    return UsageError(
        f"features cannot be cached: {NOT_OWN}",
        where="features.cached",
        why=f"The features of these examples were different when they were computed again: "
        f"{names}.",
        fix=NOT_OWN_FIX,
    )
