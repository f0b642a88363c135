"""Watch a script or a block of code while it trains."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import TYPE_CHECKING

from stepladder.api.targets import WATCH, WATCH_PAGE, refuse_to_replace
from stepladder.errors import DataError, UsageError
from stepladder.records import read_json, write_json
from stepladder.records.from_json import from_json
from stepladder.records.watch import WATCH_FILE, WatchReport

if TYPE_CHECKING:
    from stepladder.watching.ranks.place import RankPlace
    from stepladder.watching.script.script import Ending
    from stepladder.watching.script.session import Session

_OTHER = "Choose another folder: --out FOLDER."
WORSE = 7
"""Exit code of a watched script that is slower than an earlier run, or has a new fault."""


class Watching:
    """Context manager of `with stepladder.watch() as watching:`.

    Attributes:
        folder: folder with watch.json and watch.html after the block.
        report: the report; None until the block has ended.
    """

    def __init__(
        self, folder: Path, *, is_quiet: bool, is_probing: bool, file: str, name: str
    ) -> None:
        self.folder = folder
        self.report: WatchReport | None = None
        self._is_quiet = is_quiet
        self._is_probing = is_probing
        self._file = file
        self._name = name
        self._session: Session | None = None
        self._place: RankPlace | None = None

    def __enter__(self) -> Watching:
        from stepladder.api.watched_ranks import begin
        from stepladder.watching.ranks.place import place_in
        from stepladder.watching.script.own_code import OwnCode
        from stepladder.watching.script.session import Session

        _make_folder(self.folder)
        own = OwnCode(Path(self._file).parent, self._file)
        place = self._place = place_in()
        self._session = Session(
            self._name,
            (),
            own,
            self.folder if place is None else begin(self.folder, place),
            self._publish,
            is_probing=self._is_probing,
            place=place,
        )
        self._session.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from stepladder.watching.script.script import Ending, crash_of

        ending = Ending(exit_code=0, words="the block ended")
        if error is not None:
            ending = crash_of(error, f"the block raised {type(error).__name__}")
        if self._session is not None:
            self._session.finish(ending)

    def _publish(self, report: WatchReport) -> None:
        def show(shown: WatchReport) -> None:
            publish(shown, self.folder, is_quiet=self._is_quiet)

        self.report = report
        if self._place is None:
            show(report)
        else:
            self.report = _publish_rank(report, self.folder, self._place, show)


def watch(out: Path | str | None = None, *, probe: bool = False, quiet: bool = False) -> Watching:
    """Watch the training in the block of a `with` statement, and report what is wrong or slow.

    The training is not changed. At the end of the block, the report is written to a folder, and a
    summary is printed to stderr.

    Args:
        out: the folder; None: `watch-NAME` in the current folder, named after the calling file.
        probe: after the block, replay steps with other settings on a copy.
        quiet: print nothing unless there are alarms.
    """
    frame = sys._getframe(1)  # the caller's
    file = frame.f_code.co_filename
    name = Path(file).stem if not file.startswith("<") else "code"
    folder = default_folder(name) if out is None else Path(out)
    return Watching(folder, is_quiet=quiet, is_probing=probe, file=file, name=name)


def watch_job(
    script: str,
    args: Sequence[str] = (),
    *,
    out: Path | None = None,
    steps: int | None = None,
    probe: bool = False,
    is_module: bool = False,
    as_json: bool = False,
    quiet: bool = False,
    baseline: Path | None = None,
    max_slower: float = 0.1,
    num_processes: int | None = None,
) -> Ending:
    """Run a script as `__main__` in this process, and report what is wrong or slow in it.

    In a process that torchrun has started, the report is over all ranks, and rank 0 prints it.

    Args:
        script, args: what to run.
        out: folder of the report; None: `watch-NAME` in the current folder.
        steps: stop the script after so many steps; None: let it end.
        probe: afterwards, replay steps with other settings on a copy.
        is_module: as with `python -m`.
        as_json, quiet: how the report is printed.
        baseline: folder of an earlier report, with which this one is compared.
        max_slower: share by which a step may take longer than in the earlier report.
        num_processes: run the script in so many processes of this machine, as torchrun does; None:
            in this one.

    Returns:
        How the script ended; with the exit code 7 if it ran to its end, and its steps became slower
        or a fault is new.

    Raises:
        UsageError: if the script does not exist or is not Python, the folder cannot be created, or
            the earlier report cannot be read.
    """
    from stepladder.api.watched_ranks import begin, watch_ranks
    from stepladder.watching.ranks.place import place_in
    from stepladder.watching.script.script import find_script, refuse_no_python
    from stepladder.watching.script.session import watch_script

    file = find_script(script, is_module=is_module)
    folder = default_folder(file.stem if not is_module else script) if out is None else out
    if not is_module or file.suffix == ".py":
        refuse_no_python(file, str(file) if is_module else script)
    earlier = _earlier(baseline) if baseline is not None else None
    if baseline is not None and baseline.resolve() == folder.resolve():
        folder = folder.with_name(f"{folder.name}-now")  # the earlier report is kept
    _make_folder(folder)
    folder = folder.resolve()  # the script may change the working folder
    worse: list[bool] = []

    def show(report: WatchReport) -> None:
        publish(report, folder, is_quiet=quiet, as_json=as_json)
        if earlier is not None:
            worse.append(_compare(earlier, report, baseline, max_slower))

    def published(report: WatchReport) -> None:
        if place is None:
            show(report)
        else:
            _publish_rank(report, folder, place, show)

    place = place_in()
    if num_processes is not None:
        target = ["--module", script] if is_module else [script]
        words = ["watch", "--out", str(folder), *_flags(steps, probe=probe), *target, "--", *args]
        ending = watch_ranks(num_processes, words, folder, show)
    else:
        ending = watch_script(
            script,
            args,
            folder=folder if place is None else begin(folder, place),
            publish=published,
            is_module=is_module,
            max_steps=steps,
            is_probing=probe,
            place=place,
        )
    if any(worse) and not ending.exit_code:
        return replace(ending, exit_code=WORSE)
    return ending


def _flags(steps: int | None, *, probe: bool) -> list[str]:
    limit = [] if steps is None else ["--steps", str(steps)]
    return [*limit, *(["--probe"] if probe else [])]


def _publish_rank(
    report: WatchReport, folder: Path, place: RankPlace, show: Callable[[WatchReport], None]
) -> WatchReport:
    from stepladder.api.watched_ranks import publish_rank

    def save(merged: WatchReport) -> None:
        with suppress(OSError):
            write_files(merged, folder)

    return publish_rank(report, folder, place, show=show, save=save)


def _earlier(folder: Path) -> WatchReport:
    """Return the report of an earlier run.

    Raises:
        UsageError: if the folder has none.
    """
    try:
        return from_json(WatchReport, read_json(folder / WATCH_FILE))
    except (OSError, DataError) as error:
        raise UsageError(
            f"this folder has no readable report of an earlier run ({WATCH_FILE}: {error})",
            where=f"--baseline {folder}",
            fix=f"Make one: stepladder watch --out {folder} train.py",
        ) from None


def _compare(
    earlier: WatchReport, report: WatchReport, baseline: Path | None, max_slower: float
) -> bool:
    """Print what became worse since an earlier run, and return True if that is not accepted."""
    from stepladder.reporting.pages.watch_page import regression_lines
    from stepladder.watching.regression import regression

    found = regression(earlier, report, max_slower=max_slower)
    stream = sys.stderr if sys.stderr is not None and not sys.stderr.closed else sys.__stderr__
    if stream is not None and not stream.closed:
        stream.write("\n".join(regression_lines(found, str(baseline))) + "\n")
    return found.is_worse


def _make_folder(folder: Path) -> None:
    """Create the folder of a report, and check that it is writable.

    Raises:
        UsageError: if it is not a folder, or if files would be overwritten that are not a report.
    """
    taken = next((up for up in (folder, *folder.parents) if up.exists()), folder)
    if not taken.is_dir():
        what = "the report needs a folder, but this is a file"
        raise UsageError(what, where=str(taken), fix=_OTHER)
    refuse_to_replace(folder / "watch.html", WATCH_PAGE, option="--out")
    refuse_to_replace(folder / WATCH_FILE, WATCH, option="--out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"the folder cannot be created or is not writable ({error.strerror or error})",
            where=str(folder),
            fix=_OTHER,
        ) from None


def default_folder(name: str) -> Path:
    """Return the default folder of the report of a script, in the current folder."""
    return Path.cwd() / f"watch-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name) or 'code'}"


def publish(
    report: WatchReport, folder: Path, *, is_quiet: bool = False, as_json: bool = False
) -> None:
    """Write watch.json and watch.html, and print the report to stderr."""
    import json

    from stepladder.records import to_json
    from stepladder.reporting.pages.watch_page import watch_text

    try:
        page = str(write_files(report, folder))
    except OSError as error:
        page = f"could not be written ({error.strerror})"
    stream = sys.stderr if sys.stderr is not None and not sys.stderr.closed else sys.__stderr__
    if stream is None or stream.closed:
        return  # the script closed it; the files are written
    if as_json:
        stream.write(json.dumps(to_json(report)) + "\n")
    elif not is_quiet or report.alarms:
        stream.write(watch_text(report, page=page))


def write_files(report: WatchReport, folder: Path) -> Path:
    """Write watch.json and watch.html, and return the path of the page."""
    from stepladder.reporting.pages.watch_page import write_watch_page

    write_json(folder / WATCH_FILE, report)
    return write_watch_page(report, folder)
