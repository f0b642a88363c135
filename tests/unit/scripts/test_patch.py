"""Edits of a script's text: at the calls that were seen, and nowhere else."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import json
import operator
import sqlite3
import subprocess
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from stepladder.records.ladder import Interval
from stepladder.records.script import LogCall, MadeLoader, MadeOptimizer, Place, ScriptFacts
from stepladder.scripts.inside.in_memory import (
    InMemory,
    RowsInMemory,
    can_be_read_apart,
    columns_of,
    has_rows,
)
from stepladder.scripts.patch import edited, patch_of
from stepladder.scripts.rungs import SCRIPT_RUNGS
from stepladder.scripts.rungs.examples_in_memory import KEEPER, ROWS, rows_at_once
from stepladder.scripts.settings import Settings

RUNGS = {rung.name: rung for rung in SCRIPT_RUNGS}
SCRIPT = textwrap.dedent(
    '''
    """Trains."""
    import torch
    from torch.utils.data import DataLoader

    SIZE = 4


    def main(dataset):
        net = torch.nn.Linear(3, 2)
        loader = DataLoader(dataset, batch_size=SIZE, shuffle=True)
        # the optimizer
        opt = torch.optim.SGD(
            net.parameters(),
            lr=0.1,
        )
        return loader, opt
    '''
).lstrip()
GAIN = Interval(estimate=1.5, low=1.4, high=1.6)


def call(text: str, name: str, file: Path) -> Place:
    """Return the place of the call of a function, as a frame has it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(name):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            return Place(
                file=str(file),
                line=node.lineno,
                column=node.col_offset,
                end_line=node.end_lineno,
                end_column=node.end_col_offset,
                is_direct=True,
            )
    raise AssertionError(name)


def facts_of(text: str, file: Path) -> ScriptFacts:
    optimizer = MadeOptimizer(
        kind="SGD", place=call(text, "SGD", file), model="net", is_fused=False, num_conv2d=1
    )
    loader = MadeLoader(
        place=call(text, "DataLoader", file), num_steps=5, num_examples=1000, example_bytes=100
    )
    return ScriptFacts(
        optimizers=(optimizer,),
        loaders=(loader,),
        num_cores=2,
        batch_size=4,
        memory_bytes=10**9,
        output_is_tensor=True,
        has_bfloat16=True,
        has_compiler=True,
    )


def patched(text: str, names: list[str], tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text(text)
    facts, settings = facts_of(text, file), Settings()
    for name in names:
        settings = RUNGS[name].apply(facts, settings)
    found = patch_of(
        [RUNGS[name] for name in names],
        facts,
        settings,
        dict.fromkeys(names, GAIN),
        script=file,
        root=tmp_path,
    )
    assert found.only_outside == {}
    assert found.diff.startswith("--- a/train.py\n+++ b/train.py\n")
    ast.parse(found.texts[file])
    return found.texts[file]


def test_a_fused_optimizer_is_an_argument(tmp_path: Path) -> None:
    text = patched(SCRIPT, ["fused_optimizer"], tmp_path)
    assert text == SCRIPT.replace(
        "    # the optimizer\n    opt",
        "    # the optimizer\n    # stepladder, fused_optimizer: 1.5× [1.4, 1.6]\n    opt",
    ).replace("        lr=0.1,\n    )", "        lr=0.1,\n        fused=True,\n    )")


def test_workers_are_arguments_of_the_loader(tmp_path: Path) -> None:
    text = patched(SCRIPT, ["loader_workers"], tmp_path)
    assert "shuffle=True, num_workers=2, persistent_workers=True)" in text
    assert text.count("# stepladder") == 1


def test_an_argument_that_is_there_is_replaced(tmp_path: Path) -> None:
    text = SCRIPT.replace("shuffle=True", "num_workers=0, shuffle=True")
    assert "num_workers=2, shuffle=True, persistent_workers=True)" in patched(
        text, ["loader_workers"], tmp_path
    )


def test_lines_for_the_model_come_before_the_optimizer(tmp_path: Path) -> None:
    text = patched(SCRIPT, ["channels_last", "mixed_precision"], tmp_path)
    lines = [line.strip() for line in text.splitlines()]
    at = lines.index("net.to(memory_format=torch.channels_last)")
    assert lines[at - 1] == "# stepladder, channels_last: 1.5× [1.4, 1.6]"
    assert lines[at + 2].startswith("net.forward = torch.autocast(")
    assert lines.index("opt = torch.optim.SGD(") > at


def test_examples_in_memory_are_a_class_after_the_imports(tmp_path: Path) -> None:
    text = patched(SCRIPT, ["examples_in_memory"], tmp_path)
    assert "DataLoader(InMemory(dataset), batch_size=SIZE" in text
    assert text.index("from torch.utils.data") < text.index("class InMemory") < text.index("SIZE =")


def test_a_kept_dataset_does_not_read_batches_again() -> None:
    scope: dict[str, object] = {"torch": torch, "copy": copy, "operator": operator}
    exec(KEEPER, scope)
    rows = torch.utils.data.TensorDataset(torch.arange(6))
    for keeper in (scope["InMemory"], InMemory):
        kept = keeper(torch.utils.data.Subset(rows, [5, 3, 1]))  # type: ignore[operator]
        assert not hasattr(kept, "__getitems__")
        kept[1][0].add_(10)  # what is returned may be changed
        assert kept[1][0].item() == kept[torch.tensor(1)][0].item() == 3
        assert list(kept.kept) == [1]
        assert len(kept) == 3
        assert kept.indices == [5, 3, 1]


def with_rows(text: str, tmp_path: Path, **loader: Any) -> str:
    """Return a script whose loader keeps its examples as rows."""
    file = tmp_path / "train.py"
    file.write_text(text)
    facts = facts_of(text, file)
    made = replace(facts.loaders[0], has_rows=True, **loader)
    facts = replace(facts, loaders=(made,))
    rung = RUNGS["examples_in_memory"]
    assert rung.why_not(facts, Settings()) is None
    found = patch_of([rung], facts, rung.apply(facts, Settings()), {}, script=file, root=tmp_path)
    assert found.only_outside == {}
    return found.texts[file]


def test_rows_need_a_collate_function(tmp_path: Path) -> None:
    text = with_rows(SCRIPT, tmp_path)
    assert "import functools\n" in text
    assert (
        "DataLoader(RowsInMemory(dataset), batch_size=SIZE, shuffle=True, "
        "collate_fn=RowsInMemory.collate)" in text
    )


def test_worker_processes_that_end_are_left_out(tmp_path: Path) -> None:
    before = SCRIPT.replace("shuffle=True", "num_workers=2, prefetch_factor=4, **more")
    options = ("prefetch_factor", "multiprocessing_context")
    text = with_rows(before, tmp_path, num_workers=2, worker_options=options)
    assert "num_workers=0, prefetch_factor=None, **{**more, " in text
    assert '"multiprocessing_context": None}' in text
    kept = with_rows(before, tmp_path, num_workers=2, keeps_workers=True)
    assert "num_workers=2, prefetch_factor=4" in kept


class Rows(torch.utils.data.Dataset[object]):
    """Counts its reads."""

    def __init__(self) -> None:
        self.num_reads = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, idx: int) -> object:
        self.num_reads += 1
        return {"x": torch.full((2, 3), float(idx)), "more": (idx, 0.5 * idx, np.float32(idx))}


def test_rows_of_columns_are_the_batches_of_the_script() -> None:
    for keeper, is_at_once in (
        (_in_the_diff(ROWS), False),
        (RowsInMemory, False),
        (_in_the_diff(rows_at_once(2)), True),
        (functools.partial(RowsInMemory, readers=2), True),
    ):
        rows = Rows()
        kept = keeper(rows)
        loader = DataLoader(
            kept,
            batch_size=4,
            shuffle=True,
            collate_fn=kept.collate,
        )
        plain = DataLoader(Rows(), batch_size=4, shuffle=True)
        for epoch in range(4):
            torch.manual_seed(epoch)
            ours = list(loader)
            torch.manual_seed(epoch)
            for batch, expected in zip(ours, plain, strict=True):
                assert batch.keys() == expected.keys()
                assert torch.equal(batch["x"], expected["x"])
                for one, other in zip(batch["more"], expected["more"], strict=True):
                    assert one.dtype == other.dtype
                    assert torch.equal(one, other)
        assert rows.num_reads == (0 if is_at_once else 10)  # others read at once
        assert kept.columns is not None
        assert len(kept[3]["more"]) == 3


def _in_the_diff(text: str) -> Any:
    scope: dict[str, Any] = {"torch": torch, "functools": functools, "copy": copy}
    scope["operator"] = operator
    exec(f"{KEEPER}\n{text}", scope)
    return scope["RowsInMemory"]


def test_slow_reading_is_done_by_several_processes(tmp_path: Path) -> None:
    slow = {"can_be_read_apart": True, "example_s": 0.01}
    text = with_rows(SCRIPT, tmp_path, **slow)
    assert "num_workers=2,\n" in text
    assert "import copy\n" in text
    compile(text, "train.py", "exec")
    for change in (
        {"can_be_read_apart": False},
        {"num_workers": 1, "keeps_workers": True},  # a worker may start no processes
        {"example_s": 1e-5},
        {"num_workers": 2, "worker_options": ("multiprocessing_context",)},
    ):
        assert "joined" not in with_rows(SCRIPT, tmp_path, **{**slow, **change})


class Holds:
    """A dataset that holds something."""

    def __init__(self, held: object) -> None:
        self.held = held


def test_a_dataset_with_an_open_file_is_not_read_apart(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    with (tmp_path / "x").open("rb") as file, contextlib.closing(sqlite3.connect(":memory:")) as db:
        assert not can_be_read_apart(Holds(file))
        assert not can_be_read_apart(Subset(Holds([{"a": file}]), [0]))  # type: ignore[arg-type]
        assert not can_be_read_apart(Holds(db))
        assert not can_be_read_apart(Holds(threading.Lock()))
    with (tmp_path / "x").open("rb"):  # wherever it is held
        assert not can_be_read_apart(Holds(0))
    with (tmp_path / "log").open("w"):
        assert can_be_read_apart(Holds(0))
    held = [np.zeros(3), torch.zeros(3), lambda x: x, tmp_path, {"a": (1, "b")}, Holds, len]
    assert can_be_read_apart(Subset(Holds(held), [0]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("examples", "expected"),
    [
        ([(torch.zeros(2), 1), (torch.ones(2), 0)], True),
        ([{"x": np.zeros(2), "y": [1, 2.0]}, {"x": np.ones(2), "y": [0, 1.0]}], True),
        ([(torch.zeros(2), "a"), (torch.ones(2), "b")], False),
        ([torch.zeros(2), torch.zeros(3)], False),
        ([(torch.zeros(2), None), (torch.ones(2), None)], False),
        ([], False),
    ],
)
def test_only_tensors_and_numbers_are_rows(examples: list[object], expected: bool) -> None:
    assert has_rows(examples) == expected


def test_examples_that_do_not_fit_are_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    facts = facts_of(SCRIPT, file)
    rung, made = RUNGS["examples_in_memory"], facts.loaders[0]
    more = call(SCRIPT, "SGD", file)  # any other place
    test = replace(made, place=more, num_steps=0)
    both = rung.apply(replace(facts, loaders=(made, test)), Settings())
    assert both.memory_loaders == (made.place.key, more.key)  # type: ignore[union-attr]
    large = replace(test, example_bytes=5e5)
    some = rung.apply(replace(facts, loaders=(made, large)), Settings())
    assert some.memory_loaders == (made.place.key,)  # type: ignore[union-attr]
    too_large = replace(facts, loaders=(replace(made, example_bytes=6e5),))
    assert "more than half" in (rung.why_not(too_large, Settings()) or "")
    drawn = replace(test, place=made.place, why_not_kept="two reads of one example differ")
    why_not = rung.why_not(replace(facts, loaders=(made, drawn)), Settings())
    assert why_not == "two reads of one example differ"


class Draws:
    """A dataset with an example that draws."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, idx: int) -> torch.Tensor:
        return torch.rand(2) if idx == 3 else torch.zeros(2)


def test_an_example_that_draws_is_noted() -> None:
    problems: list[str] = []
    kept = InMemory(Draws(), problems)
    assert [kept[idx].shape for idx in range(8)] == 8 * [(2,)]
    assert problems == ["reading an example draws random numbers, number 3"]
    with pytest.raises(ValueError, match="draws random numbers, number 3"):
        columns_of(Draws(), 2)


class Mixed:
    """A dataset whose numbers have several types."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, idx: int) -> tuple[torch.Tensor, float]:
        return torch.zeros(2), idx if idx < 90 else float(idx)


def test_numbers_of_several_types_are_no_columns() -> None:
    kept = RowsInMemory(Mixed())
    for at in range(0, 88, 4):
        kept.__getitems__(range(at, at + 4))
    kept.__getitems__(range(88, 92))
    with pytest.raises(TypeError, match="other types"):
        kept.__getitems__(range(92, 96))
    with pytest.raises(TypeError, match="other types"):
        columns_of(Mixed(), 2)


TAKEN = {
    "def copy(a):\n    return a": "copy",
    "from copy import copy": "copy",
    "copy = 3": "copy",
    "import numpy as functools": "functools",
    "class InMemory:\n    pass": "InMemory",
    "def main():\n    global joined": "joined",
}


@pytest.mark.parametrize("line", TAKEN)
def test_names_that_the_script_has_already_are_not_taken(line: str, tmp_path: Path) -> None:
    file, rung = tmp_path / "train.py", RUNGS["examples_in_memory"]
    text = f"{line}\n{SCRIPT}"
    file.write_text(text)
    facts = facts_of(text, file)
    slow = replace(facts.loaders[0], has_rows=True, can_be_read_apart=True, example_s=0.1)
    facts = replace(facts, loaders=(slow,))
    settings = rung.apply(facts, Settings())
    patch = patch_of([rung], facts, settings, {}, script=file, root=tmp_path)
    assert patch.only_outside == {
        rung.name: f"its lines need the name {TAKEN[line]}, which the script has already"
    }
    assert not patch.diff
    file.write_text(SCRIPT)
    facts = replace(facts_of(SCRIPT, file), num_cores=2)
    patch = patch_of([rung], facts, rung.apply(facts, Settings()), {}, script=file, root=tmp_path)
    assert patch.only_outside == {}


def test_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    file, rung = tmp_path / "train.py", RUNGS["examples_in_memory"]
    text = SCRIPT.replace("\n", "\r\n")
    file.write_bytes(text.encode())
    facts = facts_of(text, file)
    patch = patch_of([rung], facts, rung.apply(facts, Settings()), {}, script=file, root=tmp_path)
    (tmp_path / "train.patch").write_text(patch.diff, newline="")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "train.patch"], cwd=tmp_path, check=True)
    assert file.read_bytes() == patch.texts[file].encode()
    assert b"InMemory(dataset)" in file.read_bytes()


def test_missing_imports_are_added(tmp_path: Path) -> None:
    text = patched(SCRIPT, ["keep_freed_memory"], tmp_path)
    assert "import ctypes\n" in text
    compile(text, "train.py", "exec")


def test_a_larger_batch_scales_two_arguments(tmp_path: Path) -> None:
    text = patched(SCRIPT, ["larger_batch"], tmp_path)
    assert "batch_size=SIZE * 4, shuffle=True)" in text
    assert "lr=0.1 * 4,\n" in text


def test_a_sum_is_scaled_as_a_whole(tmp_path: Path) -> None:
    text = SCRIPT.replace("batch_size=SIZE", "SIZE + 1")
    assert "DataLoader(dataset, (SIZE + 1) * 4, shuffle=True)" in patched(
        text, ["larger_batch"], tmp_path
    )


def test_all_together_and_the_diff_applies(tmp_path: Path) -> None:
    names = [
        *("examples_in_memory", "keep_freed_memory", "channels_last", "fused_optimizer"),
        *("mixed_precision", "compile"),
    ]
    text = patched(SCRIPT, names, tmp_path)
    compile(text, "train.py", "exec")
    assert text.count("# stepladder,") >= len(names)


def test_a_call_with_other_letters_before_it_is_found(tmp_path: Path) -> None:
    text = SCRIPT.replace("opt = torch", 'ö = "äöü"; opt = torch')
    assert "fused=True" in patched(text, ["fused_optimizer"], tmp_path)


@pytest.mark.parametrize("statement", ["return [torch.optim.SGD(net.parameters(), lr=0.1)]"])
def test_a_call_within_an_expression(tmp_path: Path, statement: str) -> None:
    text = f"import torch\n\n\ndef make(net, DataLoader):\n    DataLoader(1)\n    {statement}\n"
    assert "lr=0.1, fused=True)]" in patched(text, ["fused_optimizer"], tmp_path)


def test_a_place_that_is_not_in_the_text_is_reported() -> None:
    file = Path("/x/train.py")
    facts = facts_of(SCRIPT, file)
    settings = RUNGS["fused_optimizer"].apply(facts, Settings())
    edits = RUNGS["fused_optimizer"].edits(facts, settings)
    assert not isinstance(edits, str)
    text, missed = edited("import torch\n", edits, {})
    assert text == "import torch\n"
    assert missed == ["fused_optimizer"]


def test_files_elsewhere_are_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    facts = facts_of(SCRIPT, file)
    rung = RUNGS["fused_optimizer"]
    found = patch_of(
        [rung], facts, rung.apply(facts, Settings()), {}, script=file, root=tmp_path / "other"
    )
    assert found.diff == ""
    assert list(found.only_outside) == ["fused_optimizer"]


def test_a_notebook_is_changed_in_its_cells(tmp_path: Path) -> None:
    imports, rest = SCRIPT.split("\n\n\n", 1)
    cells = ["%matplotlib inline\n" + imports, rest]
    document = {
        "cells": [{"cell_type": "code", "source": text.splitlines(True)} for text in cells],
        "nbformat": 4,
    }
    file = tmp_path / "train.ipynb"
    file.write_text(json.dumps(document, indent=1))
    facts = facts_of(rest, Path(f"{file} cell 2"))
    settings = Settings()
    names = ["fused_optimizer", "examples_in_memory"]
    for name in names:
        settings = RUNGS[name].apply(facts, settings)
    rungs = [RUNGS[name] for name in names]
    gains = dict.fromkeys(names, GAIN)
    found = patch_of(rungs, facts, settings, gains, script=file, root=tmp_path)
    assert found.only_outside == {}
    changed = ["".join(cell["source"]) for cell in json.loads(found.texts[file])["cells"]]
    assert changed[0].startswith('%matplotlib inline\n"""Trains."""')
    assert "class InMemory" in changed[0]
    assert "InMemory(dataset)" in changed[1]
    assert "fused=True" in changed[1]
    subprocess.run(["patch", "-p1"], input=found.diff, cwd=tmp_path, text=True, check=True)
    assert file.read_text() == found.texts[file]


LOGGING = textwrap.dedent(
    """
    import torch


    def train(loss):
        # for the curve
        print("loss", loss.item())
        found = print("loss")
        return found
    """
).lstrip()


def test_a_line_that_logs_gets_a_condition(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(LOGGING)
    place = call(LOGGING, "print", file)
    logs = (LogCall(place=place, function="print", share=0.5, num_per_step=1.0),)
    facts = ScriptFacts(logs=logs)
    rung = RUNGS["sparse_logging"]
    settings = rung.apply(facts, Settings())
    found = patch_of([rung], facts, settings, {}, script=file, root=tmp_path)
    text = found.texts[file]
    assert "\nimport itertools\n" in text
    assert "\nlog_steps_6 = itertools.count()\n" in text
    assert (
        "    # for the curve\n    # stepladder, sparse_logging\n"
        "    if next(log_steps_6) % 50 == 0:\n"
        '        print("loss", loss.item())\n' in text
    )


def test_a_line_that_uses_what_is_returned_stays(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    text = LOGGING.replace('    # for the curve\n    print("loss", loss.item())\n', "")
    file.write_text(text)
    logs = (LogCall(place=call(text, "print", file), function="f", share=0.5, num_per_step=1.0),)
    facts = ScriptFacts(logs=logs)
    rung = RUNGS["sparse_logging"]
    settings = rung.apply(facts, Settings())
    found = patch_of([rung], facts, settings, {}, script=file, root=tmp_path)
    assert rung.name in found.only_outside


def test_a_second_forward_is_a_class_and_a_line(tmp_path: Path) -> None:
    text = patched(SCRIPT, ["repeated_forwards"], tmp_path)
    assert "class OncePerInput" in text
    assert "    net.forward = OncePerInput(net)\n    # the optimizer\n" in text


def test_a_class_is_put_into_the_file_that_uses_it(tmp_path: Path) -> None:
    main, other = tmp_path / "train.py", tmp_path / "parts.py"
    main.write_text("import parts\n")
    other.write_text(SCRIPT)
    facts, settings = facts_of(SCRIPT, other), Settings()
    rungs = [RUNGS["repeated_forwards"], RUNGS["examples_in_memory"]]
    for rung in rungs:
        settings = rung.apply(facts, settings)
    found = patch_of(rungs, facts, settings, {}, script=main, root=tmp_path)
    assert found.only_outside == {}
    assert list(found.texts) == [other]
    assert found.texts[other].index("class OncePerInput") < found.texts[other].index("SIZE =")
    assert "class InMemory" in found.texts[other]
