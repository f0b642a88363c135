"""Scripts in Horovod's words: values equal to closed forms, and steps equal to one process's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stepladder.compat.horovod import HorovodRunner
from stepladder.compat.horovod import torch as hvd
from stepladder.errors import ResourceError, UsageError
from tests.ranks.together import ROOT, TIMEOUT_S, ended, environment, free_port

Results = list[dict[str, Any]]


def run(num: int, out: Path) -> Results:
    """Run the script in several ranks, and return what each computed."""
    start("tests.ranks.horovod_rank", num, out, str(out))
    return [torch.load(f"{out}-{num}-{rank}.pt") for rank in range(num)]


def start(module: str, num: int, out: Path, *words: str) -> None:
    """Run a module in several ranks, and wait until all have ended."""
    port = str(free_port())
    processes = []
    for rank in range(num):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
        size = {"WORLD_SIZE": str(num), "LOCAL_WORLD_SIZE": str(num), "MASTER_PORT": port}
        with Path(f"{out}-{num}-{rank}.txt").open("w") as log:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *words],
                    cwd=ROOT,
                    env=environment(**(place | size if num > 1 else {})),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    with ended(processes):
        codes = [process.wait(timeout=TIMEOUT_S) for process in processes]
    logs = [Path(f"{out}-{num}-{rank}.txt").read_text()[-3000:] for rank in range(num)]
    assert codes == [0] * num, "\n".join(logs)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(2, tmp_path_factory.mktemp("two") / "out")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(1, tmp_path_factory.mktemp("one") / "out")


def test_collectives_have_the_values_of_their_closed_forms(two: Results) -> None:
    for rank, result in enumerate(two):
        found = result["collectives"]
        assert found["average"].tolist() == [1.5, 15.0]
        assert found["sum"].tolist() == found["in_place"].tolist() == [3.0, 30.0]
        assert found["min"].tolist() == [1.0, 10.0]
        assert (found["max"].tolist(), found["is_complete"]) == ([2.0, 20.0], True)
        assert found["scaled"].tolist() == [6.0, 60.0]
        assert (found["halves"].tolist(), found["halves"].dtype) == ([1.5, 15.0], torch.float32)
        assert found["whole"].tolist() == [1, 4]  # of 3/2 and 9/2: rounded down
        assert [value.tolist() for value in found["grouped"]] == [[3.0, 30.0], [3.0]]
        assert found["grad"].tolist() == [7.0]  # the sum over ranks of the factors 3 and 4
        assert found["gathered"].tolist() == [[0, 0], [1, 1], [1, 1]]
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]
        assert (found["sent"].tolist(), found["object"]) == ([1], "of 1")
        assert found["rows"].tolist() == ([0, 10, 11] if rank == 0 else [1, 2, 12])
        assert found["received"].tolist() == ([1, 2] if rank == 0 else [2, 1])
        assert found["place"] == (rank, 2, rank, 2, 1)


@pytest.mark.parametrize("how", ["plain", "passes", "clipped", "predivided"])
def test_three_steps_are_those_of_one_process(two: Results, one: Results, how: str) -> None:
    for result in two:
        for found, expected in zip(result[how], one[0][how], strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_gradient_that_one_rank_does_not_compute_counts_as_zero(two: Results) -> None:
    assert [result["unused"].tolist() for result in two] == [[-2.0, -2.0]] * 2


def test_ranks_with_unequal_numbers_of_batches_join(two: Results) -> None:
    """Two steps of both ranks move by 2, two of one rank by 1, as the average counts all ranks."""
    for name in ("joined", "joined_again"):
        assert [result[name]["last"] for result in two] == [1, 1]
        assert [result[name]["weight"].tolist() for result in two] == [[6.0] * 3] * 2
        assert two[1][name]["sums"] == [2.0, 2.0, 1.0, 1.0]
        assert [result[name]["after"].tolist() for result in two] == [[6.0] * 3] * 2


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refused")
    start("tests.ranks.horovod_refusal", 2, folder / "log", str(folder / "out"))
    return folder


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_gather_that_a_joined_rank_misses_is_refused(how: str, refused: Path) -> None:
    assert (
        "a rank has called hvd.join(), and takes part in allreduce only"
        in (refused / f"out-{how}-1").read_text()
    )
    if how == "after":
        assert (refused / "out-after-later").read_text() == "[0, 1]"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.usefixtures("alone")
def test_adasum_is_refused() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    with pytest.raises(UsageError, match="Adasum is not available"):
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)


def test_rank_before_init_names_the_missing_call() -> None:
    with pytest.raises(UsageError, match=r"Call hvd\.init\(\) first"):
        hvd.rank()


@pytest.mark.distributed
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_an_elastic_training_continues_from_its_last_commit(how: str, tmp_path: Path) -> None:
    """The failure comes in the fifth of eight steps, after the commit of the fourth."""
    words = ["--nproc-per-node", "2", "--max-restarts", "1"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    script = [str(ROOT / "tests/ranks/horovod_elastic.py"), how, str(tmp_path / "out")]
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words, *script],
            env=environment(STEPLADDER_ELASTIC_DIR=str(tmp_path)),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with ended([process]):
        code = process.wait(timeout=TIMEOUT_S)
    assert code == 0, (tmp_path / "log.txt").read_text()[-3000:]
    for rank in range(2):
        seen = [8 + rank, 10 + rank, 12 + rank, 14 + rank]
        assert (tmp_path / f"out-{rank}.txt").read_text() == f"8 8 [4] {seen}"
    assert not list(tmp_path.glob("stepladder-elastic-*"))


@pytest.mark.distributed
def test_the_runner_returns_the_result_of_rank_0() -> None:
    def main(base: float) -> tuple[int, float]:
        import torch

        from stepladder.compat import horovod as hvd

        hvd.init()
        total = hvd.allreduce(torch.tensor(base + hvd.rank()), op=hvd.Sum)
        return hvd.rank(), float(total)

    assert HorovodRunner(np=-2).run(main, base=3.0) == (0, 7.0)


@pytest.mark.distributed
def test_the_runner_names_the_rank_that_failed() -> None:
    def main() -> None:
        from stepladder.compat import horovod as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise ValueError("the third batch")
        hvd.barrier()

    with pytest.raises(ResourceError, match="rank 1 failed: ValueError: the third batch"):
        HorovodRunner(np=-2).run(main)


def test_the_runner_names_the_local_form_without_a_cluster() -> None:
    with pytest.raises(UsageError, match="Use np=-8 to run on this machine"):
        HorovodRunner(np=8).run(print)


def test_the_runner_refuses_no_processes() -> None:
    with pytest.raises(UsageError, match=r"np=0\) has no processes"):
        HorovodRunner(np=0)
