"""Create a store from pictures: list, hash, split, decode, write and publish.

Everything is written to `<out>.partial`. A run that was killed resumes from its finished files and
produces the same bytes as an uninterrupted run. The store is published atomically when complete.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.config.choices import EngineName, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.decode import decode_versions
from stepladder.data.prepare.class_names import renaming
from stepladder.data.prepare.encode import num_summed
from stepladder.data.prepare.engine import Engine, LocalEngine
from stepladder.data.prepare.findings import Findings, find
from stepladder.data.prepare.near_file import write_near
from stepladder.data.prepare.plan import Plan, make_plan
from stepladder.data.prepare.quarantine import Bad, check_share, read_quarantine, write_quarantine
from stepladder.data.prepare.shard_work import Finished
from stepladder.data.prepare.split import assign_splits, check_classes
from stepladder.data.prepare.target import HASHES_NAME, StoreTarget, open_target
from stepladder.data.prepare.work_folder import WorkFolder, disk_errors_named
from stepladder.data.remote.places import shown, supported_place
from stepladder.data.remote.upload import MARKER
from stepladder.data.sources.containers.opening import open_pictures
from stepladder.data.sources.pictures import HashedListing
from stepladder.data.store.manifest import refuse_foreign
from stepladder.errors import DataError, UsageError
from stepladder.records import Manifest, to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
else:
    DataFrame = Any

__all__ = ["PreparePhase", "PrepareProgress", "PrepareResult", "prepare"]


class PreparePhase(StrEnum):
    """Phase of a prepare run."""

    HASH = "hash"
    WRITE = "write"
    UPLOAD = "upload"


@dataclass(frozen=True, kw_only=True)
class PrepareProgress:
    """Progress of a phase.

    Attributes:
        done, total: number of pictures; for an upload, of files.
        per_s: pictures or files a second in this run.
        left_s: estimated seconds left in the phase; None before the rate is known.
    """

    phase: PreparePhase
    done: int
    total: int
    per_s: float
    left_s: float | None


class Progress:
    """Count pictures or files and call a listener a few times a second and at the end."""

    _EVERY_S = 0.1

    def __init__(
        self,
        phase: PreparePhase,
        total: int,
        listener: Callable[[PrepareProgress], None] | None,
    ) -> None:
        self._phase = phase
        self._total = total
        self._listener = listener
        self._done = 0
        self._num_skipped = 0
        self._started_s = time.monotonic()
        self._told_s = 0.0

    def skip(self, count: int) -> None:
        """Count pictures that an earlier run finished; they are excluded from the rate."""
        self._num_skipped += count
        self._done += count

    def advance(self) -> None:
        """Count one more."""
        self.reach(self._done + 1)

    def reach_of(self, done: int, total: int) -> None:
        """Set the count and the total known so far."""
        self._total = total
        self.reach(done)

    def reach(self, done: int) -> None:
        """Set the count."""
        self._done = done
        now_s = time.monotonic()
        is_due = now_s - self._told_s >= self._EVERY_S or done == self._total
        if self._listener is None or not is_due:
            return
        self._told_s = now_s
        elapsed_s = now_s - self._started_s
        per_s = (done - self._num_skipped) / elapsed_s if elapsed_s > 0 else 0.0
        self._listener(
            PrepareProgress(
                phase=self._phase,
                done=done,
                total=self._total,
                per_s=per_s,
                left_s=(self._total - done) / per_s if per_s > 0 else None,
            )
        )


@dataclass(frozen=True, kw_only=True)
class PrepareResult:
    """Result of a prepare run.

    Attributes:
        manifest: manifest of the store.
        folder: folder of the store.
        num_bad: number of pictures in quarantine.csv.
        warnings: one sentence each.
        wall_s: time taken.
        num_kept: number of pictures in files that an earlier run had finished.
        is_up_to_date: whether the store already existed and nothing was written.
        is_refreshed: whether it replaced a store of the same source, whose pictures have changed.
    """

    manifest: Manifest
    folder: Path
    num_bad: int
    warnings: tuple[str, ...]
    wall_s: float
    num_kept: int = 0
    is_up_to_date: bool = False
    is_refreshed: bool = False


def prepare(
    config: PrepareConfig,
    *,
    frame: DataFrame | None = None,
    may_refresh: bool = False,
    on_progress: Callable[[PrepareProgress], None] | None = None,
) -> PrepareResult:
    """Create a store from a folder or CSV file of pictures; the output is deterministic.

    Args:
        config: the options.
        frame: Spark DataFrame to read instead of the config's source.
        may_refresh: replace a store that differs only in its pictures.
        on_progress: called a few times a second, from the calling thread.

    Raises:
        UsageError: if the source is missing, or `out` has other files or a different store.
        DataError: if the pictures do not form a valid data set, or too many are bad.
        ResourceError: if the disk is full, or another prepare is writing to the same folder.
    """
    started_s = time.perf_counter()
    out = config.out
    if supported_place(out) is None:
        out = out.expanduser().absolute()
        with disk_errors_named(WorkFolder.beside(out)):
            _check_place(out, config.source.expanduser())
    engine = open_engine(config, frame)
    target = open_target(out)
    work = target.work
    with disk_errors_named(work), work.held(), engine.working():
        work.make()
        job = _Job(config, engine, work, out, target, on_progress, may_refresh)
        return job.run(started_s)


def open_engine(config: PrepareConfig, frame: DataFrame | None = None) -> Engine:
    """Return the engine that a config names, after a quick check of the source.

    Raises:
        UsageError: if the source is missing or ambiguous.
        DataError: if it has no usable pictures.
    """
    if config.engine is EngineName.SPARK or frame is not None:
        from stepladder.data.spark.open_engine import open_spark_engine

        return open_spark_engine(config, frame)
    return LocalEngine(config, open_pictures(config))


def plan_of(hashed: HashedListing, config: PrepareConfig) -> Plan:
    """Assign hashed pictures to splits and plan the files."""
    splits = assign_splits(
        hashed.listing,
        [b"" if one.reason else one.sha256 for one in hashed.hashes],
        val_frac=config.val_frac,
        group_by=config.group_by,
    )
    return make_plan(
        hashed.listing, hashed.hashes, splits, config=config, versions=decode_versions()
    )


@dataclass(frozen=True)
class _Job:
    """One call of prepare, with its work folder locked."""

    config: PrepareConfig
    engine: Engine
    work: WorkFolder
    out: Path
    target: StoreTarget
    on_progress: Callable[[PrepareProgress], None] | None
    may_refresh: bool

    def run(self, started_s: float) -> PrepareResult:
        hashed = self._hash()
        listing = hashed.listing
        unread = [
            Bad(picture.path, one.reason)
            for picture, one in zip(listing.pictures, hashed.hashes, strict=True)
            if one.reason is not None
        ]
        self._check_bad(unread, len(listing.pictures), are_all_known=False)
        plan = plan_of(hashed, self.config)
        try:
            rename = partial(renaming, listing=listing, config=self.config)
            check_classes(plan.counts(), plan.classes, unread, rename=rename)
        except DataError:  # because of these?
            self._check_bad(unread, len(listing.pictures), can_skip=False)
            raise
        there, is_refreshed = self._find_store(plan)
        if there is not None:
            self._check_bad(read_quarantine(self.out), len(listing.pictures))
            self.work.remove()
            wall_s = time.perf_counter() - started_s
            return PrepareResult(
                manifest=there,
                folder=self.out,
                num_bad=len(listing.pictures) - sum(map(there.num_rows, Split)),
                warnings=self.target.warnings() or listing.warnings,
                wall_s=wall_s,
                is_up_to_date=True,
            )
        finished, num_kept = self._make_shards(plan, unread, len(listing.pictures))
        self._check_bad(
            [*unread, *(item for done in finished for item in done.bad)],
            len(listing.pictures),
            can_skip=len({label for done in finished for label in done.labels})
            == len(plan.classes),
        )
        findings = find(self.config, listing, plan, finished, unread)
        self._clean_store(plan, finished)
        write_quarantine(self.work.store, findings.bad)
        write_near(self.work.store, findings.near)
        wall_s = time.perf_counter() - started_s
        findings.write_log(self.work.store, wall_s=wall_s)
        if self.work.hashes.exists():
            shutil.copyfile(self.work.hashes, self.work.store / HASHES_NAME)
        upload = Progress(PreparePhase.UPLOAD, 0, self.on_progress)
        manifest = self._manifest(plan, finished, findings)
        manifest = self.target.publish(manifest, on_sent=upload.reach_of)
        self.work.remove()
        return PrepareResult(
            manifest=manifest,
            folder=self.out,
            num_bad=len(findings.bad),
            warnings=findings.warnings,
            wall_s=time.perf_counter() - started_s,
            num_kept=num_kept,
            is_refreshed=is_refreshed,
        )

    def _hash(self) -> HashedListing:
        progress = Progress(PreparePhase.HASH, 0, self.on_progress)
        return self.engine.hash(
            self.work, earlier=self.target.earlier_hashes(), on_done=progress.reach_of
        )

    def _find_store(self, plan: Plan) -> tuple[Manifest | None, bool]:
        """Return the manifest of the existing store if it has the same options and is intact.

        Also return True if there is a store that only its pictures make out of date.
        """
        try:
            manifest = self.target.manifest()
        except DataError:
            if self.config.overwrite:
                return None, False
            raise
        if manifest is None:
            return None, False
        differing = sorted(
            key
            for key in manifest.options.keys() | plan.options.keys()
            if manifest.options.get(key) != to_json(plan.options.get(key))
        )
        if not differing:
            # sizes are cheap to compare; with --overwrite the user may know of damage inside
            problems = self.target.problems(manifest, thorough=self.config.overwrite)
            return (None if problems else manifest), False
        is_refreshed = self.may_refresh and differing == ["source"]
        if self.config.overwrite or is_refreshed:
            return None, is_refreshed
        raise UsageError(
            "this folder already has a store, which was made from other pictures or options: "
            + ", ".join(_told(key, manifest.options, plan.options) for key in differing),
            where=shown(self.out),
            fix="To replace that store: --overwrite. To keep it, write the new store to another "
            "folder: --out FOLDER",
        )

    def _make_shards(
        self, plan: Plan, unread: list[Bad], num_pictures: int
    ) -> tuple[list[Finished], int]:
        """Return the record of each file, and the number of pictures in existing files."""
        bad = list(unread)
        num_kept = 0
        progress = Progress(PreparePhase.WRITE, plan.num_rows, self.on_progress)

        def on_found(done: Finished) -> None:
            nonlocal num_kept
            num_kept += len(done.labels)
            bad.extend(done.bad)
            progress.skip(len(done.labels) + len(done.bad))

        def on_row(item: Bad | None) -> None:
            if item is not None:
                bad.append(item)
                # fail early, not after an hour on the wrong folder
                self._check_bad(bad, num_pictures, are_all_known=False)
            progress.advance()

        finished = self.engine.make(plan, self.work, on_found=on_found, on_row=on_row)
        return finished, num_kept

    def _check_bad(
        self,
        bad: list[Bad],
        num_pictures: int,
        *,
        are_all_known: bool = True,
        can_skip: bool = True,
    ) -> None:
        check_share(
            bad,
            num_pictures=num_pictures,
            max_bad=self.config.max_bad,
            source=self.config.source,
            are_all_known=are_all_known,
            can_skip=can_skip,
        )

    def _clean_store(self, plan: Plan, finished: list[Finished]) -> None:
        """Remove files that earlier runs with other options left in the work folder."""
        named = [shard.name for shard, done in zip(plan.shards, finished, strict=True) if done.info]
        for path in self.work.store.iterdir():
            if not any(path.name.startswith(name) for name in named):
                path.unlink()

    def _manifest(self, plan: Plan, finished: list[Finished], findings: Findings) -> Manifest:
        of_train = [
            done
            for shard, done in zip(plan.shards, finished, strict=True)
            if shard.split is Split.TRAIN
        ]
        num_train = sum(len(done.labels) for done in of_train)
        sums = [sum(int(done.channel_sum[at]) for done in of_train) for at in range(3)]
        squares = [sum(int(done.channel_sq_sum[at]) for done in of_train) for at in range(3)]
        return Manifest(
            encoding=self.config.encoding.value,
            size=self.config.size,
            fit=self.config.fit.value,
            classes=plan.classes,
            class_counts=findings.class_counts,
            channel_sum=(sums[0], sums[1], sums[2]),
            channel_sq_sum=(squares[0], squares[1], squares[2]),
            num_pixels=num_train * num_summed(self.config.size),
            shards=tuple(done.info for done in finished if done.info is not None),
            options=plan.options,
            versions=decode_versions(),
        )


def _told(key: str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Describe an option that differs between the store and the request."""
    if key == "source":
        return "the pictures of the source differ"  # a digest means nothing to the user
    values = [options.get(key) for options in (there, wanted)]
    had, asked = ("none" if value is None else str(to_json(value)) for value in values)
    return f"{key} (that store has {had}, you requested {asked})"


def _check_place(out: Path, source: Path) -> None:
    refuse_foreign(out, MARKER)
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise UsageError(
            f"the store would be written inside the folder of its source, {source}",
            where=str(out),
            why="The next stepladder prepare would read the store as a folder of pictures.",
            fix=f"Choose a folder outside {source}: --out FOLDER",
        )
