"""Runs a script as it is, with a rung from outside, and with the rung's diff."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepladder.records import read_json
from stepladder.records.from_json import from_json
from stepladder.records.script import ScriptFacts
from stepladder.scripts.contract import ScriptRung
from stepladder.scripts.inside.scout import FACTS_FILE
from stepladder.scripts.inside.spec import Mode
from stepladder.scripts.patch import patch_of
from stepladder.scripts.rungs import SCRIPT_RUNGS
from stepladder.scripts.settings import Settings
from stepladder.scripts.workplace import Workplace

WAIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Ways:
    """What a script printed in each way.

    Attributes:
        patched: its text with the diff.
        original: while it is watched, which changes nothing.
    """

    facts: ScriptFacts
    patched: str
    original: str
    outside: str
    diff: str


class Climber:
    """A script in a folder of its own.

    Attributes:
        watched: what it has printed under the watcher.
    """

    watched = ""

    def __init__(self, folder: Path, text: str) -> None:
        self.file = folder / "train.py"
        self.file.write_text(text)
        self.work = Workplace(
            script="train.py",
            args=(),
            is_module=False,
            folder=folder / "climb-train",
            allows_writes=False,
        )

    def facts(self) -> ScriptFacts:
        """Return what the scout sees."""
        with self.work.arm(Settings(), mode=Mode.SCOUT) as arm:
            arm.wait_for_success(wait_s=WAIT_S)
            self.watched = arm.output()
        return from_json(ScriptFacts, read_json(self.work.folder / FACTS_FILE))

    def printed(self, settings: Settings, text: str | None = None) -> str:
        """Return what it prints with settings, or with another text."""
        instead = None if text is None else {self.file.resolve(): text}
        with self.work.arm(settings, mode=Mode.RUN, instead=instead) as arm:
            arm.wait_for_success(wait_s=WAIT_S)
            return arm.output()

    def both_ways(self, rung: ScriptRung) -> Ways:
        """Apply a rung from outside and by its diff."""
        facts = self.facts()
        assert rung.why_not(facts, Settings()) is None
        settings = rung.apply(facts, Settings())
        patch = patch_of([rung], facts, settings, {}, script=self.file.resolve())
        assert patch.only_outside == {}
        text = patch.texts[self.file.resolve()]
        done = subprocess.run(
            ["patch", "-p1", "--dry-run"],
            input=patch.diff,
            cwd=self.file.parent,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return Ways(
            facts=facts,
            patched=text,
            original=self.watched,
            outside=self.printed(settings),
            diff=self.printed(Settings(), text),
        )


@pytest.fixture
def climber(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Climber]:
    monkeypatch.chdir(tmp_path)
    return lambda text: Climber(tmp_path, text)


@pytest.fixture
def rung(request: pytest.FixtureRequest) -> ScriptRung:
    """Return the rung that the module of the test is about."""
    return next(one for one in SCRIPT_RUNGS if one.name == request.module.RUNG)
