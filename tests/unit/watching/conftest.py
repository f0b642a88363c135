"""Watches snippets in this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.records.watch import WatchReport
from stepladder.watching.script.own_code import OwnCode
from stepladder.watching.script.script import Ending
from stepladder.watching.script.session import Session

Watched = Callable[..., WatchReport]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Return a function that runs and watches code as a script of its own."""
    monkeypatch.chdir(tmp_path)

    def run(code: str, *, is_probing: bool = False, max_steps: int | None = None) -> WatchReport:
        file = tmp_path / "snippet.py"
        file.write_text(code, encoding="utf-8")
        reports: list[WatchReport] = []
        own = OwnCode(tmp_path, str(file))
        session = Session(
            "snippet.py",
            (),
            own,
            tmp_path,
            reports.append,
            max_steps=max_steps,
            is_probing=is_probing,
        )
        session.begin()
        space: dict[str, object] = {"__name__": "__main__"}
        try:
            exec(compile(code, str(file), "exec"), space)
            ending = Ending(exit_code=0, words="it ran to completion")
        except BaseException as error:
            ending = Ending(exit_code=1, words=f"it raised {type(error).__name__}")
        finally:
            session.finish(ending)
        report = reports[0]
        assert not [line for line in report.not_seen if "internal error" in line]
        return report

    return run


@pytest.fixture(scope="session")
def snippets() -> dict[str, tuple[str, str]]:
    """Return a faulty program for each detector, and the same one fixed."""
    spec = importlib.util.spec_from_file_location(
        "snippets", Path(__file__).with_name("snippets.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, tuple[str, str]] = module.SNIPPETS
    return found
