"""A script in a private copy of its folder changes only that copy."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from stepladder.scripts.inside.private import mirror

WRITES = textwrap.dedent(
    """
    import os, pathlib, shutil, sys
    from stepladder.scripts.inside.private import Private, WroteOutsideError

    original, private = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    os.chdir(private)
    refused = []
    Private(original, private, refused.append).install()
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
