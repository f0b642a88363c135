"""A folder that is too large is removed, although cancelled tasks still write to it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from stepladder.data.tables.disk_space import folder_bytes, remove_written


def test_a_folder_that_a_late_task_creates_again_is_removed_again(tmp_path: Path) -> None:
    folder = tmp_path / "partial"
    folder.mkdir()
    is_made_anew = threading.Event()

    def write_late() -> None:
        while folder.exists():
            time.sleep(0.001)
        (folder / "_temporary").mkdir(parents=True)
        (folder / "_temporary" / "part-0").write_bytes(b"late")
        is_made_anew.set()

    late = threading.Thread(target=write_late)
    late.start()
    remove_written(folder)
    late.join()
    assert is_made_anew.is_set()
    assert not folder.exists()


def test_files_below_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(7))
    (tmp_path / "c").write_bytes(bytes(5))
    assert folder_bytes(tmp_path) == 12
    assert folder_bytes(tmp_path / "missing") == 0
