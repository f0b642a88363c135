"""Activations that a script recomputes are kept, where the memory holds them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stepladder.records.script import Place, ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.patch import edited
from stepladder.scripts.rungs.gradient_checkpointing import GradientCheckpointing
from stepladder.scripts.rungs.kept_activations import KeptActivations
from stepladder.scripts.settings import Settings

RUNG = "kept_activations"
SCRIPT = textwrap.dedent(
    """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.2)) for _ in range(4)
    )
    head = nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*blocks.parameters(), *head.parameters()], lr=0.1)
    calls = []
    blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    for step in range(20):
        optimizer.zero_grad()
        x = torch.randn(16, 8)
        for block in blocks:
            # one at a time
            x = checkpoint(block, x, use_reentrant=False)
        loss = head(x).square().mean()
        loss.backward()
        optimizer.step()
    print(loss.item().hex(), blocks[0][0].weight.sum().item().hex())
    print("forwards of the first block:", len(calls))
    """
).lstrip()
PLACE = Place(file="/x/train.py", line=1, column=0, end_line=1, end_column=0, is_direct=True)
FACTS = ScriptFacts(
    recomputed_share=0.25,
    recomputed_bytes=10**9,
    recompute_places=(PLACE,),
    peak_bytes=2 * 10**9,
    capacity_bytes=10**10,
)


@pytest.mark.thorough
@pytest.mark.slow
def test_results_are_the_same_without_a_second_forward(
    climber: Callable[[str], Any], rung: ScriptRung
) -> None:
    found = climber(SCRIPT).both_ways(rung)
    line = "        # stepladder, kept_activations\n        x = block(x)\n"
    assert f"        # one at a time\n{line}" in found.patched
    assert "forwards of the first block: 39" in found.original  # the first call was measured
    values = next(line for line in found.original.splitlines() if "0x" in line)
    for printed in (found.outside, found.diff):
        assert values in printed
        assert "forwards of the first block: 20" in printed


def test_it_needs_memory_for_them() -> None:
    rung = KeptActivations()
    assert rung.why_not(FACTS, Settings()) is None
    assert rung.predict(FACTS, Settings()).gain == pytest.approx(4 / 3)
    found = rung.why_not(replace(FACTS, capacity_bytes=3 * 10**9), Settings())
    assert found == "its activations take 1 GB beside 2 of 3 GB in use"


def test_kept_activations_are_not_recomputed_again() -> None:
    found = GradientCheckpointing().why_not(FACTS, Settings(kept_activations=True))
    assert found == "the memory holds the activations, which are kept by now"


def test_a_library_that_recomputes_has_no_diff() -> None:
    for places in ((None,), (PLACE, replace(PLACE, is_direct=False))):
        facts = replace(FACTS, recompute_places=places)
        assert KeptActivations().edits(facts, Settings()) == "a library recomputes them"


@pytest.mark.parametrize(
    ("call", "direct"),
    [
        ("checkpoint(block, x, y, use_reentrant=False)", "block(x, y)"),
        ("checkpoint(net.f[0], x, preserve_rng_state=False, m=m)", "net.f[0](x, m=m)"),
        ("checkpoint(lambda a: a + 1, x)", "(lambda a: a + 1)(x)"),
        ("checkpoint(\n    run(block),\n    x,\n    debug=False,\n)", "run(block)(\n    x,\n)"),
        ("checkpoint(block, *args)", None),
        ("checkpoint(function=block)", None),
    ],
)  # fmt: skip
def test_the_function_is_called_with_its_arguments(call: str, direct: str | None) -> None:
    lines = f"y = {call}\n".splitlines()
    place = replace(PLACE, column=4, end_line=len(lines), end_column=len(lines[-1]))
    rung = KeptActivations()
    (edit,) = rung.edits(replace(FACTS, recompute_places=(place,)), Settings())
    assert isinstance(edit, Edit)
    assert edit.spot is Spot.DIRECT
    text, missed = edited(f"y = {call}\n", [edit], {})
    if direct is None:
        assert (text, missed) == (f"y = {call}\n", [rung.name])
    else:
        assert (text, missed) == (f"# stepladder, kept_activations\ny = {direct}\n", [])
