"""A script in a private copy of its folder changes only that copy."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stepladder.scripts.inside.private import mirror, mirror_with_parents

WRITES = textwrap.dedent(
    """
    import os, pathlib, shutil, sys
    from stepladder.scripts.inside.private import Private, WroteOutsideError

    original, private = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    os.chdir(private)
    refused = []
    Private(original, private, refused.append).install()  # at least the audit hook
    open("new.txt", "w").write("new")
    open("old.txt", "a").write(" and more")
    pathlib.Path("runs/deep/old.txt").write_text("changed")
    os.makedirs("runs/new/folder")
    os.remove("runs/gone.txt")
    os.rename("moved.txt", "runs/moved.txt")
    shutil.rmtree("logs")
    assert open("data/big.txt").read() == "big"
    for path in (original / "old.txt", original.parent / "beside.txt"):
        try:
            open(path, "w")
        except WroteOutsideError:
            pass
        else:
            raise AssertionError(path)
    assert refused == [str(original / "old.txt"), str(original.parent / "beside.txt")], refused
    print("fine")
    """
)


def test_a_script_changes_only_its_private_copy(tmp_path: Path) -> None:
    original = tmp_path / "project"
    for name in ("runs/deep", "data", "logs"):
        (original / name).mkdir(parents=True)
    texts = {
        "old.txt": "old",
        "moved.txt": "moved",
        "runs/gone.txt": "gone",
        "runs/deep/old.txt": "deep",
        "data/big.txt": "big",
        "logs/log.txt": "log",
    }
    for name, text in texts.items():
        (original / name).write_text(text)
    private = original / "climb" / "work" / "folder"
    mirror(original, private, without=original / "climb")
    done = subprocess.run(
        [sys.executable, "-c", WRITES, str(original), str(private)],
        capture_output=True,
        text=True,
        check=False,
        env={"TMPDIR": str(tmp_path / "elsewhere"), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.strip() == "fine", done.stderr
    for name, text in texts.items():
        assert (original / name).read_text() == text
    assert (private / "old.txt").read_text() == "old and more"
    assert (private / "runs" / "deep" / "old.txt").read_text() == "changed"
    assert (private / "runs" / "moved.txt").read_text() == "moved"
    assert not (private / "runs" / "gone.txt").exists()
    assert not (private / "logs").exists()
    assert (private / "data").is_symlink()


NATIVE = textwrap.dedent(
    """
    import os, pathlib, sys
    from stepladder.scripts.inside.private import Private

    original, private = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    os.chdir(private)
    guard = Private(original, private, print)
    has_kernel = guard.install()
    import torch
    from safetensors.torch import save_file

    unguarded = torch._C.PyTorchFileWriter
    guard.follow_native()
    torch.save({"a": torch.ones(3)}, "runs/weights.pt")
    save_file({"a": torch.ones(3)}, "runs/weights.safetensors")
    assert torch.load("runs/weights.pt")["a"].sum() == 3
    if has_kernel:
        try:
            unguarded("data/weights.pt")  # native code, through a link to the original folder
        except RuntimeError as error:
            assert "data" in str(error) or "denied" in str(error), error
        else:
            raise AssertionError("written")
    print("fine")
    """
)


@pytest.mark.thorough
def test_native_code_changes_only_the_private_copy(tmp_path: Path) -> None:
    original = tmp_path / "project"
    for name in ("runs", "data"):
        (original / name).mkdir(parents=True)
        (original / name / "weights.pt").write_text("mine")
    (original / "runs" / "weights.safetensors").write_text("mine")
    private = original / "climb" / "work" / "folder"
    mirror(original, private, without=original / "climb")
    done = subprocess.run(
        [sys.executable, "-c", NATIVE, str(original), str(private)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "fine", done.stderr
    for name in ("runs/weights.pt", "data/weights.pt", "runs/weights.safetensors"):
        assert (original / name).read_text() == "mine"


BESIDE = textwrap.dedent(
    """
    import os, pathlib, sys
    from stepladder.scripts.inside.private import Private

    original, top, private = map(pathlib.Path, sys.argv[1:])
    os.chdir(private)
    refused = []
    Private(original, top, refused.append).install()
    assert open("../data/train.txt").read() == "train"
    assert open("../../shared.txt").read() == "shared"
    assert os.path.realpath("train.py") == str(original / "train.py")
    open("../data/train.txt", "a").write(" and more")
    open("../log.txt", "a").write(" and more")
    open("../../shared.txt", "w").write("changed")
    os.makedirs("../results/new")
    assert open("../log.txt").read() == "log and more"
    assert not refused, refused
    print("fine")
    """
)


def test_what_is_beside_the_folder_is_found_and_left_as_it_is(tmp_path: Path) -> None:
    original = tmp_path / "repository" / "mnist"
    texts = {
        "shared.txt": "shared",
        "repository/log.txt": "log",
        "repository/data/train.txt": "train",
        "repository/mnist/train.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    top = original / "climb" / "work" / "folder"
    private = mirror_with_parents(original, top, without=original / "climb")
    assert private.is_relative_to(top)
    done = subprocess.run(
        [sys.executable, "-c", BESIDE, str(original), str(top), str(private)],
        capture_output=True,
        text=True,
        check=False,
        env={"TMPDIR": str(tmp_path / "elsewhere"), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.strip() == "fine", done.stderr
    for name, text in texts.items():
        assert (tmp_path / name).read_text() == text
    assert not (tmp_path / "repository" / "results").exists()


def test_a_folder_with_very_many_entries_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepladder.scripts.inside.private._MAX_ENTRIES", 3)
    original = tmp_path / "many" / "project"
    original.mkdir(parents=True)
    for name in "abc":
        (tmp_path / "many" / name).mkdir()
    top = original / "climb" / "folder"
    assert mirror_with_parents(original, top, without=original / "climb") == top


SAVES = textwrap.dedent(
    """
    import os, pathlib, sys
    import torch
    from stepladder.scripts.inside.private import Private
    from stepladder.scripts.inside.saves import BackgroundSaves

    original, private = map(pathlib.Path, sys.argv[1:])
    os.chdir(private)
    refused = []
    guard = Private(original, private, refused.append)
    guard.install()
    saver = BackgroundSaves(torch.save)
    torch.save = saver.save
    guard.follow_native()
    for step in range(5):
        torch.save(torch.tensor(step), "runs/last.pt")
        open(f"runs/{step}.txt", "w").write("log")
    saver.finish()
    assert int(torch.load("runs/last.pt")) == 4
    assert not refused, refused
    print("fine")
    """
)


@pytest.mark.thorough
def test_files_that_a_thread_writes_are_private_too(tmp_path: Path) -> None:
    original = tmp_path / "project"
    (original / "runs").mkdir(parents=True)
    names = ["last.pt", *(f"{step}.txt" for step in range(5))]
    for name in names:
        (original / "runs" / name).write_text("mine")
    private = original / "climb" / "work" / "folder"
    mirror(original, private, without=original / "climb")
    done = subprocess.run(
        [sys.executable, "-c", SAVES, str(original), str(private)],
        capture_output=True,
        text=True,
        check=False,
        env={"TMPDIR": str(tmp_path / "elsewhere"), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.strip() == "fine", done.stderr
    assert {(original / "runs" / name).read_text() for name in names} == {"mine"}
