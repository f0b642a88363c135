"""What a process is to do with a script, as a file between two processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.scripts.settings import Settings


class Mode(StrEnum):
    """What the process does with the script.

    SCOUT: watches its first steps. RACE: waits at each block of steps for a command. RUN: only
    applies the settings.
    """

    SCOUT = "scout"
    RACE = "race"
    RUN = "run"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A script to run, and how.

    Attributes:
        script: path, or name of a module.
        args: its arguments.
        is_module: as with `python -m`.
        mode: what is done with it.
        settings: applied from outside.
        seed: added to each seed that the script sets; what it does not seed is seeded with it.
        original: the folder in which the user typed the command; None: files are not private.
        private: the folder that has a private copy of it and of what is beside it.
        fd: of the socket to the process that compares; None: it runs alone.
        folder: for watch.json and facts.json of a scout.
        min_steps, max_steps, max_s: a scout ends the script after so many steps, and once both of
            the first and the last are reached, whichever comes first.
    """

    script: str
    args: tuple[str, ...] = ()
    is_module: bool = False
    mode: Mode = Mode.RUN
    settings: Settings = field(default_factory=Settings)
    seed: int = 0
    original: str | None = None
    private: str = ""
    fd: int | None = None
    folder: str = ""
    min_steps: int = 40
    max_steps: int = 400
    max_s: float = 12.0
