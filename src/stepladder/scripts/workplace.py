"""Where the processes of a climb on a script run, and what they have in common."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from stepladder.machine.openmp import user_environment
from stepladder.scripts.arm import Arm
from stepladder.scripts.inside.private import mirror_with_parents, replace_in_mirror
from stepladder.scripts.inside.spec import Mode, Spec
from stepladder.scripts.settings import Settings

WORK: Final = "work"
COMPILED: Final = "compiled"
_INDUCTOR: Final = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(kw_only=True)
class Workplace:
    """Starts the script, each time in a private copy of the current folder.

    Attributes:
        script: path, or name of a module, as given.
        args: its arguments.
        is_module: as with `python -m`.
        folder: of the climb.
        allows_writes: run it in the current folder itself.
    """

    script: str
    args: tuple[str, ...]
    is_module: bool
    folder: Path
    allows_writes: bool
    _numbers: count[int] = field(default_factory=count)

    def arm(
        self,
        settings: Settings,
        *,
        mode: Mode = Mode.RACE,
        seed: int = 0,
        instead: Mapping[Path, str] | None = None,
        folder: Path | None = None,
    ) -> Arm:
        """Return a process of the script, which is not started yet.

        Args:
            settings: applied from outside.
            mode: what is done with it.
            seed: added to the seeds that it sets.
            instead: texts of files below the current folder that replace them, by absolute path.
            folder: where a scout writes; None: the folder of the climb.
        """
        number = next(self._numbers)
        place = self.folder / WORK / f"{number}"
        original = Path.cwd()
        top, log = place / "folder", place / "output.txt"
        if self.allows_writes and not instead:
            place.mkdir(parents=True)
            cwd = original
        else:
            cwd = mirror_with_parents(original, top, without=self.folder)
            for file, text in (instead or {}).items():
                replace_in_mirror(cwd, file.relative_to(original.resolve()), text)
        spec = Spec(
            script=self.script,
            args=self.args,
            is_module=self.is_module,
            mode=mode,
            settings=settings,
            seed=seed,
            original=None if self.allows_writes else str(original),
            private=str(top.resolve()),
            folder=str((folder or self.folder).resolve()),
        )
        temporary = place / "tmp"
        temporary.mkdir()
        return Arm(
            spec, cwd=cwd, log=log, env=_environment(temporary, self.folder / WORK / COMPILED)
        )

    def clean(self) -> None:
        """Remove the private copies."""
        shutil.rmtree(self.folder / WORK, ignore_errors=True)


def _environment(temporary: Path, compiled: Path) -> dict[str, str]:
    """Return the environment of the script: the user's, with repeatable hashes and output at once.

    Its temporary files are in the folder of the climb, because the current folder may be below that
    of all temporary files, where nothing may change.
    """
    own = {"PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "TMPDIR": str(temporary)}
    # what is compiled is shared, so that only the first process compiles it
    return {_INDUCTOR: str(compiled), **user_environment(), **own}
