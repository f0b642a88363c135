"""Anomaly mode is switched off where the optimizer is made, and calls after it do nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from stepladder.records.script import MadeOptimizer, Place, ScriptFacts
from stepladder.scripts.contract import ScriptRung
from stepladder.scripts.settings import Settings

RUNG = "no_anomaly_mode"
SCRIPT = textwrap.dedent(
    """
    import torch
    from torch import nn

    torch.autograd.set_detect_anomaly(ON := True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    # the optimizer
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    modes = set()
    for step in range(20):
        optimizer.zero_grad()
        loss = net(torch.randn(8, 4)).square().mean()
        modes.add(torch.is_anomaly_enabled())
        loss.backward()
        optimizer.step()
    print(loss.item().hex(), net[0].weight.sum().item().hex())
    print("anomaly mode:", *modes)
    """
).lstrip()
EARLY = "torch.autograd.set_detect_anomaly(ON := True)\n"
LATE = SCRIPT.replace(EARLY, "").replace(
    "modes =", "torch.autograd.set_detect_anomaly(mode=True, check_nan=False)\nmodes ="
)
IN_EACH_STEP = (
    SCRIPT.replace(EARLY, "")
    .replace("    loss = net", "    with torch.autograd.detect_anomaly():\n        loss = net")
    .replace("    modes.add", "        modes.add")
    .replace("    loss.backward", "        loss.backward")
)
AROUND_ALL = "import torch\n\nwith torch.autograd.set_detect_anomaly(True):\n" + textwrap.indent(
    SCRIPT.replace(EARLY, ""), "    "
)
OFF = "torch.autograd.set_detect_anomaly(False)"
COMMENT = "# stepladder, no_anomaly_mode\n"
EXPECTED = {
    "before the optimizer": (SCRIPT, f"{COMMENT}{OFF}\n# the optimizer\n"),
    "after it": (LATE, f"{COMMENT}{OFF}\nmodes ="),
    "in each step": (IN_EACH_STEP, f"    {COMMENT}    with {OFF}:\n"),
    "around all": (AROUND_ALL, f"    {COMMENT}    {OFF}\n    # the optimizer\n"),
}


@pytest.mark.parametrize(
    "name",
    [
        "in each step",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("before the optimizer", "after it", "around all")
        ),
    ],
)
@pytest.mark.slow
def test_losses_are_the_same_bit_for_bit(
    name: str, climber: Callable[[str], Any], rung: ScriptRung
) -> None:
    text, lines = EXPECTED[name]
    found = climber(text).both_ways(rung)
    assert lines in found.patched
    assert found.patched.count("stepladder") == 1
    assert found.original.rstrip().endswith("anomaly mode: True")
    expected = found.original.replace("anomaly mode: True", "anomaly mode: False")
    losses = [line for line in expected.splitlines() if "0x" in line or "mode:" in line]
    for printed in (found.outside, found.diff):
        assert [line for line in printed.splitlines() if line in losses] == losses


@pytest.mark.thorough
def test_a_mode_of_a_few_steps_is_left_on(climber: Callable[[str], Any], rung: ScriptRung) -> None:
    text = LATE.replace(
        "    optimizer.zero_grad()", f"    if step == 2:\n        {OFF}\n    optimizer.zero_grad()"
    )
    facts = climber(text).facts()
    assert not facts.has_anomaly_mode
    assert "not on" in (rung.why_not(facts, Settings()) or "")


PLACE = Place(file="/x/train.py", line=3, column=0, end_line=3, end_column=9, is_direct=False)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (ScriptFacts(has_anomaly_mode=True), "was not found"),
        (ScriptFacts(has_anomaly_mode=True, anomaly_calls=(None,)), "a library"),
        (ScriptFacts(has_anomaly_mode=True, anomaly_calls=(PLACE,)), "a library"),
        (
            ScriptFacts(
                has_anomaly_mode=True,
                optimizers=(MadeOptimizer(kind="SGD", has_anomaly_mode=True),),
            ),
            "its own files",
        ),
    ],
)
def test_what_a_library_does_is_only_changed_from_outside(
    facts: ScriptFacts, said: str, rung: ScriptRung
) -> None:
    edits = rung.edits(facts, rung.apply(facts, Settings()))
    assert isinstance(edits, str)
    assert said in edits
