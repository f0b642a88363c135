"""Compiled training passes, and whether compiling pays off before a script ends."""

from __future__ import annotations

import copy
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stepladder.records.ladder import Decision
from stepladder.records.script import ScriptFacts
from stepladder.scripts import climb
from stepladder.scripts.climb import ScriptRun
from stepladder.scripts.inside.compiled import compile_training
from stepladder.scripts.learning import Learnt
from stepladder.scripts.options import ScriptOptions
from stepladder.scripts.race import Raced
from stepladder.scripts.rungs.compile import TRAINING
from stepladder.stats.speed import MIN_BLOCKS

SLEEPS = textwrap.dedent(
    """
    import time
    import torch
    from torch import nn

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(60):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        time.sleep(0.005)
    """
).lstrip()


def of_the_diff() -> Callable[[nn.Module], None]:
    names: dict[str, Any] = {"torch": torch}
    exec(TRAINING, names)
    found: Callable[[nn.Module], None] = names["compile_training"]
    return found


@pytest.mark.parametrize("compiles", [compile_training, of_the_diff()], ids=["outside", "diff"])
def test_only_passes_that_train_are_compiled(
    compiles: Callable[[nn.Module], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Counted(nn.Linear):
        def compile(self, *args: Any, **kwargs: Any) -> None:
            def fast(*inputs: Any) -> Any:
                seen.append("compiled")
                return self._call_impl(*inputs)

            self._compiled_call_impl = fast

    model = Counted(2, 1)
    compiles(model)
    x = torch.ones(1, 2)
    model(x)
    assert seen == ["compiled"]
    with torch.no_grad():
        model(x)
    model.eval()(x)
    assert seen == ["compiled"]
    other = copy.deepcopy(model.train())  # such as an average of weights
    with torch.no_grad():
        other.weight.fill_(7.0)
        other.bias.fill_(0.0)
    assert other(x).item() == 14.0
    assert seen == ["compiled"]


@pytest.mark.parametrize(("saved_s", "is_whole"), [(0.005, True), (0.1, False)])
def test_a_script_that_ends_before_a_change_pays_off_is_counted(
    climber: Callable[[str], Any], tmp_path: Path, saved_s: float, is_whole: bool
) -> None:
    """What takes 2 s once pays off after 400 steps, or after 20; the script takes 60."""
    said: list[str] = []
    run = ScriptRun(
        script="train.py",
        args=(),
        is_module=False,
        folder=tmp_path,
        options=ScriptOptions(),
        say=said.append,
        show=lambda _: None,
    )
    run._work = climber(SLEEPS).work
    run._facts = ScriptFacts(step_s=0.01, num_steps=10, is_whole=False)
    run._began = time.monotonic()
    raced = Raced(
        before_s=[10 * (0.01 + saved_s)] * MIN_BLOCKS,
        after_s=[10 * 0.01] * MIN_BLOCKS,
        steps_per_block=10,
        warm_up=3,
        warm_s=(3 * (0.01 + saved_s), 3 * 0.01 + 2.0),
    )
    run._count_steps(raced)
    assert run._facts.is_whole is is_whole
    assert len(said) == 1
    if is_whole:
        assert 10 < run._facts.num_steps <= 60


def test_the_start_counts_as_what_is_done_once() -> None:
    raced = Raced(
        before_s=[0.2] * MIN_BLOCKS,
        after_s=[0.1] * MIN_BLOCKS,
        warm_up=3,
        warm_s=(0.6, 1.3),
        start_s=(5.0, 44.95),
    )
    assert raced.one_time_s == pytest.approx(40.95)
    assert climb._steps_to_pay_off(raced) == 410


@pytest.mark.parametrize(
    ("seen", "decision"), [(409, Decision.UNDECIDED), (410, Decision.KEPT), (800, Decision.KEPT)]
)
def test_what_is_not_seen_to_pay_off_is_not_kept(seen: int, decision: Decision) -> None:
    raced = Raced(
        before_s=[0.2] * MIN_BLOCKS,
        after_s=[0.1] * MIN_BLOCKS,
        warm_up=3,
        warm_s=(0.6, 0.3),
        start_s=(5.0, 45.95),
    )
    learnt = Learnt(decision=Decision.KEPT, found="the same")
    speed = climb._with_one_time(raced, None)
    found = climb._verdict(speed, raced, learnt, ScriptOptions(), total=None, seen=seen)
    assert found.decision is decision
    assert "41 s at the start pay off after 410 steps" in found.reason
    assert ("--steps" in found.reason) is (decision is Decision.UNDECIDED)
    assert len(found.reason) <= 120
    # with their number, the gain is that of all steps
    gains = [climb._with_one_time(raced, total) for total in (100, 400, 10_000)]
    assert [gain is not None and gain.estimate > 1 for gain in gains] == [False, False, True]
