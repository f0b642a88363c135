from __future__ import annotations

import copy
import importlib
import json
import random
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stepladder.records import to_json
from stepladder.records.findings import Finding, Outcome
from stepladder.records.from_json import from_json
from stepladder.records.watch import Clearing, WatchReport
from stepladder.reporting.pages.watch_page import render_watch, watch_text
from stepladder.watching.probe import probe
from stepladder.watching.probe.clearing import KeptBatch, probe_clearing
from stepladder.watching.probe.habits import Fate, Habit
from stepladder.watching.script.own_code import OwnCode
from stepladder.watching.script.script import Ending
from stepladder.watching.script.session import Session

Watched = Callable[..., WatchReport]
ROOT = Path(__file__).parents[4]

LOOP = """
import torch, torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
x = torch.randn(64, 8)
y = (x[:, 0] > 0).long()
model = {model}
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.05)
for step in range({steps}):
    order = torch.randperm(64)[:16]
    {before}
    loss = F.cross_entropy(model({given}), y[order])
    loss.backward()
    optimizer.step()
    {after}
"""
MLP = (
    "nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 2))"
)
LARGE = "nn.Sequential(nn.Linear(8, 9000, bias=False), nn.ReLU(), nn.Linear(9000, 8, bias=False))"
SPARSE = "nn.EmbeddingBag(50, 2, sparse=True)"
TOKENS = "(x[order].abs() * 9).long()"
CLEAR = "optimizer.zero_grad()"
WAYS = (
    CLEAR,
    "optimizer.zero_grad(set_to_none=False)",
    "model.zero_grad()",
    "[setattr(p, 'grad', None) for p in model.parameters()]",
    "[p.grad.zero_() for p in model.parameters() if p.grad is not None]",
    "[p.grad.data.zero_() for p in model.parameters() if p.grad is not None]",
)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one timing round only, as speed is not tested here."""
    monkeypatch.setattr(probe, "_MAX_REPEATS", 1)
    monkeypatch.setattr(probe, "_MIN_RUN_S", 0.0)


def loop(before: str = "pass", after: str = "", steps: int = 12, **parts: str) -> str:
    given = {"model": MLP, "optimizer": "SGD", "given": "x[order]"} | parts
    return LOOP.format(before=before, after=after, steps=steps, **given)


def finding_of(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    (found,) = [f for f in report.findings if f.check == "missing_zero_grad"]
    return found


def clearing_of(report: WatchReport) -> Clearing:
    assert report.clearing is not None
    return report.clearing


def growth(clearing: Clearing) -> list[float]:
    assert len(clearing.norms) == 5, clearing.why_not
    return [norm / clearing.norms[0] for norm in clearing.norms]


@pytest.mark.parametrize("clear", WAYS)
@pytest.mark.parametrize("is_before", [True, False])
def test_however_gradients_are_cleared_their_norm_stays(
    watched: Watched, clear: str, is_before: bool
) -> None:
    code = loop(clear, "") if is_before else loop("pass", clear)
    report = watched(code, is_probing=True)
    clearing = clearing_of(report)
    assert growth(clearing) == [1.0] * 5
    assert clearing.num_uncleared == 0
    assert clearing.uncleared == ()
    assert clearing.num_weights == 6
    assert finding_of(report).outcome is Outcome.PASSED
    assert not report.alarms
    is_called = "zero_grad(" in clear
    assert (clearing.how is not None) is is_called
    if is_called:
        assert clear.startswith(clearing.how.removesuffix(")"))  # type: ignore[union-attr]
        line = code.splitlines().index(f"    {clear}") + 1
        assert clearing.where == f"snippet.py:{line}"


def test_kept_gradients_grow_by_the_same_each_time_and_both_proofs_agree(watched: Watched) -> None:
    report = watched(loop(), is_probing=True)
    clearing, found = clearing_of(report), finding_of(report)
    assert growth(clearing) == pytest.approx([1, 2, 3, 4, 5], rel=1e-4)
    assert clearing.num_uncleared == clearing.num_looked == 3
    assert clearing.uncleared[0] == "0.weight"
    assert found.outcome is Outcome.FAILED
    assert found.numbers["num_uncleared"] == 11  # observation alone proved it
    assert found.numbers["norms"] == [*clearing.norms]
    assert "in 5 calls" in found.evidence
    assert finding_of(watched(loop())).outcome is Outcome.FAILED


@pytest.mark.parametrize(("steps", "outcome"), [(2, Outcome.WARNED), (3, Outcome.FAILED)])
def test_two_steps_are_enough_for_the_probe_and_not_for_looking_on(
    watched: Watched, steps: int, outcome: Outcome
) -> None:
    assert finding_of(watched(loop(steps=steps))).outcome is Outcome.PASSED
    found = finding_of(watched(loop(steps=steps), is_probing=True))
    assert found.outcome is outcome
    assert found.where == "snippet.py:14"
    assert finding_of(watched(loop(CLEAR, steps=steps), is_probing=True)).fault is None


@pytest.mark.parametrize(
    "parts",
    [{"model": LARGE}, {"model": SPARSE, "given": TOKENS}],
    ids=["more than 65,536 numbers", "sparse"],
)
def test_gradients_that_looking_on_does_not_follow_are_found(
    watched: Watched, parts: dict[str, str]
) -> None:
    assert not finding_of(watched(loop(**parts))).is_alarm
    report = watched(loop(**parts), is_probing=True)
    found = finding_of(report)
    assert found.outcome is Outcome.FAILED
    assert growth(clearing_of(report)) == pytest.approx([1, 2, 3, 4, 5], rel=1e-4)
    for clear in (CLEAR, "optimizer.zero_grad(set_to_none=False)"):
        sound = watched(loop(clear, **parts), is_probing=True)
        assert finding_of(sound).outcome is Outcome.PASSED
        assert growth(clearing_of(sound)) == [1.0] * 5


def test_weights_that_are_left_out_of_the_clearing_are_named(watched: Watched) -> None:
    code = loop("model[4].zero_grad()")
    assert not finding_of(watched(code)).is_alarm
    report = watched(code, is_probing=True)
    found = finding_of(report)
    assert found.outcome is Outcome.WARNED
    assert clearing_of(report).uncleared == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert "of 4 of 6 weights, such as 0.weight," in found.evidence
    assert growth(clearing_of(report)) == pytest.approx([1, 2, 3, 4, 5], rel=1e-4)


def accumulating(clear: str) -> str:
    return loop(steps=40).replace(
        "    loss.backward()\n    optimizer.step()\n",
        "    (loss / 4).backward()\n    if step % 4 == 3:\n        optimizer.step()\n"
        f"        {clear}\n",
    )


def test_accumulation_on_purpose_is_not_a_fault_and_what_outlasts_the_step_is_one(
    watched: Watched,
) -> None:
    sound = watched(accumulating(CLEAR), is_probing=True)
    assert clearing_of(sound).num_backwards == 4
    assert growth(clearing_of(sound)) == [1.0] * 5
    assert finding_of(sound).outcome is Outcome.PASSED
    broken = watched(accumulating("pass"), is_probing=True)
    assert growth(clearing_of(broken)) == pytest.approx([1, 2, 3, 4, 5], rel=1e-3)
    assert finding_of(broken).outcome is Outcome.FAILED


def test_networks_that_leave_gradients_in_each_other_are_no_fault(watched: Watched) -> None:
    code = """
import torch, torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
g = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
d = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
og, od = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
one, zero = torch.ones(16, 1), torch.zeros(16, 1)
loss = F.binary_cross_entropy_with_logits
for step in range(20):
    real, fake = torch.randn(16, 2) + 2, g(torch.randn(16, 4))
    d.zero_grad()
    (loss(d(real), one)).backward()
    (loss(d(fake.detach()), zero)).backward()
    od.step()
    g.zero_grad()
    loss(d(fake), one).backward()
    og.step()
"""
    report = watched(code, is_probing=True)
    assert not finding_of(report).is_alarm
    assert clearing_of(report).num_uncleared == 0


def test_gradients_that_the_script_creates_itself_are_left_alone(watched: Watched) -> None:
    decay = "[p.grad.mul_(0.9) for p in model.parameters() if p.grad is not None]"
    report = watched(loop(decay), is_probing=True)
    assert "modifies the gradients" in (clearing_of(report).why_not or "")
    assert not finding_of(report).is_alarm


@pytest.mark.thorough
def test_an_optimizer_that_calls_backward_itself_is_followed(watched: Watched) -> None:
    code = loop(optimizer="LBFGS").replace(
        "    loss.backward()\n    optimizer.step()\n",
        "    def again():\n        optimizer.zero_grad()\n"
        "        loss = F.cross_entropy(model(x), y)\n        loss.backward()\n"
        "        return loss\n    optimizer.step(again)\n",
    )
    assert not finding_of(watched(code, is_probing=True)).is_alarm
    broken = watched(code.replace("        optimizer.zero_grad()\n", ""), is_probing=True)
    assert clearing_of(broken).num_uncleared > 0


def test_gradients_cleared_before_the_step_are_another_fault(watched: Watched) -> None:
    code = loop().replace("    optimizer.step()", f"    {CLEAR}\n    optimizer.step()")
    report = watched(code, is_probing=True)
    assert not finding_of(report).is_alarm
    assert [f.check for f in report.alarms] == ["zero_grad_before_step"]


def test_a_model_that_cannot_be_copied_is_reported_and_what_was_seen_decides(
    watched: Watched,
) -> None:
    code = "import threading\n" + loop(model=LARGE)
    code = code.replace("for step", "model.lock = threading.Lock()\nfor step")
    report = watched(code, is_probing=True)
    assert "cannot pickle" in (clearing_of(report).why_not or "")
    assert finding_of(report).outcome is Outcome.FAILED
    assert clearing_of(report).num_uncleared == 3


@pytest.mark.parametrize(
    ("before", "grows"), [(CLEAR, [1.0] * 5), ("pass", [1.0, 2.0, 3.0, 4.0, 5.0])]
)
def test_with_a_loss_of_its_own_a_mean_of_the_outputs_is_taken(
    watched: Watched, before: str, grows: list[float]
) -> None:
    code = loop(before).replace(
        "F.cross_entropy(model(x[order]), y[order])", "model(x[order]).sum()"
    )
    report = watched(code, is_probing=True)
    assert growth(clearing_of(report)) == pytest.approx(grows, rel=1e-4)
    assert clearing_of(report).loss is None
    assert finding_of(report).is_alarm is (before == "pass")
    assert "of a weighted mean of the outputs" in finding_of(report).evidence
    assert report.replays[0].why_not is not None


def test_the_probe_changes_nothing_that_the_script_computes(
    watched: Watched, tmp_path: Path
) -> None:
    code = loop(CLEAR) + "torch.save(model.state_dict(), 'last.pt')\n"
    states = []
    for is_probing in (False, True):
        random.seed(3)
        np.random.seed(3)
        watched(code, is_probing=is_probing)
        arrays = np.random.get_state()[1].tobytes()  # type: ignore[index, union-attr]
        states.append(
            (
                torch.get_rng_state().tolist(),
                random.getstate(),
                arrays,
                (tmp_path / "last.pt").read_bytes(),
            )
        )
    assert states[0] == states[1]


def test_a_script_that_is_ended_by_its_steps_keeps_the_last_one(tmp_path: Path) -> None:
    file, reports = tmp_path / "snippet.py", []
    file.write_text(loop(steps=50), encoding="utf-8")
    own = OwnCode(tmp_path, str(file))
    session = Session("snippet.py", (), own, tmp_path, reports.append, max_steps=2, is_probing=True)
    session.begin()
    with pytest.raises(SystemExit):
        exec(compile(file.read_text(), str(file), "exec"), {"__name__": "__main__"})
    session.finish(Ending(exit_code=0, words="the requested number of steps is done"))
    assert clearing_of(reports[0]).num_uncleared == 1
    assert finding_of(reports[0]).outcome is Outcome.WARNED


class Noisy(nn.Module):
    """Draws, counts its calls and modifies its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, given: Tensor) -> Tensor:
        self.calls += 1
        scale = self.calls + random.random()
        return self.layer(given.mul_(2) + torch.rand_like(given)) * scale  # type: ignore[no-any-return]


def test_the_original_stays_as_it_was_and_every_call_is_the_same() -> None:
    torch.manual_seed(0)
    model = Noisy()
    model(torch.randn(3, 4)).sum().backward()
    given = torch.randn(8, 4)
    batch = KeptBatch(
        module=model,
        args=(given,),
        kwargs={},
        loss="cross_entropy",
        target=torch.zeros(8, dtype=torch.long),
        options={},
    )
    before = copy.deepcopy(model.state_dict())
    grads = {name: param.grad.clone() for name, param in model.named_parameters()}  # type: ignore[union-attr]
    values, draws = given.clone(), random.getstate()
    fates = {id(p): (weakref.ref(p), Counter({Fate.REMOVED: 3})) for p in model.parameters()}
    habit = Habit("SGD", None, num_windows=3, fates=fates, num_backwards=Counter({1: 3}))
    clearing = probe_clearing([batch], [habit], None)
    assert clearing is not None
    assert growth(clearing) == [1.0] * 5
    assert clearing.norms[0] > 0
    assert torch.equal(given, values)
    assert random.getstate() == draws
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for name, param in model.named_parameters():
        assert torch.equal(param.grad, grads[name])  # type: ignore[arg-type]


def test_no_steps_in_a_row_are_nothing_to_test(watched: Watched) -> None:
    assert probe_clearing([], [], None) is None
    report = watched(loop(CLEAR, steps=1), is_probing=True)
    assert report.clearing is None
    assert finding_of(report).outcome is Outcome.NOT_APPLICABLE


def test_the_report_shows_the_test_and_its_time(watched: Watched) -> None:
    report = watched(loop(CLEAR), is_probing=True)
    again = from_json(WatchReport, json.loads(json.dumps(to_json(report))))
    assert again.clearing == report.clearing
    page, text = render_watch(report), watch_text(report)
    assert "How gradients are cleared" in page
    assert "cleared by optimizer.zero_grad() in snippet.py:11" in page
    assert "cleared by optimizer.zero_grad() in snippet.py:11" in text
    assert "after the last step; gradients of SGD" in text
    assert "How gradients are cleared" not in render_watch(watched(loop(CLEAR)))


@pytest.mark.parametrize(
    ("name", "shorter"),
    [
        ("cnn_zero_grad_missing", {"range(6)": "range(1)", "stripes(1600": "stripes(640"}),
        ("lstm_zero_grad_once", {"default=8": "default=1"}),
    ],
)
def test_pairs_of_programs_are_distinguished(
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    shorter: dict[str, str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["snippet.py"])
    monkeypatch.syspath_prepend(str(ROOT))
    corpus = importlib.import_module("bench.faults.corpus")
    pair = corpus.programs("development", tmp_path / "pairs", [name])
    halves = [program.path.read_text("utf-8") for program in pair]
    for many, few in shorter.items():
        halves = [code.replace(many, few) for code in halves]
    broken, sound = (watched(code, is_probing=True) for code in halves)
    assert finding_of(broken).outcome is Outcome.FAILED
    assert growth(clearing_of(broken)) == pytest.approx([1, 2, 3, 4, 5], rel=1e-3)
    assert finding_of(sound).outcome is Outcome.PASSED
    assert growth(clearing_of(sound)) == [1.0] * 5


def test_what_a_function_of_the_script_let_go_is_gone_through_again(watched: Watched) -> None:
    body = loop(CLEAR).replace("\n", "\n    ")
    report = watched(f"def main():{body}\nmain()\n", is_probing=True)
    assert growth(clearing_of(report)) == [1.0] * 5
    assert {replay.name: replay.why_not for replay in report.replays}["as_is"] is None
