"""Check stores, runs and reports of watched scripts for damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepladder.api.call import run_folder
from stepladder.data.remote.places import supported_place
from stepladder.errors import DataError, UsageError
from stepladder.records import read_json
from stepladder.records.diagnosis import Diagnosis
from stepladder.records.findings import CheckReport
from stepladder.records.from_json import read_record
from stepladder.records.watch import WATCH_FILE, WatchReport

_STORE_FILE = "manifest.json"
_CHECKS_FILE = "checks.json"
_RECORDS: dict[str, type] = {
    _CHECKS_FILE: CheckReport,
    "diagnosis.json": Diagnosis,
    WATCH_FILE: WatchReport,
}
_PLAIN = ("summary.json", "climb.json", "env.json")


def verify(path: Path | str) -> list[str]:
    """Read a store, a run or a report of a watched script, and list what is damaged.

    The files of a store in an object store are all downloaded, also those in the cache.

    Returns:
        One sentence per damaged file; empty if there is no damage.

    Raises:
        DataError: if the folder is not a store, a run or such a report.
    """
    folder = Path(path)
    if supported_place(folder) is not None:
        from stepladder.data.remote.remote_store import verify_remote

        return verify_remote(folder)
    if (folder / _STORE_FILE).is_file():
        from stepladder.data.store.store import verify_store

        return verify_store(folder)
    if not any((folder / name).is_file() for name in (WATCH_FILE, _CHECKS_FILE)):
        _require_run(folder)
    return [*_damaged_checkpoints(folder / "checkpoints"), *_damaged_records(folder)]


def repair(path: Path | str, *, source: Path | str | None = None) -> list[str]:
    """Rebuild the damaged files of a store from its pictures, byte for byte.

    Args:
        path: folder of the store.
        source: where its pictures are now; None: they have not moved.

    Returns:
        Names of the rebuilt files.

    Raises:
        UsageError: if the store is in an object store.
        DataError: if the folder is not a store, or a file cannot be rebuilt identically.
    """
    if (place := supported_place(Path(path))) is not None:
        raise UsageError(
            "stepladder verify --repair cannot repair a store in an object store",
            where=str(place),
            fix="Repeat your stepladder prepare command with --overwrite; it uploads only the "
            "files that are damaged.",
        )
    from stepladder.data.store.repair import repair_store

    return repair_store(Path(path), source=None if source is None else Path(source))


def _require_run(folder: Path) -> None:
    """Raise DataError unless a folder, which is not a store, is a run folder."""
    try:
        run_folder(folder)
    except DataError as error:
        fix = f"{error.fix} Or use a store, written by `stepladder prepare`."
        raise DataError(error.what, where=error.where, why=error.why, fix=fix) from None


def _damaged_checkpoints(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    from stepladder.training.checkpoint.checkpoint import Checkpoints

    return Checkpoints(folder, keep_last=1).verify()


def _damaged_records(folder: Path) -> Iterator[str]:
    """Read the JSON files of a folder; a missing key counts as damage too."""
    for name in (*_RECORDS, *_PLAIN):
        path = folder / name
        if not path.is_file():
            continue
        try:
            if name in _RECORDS:
                read_record(_RECORDS[name], path)
            else:
                read_json(path)
        except DataError as error:
            yield str(error).splitlines()[0]
        except OSError as error:
            yield f"{path}: cannot be read ({error.strerror or error})"
