"""Processes beside this one that make files of a store.

Threads of one process wait for each other at the interpreter's lock, which costs small pictures a
third of the time.

Where this process has no other thread, they are forked from it, and pay at once. Where it has, a
lock that one of them held would stay locked in the fork: they are then forked from a new process,
which imports torch first, so that it takes thousands of pictures until they have paid. That one is
started by `subprocess`: `multiprocessing` would run the user's script again.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import numpy as np

from stepladder.config.choices import Fit
from stepladder.data.decoding.decode import decode_picture
from stepladder.data.prepare.plan import ShardPlan
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.prepare.shard_work import Finished, ShardMaker, StoppedError
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.reading.threads import one_torch_thread
from stepladder.errors import StepladderError
from stepladder.machine.allocator import keep_freed_memory

MIN_ROWS_FORKED = 256
MIN_ROWS_STARTED = 4000
"""Pictures from which on processes pay: what a started one gains on two cores is as much as its
import took after some 2,500."""

_CODE = "from stepladder.data.prepare.shard_workers import main; import sys; main(sys.argv[1:])"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_GIVEN = 2  # files: the next lies ready when one is decoded
_ROWS_BETWEEN = 16  # of our own pictures, between two looks at what helpers say
_END_S = 10.0

OnRow = Callable[[Bad | None], None]

_IMPORTED_ON_USE = (
    "simplejpeg",
    "torch.nn.functional",
    "PIL.PngImagePlugin",
    "PIL.JpegImagePlugin",
)
_ALIVE, _SOCKET = 3, 4  # in a process that was forked


def main(arguments: Sequence[str]) -> NoReturn:
    """Fork a process for each of the sockets that were inherited, and wait for them.

    Args:
        arguments: numbers of handles: a pipe that ends with the process that started this one,
            then the sockets.
    """
    alive, *sockets = map(int, arguments)
    for name in _IMPORTED_ON_USE:
        import_module(name)
    children: list[int] = []
    fork_all(alive, sockets, children)
    for socket in sockets:
        os.close(socket)
    for child in children:
        os.waitpid(child, 0)
    os._exit(0)  # at once: to unload torch takes half a second


def fork_all(alive: int, sockets: Sequence[int], children: list[int]) -> None:
    """Fork a process for each socket, which serves there; fewer where memory is short.

    Args:
        alive: handle of a pipe that nobody writes to; at its end the processes end.
        sockets: handles; that they stay open here is no matter.
        children: their ids are added.
    """
    with contextlib.suppress(OSError):
        for socket in sockets:
            child = os.fork()
            if child == 0:
                _serve_and_exit(alive, socket)
            children.append(child)


def _serve_and_exit(alive: int, socket: int) -> NoReturn:
    """Serve in a process just forked, and let nothing run that was meant for its parent."""
    status = 1
    try:
        gc.freeze()  # else what the collector writes into an object would be copied
        os.setsid()  # Ctrl-C is for the parent, which ends this one
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _keep_only(alive, socket)
        serve(_ALIVE, Connection(_SOCKET))
        status = 0
    finally:
        os._exit(status)


def _keep_only(alive: int, socket: int) -> None:
    """Close what was inherited but these two, such as locks and the sockets of others."""
    first, second = (fcntl.fcntl(handle, fcntl.F_DUPFD, _SOCKET + 1) for handle in (alive, socket))
    os.dup2(first, _ALIVE, inheritable=False)
    os.dup2(second, _SOCKET, inheritable=False)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1) if sys.stderr is not None else (0, 1, 2):
        os.dup2(nothing, standard)  # where it was closed, a lock may have its number
    for entry in list(Path("/dev/fd").iterdir()):
        if int(entry.name) > _SOCKET:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(int(entry.name))


def serve(alive: int, connection: Connection) -> None:
    """Make the files that come, until whoever sends them is gone.

    The first message is (WorkFolder, ShardMaker), each later one a ShardPlan. What is told: None
    when plans may come, the Finished of each, or the error that ends all.

    Args:
        alive: handle of a pipe that nobody writes to; at its end the process ends.
        connection: to whoever sends plans.
    """
    try:
        work, maker = connection.recv()
        with work.helping():
            threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
            _try_decoding()
            connection.send(None)
            _make(connection, maker)
    except EOFError:
        return


def _try_decoding() -> None:
    """Decode and resize once.

    Where a fork left a lock of these libraries held, this process stands still here, before
    anything is given to it.
    """
    import simplejpeg

    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    decode_picture(simplejpeg.encode_jpeg(pixels), size=16, fit=Fit.PAD)


def _make(connection: Connection, maker: ShardMaker) -> None:
    sending = threading.Lock()
    plans: queue.SimpleQueue[ShardPlan | None] = queue.SimpleQueue()

    def tell(message: Finished | Exception) -> None:
        with sending:
            connection.send(message)

    def on_done(file: Future[Finished]) -> None:
        error = file.exception()
        try:
            if error is None:
                tell(file.result())
            elif isinstance(error, (StepladderError, OSError)):
                tell(error)
            elif not isinstance(error, StoppedError):
                os._exit(1)  # whoever waits for the file makes it, and meets the error
        except BaseException:
            os._exit(1)

    def receive() -> None:
        """Take plans as they come, so that whoever sends a long one need not wait."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                plans.put(connection.recv())
        plans.put(None)

    threading.Thread(target=receive, daemon=True).start()
    keep_freed_memory()
    with one_torch_thread():
        try:
            maker.make(iter(plans.get, None), on_row=_pass_over, on_done=on_done)
        except (StepladderError, OSError) as error:
            tell(error)


def _end_with(alive: int) -> NoReturn:
    os.read(alive, 1)  # comes back when every writing end is closed, as a kill closes it
    os._exit(1)


def _pass_over(_: object) -> None:
    """Take no notice: rows are told file by file."""


def num_helpers(plans: Sequence[ShardPlan], *, workers: int) -> int:
    """Return how many processes to start beside this one; 0: threads are as good."""
    least = MIN_ROWS_FORKED if may_fork() else MIN_ROWS_STARTED
    if sum(len(plan.rows) for plan in plans) < least:
        return 0
    return max(0, min(workers, len(plans) // _GIVEN) - 1)


def may_fork() -> bool:
    """Return True if this process has no other thread that could hold a lock while it is forked.

    Those of libraries are not seen. The ones that are loaded here (OpenBLAS, OpenMP, Arrow) see to
    a fork themselves.
    """
    return threading.active_count() == 1


@dataclass(eq=False)
class _Helper:
    """One process.

    Attributes:
        is_ready: whether it has said that it can begin.
        given: files that it has been given and has not finished.
    """

    connection: Connection
    is_ready: bool = False
    given: list[ShardPlan] = field(default_factory=list)


class Helpers:
    """Makes the files of a store in this process and in others.

    Args:
        work: where files go; held by this process.
        maker: makes them in the thread that asks, and is sent to the others.
        num: how many others.
    """

    def __init__(self, work: WorkFolder, maker: ShardMaker, num: int) -> None:
        self._work, self._maker, self._num = work, maker, num
        self._todo: deque[ShardPlan] = deque()
        self._finished: list[Finished] = []
        self._on_row: OnRow = lambda _: None
        self._helpers: dict[Connection, _Helper] = {}
        self._children: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._alive = -1

    def __enter__(self) -> Helpers:
        """Start them; none where there is no memory for a process."""
        _open_standard_handles()
        alive, self._alive = os.pipe()
        try:
            pairs = _pairs(self._num)
            self._helpers = {ours: _Helper(ours) for ours, _ in pairs}
            try:
                self._begin(alive, [theirs.fileno() for _, theirs in pairs])
            finally:
                for _, theirs in pairs:
                    theirs.close()
            for helper in list(self._helpers.values()):
                self._send(helper, (self._work, self._maker))
        except BaseException:
            self._end()
            raise
        finally:
            os.close(alive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _begin(self, alive: int, handles: list[int]) -> None:
        if may_fork():
            fork_all(alive, handles, self._children)
            return
        if sys.executable and not getattr(sys, "frozen", False):
            with contextlib.suppress(OSError):
                self._process = _start(alive, handles)

    def _end(self) -> None:
        """End the processes, whatever they are doing, and wait until they are gone."""
        os.close(self._alive)
        until_s = time.monotonic() + _END_S
        for connection in self._helpers:
            with contextlib.suppress(EOFError, OSError):
                while connection.poll(max(0.0, until_s - time.monotonic())):
                    connection.recv_bytes()
            connection.close()
        for child in self._children:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):  # reaped by a handler
                if os.waitpid(child, os.WNOHANG) == (0, 0):
                    os.kill(child, signal.SIGKILL)  # it stands still
                    os.waitpid(child, 0)
        if self._process is not None:
            try:
                self._process.wait(_END_S)  # it waits for those that it has forked
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def make(self, plans: Sequence[ShardPlan], *, on_row: OnRow) -> list[Finished]:
        """Make files, each by whoever is free; what a killed process was making, by another.

        Args:
            plans: which pictures.
            on_row: called after each picture, with what is wrong if it is bad; for files of other
                processes when the file is finished.

        Returns:
            What is known of each file, in any order; not of all if other processes were killed.
        """
        self._todo.extend(plans)
        self._on_row = on_row
        made = self._maker.make(self._ours(), on_row=self._on_own_row())
        while self._is_any_busy():
            self._look(None)
        return made + self._finished

    def _ours(self) -> Iterator[ShardPlan]:
        """Yield what this process makes, while others do likewise."""
        while self._todo and self._helpers:
            yield self._todo.popleft()
            self._look(0)

    def _is_any_busy(self) -> bool:
        return any(helper.given for helper in self._helpers.values())

    def _on_own_row(self) -> OnRow:
        num_rows = 0

        def tell(bad: Bad | None) -> None:
            nonlocal num_rows
            num_rows += 1
            if num_rows % _ROWS_BETWEEN == 0:
                self._look(0)
            self._on_row(bad)

        return tell

    def _look(self, timeout_s: float | None) -> None:
        """Take in what helpers say, and give them more."""
        for connection in wait(list(self._helpers), timeout_s):
            assert isinstance(connection, Connection)
            self._take(self._helpers[connection])
        for helper in list(self._helpers.values()):
            if helper.is_ready:  # to one that was idle too: what another was making may be back
                self._give(helper)

    def _take(self, helper: _Helper) -> None:
        try:
            message = helper.connection.recv()
        except (EOFError, OSError):
            self._lose(helper)
            return
        if isinstance(message, Exception):
            raise message
        helper.is_ready = True
        if message is not None:
            self._tell(helper, message)

    def _tell(self, helper: _Helper, done: Finished) -> None:
        helper.given = [plan for plan in helper.given if plan.key != done.key]
        self._finished.append(done)
        for _ in done.labels:
            self._on_row(None)
        for bad in done.bad:
            self._on_row(bad)

    def _give(self, helper: _Helper) -> None:
        while self._todo and len(helper.given) < _GIVEN:
            plan = self._todo.popleft()
            helper.given.append(plan)
            if not self._send(helper, plan):
                return

    def _send(self, helper: _Helper, message: object) -> bool:
        try:
            helper.connection.send(message)
        except OSError:
            self._lose(helper)
            return False
        return True

    def _lose(self, helper: _Helper) -> None:
        """Take back what a helper was making that is no longer there."""
        self._todo.extendleft(reversed(helper.given))
        del self._helpers[helper.connection]
        helper.connection.close()


def _start(alive: int, handles: list[int]) -> subprocess.Popen[bytes]:
    """Start a process that forks helpers from itself."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _CODE, *map(str, (alive, *handles))],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(_places())},
        pass_fds=[alive, *handles],
        start_new_session=True,  # Ctrl-C is for this process, which ends the others
    )


def _places() -> list[str]:
    """Return where this process finds modules, in words that hold in another."""
    return [place or str(Path.cwd()) for place in sys.path if isinstance(place, str)]


def _pairs(num: int) -> list[tuple[Connection, Connection]]:
    """Open so many pairs of sockets; fewer where no more files can be open."""
    pairs: list[tuple[Connection, Connection]] = []
    with contextlib.suppress(OSError):
        while len(pairs) < num:
            pairs.append(Pipe())
    return pairs


def _open_standard_handles() -> None:
    """Take the numbers of standard handles that are closed, so that no socket gets one."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
