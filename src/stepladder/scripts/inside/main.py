"""Run a script with settings, as a file says: `python -m stepladder.scripts.inside.main SPEC.json`.

The script runs as with `python`: its arguments, its output and its exit code are its own.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.records import read_json
from stepladder.records.from_json import from_json
from stepladder.scripts.inside.metric_blocks import MetricBlocks
from stepladder.scripts.inside.spec import Mode, Spec
from stepladder.scripts.metric_lines import moved
from stepladder.watching.script.own_code import OwnCode
from stepladder.watching.script.script import Ending, TorchImport, find_script, run_script

if TYPE_CHECKING:
    from stepladder.scripts.inside.apply import Applied
    from stepladder.scripts.inside.gate import Channel
    from stepladder.scripts.inside.private import Private
    from stepladder.scripts.inside.scout import Scout


class Inside:
    """The process of one script."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        file = find_script(spec.script, is_module=spec.is_module)
        name = None if spec.is_module else str(Path.cwd() / spec.script)
        self._file = file
        self._own = OwnCode(file.resolve().parent, name)
        self._metrics = MetricBlocks(self._own, file)
        self._channel: Channel | None = None
        self._scout: Scout | None = None
        self._applied: Applied | None = None
        self._private: Private | None = None
        self._is_guarded = True

    def run(self) -> int:
        """Run the script, and return its exit code."""
        spec = self._spec
        with ExitStack() as stack:
            if spec.original is not None:
                self._keep_private(Path(spec.original))
            stack.enter_context(TorchImport(self._begin))
            ending = run_script(spec.script, spec.args, is_module=spec.is_module, edit=self._edit())
        with suppress(Exception):  # the script may have closed it
            sys.stdout.flush()
        self._end(ending)
        return ending.exit_code

    def _edit(self) -> Callable[[ast.Module], ast.Module] | None:
        """Return what changes the script's text before it runs."""
        if self._spec.mode is Mode.SCOUT and not self._spec.settings.moved_metrics:
            return self._metrics.edit
        start = f"{os.path.realpath(self._file)}:"
        keys = [one for one in self._spec.settings.moved_metrics if one.startswith(start)]
        places = [one.removeprefix(start).split(":") for one in keys]
        chosen = [(int(line), int(column)) for line, column in places]
        return (lambda tree: moved(tree, chosen)) if chosen else None

    def _begin(self) -> None:
        """Install what follows and changes the script, once torch is imported."""
        from stepladder.scripts.inside.apply import Applied
        from stepladder.scripts.inside.places import Places
        from stepladder.scripts.inside.seeds import shift_seeds

        spec = self._spec
        if spec.mode is not Mode.RUN or spec.fd is not None:
            shift_seeds(spec.seed)
        places = Places(self._own)
        self._applied = applied = Applied(spec.settings, places)
        if spec.mode is Mode.SCOUT:
            from stepladder.scripts.inside.scout import Scout

            self._scout = Scout(spec, self._own, places, self._metrics, is_guarded=self._is_guarded)
            self._scout.begin()
        applied.at_start()
        applied.install()
        if self._private is not None:
            self._private.follow_native()  # last: files become private before a thread writes them
        if spec.mode is Mode.RACE:
            from stepladder.scripts.inside.gate import Gate

            Gate(self._to_parent(), applied.problems).install()

    def _to_parent(self) -> Channel:
        from stepladder.scripts.inside.gate import Channel

        if self._channel is None:
            assert self._spec.fd is not None
            self._channel = Channel(self._spec.fd)
        return self._channel

    def _keep_private(self, original: Path) -> None:
        from stepladder.scripts.inside.private import Private

        def refused(path: str) -> None:
            if self._spec.fd is not None:
                self._to_parent().send(kind="wrote", path=path)

        free = [Path(self._spec.folder)]
        self._private = Private(original, Path(self._spec.private), refused, free=free)
        self._is_guarded = self._private.install()

    def _end(self, ending: Ending) -> None:
        if self._scout is not None:
            self._scout.finish(ending)
        if self._spec.mode is Mode.RUN and self._applied is not None and not ending.exit_code:
            for place in self._applied.unfound():
                print(
                    f"stepladder run: no DataLoader was made at {place}, where the climb had "
                    "changed one; if the script has changed, climb again",
                    file=sys.stderr,
                )
        if self._spec.fd is not None:
            where = self._own.innermost(ending.frames)
            with suppress(OSError):
                self._to_parent().send(
                    kind="end",
                    words=ending.words,
                    crash=ending.crash,
                    crashed_at=where,
                    exit_code=ending.exit_code,
                )


def main() -> int:
    """Read the file, and run the script."""
    spec = from_json(Spec, read_json(Path(sys.argv[1])))
    sys.path.insert(0, "")  # which the folder of the script replaces
    return Inside(spec).run()


if __name__ == "__main__":
    sys.exit(main())
