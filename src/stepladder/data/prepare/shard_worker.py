"""A process that makes files of a store for the prepare that started it, and ends with it.

See `shard_workers.py`. It is forked from that prepare, or from a process started for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import numpy as np

from stepladder.config.choices import Fit
from stepladder.data.decoding.decode import decode_picture
from stepladder.data.prepare.plan import ShardPlan
from stepladder.data.prepare.shard_file import StoppedError
from stepladder.data.prepare.shard_record import Finished
from stepladder.data.prepare.shard_work import ShardMaker
from stepladder.data.reading.threads import one_torch_thread
from stepladder.errors import StepladderError
from stepladder.machine.allocator import keep_freed_memory

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
