"""Start a run's processes on a Ray cluster, by Ray Train."""

from __future__ import annotations

import io
import logging
import math
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO

from stepladder.errors import InterruptedRun, ResourceError, StepladderError, UsageError
from stepladder.machine.activity import doing, paused
from stepladder.machine.limits import num_cores
from stepladder.parallel.failures import (
    LOGS,
    clear_failures,
    first_failure,
    log_file,
    stalled_error,
)
from stepladder.parallel.launch.stopping import passed_on

if TYPE_CHECKING:
    from stepladder.parallel.launch.ray_worker import Order

_LOCAL: Final = "local"
_POLL_S: Final = 0.1
_PLACE_S: Final = 5.0  # for Ray to find the places; free ones are found at once
_END_S: Final = 30.0  # for processes that save their state after a signal
_OBJECTS_BYTES: Final = 100 * 1024**2  # of a Ray that is started here: only small values are sent
_STORAGE: Final = "ray"  # folder of Ray Train, in the logs
_QUIET: Final[Mapping[str, str]] = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a run is saved often enough
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the future default, which Ray warns about
}
_SILENT: Final[Mapping[str, Any]] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
_PASSED: Final = ("PYTHONPATH", "OMP_NUM_THREADS")


def run_on_ray(
    num: int, words: Sequence[str], *, folder: Path, uses_gpus: bool | None, restarts: int
) -> None:
    """Run a command of stepladder in workers of Ray Train, and wait for them.

    The cluster is the one of RAY_ADDRESS, or one that runs on this machine, or one that is started
    here and stopped at the end. If a process dies, all are started again, and resume from the last
    checkpoint. An error that would happen again ends the run.

    Args:
        num: of processes.
        words: arguments of `stepladder`.
        folder: of the run, which all workers see.
        uses_gpus: each process gets a GPU; None: if Ray has any.
        restarts: how often they may be started again.

    Raises:
        ResourceError: if Ray has too few CPUs or GPUs or does not answer, a worker cannot see the
            run folder, or a process died and there are no more restarts.
        InterruptedRun: after a signal.
        RankLost: with the message of another rank than 0 that failed.
        SystemExit: with the code of the error that rank 0 has printed.
        UsageError: if Ray is not installed.
    """
    with _environment({**_QUIET, **_own_token()}):
        _require_ray()
        with doing("starting Ray"), ExitStack() as ended:
            ended.enter_context(_cluster(num))
            resources = _placed(num, uses_gpus)
            stays = ended.pop_all()
        with stays, paused(), _quiet():  # rank 0 prints
            _train(num, words, folder=folder, resources=resources, restarts=restarts)


@contextmanager
def using_ray(num_cpus: int) -> Iterator[None]:
    """Use Ray for a block, and drop what it prints.

    The cluster is chosen as by `run_on_ray`.

    Args:
        num_cpus: that a Ray started here needs.

    Raises:
        ResourceError, UsageError: as by `run_on_ray`.
    """
    with _environment({**_QUIET, **_own_token()}), ExitStack() as ended:
        _require_ray()
        with doing("starting Ray"):
            ended.enter_context(_cluster(num_cpus))
        ended.enter_context(_quiet())
        yield


def _require_ray() -> None:
    try:
        import ray
        import ray.train  # needs pandas and pydantic
    except ImportError as error:
        if error.name is not None and not error.name.startswith("ray"):
            missing = f"Ray Train needs {error.name}, which is not installed"
        else:
            missing = "Ray Train is not installed"
        raise UsageError(missing, fix="pip install 'stepladder[ray]'") from None
    del ray


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a block, unless they are set."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


@contextmanager
def _cluster(num: int) -> Iterator[None]:
    """Use Ray for a block: connect to a cluster, or start one and stop it at the end.

    Raises:
        ResourceError: if this machine has too few cores for one, or the cluster does not answer.
        UsageError: if the address is one of Ray Client.
    """
    import ray

    if ray.is_initialized():  # such as in a notebook
        yield
        return
    address = os.environ.get("RAY_ADDRESS") or None
    with ExitStack() as ended:
        try:
            is_there = address != _LOCAL and _connect(address)
            if not is_there:
                _start(num, ended.enter_context(_own_folder()))
        except (OSError, RuntimeError, ValueError) as error:
            lines = str(error).strip().splitlines()
            is_own = address in {None, _LOCAL}
            raise ResourceError(
                "Ray did not start" if is_own else "the Ray cluster does not answer",
                where=None if is_own else f"RAY_ADDRESS={address}",
                why=lines[0] if lines else None,
                fix="Check the cluster with `ray status` (if it asks for a token, set "
                "RAY_AUTH_MODE=token). To start a Ray for this run alone, set RAY_ADDRESS=local.",
            ) from error
        finally:
            ended.callback(ray.shutdown)
        yield


def _connect(address: str | None) -> bool:
    """Connect to the cluster at an address, or to that of this machine if there is one.

    Raises:
        OSError: if nothing listens at the address.
        UsageError: if the address is one of Ray Client.
    """
    import ray

    if address is not None and "://" in address:
        raise UsageError(
            "Ray Client cannot start the processes of a run",
            where=f"RAY_ADDRESS={address}",
            fix="Type the command on a machine of the cluster, or submit it: ray job submit -- "
            "stepladder train ...",
        )
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit():  # Ray would try for a minute
        socket.create_connection((host, int(port)), timeout=_PLACE_S).close()
    try:
        ray.init(address=address or "auto", **_SILENT)
    except ConnectionError:
        if address is not None:
            raise
        return False
    return True


def _start(num: int, folder: str) -> None:
    """Start Ray on this machine.

    Raises:
        ResourceError: if it has too few cores.
    """
    import ray

    cores = num_cores()
    if cores < num:
        raise _too_few(num, "CPU", total=cores, free=cores, is_local=True)
    ray.init(
        address=_LOCAL,
        num_cpus=cores,
        include_dashboard=False,
        object_store_memory=_OBJECTS_BYTES,
        _temp_dir=folder,
        **_SILENT,
    )


def _own_token() -> dict[str, str]:
    """Return the variables of a token for a Ray that is started here; empty if there is a cluster.

    Without one, Ray writes its token into the home folder. It reads them when it is imported.
    """
    address = os.environ.get("RAY_ADDRESS")
    running = Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray", "ray_current_cluster")
    is_own = address == _LOCAL or (not address and not running.exists())
    if not is_own or "ray" in sys.modules or "RAY_AUTH_MODE" in os.environ:
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextmanager
def _own_folder() -> Iterator[str]:
    """Yield a folder for sockets and logs of a Ray that is started here, and remove it.

    The path of a socket has at most 107 characters, of which Ray needs 60.
    """
    place = min((tempfile.gettempdir(), "/tmp"), key=len)
    with tempfile.TemporaryDirectory(
        prefix="stepladder-ray-", dir=place, ignore_cleanup_errors=True
    ) as folder:
        yield folder


def _placed(num: int, uses_gpus: bool | None) -> dict[str, float]:
    """Return the resources of each process, after Ray has found a place for all of them.

    Without this, Ray Train would wait, and print nothing. A process on CPUs gets an equal part of
    the cluster, so that Ray starts no other job on the cores that it uses.

    Raises:
        ResourceError: if there are too few.
    """
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    gpus = int(total.get("GPU", 0))
    if uses_gpus is None:
        uses_gpus = gpus > 0
    for name in ("GPU", "CPU") if uses_gpus else ("CPU",):
        there, now = int(total.get(name, 0)), int(free.get(name, 0))
        if min(there, now) < num:
            raise _too_few(num, name, total=there, free=now)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    most = _cpus_each(num, nodes, uses_gpus=uses_gpus)
    for cpus in sorted({most, 1}, reverse=True):
        resources = {"CPU": float(cpus)} | ({"GPU": 1.0} if uses_gpus else {})
        if _fits(num, resources):
            return resources
    name = "GPU" if uses_gpus else "CPU"
    there, now = int(total.get(name, 0)), int(ray.available_resources().get(name, 0))
    raise _too_few(num, name, total=there, free=now)


def _cpus_each(num: int, nodes: Sequence[Mapping[str, float]], *, uses_gpus: bool) -> int:
    """Return the most CPUs that each of `num` processes can have if all are free, at least 1."""
    most = max((int(node.get("CPU", 0)) for node in nodes), default=1)
    for cpus in range(most, 1, -1):
        places = 0
        for node in nodes:
            there = int(node.get("CPU", 0)) // cpus
            places += min(there, int(node.get("GPU", 0))) if uses_gpus else there
        if places >= num:
            return cpus
    return 1


def _fits(num: int, resources: dict[str, float]) -> bool:
    """Return True if Ray has the places now."""
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([resources] * num, strategy="PACK")
    try:
        return bool(group.wait(timeout_seconds=_PLACE_S))
    finally:
        remove_placement_group(group)


def _too_few(
    num: int, name: str, *, total: int, free: int, is_local: bool = False
) -> ResourceError:
    """Return the error for too few CPUs or GPUs."""
    plural = "" if total == 1 else "s"
    busy = f", {free} of them free" if free < total else ""
    what = f"Ray has {total} {name}{plural}{busy}, but a run on {num} devices needs {num}"
    if total >= num:
        fix = "wait until other jobs have ended: see `ray status`"
    elif is_local:
        fix = "set RAY_ADDRESS to a cluster with more"
    else:
        fix = "add a machine to the cluster: ray start --address=HOST:6379"
    fix = f"Type --devices {free}, or {fix}" if free else fix[0].upper() + fix[1:]
    return ResourceError(
        what,
        where="run.launch",
        why="All processes of a run have to start at the same time.",
        fix=fix,
    )


def _train(
    num: int, words: Sequence[str], *, folder: Path, resources: dict[str, float], restarts: int
) -> None:
    """Run the command on workers of Ray, and print what rank 0 prints."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from stepladder.parallel.launch.ray_worker import Meeting, News, Order, work

    order = Order(
        run_id=uuid.uuid4().hex,
        words=tuple(words),
        folder=folder,
        cwd=str(Path.cwd()),
        env={name: os.environ[name] for name in _PASSED if name in os.environ},
        hides_gpus="GPU" not in resources,
    )
    with _files(order) as printed:
        trainer = DataParallelTrainer(
            work,
            train_loop_config=order,
            backend_config=Meeting(order),
            scaling_config=ScalingConfig(
                num_workers=num,
                use_gpu="GPU" in resources,
                resources_per_worker=resources,
            ),
            run_config=RunConfig(
                name=_STORAGE,
                storage_path=str(folder / LOGS),
                failure_config=FailureConfig(max_failures=restarts, controller_failure_limit=2),
                callbacks=[News(order, restarts)],
            ),
        )
        fit = _Fit(trainer)
        with passed_on(order.stop) as signals:
            fit.start()
            until = math.inf
            while fit.is_alive() and time.monotonic() < until:
                fit.join(_POLL_S)
                printed.copy()
                if signals and until == math.inf:
                    until = time.monotonic() + _END_S  # the signal may have ended Ray, too
        printed.copy()
    if fit.error is not None or fit.code or fit.is_alive():
        raise _ended(fit, folder, signals, restarts)


class _Fit(threading.Thread):
    """Waits for Ray Train in a thread, so that signals come to the launcher, not to Ray."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(name="stepladder-ray", daemon=True)
        self._trainer = trainer
        self.code = 0
        self.error: Exception | None = None

    def run(self) -> None:
        """Train."""
        try:
            self.code = self._trainer.fit().return_value or 0
        except Exception as error:
            self.error = error


class _Printed:
    """Copies what is appended to files on to streams."""

    def __init__(self, files: Mapping[Path, TextIO]) -> None:
        self._streams: list[tuple[BinaryIO, TextIO]] = []
        for path, stream in files.items():
            path.touch()
            self._streams.append((path.open("rb"), stream))

    def copy(self) -> None:
        """Print what is new."""
        for file, stream in self._streams:
            if text := file.read():
                stream.write(text.decode(errors="replace"))
                stream.flush()

    def close(self) -> None:
        """Close the files."""
        for file, _ in self._streams:
            file.close()


@contextmanager
def _files(order: Order) -> Iterator[_Printed]:
    """Write the files through which this process and the workers talk, and remove them."""
    clear_failures(order.folder)
    logs = order.folder / LOGS
    paths = (order.token, order.stop, order.out, order.err, order.news)
    for path in paths:
        path.unlink(missing_ok=True)
    order.token.write_text(order.run_id, encoding="utf-8")
    printed = _Printed({order.news: sys.stderr, order.out: sys.stdout, order.err: sys.stderr})
    try:
        yield printed
    finally:
        printed.close()
        for path in paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        rmtree(logs / _STORAGE, ignore_errors=True)


class _Filtered(io.TextIOBase):
    """A stream without what Ray's own threads print about its workers."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, unless it is Ray's."""
        if not threading.current_thread().name.startswith("ray_"):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what Ray prints, such as that a worker has died."""
    with redirect_stdout(_Filtered(sys.stdout)), redirect_stderr(_Filtered(sys.stderr)):
        yield


def _ended(fit: _Fit, folder: Path, signals: Sequence[int], restarts: int) -> BaseException:
    """Return the error that ends the run; what rank 0 failed with, it has printed itself."""
    from ray.train import ControllerError

    if signals and fit.code <= 0:
        name = signal.Signals(signals[0]).name
        return InterruptedRun(
            f"{name} ended the run; its state is saved",
            signal_number=signals[0],
            fix="To resume, type the same command.",
        )
    attempts = range(restarts, -1, -1)
    if fit.error is None:
        ends = (first_failure(folder, attempt=attempt, wait_s=0) for attempt in attempts)
        found = next((one for one in ends if one is not None), None)
        if signals or found is None:
            return SystemExit(fit.code)
        return SystemExit(found.exit_code) if found.rank == 0 else found.error(folder)
    if isinstance(fit.error, ControllerError):
        cause = fit.error.controller_failure
        if isinstance(cause, StepladderError):
            return cause
        return ResourceError(
            "Ray could not start the processes of the run",
            why=str(cause).strip().partition("\n")[0] or type(cause).__name__,
            fix="Check the cluster with `ray status`, and type the same command again.",
        )
    return _lost(fit.error, folder, attempts)


def _lost(error: BaseException, folder: Path, attempts: Sequence[int]) -> ResourceError:
    """Return the error of a run that has lost a rank more often than it may start again."""
    from stepladder.parallel.launch.ray_worker import of_workers

    hung = (stalled_error(folder, attempt=attempt) for attempt in attempts)
    if (first := next((one for one in hung if one is not None), None)) is not None:
        return ResourceError(first.what, fix=first.fix)
    failures = getattr(error, "worker_failures", None)
    return ResourceError(
        of_workers(failures) if failures else str(error).partition("\n")[0],
        why="If nobody killed it, its host ran out of memory: see `dmesg`.",
        fix=f"Read the logs ({log_file(folder, 0).parent}), and type the same command to resume.",
    )
