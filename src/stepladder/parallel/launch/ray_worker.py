"""What runs on Ray's side: on each worker of Ray Train, one process of the run.

The process is a child, as with torchrun: it has a main thread that gets signals, and what it leaves
behind ends with it. Only imported where Ray is installed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import ray
import ray.train
from ray.train import UserCallback
from ray.train.backend import Backend, BackendConfig

from stepladder.errors import ResourceError
from stepladder.parallel.failures import (
    LAUNCHED,
    LOGS,
    LOST_CODE,
    RESTARTS,
    Failure,
    first_failure,
    log_file,
    record_failure,
    stalled,
)
from stepladder.parallel.launch.stopping import asked_to_stop
from stepladder.parallel.place import (
    LISTEN_FD,
    LOCAL_RANK,
    LOCAL_WORLD_SIZE,
    MASTER_ADDR,
    MASTER_PORT,
    RANK,
    USES_AGENT_STORE,
    WORLD_SIZE,
)

RUN_ID: Final = "STEPLADDER_RAY_RUN"  # in the environment of all processes of a launch
_POLL_S: Final = 0.1
_LOOK_S: Final = 1.0  # between looks into the run folder, which may be on a slow file system
_END_S: Final = 30.0  # for a process that saves its state after a signal
_KILL_S: Final = 6.0  # for one whose run has failed: longer than its own grace


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the workers run.

    Attributes:
        run_id: of this launch.
        words: arguments of `stepladder`.
        folder: of the run, which all workers see.
        cwd: working directory of the command, used where it exists.
        env: additional variables.
        hides_gpus: the run uses none, although the host may have some.
    """

    run_id: str
    words: tuple[str, ...]
    folder: Path
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    hides_gpus: bool = False

    @property
    def token(self) -> Path:
        """The file by which a worker recognises the run folder."""
        return self.folder / LOGS / "ray.id"

    @property
    def stop(self) -> Path:
        """The file that asks for the end of the run: the number of the signal."""
        return self.folder / LOGS / "ray.stop"

    @property
    def out(self) -> Path:
        """What rank 0 prints on stdout."""
        return self.folder / LOGS / "ray.stdout"

    @property
    def err(self) -> Path:
        """What rank 0 prints on stderr."""
        return self.folder / LOGS / "ray.stderr"

    @property
    def news(self) -> Path:
        """What the controller of Ray Train reports."""
        return self.folder / LOGS / "ray.news"

    def asked_to_stop(self) -> int | None:
        """Return the number of the signal that the launcher got, or None."""
        return asked_to_stop(self.stop)


@dataclass
class _Here:
    """What this worker of Ray has: one for each process of Ray."""

    attempt: int = 0
    address: str = ""
    port: int = 0
    listener: socket.socket | None = None
    process: subprocess.Popen[bytes] | None = None


_here = _Here()


class Meeting(BackendConfig):  # type: ignore[misc]
    """How the workers find each other."""

    def __init__(self, order: Order) -> None:
        self.order = order

    @property
    def backend_cls(self) -> type[Backend]:
        """The class whose methods Ray Train calls."""
        return _Meeting


class _Meeting(Backend):  # type: ignore[misc]
    """Prepares the workers of an attempt, and ends their processes before Ray kills them."""

    share_cuda_visible_devices = True  # a rank uses the GPU of its local rank
    attempt = -1

    def on_training_start(self, worker_group: Any, backend_config: Meeting) -> None:
        """Let the workers agree where rank 0 listens."""
        self.attempt += 1
        order = backend_config.order
        seen = worker_group.execute(_prepare, order)
        blind = sorted({host for host, sees in seen if not sees})
        if blind:
            raise ResourceError(
                f"{', '.join(blind)} cannot see the run folder",
                where=str(order.folder),
                why="All workers of Ray read the job in it, and write their logs there.",
                fix="Use a folder on storage that all of them share, with --run.dir.",
            )
        address, port = worker_group.execute_single(0, _listen)
        worker_group.execute(_meet, self.attempt, address, port)

    def on_shutdown(self, worker_group: Any, backend_config: Meeting) -> None:  # noqa: ARG002
        """End processes that still run, such as those that wait for one that has died."""
        ended = [worker_group.execute_single_async(idx, _end) for idx in range(len(worker_group))]
        ray.wait(ended, num_returns=len(ended), timeout=2 * _KILL_S)


class News(UserCallback):  # type: ignore[misc]
    """Writes why all processes are started again."""

    def __init__(self, order: Order, restarts: int) -> None:
        self.order = order
        self.restarts = restarts
        self.attempt = 0

    def after_exception(
        self,
        run_context: Any,  # noqa: ARG002
        worker_exceptions: dict[int, Exception],
    ) -> None:
        """Report the first failure of an attempt."""
        how = stalled(self.order.folder, attempt=self.attempt) or of_workers(worker_exceptions)
        if self.attempt < self.restarts:
            with suppress(OSError), self.order.news.open("a", encoding="utf-8") as file:
                file.write(f"{how}; starting all again\n")
        self.attempt += 1


def of_workers(failures: dict[int, Exception]) -> str:
    """Return which worker has ended, if its process could not report that."""
    gone = [rank for rank, error in failures.items() if LOST not in str(error)]
    return f"the Ray worker of rank {min(gone or failures)} ended"


LOST: Final = "lost another rank"


def _prepare(order: Order) -> tuple[str, bool]:
    """End what an earlier attempt has left on this host, and look for the run folder."""
    old = [one for one in psutil.process_iter() if _is_of(one, order.run_id)]
    _, alive = psutil.wait_procs(old, timeout=_KILL_S)  # they end themselves
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    try:
        sees = order.token.read_text(encoding="utf-8") == order.run_id
    except OSError:
        sees = False
    return socket.gethostname(), sees


def _is_of(process: psutil.Process, run_id: str) -> bool:
    try:
        return process.environ().get(RUN_ID) == run_id
    except psutil.Error:
        return False


def _listen() -> tuple[str, int]:
    """Open the port at which rank 0 will listen, so that no other program takes it meanwhile."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("", 0))
    listener.listen()
    _here.listener = listener
    return ray.util.get_node_ip_address(), listener.getsockname()[1]


def _meet(attempt: int, address: str, port: int) -> None:
    _here.attempt, _here.address, _here.port = attempt, address, port


def _end() -> None:
    """End this worker's process."""
    process = _here.process
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=_KILL_S)
    except subprocess.TimeoutExpired:
        process.kill()


def work(order: Order) -> int:
    """Run the command as one rank, and return its exit code.

    After a signal of the launcher it is negative, unless the process has reported the signal.

    Raises:
        RuntimeError: if the process died, so that Ray Train starts all again.
    """
    context = ray.train.get_context()
    rank = context.get_world_rank()
    if (number := order.asked_to_stop()) is not None:
        return -number
    code = _watched(_started(order, context), order)
    if code == 0:
        return code
    if (number := order.asked_to_stop()) is not None:
        return code if code == 128 + number else -number
    if first_failure(order.folder, attempt=_here.attempt) is not None:
        return abs(code)  # it would happen again
    if code == LOST_CODE:
        raise RuntimeError(LOST)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    failure = Failure(
        rank=rank,
        host=socket.gethostname(),
        at=time.time(),
        attempt=_here.attempt,
        exit_code=4,
        is_final=False,
        lines=(f"a process (rank {rank}) {how}",),
    )
    record_failure(order.folder, failure)
    raise RuntimeError(failure.lines[0])


def _started(order: Order, context: Any) -> subprocess.Popen[bytes]:
    """Start this rank's process."""
    rank = context.get_world_rank()
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    env |= order.env  # Ray limits OpenMP to one thread, whatever the cores
    env |= {
        RANK: str(rank),
        WORLD_SIZE: str(context.get_world_size()),
        LOCAL_RANK: str(context.get_local_rank()),
        LOCAL_WORLD_SIZE: str(context.get_local_world_size()),
        MASTER_ADDR: _here.address,
        MASTER_PORT: str(_here.port),
        LAUNCHED: "1",
        RESTARTS: str(_here.attempt),
        RUN_ID: order.run_id,
    }
    env.pop(USES_AGENT_STORE, None)
    if order.hides_gpus:
        env["CUDA_VISIBLE_DEVICES"] = ""
    fds: tuple[int, ...] = ()
    if _here.listener is not None:
        fds = (_here.listener.fileno(),)
        env[LISTEN_FD] = str(fds[0])
    paths = (order.out, order.err) if rank == 0 else (log_file(order.folder, rank),) * 2
    with ExitStack() as files, _unblocked(signal.SIGINT):
        out, err = (files.enter_context(path.open("ab")) for path in paths)
        process = subprocess.Popen(
            [sys.executable, "-m", "stepladder", *order.words],
            env=env,
            cwd=order.cwd if Path(order.cwd).is_dir() else None,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=fds,
            process_group=0,  # a Ctrl-C of the terminal comes once, from the launcher
        )
    if _here.listener is not None:
        _here.listener.close()
        _here.listener = None
    _here.process = process
    return process


@contextmanager
def _unblocked(number: signal.Signals) -> Iterator[None]:
    """Let children of this thread get a signal, which Ray blocks."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watched(process: subprocess.Popen[bytes], order: Order) -> int:
    """Wait for a process; pass a signal of the launcher on, and end it if another rank failed."""
    looked = ends = time.monotonic()
    is_asked = has_failed = False
    while (code := process.poll()) is None:
        time.sleep(_POLL_S)
        now = time.monotonic()
        if now - looked < _LOOK_S:
            continue
        looked = now
        number = order.asked_to_stop()
        if not is_asked and number is not None:
            is_asked = True
            process.send_signal(number)
        elif not has_failed:
            has_failed = first_failure(order.folder, attempt=_here.attempt, wait_s=0) is not None
            ends = now + _END_S
        elif now > ends:
            _end()
    return code
