"""The A3C example: its equations by hand, and that it ends all of its processes in any case."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import psutil
import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_S = 120  # for what takes seconds: a run that hangs fails the test
FOREVER = ("--target", "500", "--max-seconds", "1000")


@pytest.fixture(name="a3c")
def _a3c(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("a3c")


@pytest.mark.parametrize(("action", "sign"), [(1, 1), (0, -1)])
def test_a_push_from_rest_has_the_velocities_computed_by_hand(
    a3c: ModuleType, action: int, sign: int
) -> None:
    # A push of 10 N on 1.1 kg is 100/11 m/s2. The upright pole turns by
    # -(100/11) / (1/2 * (4/3 - 1/11)) = -(100/11) / (41/66) = -600/41 rad/s2, and the cart gets
    # 100/11 + 1/22 * 600/41 = 400/41 m/s2. Times 0.02 s: 8/41 m/s and -12/41 rad/s.
    moved = a3c.move(np.zeros(4), action)
    np.testing.assert_allclose(moved, [0, sign * 8 / 41, 0, sign * -12 / 41], rtol=1e-12)


def test_a_step_solves_the_equations_of_motion(a3c: ModuleType) -> None:
    # With F = -10, cart 1.0, pole 0.1 and half length 0.5, for the accelerations a and b:
    #   1.1 a + 0.05 cos(angle) b = F + 0.05 turn**2 sin(angle)
    #   cos(angle) a + 4/3 * 0.5 b = 9.8 sin(angle)
    position, velocity, angle, turn = 0.3, -0.7, 0.15, 1.2
    sin, cos = math.sin(angle), math.cos(angle)
    sides = [-10 + 0.05 * turn**2 * sin, 9.8 * sin]
    a, b = np.linalg.solve([[1.1, 0.05 * cos], [cos, 2 / 3]], sides)
    expected = [position - 0.014, velocity + 0.02 * a, angle + 0.024, turn + 0.02 * b]
    moved = a3c.move(np.array([position, velocity, angle, turn]), 0)
    np.testing.assert_allclose(moved, expected, rtol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("position", "angle_degrees", "has_fallen"),
    [(2.39, 0, False), (2.41, 0, True), (0, 11.9, False), (0, 12.1, True)],
)
def test_an_episode_ends_outside_the_limits(
    a3c: ModuleType, sign: int, position: float, angle_degrees: float, has_fallen: bool
) -> None:
    cart = a3c.CartPole(np.random.default_rng(0))
    cart.state = sign * np.array([position, 0, math.radians(angle_degrees), 0])
    assert cart.step(1) == 1.0  # from rest, the first step changes the velocities only
    assert (cart.has_fallen, cart.is_over) == (has_fallen, has_fallen)


def test_an_episode_ends_after_500_steps_without_a_fall(a3c: ModuleType) -> None:
    cart = a3c.CartPole(np.random.default_rng(0))
    for _ in range(500):
        assert not cart.is_over
        cart.state = np.zeros(4)
        cart.step(0)
    assert (cart.has_fallen, cart.is_over) == (False, True)


def test_n_step_returns_are_those_computed_by_hand(a3c: ModuleType) -> None:
    # from the last: 4 + 8/2 = 8, then 2 + 8/2 = 6, then 1 + 6/2 = 4
    assert a3c.n_step_returns([1.0, 2.0, 4.0], 8.0, 0.5) == [4.0, 6.0, 8.0]


@pytest.mark.parametrize(
    ("num_steps", "position", "wanted"),
    [
        (499, 0.0, [0.01 + 0.99 * 0.5]),  # the limit of steps: the critic's 0.5 follows
        (7, 2.5, [0.01]),  # a fall: nothing follows
    ],
)
def test_only_a_fall_has_no_value_after_it(
    a3c: ModuleType, num_steps: int, position: float, wanted: list[float]
) -> None:
    model = a3c.ActorCritic()
    torch.nn.init.zeros_(model.critic[-1].weight)
    torch.nn.init.constant_(model.critic[-1].bias, 0.5)
    cart = a3c.CartPole(np.random.default_rng(0))
    cart.num_steps, cart.state = num_steps, np.array([position, 0, 0, 0])
    states, actions, returns = a3c.play(cart, model)
    assert (states.shape, actions.shape) == ((1, 4), (1,))
    assert returns.tolist() == pytest.approx(wanted)


def test_a_step_of_rmsprop_is_the_papers(a3c: ModuleType) -> None:
    weights, squares = torch.zeros(2), torch.tensor([0.0, 1.0])
    a3c.rmsprop_(weights, squares, torch.tensor([2.0, -1.0]))
    assert squares.tolist() == pytest.approx([0.04, 1.0])  # 0.99 of the old, 0.01 of the square
    assert weights.tolist() == pytest.approx([-1e-3 * 2 / 0.2, 1e-3], rel=1e-4)


@contextlib.contextmanager
def running(*words: str, file: Path = EXAMPLES / "a3c.py") -> Iterator[subprocess.Popen[str]]:
    """Start the example in a process group of its own, which is killed at the end."""
    with subprocess.Popen(
        [sys.executable, str(file), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(EXAMPLES)},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def in_group(group: int) -> list[psutil.Process]:
    """Return the processes of a group that have not ended, whoever their parent is."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            is_ended = process.status() == psutil.STATUS_ZOMBIE
            if os.getpgid(process.pid) == group and not is_ended:
                found.append(process)
    return found


def check_that_none_is_left(group: int) -> None:
    end_s = time.monotonic() + LIMIT_S
    while in_group(group) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert in_group(group) == []


def workers_of(process: subprocess.Popen[str], num_workers: int = 2) -> list[psutil.Process]:
    """Wait until the workers have started, and return them."""
    while process.poll() is None:
        children = psutil.Process(process.pid).children()
        workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
        if len(workers) == num_workers:
            return workers
        time.sleep(0.05)
    raise AssertionError(process.communicate())


def ignores_ctrl_c(pid: int) -> bool:
    mask = re.search(r"SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    assert mask is not None
    return bool(int(mask[1], 16) & 1 << (signal.SIGINT - 1))


def wait_for_an_episode(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert any("episodes" in line for line in process.stdout), "it ended before an episode"


def test_two_workers_reach_a_low_target_and_end() -> None:
    with running("--workers", "2", "--target", "40", "--max-seconds", "100") as process:
        workers = workers_of(process)
        printed, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, errors) == (0, "")
        first, *lines, last = printed.splitlines()
        assert first == "Worker processes: 2, with one compute thread each."
        pattern = r"\d+ s, (\d+) episodes, mean of the last (\d+): (\d+)"
        num_episodes, window, mean = map(int, re.findall(pattern, lines[-1])[0])
        assert (window, last) == (50, "Target of 40 reached.")
        assert num_episodes >= 50
        assert mean >= 40
        assert not any(worker.is_running() for worker in workers)
        check_that_none_is_left(process.pid)


def test_a_killed_worker_ends_the_run_with_a_message() -> None:
    with running(*FOREVER) as process:
        wait_for_an_episode(process)
        killed = workers_of(process)[1]
        killed.kill()
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1
        fix = "If memory ran out, use fewer --workers; otherwise start again."
        assert errors == f"Worker process {killed.pid} was killed by SIGKILL. {fix}\n"
        check_that_none_is_left(process.pid)


def test_a_worker_that_raises_ends_the_run_with_its_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"  # workers import it as well
    broken.write_text(
        "import sys, a3c\n"
        "def play(cart, model):\n    raise ValueError('no more carts')\n"
        "a3c.play = play\n"
        "if __name__ == '__main__':\n    sys.exit(a3c.main())\n"
    )
    with running(*FOREVER, "--workers", "1", file=broken) as process:
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1
        assert "ValueError: no more carts\n" in errors
        assert re.search(r"Worker process \d+ ended with code 1\. Its error is above\.\n$", errors)
        check_that_none_is_left(process.pid)


def test_ctrl_c_ends_all_without_a_traceback() -> None:
    with running(*FOREVER) as process:
        workers_of(process)  # which are still importing
        while ignores_ctrl_c(process.pid):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, errors) == (1, "Interrupted.\n")
        check_that_none_is_left(process.pid)


def test_workers_end_if_the_main_process_is_killed() -> None:
    with running(*FOREVER, "--workers", "1") as process:
        wait_for_an_episode(process)
        process.kill()
        check_that_none_is_left(process.pid)


@pytest.mark.parametrize("flag", ["--workers", "--max-seconds", "--target"])
def test_a_bad_number_is_an_error_of_one_line(
    a3c: ModuleType,
    flag: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["a3c.py", flag, "0"])
    with pytest.raises(SystemExit, match="2"):
        a3c.main()
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"a3c.py: error: {flag} is 0. Use a number from 1 to ")
