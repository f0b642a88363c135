"""Features are fetched completely or not at all, with any number of concurrent readers."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.data.remote.copies import FolderCopies
from stepladder.data.remote.feature_copies import FeatureCopies
from stepladder.data.remote.places import ObjectPlace

KEY = "a" * 64
COPIES = FeatureCopies(ObjectPlace("photos", "store.features"))


class Hooked(FolderCopies):
    """Runs a hook before each file that it fetches."""

    def __init__(self, folder: Path, hook: Callable[[], None]) -> None:
        super().__init__(folder)
        self.hook = hook

    def fetch(self, name: str, path: Path) -> None:
        self.hook()
        super().fetch(name, path)


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Upload features to the place of the copies; return the local target folder."""
    there, root = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    root.mkdir()
    (there / "features.npy").write_bytes(b"1234")
    (there / "manifest.json").write_text(json.dumps({"sha256": {"features.npy": ""}}))

    def hooked(hook: Callable[[], None]) -> Path:
        monkeypatch.setattr(
            "stepladder.data.remote.feature_copies.open_copies", lambda _: Hooked(there, hook)
        )
        return root

    return hooked


def test_two_processes_that_fetch_the_same_do_not_disturb_each_other(
    serve: Callable[..., Path],
) -> None:
    found = []

    def meanwhile() -> None:
        serve(lambda: None)
        found.append(COPIES.fetch(root / KEY))

    root = serve(meanwhile)
    assert COPIES.fetch(root / KEY)
    assert found == [True]
    assert [path.name for path in root.iterdir()] == [KEY]
    assert sorted(path.name for path in (root / KEY).iterdir()) == ["features.npy", "manifest.json"]


def test_a_full_disk_is_reported_and_leaves_nothing(serve: Callable[..., Path]) -> None:
    def fill() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    root = serve(fill)
    with pytest.warns(
        UserWarning,
        match="features could not be downloaded, so they are computed again: .*No space left",
    ):
        assert not COPIES.fetch(root / KEY)
    assert list(root.iterdir()) == []
