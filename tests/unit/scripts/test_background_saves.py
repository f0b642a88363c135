"""Saving in a thread: the files are those of torch.save, whatever reads them."""

from __future__ import annotations

import argparse
import atexit
import copy
import io
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stepladder.scripts.inside.saves import BackgroundSaves
from stepladder.scripts.rungs.background_saves import SAVER

OF_TORCH = {name: getattr(torch, name) for name in ("Tensor", "empty_like", "strided")}
Save = Callable[..., None]


def from_outside(save: Save) -> Any:
    return BackgroundSaves(save)


def in_the_diff(save: Save) -> Any:
    modules = {"atexit": atexit, "copy": copy, "os": os, "sys": sys, "threading": threading}
    scope: dict[str, Any] = {
        **modules,
        "time": time,
        "torch": SimpleNamespace(save=save, **OF_TORCH),
    }
    exec(SAVER, scope)
    return scope["background_saves"]


@pytest.fixture(params=[from_outside, in_the_diff])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_of_several_for_one_file_the_last_is_written(kind: Any, tmp_path: Path) -> None:
    written, go = [], threading.Event()

    def save(obj: Any, f: Any) -> None:
        go.wait(10)
        written.append(obj["step"])
        torch.save(obj, f)

    saver, file = kind(save), tmp_path / "last.pt"
    weights = torch.zeros(3)
    for step in range(20):
        weights += 1
        saver.save({"step": step, "weights": weights}, file)
    weights += 100  # which is not in the file
    go.set()
    saver.finish()
    assert len(written) < 4
    found = torch.load(file)
    assert found["step"] == 19
    assert found["weights"].tolist() == [20.0] * 3


def test_each_of_several_files_is_written(kind: Any, tmp_path: Path) -> None:
    saver = kind(torch.save)
    for epoch in range(6):
        saver.save(torch.tensor(epoch), str(tmp_path / f"{epoch}.pt"))
    saver.finish()
    assert [int(torch.load(tmp_path / f"{epoch}.pt")) for epoch in range(6)] == list(range(6))


def slowly(obj: Any, f: Any) -> None:
    time.sleep(0.2)
    torch.save(obj, f)


def test_what_reads_or_moves_a_file_waits_for_it(kind: Any, tmp_path: Path) -> None:
    saver, file = kind(slowly), tmp_path / "a.pt"
    saver.save(torch.tensor(1), file)
    assert int(torch.load(file)) == 1
    saver.save(torch.tensor(2), file)
    shutil.copy(file, tmp_path / "b.pt")
    assert int(torch.load(tmp_path / "b.pt")) == 2
    saver.save(torch.tensor(3), file)
    file.replace(tmp_path / "c.pt")
    assert int(torch.load(tmp_path / "c.pt")) == 3
    saver.save(torch.tensor(4), file)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["a.pt", "b.pt", "c.pt"]


def test_what_cannot_wait_is_saved_at_once(kind: Any, tmp_path: Path) -> None:
    saver, buffer = kind(torch.save), io.BytesIO()
    saver.save(torch.tensor(1), buffer)
    assert int(torch.load(io.BytesIO(buffer.getvalue()))) == 1
    saver.save(torch.tensor(2), tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert not saver_waits(saver)
    in_graph = torch.ones(1, requires_grad=True) * 2
    saver.save(in_graph, tmp_path / "b.pt")
    assert not saver_waits(saver)
    assert torch.load(tmp_path / "b.pt").tolist() == [2.0]
    with pytest.raises(RuntimeError, match="does not exist"):
        saver.save(torch.tensor(3), tmp_path / "missing" / "a.pt")


def saver_waits(saver: Any) -> bool:
    return bool(getattr(saver, "waiting", None) or getattr(saver, "_waiting", None))


def test_a_file_that_cannot_be_written_is_an_error(kind: Any, tmp_path: Path) -> None:
    def save(obj: Any, f: Any) -> None:
        raise OSError("the disk is full")

    saver = kind(save)
    saver.save(torch.tensor(1), tmp_path / "a.pt")
    with pytest.raises(OSError, match="the disk is full"):
        saver.finish()
    saver.finish()


def test_memory_of_a_copy_is_used_again_and_sharing_is_kept(kind: Any, tmp_path: Path) -> None:
    go, begun, written = threading.Event(), threading.Event(), []

    def save(obj: Any, f: Any) -> None:
        written.append(obj)
        begun.set()
        go.wait(10)
        torch.save(obj, f)

    saver, file = kind(save), tmp_path / "last.pt"
    rows, tied = torch.zeros(4, 3), torch.ones(5)
    views = {"column": rows.T, "tied": [tied, tied.view(5)], "part": torch.arange(9)[:3]}
    for step in range(5):
        rows += 1
        tied += 1
        views["history"] = [0.5] * step
        saver.save(views, file)
        assert begun.wait(10)
    waiting = getattr(saver, "waiting", None) or saver._waiting
    ((_, reused),) = waiting.values()
    saver.save(views, file)
    ((_, again),) = waiting.values()
    assert [one.data_ptr() for one in reused] == [one.data_ptr() for one in again]
    assert [one.shape for one in again] == [(3, 4)]
    views["column"] = torch.zeros(2)  # of another shape
    saver.save(views, file)
    go.set()
    saver.finish()
    found = torch.load(file)
    assert found["column"].tolist() == [0.0, 0.0]
    assert written[0]["column"].tolist() == [[1.0] * 4] * 3
    first, second = found["tied"]
    assert first.tolist() == second.tolist() == [6.0] * 5
    assert first.data_ptr() == second.data_ptr()
    assert found["part"].tolist() == [0, 1, 2]
    assert found["history"] == [0.5] * 4


class Holder:
    """An object that holds a tensor."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held


def test_what_shares_memory_with_a_hidden_tensor_shares_it_in_the_file(
    kind: Any, tmp_path: Path
) -> None:
    saver, file = kind(torch.save), tmp_path / "last.pt"
    weights = torch.zeros(4)
    for _ in range(2):
        saver.save({"weights": weights, "holder": Holder(weights[:2])}, file)
        weights += 1
    saver.finish()
    found = torch.load(file, weights_only=False)
    found["weights"] += 5
    assert found["holder"].held.tolist() == [6, 6]


@pytest.mark.filterwarnings("ignore:.*quantize")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_special_tensors_are_saved_as_they_are(kind: Any, tmp_path: Path) -> None:
    noted = torch.ones(3)
    noted.note = "mine"  # type: ignore[attr-defined]
    with torch.inference_mode():
        inferred = torch.ones(3)
    for tensor in (
        noted,
        inferred,
        torch.ones(3, dtype=torch.cfloat).mul(1j).conj(),
        torch.eye(3).to_sparse(),
        torch.ones(3, requires_grad=True),
        torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8),
    ):
        saver, file = kind(torch.save), tmp_path / "last.pt"
        for other in (torch.zeros(3), tensor):
            saver.save({"a": other, "args": argparse.Namespace(lr=0.1)}, file)
        saver.finish()
        found = torch.load(file, weights_only=False)["a"]
        assert getattr(found, "note", None) == getattr(tensor, "note", None)
        assert found.is_quantized == tensor.is_quantized
        assert torch.equal(as_plain(found), as_plain(tensor))


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.dequantize() if tensor.is_quantized else tensor.resolve_conj()
    return plain.to_dense() if plain.is_sparse else plain


def test_containers_may_hold_themselves_or_one_another(kind: Any, tmp_path: Path) -> None:
    saver, file = kind(torch.save), tmp_path / "last.pt"
    settings: dict[str, Any] = {"weights": torch.ones(2)}
    settings["self"] = settings
    nested: list[Any] = [1]
    for _ in range(40):  # 2**40 paths
        nested = [nested, nested]
    saver.save({"settings": settings, "nested": nested}, file)
    saver.finish()
    found = torch.load(file)
    assert found["settings"]["self"] is found["settings"]
    assert found["nested"][0] is found["nested"][1]


PROGRAM = """
import sys
import torch
{start}
weights = torch.zeros(2000)
for step in range(50):
    weights += 1
    {save}({{"step": step, "weights": weights}}, "last.pt")
"""


@pytest.mark.parametrize(
    "end",
    ["", "raise ValueError('an error')", pytest.param("sys.exit(3)", marks=pytest.mark.thorough)],
)
def test_files_are_written_at_the_end(end: str, tmp_path: Path) -> None:
    imports = "import atexit, copy, os, threading, time\n"
    text = PROGRAM.format(start=imports + SAVER, save="background_saves.save") + end
    (tmp_path / "train.py").write_text(textwrap.dedent(text))
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=False, timeout=60)
    found = torch.load(tmp_path / "last.pt")
    assert found["step"] == 49
    assert found["weights"].tolist() == [50.0] * 2000


def test_a_forked_process_saves_at_once(kind: Any, tmp_path: Path) -> None:
    saver = kind(torch.save)
    saver.save(torch.tensor(1), tmp_path / "a.pt")
    pid = os.fork()
    if pid == 0:
        saver.save(torch.tensor(2), tmp_path / "b.pt")
        os._exit(0 if int(torch.load(tmp_path / "b.pt")) == 2 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert int(torch.load(tmp_path / "a.pt")) == 1
