"""Start a run's processes on this machine, through torch's elastic agent."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from stepladder.errors import InterruptedRun, ResourceError
from stepladder.parallel.failures import (
    LAUNCHED,
    Failure,
    clear_failures,
    died,
    failure_in,
    first_failure,
    stalled,
    stalled_error,
)

_MONITOR_S: Final = 0.1
_RECORD_S: Final = 0.5  # in which a process that fails with a message has written it down
_END_S: Final = 30  # for processes that save their state after a signal
_LEFT_S: Final = 5  # for the others after one has died or stalled: they cannot save it any more


def run_processes(
    num: int, words: Sequence[str], *, folder: Path, restarts: int, env: dict[str, str]
) -> None:
    """Run a command of stepladder in several processes, and wait for them.

    If one dies, all are started again, and resume from the last checkpoint. An error that would
    happen again ends the run.

    Args:
        num: of processes.
        words: arguments of `stepladder`.
        folder: of the run, for logs and records of failures.
        restarts: how often they may be started again.
        env: additional variables.

    Raises:
        ResourceError: if a process died and there are no more restarts.
        InterruptedRun: after a signal.
        RankLost: with the message of another rank than 0 that failed.
        SystemExit: with the code of the error that rank 0 has printed.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    clear_failures(folder)
    handler = registry.get_rendezvous_handler(
        RendezvousParameters(
            backend="c10d",
            endpoint="127.0.0.1:0",
            run_id=uuid.uuid4().hex,
            min_nodes=1,
            max_nodes=1,
            local_addr="127.0.0.1",
        )
    )
    agent = _agent(num, words, handler, DefaultLogsSpecs(), folder=folder, restarts=restarts)
    try:
        with _added({LAUNCHED: "1", **env}):
            result = agent.run()
    except SignalException as error:
        what = f"{error.sigval.name} ended the run; its state is saved"
        fix = "To resume, type the same command."
        raise InterruptedRun(what, signal_number=error.sigval, fix=fix) from None
    finally:
        handler.shutdown()
    if result.is_failed():
        raise _ended(result.failures, folder, attempt=agent.attempt)


@contextmanager
def _added(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, which those that it starts inherit, for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _agent(
    num: int, words: Sequence[str], handler: Any, logs: Any, *, folder: Path, restarts: int
) -> Any:
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    class Agent(LocalElasticAgent):
        """Starts the processes again only if that may help."""

        attempt = 0

        def _start_workers(self, worker_group: Any) -> Any:
            started = super()._start_workers(worker_group)
            context: Any = self._pcontext
            close = context.close

            def within(death_sig: Any = None, timeout: int = _LEFT_S) -> None:
                """End all processes; torch gives no time once one has failed."""
                close(death_sig, timeout)

            context.close = within
            return started

        def _monitor_workers(self, worker_group: Any) -> Any:
            result = super()._monitor_workers(worker_group)
            if not result.is_failed():
                return result
            found = _told(result.failures) or first_failure(
                folder, attempt=self.attempt, wait_s=_RECORD_S
            )
            if found is not None:
                self._remaining_restarts = 0  # it would happen again
            elif self._remaining_restarts:
                self.attempt += 1
                seen = stalled(folder, attempt=self.attempt - 1)
                how = seen or f"a process {_died(result.failures)}"
                sys.stderr.write(f"{how}; starting all processes again from the last checkpoint\n")
            return result

    spec = WorkerSpec(
        role="default",
        local_world_size=num,
        entrypoint=sys.executable,
        args=("-m", "stepladder", *words),
        rdzv_handler=handler,
        max_restarts=restarts,
        monitor_interval=_MONITOR_S,
        local_addr="127.0.0.1",
    )
    return Agent(spec=spec, logs_specs=logs, start_method="spawn", shutdown_timeout=_END_S)


def _died(failures: dict[int, Any]) -> str:
    """Return which process died, and of what."""
    rank, failure = min(failures.items(), key=lambda item: item[1].timestamp)
    return f"(rank {rank}) {_how(failure.exitcode)}"


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _told(failures: dict[int, Any]) -> Failure | None:
    """Return the first failure that a process could not write into the folder of the run."""
    all_told = [failure_in(one.error_file_data or {}) for one in failures.values()]
    final = [one for one in all_told if one is not None and one.is_final]
    return min(final, key=lambda one: one.at, default=None)


def _ended(failures: dict[int, Any], folder: Path, *, attempt: int) -> BaseException:
    """Return the error that ends the run; what rank 0 failed with, it has printed itself."""
    found = first_failure(folder, attempt=attempt, wait_s=0.0) or _told(failures)
    if found is not None:
        return SystemExit(found.exit_code) if found.rank == 0 else found.error(folder)
    error = stalled_error(folder, attempt=attempt)
    if error is None:
        rank = min(failures, key=lambda rank: failures[rank].timestamp)
        error = died(folder, rank, socket.gethostname(), _how(failures[rank].exitcode))
    error.exit_code = ResourceError.exit_code  # type: ignore[misc]
    return error
