"""A work folder that executors cannot see is reported with the reason and a fix."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.data.remote.cache_folder import made_folder, scratch_folder
from stepladder.data.remote.places import ObjectPlace
from stepladder.data.spark import site as site_module
from stepladder.data.spark.site import open_site, require_shared
from stepladder.errors import ResourceError


@pytest.mark.parametrize(
    ("place", "why", "fix"),
    [
        (lambda: Path("store.partial"), "the driver publishes them", "Use an --out"),
        (
            lambda: scratch_folder() / "1.partial",
            "at the requested path cannot be renamed",
            "Set TMPDIR",
        ),
        (
            lambda: made_folder(None, ObjectPlace("bucket", "store"), ".partial"),
            "cannot write to the object store",
            "Run the command in a folder that all machines mount",
        ),
    ],
    ids=["asked for", "of a mount", "of an object store"],
)
def test_a_folder_that_an_executor_does_not_see(
    place: Callable[[], Path], why: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    site = open_site(place())

    def run_elsewhere(_: object, num_tasks: int, work: Callable[[int], str]) -> dict[int, str]:
        aside = site.root.rename(tmp_path / "aside")
        try:
            return {task: work(task) for task in range(num_tasks)}
        finally:
            aside.rename(site.root)

    monkeypatch.setattr(site_module, "run_tasks", run_elsewhere)
    monkeypatch.setattr(site_module, "num_slots", lambda _: 1)
    with pytest.raises(ResourceError, match="does not share this folder") as caught:
        require_shared(None, site)  # type: ignore[arg-type]
    assert why in str(caught.value.why)
    assert fix in str(caught.value.fix)
    assert "--engine local" in str(caught.value.fix)
