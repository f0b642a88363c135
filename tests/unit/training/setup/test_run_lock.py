"""One process per run folder at a time, with and without file locks."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.errors import ResourceError
from stepladder.machine.filesystem import FileCalls, FolderAbilities
from stepladder.training.setup.run_lock import RunLock

OTHER = """
import sys, time
from pathlib import Path
from stepladder.machine.filesystem import FileCalls, FolderAbilities
from stepladder.training.setup.run_lock import RunLock
works = FolderAbilities(has_locks=sys.argv[2] == "True")
with RunLock(Path(sys.argv[1]), file_system=works, ops=FileCalls()):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=[True, False], ids=["flock", "no flock"])
def has_locks(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def lock(path: Path, has_locks: bool) -> RunLock:
    return RunLock(path, file_system=FolderAbilities(has_locks=has_locks), ops=FileCalls())


def start_other(path: Path, has_locks: bool) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OTHER, str(path), str(has_locks)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_the_file_says_who_holds_the_folder_and_goes_with_the_lock(
    path: Path, has_locks: bool
) -> None:
    with lock(path, has_locks):
        owner = json.loads(path.read_text())
        assert owner["pid"] == os.getpid()
        assert owner["host"] == socket.gethostname()
    assert not path.exists()
    with lock(path, has_locks):
        assert path.exists()


def test_a_second_lock_of_the_same_process_is_refused(path: Path, has_locks: bool) -> None:
    with lock(path, has_locks):
        with pytest.raises(ResourceError, match=f"pid {os.getpid()}"), lock(path, has_locks):
            pass
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_another_process_is_refused_by_name_until_it_is_killed(path: Path, has_locks: bool) -> None:
    with start_other(path, has_locks) as other:
        wanted = rf"pid {other.pid} on {socket.gethostname()}, since [\s\S]*--run\.dir"
        with pytest.raises(ResourceError, match=wanted) as caught, lock(path, has_locks):
            pass
        assert caught.value.exit_code == 4
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert path.exists()
        with lock(path, has_locks):
            assert json.loads(path.read_text())["pid"] == os.getpid()
    assert not path.exists()


def write_owner(path: Path, **values: object) -> None:
    ours = {"pid": os.getpid(), "host": socket.gethostname(), "started": "then", "start_ticks": 1}
    path.write_text(json.dumps({**ours, **values}))


def test_a_pid_that_another_process_has_now_is_stale(path: Path) -> None:
    """As in a container, where each attempt gets the same pid."""
    write_owner(path, start_ticks=1)
    with lock(path, False):
        assert json.loads(path.read_text())["start_ticks"] != 1


@pytest.mark.parametrize("host", ["another-host", None])
def test_without_file_locks_a_lock_of_another_host_is_never_taken_over(
    path: Path, host: str | None
) -> None:
    write_owner(path, host=host)
    with pytest.raises(ResourceError, match="remove"), lock(path, False):
        pass
    assert path.exists()


def test_without_file_locks_an_empty_lock_is_taken_over_once_it_is_old(path: Path) -> None:
    path.write_text("")
    with pytest.raises(ResourceError), lock(path, False):
        pass
    os.utime(path, (0, 0))
    with lock(path, False):
        pass


def test_an_error_inside_frees_the_lock(path: Path, has_locks: bool) -> None:
    with pytest.raises(KeyError), lock(path, has_locks):
        raise KeyError
    assert not path.exists()


def test_a_lock_that_someone_removed_is_not_removed_again_from_its_next_owner(
    path: Path, has_locks: bool
) -> None:
    with lock(path, has_locks):
        path.unlink()
        with lock(path, has_locks):
            pass
        path.write_text("of another")
    assert path.read_text() == "of another"


def test_an_error_of_the_file_system_is_not_a_refusal(path: Path) -> None:
    class Broken(FileCalls):
        """Fails to lock although the probe worked."""

        def lock(self, handle: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    broken = RunLock(path, file_system=FolderAbilities(), ops=Broken())
    with pytest.raises(ResourceError, match="Input/output error"), broken:
        pass
