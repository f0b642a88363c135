"""Run a function on a Ray cluster that this program is connected to, one actor for each rank."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from stepladder.compat.horovod.rank_process import (
    LAST_S,
    Outcome,
    Spot,
    own_spot,
    result_of,
    run_rank,
)
from stepladder.errors import ResourceError

_FREE_S: Final = 10.0  # for Ray to free what actors had that have just ended
_POLL_S: Final = 0.1


def has_ray() -> bool:
    """Return True if this program has called `ray.init`."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


class _Rank:
    """One rank, as an actor."""

    def spot(self) -> Spot:
        """Return where it runs."""
        import ray

        gpus = [str(gpu) for gpu in ray.get_gpu_ids()]
        return own_spot(ray.util.get_node_ip_address(), gpus)

    def run(self, rank: int, spots: list[Spot], call: bytes, paths: list[str]) -> Outcome:
        """Run the process, and wait for it."""
        return run_rank(rank, spots, call, paths, lambda: False)


def run_in_ray(num: int, call: bytes) -> Any:
    """Call a pickled function in `num` actors; return the result of rank 0.

    Raises:
        ResourceError: if Ray has too few free CPUs or GPUs, or a process failed.
    """
    import ray

    uses_gpus = ray.cluster_resources().get("GPU", 0) > 0
    for name in ("CPU", "GPU") if uses_gpus else ("CPU",):
        total = int(ray.cluster_resources().get(name, 0))
        until = time.monotonic() + _FREE_S
        free = int(ray.available_resources().get(name, 0))
        while free < num <= total and time.monotonic() < until:
            time.sleep(_POLL_S)
            free = int(ray.available_resources().get(name, 0))
        if free < num:
            plural = "" if total == 1 else "s"
            busy = f", {free} of them free" if total >= num else ""
            raise ResourceError(
                f"Ray has {total} {name}{plural}{busy}, but HorovodRunner(np={num}) needs {num}",
                where="np",
                why="All processes have to start at the same time.",
                fix=f"See `ray status`, or run on this machine: np=-{num}",
            )
    actor = ray.remote(num_cpus=1, num_gpus=int(uses_gpus))(_Rank)
    ranks = [actor.remote() for _ in range(num)]
    paths = [path for path in sys.path if path]
    try:
        spots = ray.get([rank.spot.remote() for rank in ranks])
        running = [each.run.remote(rank, spots, call, paths) for rank, each in enumerate(ranks)]
        return result_of(_ended(running))
    except ray.exceptions.RayActorError as error:
        raise ResourceError(
            "a worker of HorovodRunner died on the Ray cluster",
            where="HorovodRunner",
            why=str(error).strip().splitlines()[0][:300],
            fix="See `ray status`: its machine probably ran out of memory.",
        ) from error
    finally:
        for each in ranks:
            ray.kill(each)  # its process ends as well


def _ended(running: list[Any]) -> list[Outcome]:
    """Return what became of the ranks, until a moment after the first failure."""
    import ray

    outcomes: list[Outcome] = []
    while running:
        has_failed = any(outcome.code for outcome in outcomes)
        done, running = ray.wait(running, num_returns=1, timeout=LAST_S if has_failed else None)
        if not done:
            break
        outcomes += ray.get(done)
    return outcomes
