"""Checkpoints: round trips, and what is kept, skipped and rejected."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from stepladder.errors import DataError
from stepladder.training.checkpoint.checkpoint import Checkpoints, check_fits, load_best

FROZEN = {"trunk.weight": torch.arange(6.0).reshape(2, 3), "trunk.count": torch.tensor(4)}


def step(number: int) -> str:
    return f"step-{number:09d}"


def best(number: int) -> str:
    return f"best-{number:09d}"


def save(
    checkpoints: Checkpoints,
    name: str,
    *,
    value: float = 0.0,
    top: tuple[str, ...] = (),
    frozen: Mapping[str, Tensor] = FROZEN,
) -> None:
    state = {"value": value, "top": [{"name": each} for each in top]}
    checkpoints.save(name, {"model": {"head.weight": torch.full((2,), value)}}, state, frozen)


def hold(path: Path) -> dict[str, bytes]:
    """Read all files of a folder."""
    return {
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def damage(path: Path) -> None:
    """Flip a byte in a new file, as there may be hard links to the old one."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.unlink()
    path.write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


@pytest.fixture
def checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(folder, keep_last=2)


def test_a_checkpoint_comes_back_as_it_was_saved(checkpoints: Checkpoints, folder: Path) -> None:
    tensors = {
        "model": {"head.weight": torch.randn(3, 2), "head.bias": torch.randn(3)},
        "optimizer": {"0.step": torch.tensor(5.0), "empty": torch.empty(0)},
        "random": {"torch": torch.get_rng_state()},
        "nothing": {},
    }
    state = {"step": 5, "lr": 0.1 + 0.2, "names": ["a", "ü\n", "\udc80"], "none": None, "n": 2**80}
    info = checkpoints.save(step(5), tensors, state, FROZEN)
    loaded = Checkpoints(folder).newest()
    assert loaded is not None
    assert loaded.name == info.name == step(5)
    assert loaded.state == state
    assert loaded.tensors.keys() == tensors.keys()
    for group, members in tensors.items():
        assert loaded.tensors[group].keys() == members.keys()
        assert all(loaded.tensors[group][name].equal(members[name]) for name in members)
    assert loaded.weights.keys() == {"head.weight", "head.bias", "trunk.weight", "trunk.count"}


def test_floats_that_json_lacks_come_back(checkpoints: Checkpoints, folder: Path) -> None:
    state = {"best": math.nan, "bounds": [math.inf, -math.inf, 1e-320], "nested": {"a": (1, 2)}}
    checkpoints.save(step(1), {}, state, {})
    found = checkpoints.load(step(1)).state
    assert math.isnan(found["best"])
    assert found["bounds"] == state["bounds"]
    assert found["nested"] == {"a": [1, 2]}
    text = (folder / step(1) / "state.json").read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.parametrize(
    "state",
    [{"a": {1: 2}}, {"$float": "nan"}, pytest.param({"a": object()}, id="an object")],
    ids=str,
)
def test_a_state_that_would_not_come_back_is_refused(
    checkpoints: Checkpoints, state: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        checkpoints.save(step(1), {}, state, {})
    assert checkpoints.names() == []


@pytest.mark.parametrize("name", ["step-1", "last", "../step-000000001", "step-00000000a", ""])
def test_only_a_checkpoint_name_can_be_saved_or_loaded(checkpoints: Checkpoints, name: str) -> None:
    with pytest.raises(ValueError, match="not the name"):
        checkpoints.save(name, {}, {}, {})
    with pytest.raises(DataError):
        checkpoints.load(name)


@pytest.mark.parametrize("group", ["frozen", "../model", "Model", "a/b", ""])
def test_a_group_is_named_like_no_other_file(checkpoints: Checkpoints, group: str) -> None:
    with pytest.raises(ValueError, match="group"):
        checkpoints.save(step(1), {group: {}}, {}, {})


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, order in (("a", 1), ("b", -1)):
        members = [("x", torch.ones(2)), ("y", torch.ones(1))][::order]
        state = dict([("p", 1), ("q", 2)][::order])
        Checkpoints(tmp_path / name).save(step(1), {"model": dict(members)}, state, FROZEN)
    assert hold(tmp_path / "a") == hold(tmp_path / "b")


def test_frozen_weights_are_on_disk_once_and_each_folder_opens_alone(
    checkpoints: Checkpoints, folder: Path, tmp_path: Path
) -> None:
    for number in (1, 2):
        save(checkpoints, step(number))
    files = [*folder.glob("step-*/frozen.safetensors"), *folder.glob("frozen-*.safetensors")]
    assert len(files) == 3
    assert len({file.stat().st_ino for file in files}) == 1
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    (folder / step(2)).rename(alone / step(2))
    assert Checkpoints(alone).load(step(2)).frozen["trunk.weight"].equal(FROZEN["trunk.weight"])
    plain = safetensors.torch.load_file(alone / step(2) / "frozen.safetensors")
    assert plain["trunk.weight"].equal(FROZEN["trunk.weight"])


def test_frozen_weights_that_changed_in_place_are_written_again(checkpoints: Checkpoints) -> None:
    frozen = {"w": torch.zeros(3)}
    save(checkpoints, step(1), frozen=frozen)
    frozen["w"].add_(1)
    save(checkpoints, step(2), frozen=frozen)
    frozen = {"w": torch.full((3,), 2.0)}
    save(checkpoints, step(3), frozen=frozen)
    found = [checkpoints.load(step(number)).frozen["w"][0].item() for number in (1, 2, 3)]
    assert found == [0, 1, 2]


def test_frozen_weights_of_inference_mode_are_kept_too(checkpoints: Checkpoints) -> None:
    with torch.inference_mode():
        frozen = {"w": torch.ones(2)}
        for number in (1, 2):
            save(checkpoints, step(number), frozen=frozen)
    assert checkpoints.verify() == []


def test_a_second_save_writes_no_frozen_weights(checkpoints: Checkpoints) -> None:
    frozen = {"w": torch.zeros(100_000)}
    sizes = [checkpoints.save(step(n), {}, {}, frozen).num_bytes for n in (1, 2)]
    assert sizes[0] - sizes[1] > 400_000 > sizes[1]


def test_a_damaged_shared_file_is_replaced_by_the_next_process(
    checkpoints: Checkpoints, folder: Path
) -> None:
    save(checkpoints, step(1))
    (shared,) = folder.glob("frozen-*.safetensors")
    with shared.open("r+b") as file:  # in place: the hard-linked file is damaged too
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    later = Checkpoints(folder)
    save(later, step(2))
    assert later.load(step(2)).frozen["trunk.count"] == 4
    with pytest.raises(DataError, match="sha256"):
        later.load(step(1))


def test_saving_again_under_a_name_replaces_it(checkpoints: Checkpoints, folder: Path) -> None:
    for value in (1.0, 2.0):
        save(checkpoints, step(1), value=value)
    assert checkpoints.load(step(1)).state["value"] == 2.0
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [step(1)]


def test_newest_goes_by_number_not_by_time(checkpoints: Checkpoints, folder: Path) -> None:
    for number in (30, 4, 200):
        save(checkpoints, step(number), value=number)
    os.utime(folder / step(4), (2**31, 2**31))
    os.utime(folder / step(200), (0, 0))
    loaded = checkpoints.newest()
    assert loaded is not None
    assert loaded.name == step(200)


def test_newest_is_none_where_nothing_was_saved(checkpoints: Checkpoints, folder: Path) -> None:
    assert checkpoints.newest() is None
    assert checkpoints.names() == checkpoints.verify() == []
    assert not folder.exists()
    checkpoints.prune([])


def test_a_damaged_newest_is_named_in_one_line_and_the_older_used(
    checkpoints: Checkpoints, folder: Path
) -> None:
    for number in (1, 2, 3):
        save(checkpoints, step(number), value=number)
    damage(folder / step(3) / "model.safetensors")
    (folder / step(2) / "state.json").unlink()
    loaded = checkpoints.newest()
    assert loaded is not None
    assert loaded.state["value"] == 1
    assert [line.split()[2] for line in checkpoints.warnings] == [step(3), step(2)]
    assert all("\n" not in line for line in checkpoints.warnings)
    assert "model.safetensors" in checkpoints.warnings[0]
    assert len(checkpoints.verify()) == 2


def test_if_all_are_damaged_nothing_begins_again_in_silence(
    checkpoints: Checkpoints, folder: Path
) -> None:
    for number in (1, 2):
        save(checkpoints, step(number))
        damage(folder / step(number) / "MANIFEST.json")
    with pytest.raises(DataError, match="every checkpoint") as caught:
        Checkpoints(folder).newest()
    assert step(1) in str(caught.value)
    assert "--overwrite" in str(caught.value)


def test_prune_keeps_the_newest_the_named_and_the_best(
    checkpoints: Checkpoints, folder: Path
) -> None:
    for number in range(1, 6):
        save(checkpoints, best(number))
        save(checkpoints, step(number), top=(best(2),))
    checkpoints.prune([best(4), step(1)])
    assert checkpoints.names() == [best(2), best(4), step(1), step(4), step(5)]
    assert checkpoints.warnings == []


def test_prune_never_takes_the_last_sound_step(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep_last=1)
    for number in (1, 2, 3):
        save(checkpoints, step(number), top=(best(1),))
    save(checkpoints, best(1))
    for number in (2, 3):
        damage(folder / step(number) / "model.safetensors")
    later = Checkpoints(folder, keep_last=1)
    later.prune([])
    assert later.names() == [best(1), step(1)]


def test_prune_removes_frozen_weights_that_no_checkpoint_uses(
    checkpoints: Checkpoints, folder: Path
) -> None:
    for number in (1, 2, 3, 4):
        save(checkpoints, step(number), frozen={"w": torch.full((2,), float(number))})
    assert len(list(folder.glob("frozen-*"))) == 4
    checkpoints.prune([])
    assert len(list(folder.glob("frozen-*"))) == 2
    assert checkpoints.verify() == []
    assert {path.name for path in folder.iterdir()} >= {step(3), step(4)}


def test_what_a_killed_process_left_is_cleared_by_the_next_save(
    checkpoints: Checkpoints, folder: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pid = dead.pid
    for stray in (f".{step(9)}.{pid}.tmp", f".{step(8)}.{os.getpid()}.tmp", f".{best(1)}.1.tmp"):
        (folder / stray).mkdir(parents=True)
        (folder / stray / "model.safetensors").write_bytes(b"half")
    (folder / f".frozen-{'0' * 64}.safetensors.{pid}.tmp").write_bytes(b"half")
    (folder / ".of-someone-else.1.tmp").write_bytes(b"")
    assert checkpoints.newest() is None
    save(checkpoints, step(1))
    hidden = {path.name for path in folder.iterdir() if path.name.startswith(".")}
    assert hidden == {f".{best(1)}.1.tmp", ".of-someone-else.1.tmp"}  # process 1 is always alive


def test_a_kill_between_the_renames_of_a_replacement_loses_nothing(
    checkpoints: Checkpoints, folder: Path
) -> None:
    save(checkpoints, step(1), value=1)
    (folder / step(1)).rename(folder / f".{step(1)}.{os.getpid()}.old")
    later = Checkpoints(folder)
    assert later.names() == [step(1)]
    loaded = later.newest()
    assert loaded is not None
    assert loaded.state["value"] == 1
    later.clean()
    assert (folder / step(1)).is_dir()
    save(later, step(1), value=2)
    assert later.load(step(1)).state["value"] == 2


def test_a_kill_after_a_replacement_leaves_the_new_one(
    checkpoints: Checkpoints, folder: Path
) -> None:
    save(checkpoints, step(1), value=1)
    (folder / step(1)).rename(folder / f".{step(1)}.{os.getpid()}.old")
    (folder / "kept").mkdir()
    save(Checkpoints(folder / "kept"), step(1), value=2)
    (folder / "kept" / step(1)).rename(folder / step(1))
    later = Checkpoints(folder)
    assert later.load(step(1)).state["value"] == 2
    later.clean()
    assert [path.name for path in folder.glob(".*")] == []


def test_an_interrupted_save_leaves_no_trace(checkpoints: Checkpoints, folder: Path) -> None:
    save(checkpoints, step(1))
    before = hold(folder)

    class Interrupted(dict[str, Tensor]):
        def items(self) -> Any:
            raise KeyboardInterrupt

    tensors: dict[str, Mapping[str, Tensor]] = {"model": {"w": torch.ones(3)}, "z": Interrupted()}
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(step(2), tensors, {}, FROZEN)
    assert hold(folder) == before


def test_load_best_takes_what_the_newest_step_names(checkpoints: Checkpoints, folder: Path) -> None:
    save(checkpoints, best(1), value=1)
    save(checkpoints, best(2), value=2)
    save(checkpoints, step(3), value=3, top=(best(1), best(2)))
    loaded = load_best(folder.parent)
    assert loaded.name == best(1)
    assert loaded.weights["head.weight"].tolist() == [1, 1]
    assert loaded.weights["trunk.count"] == 4


def test_load_best_without_a_validation_takes_the_newest(
    checkpoints: Checkpoints, folder: Path
) -> None:
    save(checkpoints, step(3), value=3)
    assert load_best(folder.parent).name == step(3)


@pytest.mark.parametrize(
    ("damaged", "wanted"),
    [
        ((best(1),), best(2)),
        ((best(1), best(2)), step(3)),
        ((step(3),), best(1)),
        ((step(3), step(2)), best(2)),
    ],
    ids=lambda names: str(names),
)
def test_load_best_falls_back_loudly(
    checkpoints: Checkpoints, folder: Path, damaged: tuple[str, ...], wanted: str
) -> None:
    for number in (1, 2):
        save(checkpoints, best(number))
    save(checkpoints, step(2), top=(best(1),))
    save(checkpoints, step(3), top=(best(1), best(2)))
    for name in damaged:
        damage(folder / name / "model.safetensors")
    with pytest.warns(UserWarning, match="damaged"):
        assert load_best(folder.parent).name == wanted


def test_load_best_of_no_run_says_how_to_train(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="stepladder train"):
        load_best(tmp_path / "none")


@pytest.mark.parametrize(
    "top", [None, "best", [1], [{"name": 3}], [{"name": "../../x"}], {}], ids=str
)
def test_a_strange_list_of_best_ones_names_none(
    checkpoints: Checkpoints, folder: Path, top: Any
) -> None:
    checkpoints.save(step(1), {"model": {}}, {"top": top}, {})
    checkpoints.prune([])
    assert load_best(folder.parent).name == step(1)


def test_a_checkpoint_of_another_model_is_refused_with_five_differences(
    checkpoints: Checkpoints,
) -> None:
    save(checkpoints, step(1))
    loaded = checkpoints.load(step(1))
    fitting = {"head.weight": torch.ones(2), **FROZEN}
    check_fits(fitting, loaded)
    with pytest.raises(DataError, match=r"head\.weight: checkpoint \(2,\), model \(4,\)"):
        check_fits({**fitting, "head.weight": torch.ones(4)}, loaded)
    with pytest.raises(DataError) as caught:
        check_fits({f"layer{n}": torch.ones(1) for n in range(4)}, loaded)
    lines = str(caught.value).splitlines()
    assert sum("checkpoint (" in line or "checkpoint absent" in line for line in lines) == 5
    assert any("and 2 more" in line for line in lines)


def test_reading_changes_nothing(checkpoints: Checkpoints, folder: Path) -> None:
    save(checkpoints, step(1), top=(best(1),))
    save(checkpoints, best(1))
    stray = folder / f".{step(2)}.{os.getpid()}.tmp"
    stray.mkdir()
    before = hold(folder)
    reader = Checkpoints(folder)
    readings: list[Callable[[], object]] = [
        reader.newest,
        reader.verify,
        reader.names,
        lambda: reader.load(best(1)),
        lambda: load_best(folder.parent),
    ]
    random.Random(0).shuffle(readings)
    for read in readings:
        read()
    assert hold(folder) == before
    assert stray.is_dir()
