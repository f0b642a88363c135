"""The list of public scripts, what stands in for their data, and how one is run. No network."""

from __future__ import annotations

import json
import re
import struct
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from stepladder.errors import DataError

Import = Callable[[str], ModuleType]


@pytest.fixture
def public(module: Import) -> ModuleType:
    return module("public_scripts")


@pytest.fixture
def data(module: Import) -> ModuleType:
    return module("public_data")


def a_script(public: ModuleType, text: str, folder: Path, **settings: Any) -> Any:
    """A script of the list, whose file lies in the folder."""
    place = folder / "somebody" / "thing" / "train.py"
    place.parent.mkdir(parents=True)
    place.write_text(textwrap.dedent(text))
    sha256 = public.hashlib.sha256(place.read_bytes()).hexdigest()
    return public.PublicScript(
        name="thing",
        kind="a kind",
        repository="somebody/thing",
        files=(public.PublicFile(path="train.py", commit="c" * 40, sha256=sha256),),
        licence="MIT",
        **settings,
    )


def test_the_list_names_repository_path_commit_and_bytes_of_each(public: ModuleType) -> None:
    scripts = public.read_list()
    assert len(scripts) >= 15
    assert len({script.name for script in scripts}) == len(scripts)
    assert len({script.kind for script in scripts}) >= 10
    for script in scripts:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", script.repository)
        assert script.licence
        assert script.files
        for file in script.files:
            assert file.path.endswith(".py")
            assert re.fullmatch(r"[0-9a-f]{40}|v\d+(\.\d+)+", file.commit)
            assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)


def test_the_list_says_what_is_made_up_and_what_was_judged(
    public: ModuleType, data: ModuleType
) -> None:
    for script in public.read_list():
        paths = {Path(file.path).name for file in script.files}
        assert set(script.before) <= paths
        made = {item["make"] for item in script.data}
        assert made <= set(data.MAKERS)
        assert bool(made - {"folder"}) == bool(script.stands_in), script.name
        for pattern in script.timed:
            re.compile(pattern)
        for judgement in script.judged.values():
            assert judgement.verdict in {"true", "false", "arguable"}
            assert judgement.why.endswith(".")


def test_no_public_script_lies_in_the_project(public: ModuleType) -> None:
    listed = {file.sha256 for script in public.read_list() for file in script.files}
    ours = [file for file in public.LIST.parent.rglob("*.py") if file.is_file()]
    assert ours
    for file in ours:
        assert public.hashlib.sha256(file.read_bytes()).hexdigest() not in listed, file


def test_the_address_is_that_of_the_very_commit(public: ModuleType, tmp_path: Path) -> None:
    script = a_script(public, "", tmp_path)
    expected = f"https://raw.githubusercontent.com/somebody/thing/{'c' * 40}/train.py"
    assert script.address(script.files[0]) == expected


def test_a_file_that_differs_from_what_is_listed_is_refused(
    public: ModuleType, tmp_path: Path
) -> None:
    script = a_script(public, "print(1)\n", tmp_path)
    public.fetch(script, tmp_path)
    (tmp_path / "somebody/thing/train.py").write_text("print(2)\n")
    with pytest.raises(DataError, match="as listed"):
        public.fetch(script, tmp_path)


def test_a_script_is_laid_out_as_published_beside_its_data(
    public: ModuleType, tmp_path: Path
) -> None:
    script = a_script(public, "print(open('input.txt').read())\n", tmp_path)
    script = replace(script, data=({"make": "text", "at": "input.txt", "characters": 50},))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "left over").touch()
    main = public.lay_out(script, tmp_path, tmp_path / "work")
    assert main.read_bytes() == (tmp_path / "somebody/thing/train.py").read_bytes()
    assert sorted(file.name for file in main.parent.iterdir()) == ["input.txt", "train.py"]


def test_digits_are_read_as_mnist_is(data: ModuleType, tmp_path: Path) -> None:
    data.digits(tmp_path, train=60, test=20)
    raw = tmp_path / "MNIST" / "raw"
    pictures = (raw / "train-images-idx3-ubyte").read_bytes()
    labels = (raw / "train-labels-idx1-ubyte").read_bytes()
    assert struct.unpack(">IIII", pictures[:16]) == (2051, 60, 28, 28)
    assert struct.unpack(">II", labels[:8]) == (2049, 60)
    assert set(labels[8:]) <= set(range(10))
    values = np.frombuffer(pictures[16:], dtype=np.uint8).reshape(60, 28, 28)
    assert values.reshape(60, -1).any(axis=1).all()
    assert 0.05 < values.mean() / 255 < 0.3
    other = (raw / "t10k-images-idx3-ubyte").read_bytes()
    assert other[16 : 16 + 784] != pictures[16 : 16 + 784], "test pictures are not train's"


def test_stand_ins_are_the_same_every_time(data: ModuleType, tmp_path: Path) -> None:
    for name in ("first", "second"):
        data.make("digits", tmp_path / name, {"train": 20, "test": 5})
        data.make("text", tmp_path / name / "text.txt", {"characters": 500})
    first, second = tmp_path / "first", tmp_path / "second"
    files = [file.relative_to(first) for file in first.rglob("*") if file.is_file()]
    assert len(files) == 5
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes()
    assert len((first / "text.txt").read_text()) == 500


def test_a_small_gpt2_has_the_weights_that_its_config_names(
    data: ModuleType, tmp_path: Path
) -> None:
    data.gpt2(tmp_path, layers=2, width=8)
    weights = load_file(tmp_path / "model.safetensors")
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    assert (
        len(vocabulary) == json.loads((tmp_path / "config.json").read_text())["vocab_size"] == 257
    )
    assert weights["transformer.wte.weight"].shape == (257, 8)
    assert len(weights) == 2 + 2 * 12 + 2, "two embeddings, twelve a layer, the last norm"
    assert (weights["transformer.ln_f.weight"] == 1).all()


def test_exit_code_and_output_of_a_script_are_kept(public: ModuleType, tmp_path: Path) -> None:
    text = """
        import os, sys
        print("to", sys.argv[1], os.environ["DSDIR"])
        print("aside", file=sys.stderr)
        sys.exit(3)
    """
    script = a_script(public, text, tmp_path, args=("me",), environment={"DSDIR": "there"})
    main = public.lay_out(script, tmp_path, tmp_path / "work")
    found = public.run(script, main, [], tmp_path / "log")
    assert found.exit_code == 3
    assert found.printed == "to me there\n"
    assert "aside" in found.errors
    assert found.num_steps == 0
    assert found.step_s("wall_s") is None


def test_steps_are_timed_and_draws_are_seeded_from_outside(
    public: ModuleType, tmp_path: Path
) -> None:
    text = """
        import torch
        weight = torch.nn.Parameter(torch.randn(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
        print(weight.tolist())
    """
    script = a_script(public, text, tmp_path)
    main = public.lay_out(script, tmp_path, tmp_path / "work")
    found = public.run(script, main, [], tmp_path / "log")
    assert found.exit_code == 0, found.errors
    drawn = torch.randn(2, generator=torch.Generator().manual_seed(0))
    assert json.loads(found.printed) == pytest.approx((drawn - 0.3).tolist())
    assert found.num_steps == 3
    assert found.step_s("wall_s") > 0


def test_files_that_two_runs_wrote_differently_are_named(
    public: ModuleType, tmp_path: Path
) -> None:
    for name in ("alone", "watched"):
        (tmp_path / name / "out").mkdir(parents=True)
        (tmp_path / name / "out" / "model.pt").write_bytes(b"same")
        (tmp_path / name / "out" / "other.pt").write_bytes(name.encode())
        (tmp_path / name / "notes.txt").write_text(name)
    (tmp_path / "alone" / "lost.png").touch()
    found = list(public.differing(tmp_path / "alone", tmp_path / "watched"))
    assert found == ["lost.png", "out/other.pt"]


def test_seconds_in_the_output_are_not_compared(public: ModuleType, tmp_path: Path) -> None:
    script = a_script(public, "", tmp_path, timed=(r"in [\d.]+ s",))
    assert public.plain(script, "loss 2 in 1.5 s") == public.plain(script, "loss 2 in 1.7 s")
    assert public.plain(script, "loss 2 in 1.5 s") != public.plain(script, "loss 3 in 1.5 s")


def test_a_line_says_alarms_with_what_was_judged_of_them(
    public: ModuleType, tmp_path: Path
) -> None:
    script = a_script(public, "", tmp_path)
    record = {
        "name": "thing",
        "exit_codes": [0, 0],
        "is_same_output": True,
        "differing_files": [],
        "num_steps": [100, 100],
        "steps_seen": 100,
        "step_wall_s": [0.004, 0.004],
        "step_cpu_s": [0.0039, 0.004],
        "overhead_s": 0.005,
        "alarms": [{"outcome": "warned", "fault": "no_shuffle"}],
        "next": None,
        "watcher_error": None,
    }
    row = public.row_of(script, record)
    assert row["alarms"] == "warned: no_shuffle (not judged)"
    assert row["own_us"] == 50
    assert row["same"] == "yes"
    reason = public.Judgement(verdict="true", why="It is so.")
    script = replace(script, judged={"no_shuffle": reason})
    assert public.row_of(script, record)["alarms"] == "warned: no_shuffle (true)"
    record["differing_files"] = ["model.pt"]
    assert public.row_of(script, record)["same"] == "no"
    expected = "0 of 1 kept exit code, output and files; 1 alarms (1 true), 0 of them errors."
    assert public.counts_of([script], [record]) == expected
