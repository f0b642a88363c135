"""A process finds its place in what torchrun or Slurm puts into the environment."""

from __future__ import annotations

import pytest

from stepladder.errors import UsageError
from stepladder.parallel.place import Place, first_host, place_of, tasks_per_node

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host-a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
    "SLURM_JOB_ID": "1234567",
}


def test_a_process_without_a_launcher_is_alone() -> None:
    assert place_of({}) is None


def test_torchrun() -> None:
    assert place_of(TORCHRUN) == Place(
        rank=5,
        size=8,
        local_rank=1,
        local_size=4,
        address="host-a",
        port=29500,
        has_agent=True,
    )


def test_srun() -> None:
    place = place_of(SRUN)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size) == (3, 5, 1, 2)
    assert place.address == "gpu03"
    assert place == place_of(SRUN | {"SLURM_PROCID": "3"})
    assert 20_000 <= place.port < 30_000


def test_a_batch_script_of_slurm_is_one_process() -> None:
    assert place_of(SRUN | {"SLURM_STEP_NUM_TASKS": "1"}) is None
    assert place_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None


def test_an_own_address_wins_over_that_of_slurm() -> None:
    place = place_of(SRUN | {"MASTER_ADDR": "here", "MASTER_PORT": "1234"})
    assert place is not None
    assert (place.address, place.port) == ("here", 1234)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"MASTER_ADDR": None},
            "but MASTER_ADDR and MASTER_PORT, the address of rank 0, are not set",
        ),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http', which is not a number"),
        ({"RANK": "8"}, "rank 8 of 8"),
        ({"LOCAL_RANK": "4"}, "local rank 4 of 4"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is not set"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, str | None], message: str) -> None:
    environ = {key: value for key, value in (TORCHRUN | changes).items() if value is not None}
    with pytest.raises(UsageError) as caught:
        place_of(environ)
    assert message in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("words", "counts"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,3(x2)", [1, 3, 3])]
)
def test_tasks_of_the_nodes(words: str, counts: list[int]) -> None:
    assert tasks_per_node(words) == counts


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu01", "gpu01"),
        ("gpu01,gpu02", "gpu01"),
        ("gpu[03-07,12]", "gpu03"),
        ("gpu[12,14]", "gpu12"),
        ("a1,gpu[03-07]", "a1"),
        ("rack[1-2]-n", "rack1-n"),
    ],
)
def test_the_first_host(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


@pytest.mark.parametrize("prefix", ["HOROVOD_", "OMPI_COMM_WORLD_"])
def test_mpirun_and_horovodrun_on_one_host(prefix: str) -> None:
    values = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    place = place_of({prefix + name: value for name, value in values.items()})
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size) == (1, 2, 1, 2)
    assert place.address == "127.0.0.1"


def test_mpirun_on_several_hosts_needs_an_address() -> None:
    values = {"RANK": "1", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    with pytest.raises(UsageError, match="MASTER_ADDR and MASTER_PORT are not set"):
        place_of({f"OMPI_COMM_WORLD_{name}": value for name, value in values.items()})
