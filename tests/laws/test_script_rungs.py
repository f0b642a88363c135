"""Laws of the rungs for scripts: whatever is listed is applied once, and has edits."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from stepladder.records.script import (
    FirstPart,
    LargeTable,
    LogCall,
    MadeLoader,
    MadeOptimizer,
    MetricBlock,
    Place,
    ScriptFacts,
)
from stepladder.scripts.contract import ScriptRung
from stepladder.scripts.rungs import SCRIPT_RUNGS
from stepladder.scripts.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
PLACE = Place(file="/x/train.py", line=3, column=0, end_line=3, end_column=9, is_direct=True)
SMALL = ScriptFacts(
    num_cores=4,
    num_steps=100,
    step_s=0.1,
    batch_size=2,
    shares={"forward": 0.3, "backward": 0.3, "optimizer": 0.2, "data_wait": 0.2},
    optimizers=(
        MadeOptimizer(
            kind="SGD",
            place=PLACE,
            model="net",
            is_fused=False,
            num_conv2d=2,
            has_anomaly_mode=True,
        ),
    ),
    loaders=(
        MadeLoader(
            place=PLACE,
            num_steps=100,
            num_examples=100,
            example_bytes=1e4,
            first_part=FirstPart(
                place=PLACE, num_statements=1, num_bytes=100, share=0.5, num_examples=100
            ),
        ),
    ),
    memory_bytes=10**9,
    has_compiler=True,
    has_bfloat16=True,
    output_is_tensor=True,
    kernel_share=0.2,
    repeated_share=0.2,
    metrics=(MetricBlock(place=PLACE, num_statements=1, first_line=2, share=0.2, used_share=0.1),),
    save_share=0.2,
    save_places=(PLACE,),
    has_anomaly_mode=True,
    recomputed_share=0.2,
    recompute_places=(PLACE,),
    capacity_bytes=10**9,
    tables=(LargeTable(model="net", module="table", num_rows=9999, num_used=9, share=0.2),),
    logs=(LogCall(place=PLACE, function="print", share=0.1, num_per_step=1.0),),
)
FULL = replace(  # its memory is
    SMALL,
    optimizers=tuple(replace(one, checkpoints_by="checkpoint") for one in SMALL.optimizers),
    start_bytes=10**9,
    peak_bytes=2 * 10**9,
    capacity_bytes=3 * 10**9,
)
EACH = pytest.mark.parametrize("rung", SCRIPT_RUNGS, ids=lambda rung: rung.name)


def facts_for(rung: ScriptRung) -> ScriptFacts:
    if rung.name == "gradient_checkpointing":
        return FULL
    if rung.name == "single_precision":
        return replace(SMALL, dtype="float64")
    return replace(SMALL, has_gpu=True) if rung.is_for_gpu else SMALL


@EACH
def test_its_file_has_its_name(rung: ScriptRung) -> None:
    assert inspect.getmodule(type(rung)).__name__.rpartition(".")[2] == rung.name  # type: ignore[union-attr]


@EACH
def test_it_changes_settings_once(rung: ScriptRung) -> None:
    facts, settings = facts_for(rung), Settings()
    assert rung.why_not(facts, settings) is None
    changed = rung.apply(facts, settings)
    assert settings == Settings()
    assert changed != settings
    assert rung.why_not(facts, changed)


@EACH
def test_it_predicts_a_gain(rung: ScriptRung) -> None:
    prediction = rung.predict(facts_for(rung), Settings())
    assert prediction.rung == rung.name
    assert prediction.gain > 1
    assert prediction.note


@EACH
def test_it_has_edits_that_name_it(rung: ScriptRung) -> None:
    facts = facts_for(rung)
    edits = rung.edits(facts, rung.apply(facts, Settings()))
    assert not isinstance(edits, str)
    assert edits
    assert {edit.rung for edit in edits} == {rung.name}


@pytest.mark.parametrize(
    "rung",
    [rung for rung in SCRIPT_RUNGS if not rung.is_for_process],
    ids=lambda rung: rung.name,
)
def test_it_says_no_to_a_script_without_anything(rung: ScriptRung) -> None:
    assert rung.why_not(ScriptFacts(has_gpu=rung.is_for_gpu), Settings())


@EACH
def test_it_is_documented(rung: ScriptRung) -> None:
    assert inspect.getdoc(type(rung))
    assert f"`{rung.name}`" in (DOCS / "scripts.md").read_text(encoding="utf-8")


def test_no_rung_imports_torch() -> None:
    module = importlib.import_module("stepladder.scripts.rungs")
    for file in Path(module.__file__ or "").parent.glob("*.py"):
        assert not [
            line
            for line in file.read_text(encoding="utf-8").splitlines()
            if line.startswith(("import torch", "from torch"))
        ], file
