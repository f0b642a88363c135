"""Helper processes that write files of a store.

Threads of one process compete for the interpreter's lock, which takes a third of the time with
small pictures.

If this process has no other thread, helpers are forked from it, which pays off at once. If it has,
a lock that another thread holds would stay locked in the fork, so they are forked from a new
process; that one imports torch first, which pays off only after thousands of pictures. It is
started by `subprocess`, as `multiprocessing` would run the user's script again.
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
"""Number of pictures from which processes pay off: on two cores a started one has made up for its
imports after about 2,500."""

_CODE = "from stepladder.data.prepare.shard_workers import main; import sys; main(sys.argv[1:])"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_GIVEN = 2  # files per helper, so that the next is available when one is done
_ROWS_BETWEEN = 16  # own pictures between two polls of the helpers
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
    """Fork a process for each inherited socket, and wait for them.

    Args:
        arguments: file descriptors: a pipe that closes when the parent process ends, then the
            sockets.
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
    os._exit(0)  # at once, as unloading torch takes half a second


def fork_all(alive: int, sockets: Sequence[int], children: list[int]) -> None:
    """Fork a process that serves each socket; fewer if memory is short.

    Args:
        alive: file descriptor of a pipe without data; the processes exit when it is closed.
        sockets: file descriptors; they may stay open here.
        children: list to which the pids are appended.
    """
    with contextlib.suppress(OSError):
        for socket in sockets:
            child = os.fork()
            if child == 0:
                _serve_and_exit(alive, socket)
            children.append(child)


def _serve_and_exit(alive: int, socket: int) -> NoReturn:
    """Serve in a forked process and exit without running the parent's exit handlers."""
    status = 1
    try:
        gc.freeze()  # else the collector's writes would copy shared memory pages
        os.setsid()  # Ctrl-C goes to the parent, which ends this process
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _keep_only(alive, socket)
        serve(_ALIVE, Connection(_SOCKET))
        status = 0
    finally:
        os._exit(status)


def _keep_only(alive: int, socket: int) -> None:
    """Close all inherited file descriptors except these two."""
    first, second = (fcntl.fcntl(handle, fcntl.F_DUPFD, _SOCKET + 1) for handle in (alive, socket))
    os.dup2(first, _ALIVE, inheritable=False)
    os.dup2(second, _SOCKET, inheritable=False)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1) if sys.stderr is not None else (0, 1, 2):
        os.dup2(nothing, standard)  # if it was closed, a lock file may have its number
    for entry in list(Path("/dev/fd").iterdir()):
        if int(entry.name) > _SOCKET:
            with contextlib.suppress(OSError):  # the descriptor of this listing
                os.close(int(entry.name))


def serve(alive: int, connection: Connection) -> None:
    """Write the files of received plans until the connection is closed.

    The first message received is (WorkFolder, ShardMaker), each later one a ShardPlan. Sends None
    when ready for plans, then the Finished of each, or the error that ends the run.

    Args:
        alive: file descriptor of a pipe without data; the process exits when it is closed.
        connection: connection to the sender of plans.
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

    If a fork left a lock of these libraries locked, this process hangs here, before any work is
    assigned to it.
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
                os._exit(1)  # the parent writes the file itself and gets the error
        except BaseException:
            os._exit(1)

    def receive() -> None:
        """Receive plans in a thread, so that the sender does not block."""
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
    os.read(alive, 1)  # returns when every writing end is closed, also by a kill
    os._exit(1)


def _pass_over(_: object) -> None:
    """Do nothing: rows are reported when their file is finished."""


def num_helpers(plans: Sequence[ShardPlan], *, workers: int) -> int:
    """Return the number of helper processes to start; 0 if threads are as fast."""
    least = MIN_ROWS_FORKED if may_fork() else MIN_ROWS_STARTED
    if sum(len(plan.rows) for plan in plans) < least:
        return 0
    return max(0, min(workers, len(plans) // _GIVEN) - 1)


def may_fork() -> bool:
    """Return True if this process has no other thread that could hold a lock while it is forked.

    Threads of native libraries are not counted. The ones loaded here (OpenBLAS, OpenMP, Arrow)
    handle a fork themselves.
    """
    return threading.active_count() == 1


@dataclass(eq=False)
class _Helper:
    """A helper process.

    Attributes:
        is_ready: whether it has reported that it is ready.
        given: files assigned to it that are not finished.
    """

    connection: Connection
    is_ready: bool = False
    given: list[ShardPlan] = field(default_factory=list)


class Helpers:
    """Write the files of a store in this process and in helper processes.

    Args:
        work: work folder, locked by this process.
        maker: writes files in the calling thread; a copy is sent to each helper.
        num: number of helper processes.
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
        """Start the processes; fewer, or none, if memory is short."""
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
        """Stop the processes and wait for them to exit."""
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
                    os.kill(child, signal.SIGKILL)  # it hangs
                    os.waitpid(child, 0)
        if self._process is not None:
            try:
                self._process.wait(_END_S)  # it waits for its own children
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def make(self, plans: Sequence[ShardPlan], *, on_row: OnRow) -> list[Finished]:
        """Write files, each in the next free process; files of a killed process are reassigned.

        Args:
            plans: the shards.
            on_row: called after each picture, with a Bad if it cannot be used; for files of other
                processes when the file is finished.

        Returns:
            Records of the files in any order; some are missing if all helpers were killed.
        """
        self._todo.extend(plans)
        self._on_row = on_row
        made = self._maker.make(self._ours(), on_row=self._on_own_row())
        while self._is_any_busy():
            self._look(None)
        return made + self._finished

    def _ours(self) -> Iterator[ShardPlan]:
        """Yield the plans that this process works on."""
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
        """Receive messages of helpers and assign more files to them."""
        for connection in wait(list(self._helpers), timeout_s):
            assert isinstance(connection, Connection)
            self._take(self._helpers[connection])
        for helper in list(self._helpers.values()):
            if helper.is_ready:  # idle ones too, as files of a lost helper may be waiting
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
        """Remove a helper that is gone and queue its files again."""
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
        start_new_session=True,  # Ctrl-C goes to this process, which ends the others
    )


def _places() -> list[str]:
    """Return this process's module search path for another process."""
    return [place or str(Path.cwd()) for place in sys.path if isinstance(place, str)]


def _pairs(num: int) -> list[tuple[Connection, Connection]]:
    """Open pairs of sockets; fewer at the limit of open files."""
    pairs: list[tuple[Connection, Connection]] = []
    with contextlib.suppress(OSError):
        while len(pairs) < num:
            pairs.append(Pipe())
    return pairs


def _open_standard_handles() -> None:
    """Open standard file descriptors that are closed, so that no socket gets their number."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
