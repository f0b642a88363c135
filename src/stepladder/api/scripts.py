"""Climb with an unmodified script, and run it with what was kept."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepladder.api.targets import PAGE, refuse_to_replace
from stepladder.errors import UsageError
from stepladder.machine import num_cores
from stepladder.machine.openmp import user_environment
from stepladder.records import read_json, write_json
from stepladder.records.from_json import from_json
from stepladder.records.script import SCRIPT_FILE, ScriptClimb, ScriptFacts
from stepladder.records.watch import WATCH_FILE, WatchReport
from stepladder.scripts.inside.spec import Mode, Spec
from stepladder.scripts.options import ScriptOptions
from stepladder.scripts.rungs import SCRIPT_RUNGS
from stepladder.scripts.settings import Settings
from stepladder.watching.script.script import find_script, refuse_no_python

if TYPE_CHECKING:
    from stepladder.records.ladder import Trial
    from stepladder.training.output.display import Display

_SETTINGS: Final = "settings.json"
_ANY: Final = "climb"
"""The word for the folder of the last climb with the script."""


def climb_script(
    script: str,
    args: Sequence[str] = (),
    *,
    display: Display,
    is_module: bool = False,
    out: Path | None = None,
    options: ScriptOptions | None = None,
) -> ScriptClimb:
    """Try speed-ups of a script, keep those that pay, and write them as a diff.

    Args:
        script: path of a Python file, or name of a module.
        args: its arguments.
        display: for progress and the table.
        is_module: as with `python -m`.
        out: the folder; None: `climb-NAME` in the current folder.
        options: how it climbs.

    Raises:
        UsageError: if it does not exist, fails, takes too few steps, or writes where it may not.
    """
    file = find_script(script, is_module=is_module)
    if not is_module or file.suffix == ".py":
        refuse_no_python(file, str(file) if is_module else script)
    folder = out or default_climb_folder(script, is_module=is_module)
    refuse_to_replace(folder / "report.html", PAGE, option="--out")
    from stepladder.ladder.summary.wording import header, not_here_row, row, row_json
    from stepladder.reporting.pages.script_page import closing_lines, write_script_page
    from stepladder.reporting.pages.watch_page import write_watch_page
    from stepladder.scripts.climb import ScriptRun

    folder.mkdir(parents=True, exist_ok=True)
    trials: list[Trial] = []

    def show(trial: Trial) -> None:
        if not any(one.prediction for one in trials) and trial.prediction is not None:
            display.table(header(), {})
        trials.append(trial)
        if trial.prediction is not None:
            display.table(row(trial), row_json(trial))

    found = ScriptRun(
        script=script,
        args=tuple(args),
        is_module=is_module,
        folder=folder,
        options=options or ScriptOptions(),
        say=display.message,
        show=show,
    ).climb()
    display.table(not_here_row(trials), {})
    watched = from_json(WatchReport, read_json(folder / WATCH_FILE))
    write_watch_page(watched, folder)
    write_script_page(found, trials, folder)
    for line in closing_lines(found, folder):
        display.message(line)
    return found


def default_climb_folder(script: str, *, is_module: bool = False) -> Path:
    """Return the default folder of a climb with a script, in the current folder."""
    name = script if is_module else Path(script).stem
    return Path(f"climb-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name) or 'script'}")


def run_script_with(
    what: str, script: str, args: Sequence[str] = (), *, is_module: bool = False
) -> int:
    """Run a script as with `python`, with speed-ups that are applied from outside.

    Args:
        what: folder of a climb, `climb` for that of the last one with this script, or names of
            rungs, separated by commas.

    Returns:
        Its exit code.

    Raises:
        UsageError: if the script, the climb or a rung does not exist.
    """
    file = find_script(script, is_module=is_module)
    if not is_module or file.suffix == ".py":
        refuse_no_python(file, str(file) if is_module else script)
    settings = _settings_of(what, script, is_module=is_module)
    spec = Spec(
        script=script, args=tuple(args), is_module=is_module, mode=Mode.RUN, settings=settings
    )
    with tempfile.TemporaryDirectory(prefix="stepladder-") as place:
        path = Path(place) / "spec.json"
        write_json(path, spec)
        command = [sys.executable, "-P", "-m", "stepladder.scripts.inside.main", str(path)]
        process = subprocess.Popen(command, env=user_environment())
        try:
            return process.wait()
        except KeyboardInterrupt:
            return process.wait()  # the script has received the signal, too


def _settings_of(what: str, script: str, *, is_module: bool) -> Settings:
    folder = default_climb_folder(script, is_module=is_module) if what == _ANY else Path(what)
    file = folder / _SETTINGS
    if file.is_file() and (folder / SCRIPT_FILE).is_file():
        return from_json(Settings, read_json(file)).put_in(Path.cwd())
    known = {rung.name: rung for rung in SCRIPT_RUNGS}
    names = [name.strip() for name in what.split(",")]
    if what == _ANY or not all(name in known for name in names):
        plain = [rung.name for rung in SCRIPT_RUNGS if not rung.needs_climb]
        raise UsageError(
            "this is neither the folder of a climb with a script nor the name of a rung",
            where=f"--with {what}",
            fix=f"Climb first: stepladder climb {script}\n"
            f"Or name rungs, separated by commas: {', '.join(plain)}",
        )
    settings, facts = Settings(), ScriptFacts(num_cores=num_cores())
    for name in names:
        if known[name].needs_climb:
            raise UsageError(
                "this rung concerns places of the script that a climb finds",
                where=f"--with {name}",
                fix=f"Climb first: stepladder climb {script}",
            )
        settings = known[name].apply(facts, settings)
    return settings
