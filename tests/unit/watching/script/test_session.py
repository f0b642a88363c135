from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

import stepladder
from stepladder.records.findings import Outcome
from stepladder.records.watch import WatchReport
from stepladder.reporting.pages.watch_page import render_watch
from stepladder.watching import report as report_module
from stepladder.watching.hooks.losses import losses as losses_module
from stepladder.watching.script import session as session_module

Watched = Callable[..., WatchReport]
Snippets = dict[str, tuple[str, str]]

LOOP = """
import torch, torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
x = torch.randn(64, 8)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range({steps}):
    order = torch.randperm(64)[:16]
    {before}
    loss = F.cross_entropy(model(x[order]), y[order])
    loss.backward()
    optimizer.step()
    {after}
"""


def loop(before: str = "optimizer.zero_grad()", after: str = "", steps: int = 20) -> str:
    return LOOP.format(before=before, after=after, steps=steps)


def alarms(report: WatchReport) -> list[str]:
    return [finding.check for finding in report.alarms]


@pytest.mark.parametrize(
    "between", ["nn.utils.clip_grad_norm_(model.parameters(), 1e6)", "loss.item()"]
)
def test_gradients_never_cleared_are_an_error_clipped_or_not(
    watched: Watched, between: str
) -> None:
    code = loop(before="pass").replace(
        "    optimizer.step()", f"    {between}\n    optimizer.step()"
    )
    report = watched(code)
    (finding,) = [f for f in report.findings if f.check == "missing_zero_grad"]
    assert finding.outcome is Outcome.FAILED
    assert finding.numbers["num_uncleared"] == 19


def test_a_deliberately_frozen_trunk_is_not_an_alarm(watched: Watched) -> None:
    code = loop(steps=30).replace(
        "optimizer = torch", "model[0].requires_grad_(False)\noptimizer = torch"
    )
    assert alarms(watched(code)) == []


def test_everything_is_put_back(watched: Watched) -> None:
    def wrapped() -> tuple[object, ...]:
        return (
            F.cross_entropy,
            torch.autograd.backward,
            torch.save,
            DataLoader.__iter__,
            Optimizer.zero_grad,
            torch.optim.lr_scheduler.StepLR.__dict__.get("step"),
        )

    before, module = wrapped(), torch.nn.modules.module
    watched(loop())
    assert wrapped() == before
    assert not module._global_forward_hooks
    assert not module._global_forward_pre_hooks
    optimizer = importlib.import_module("torch.optim.optimizer")
    assert not optimizer._global_optimizer_pre_hooks
    assert not optimizer._global_optimizer_post_hooks


def test_a_watched_model_can_be_copied_and_saved_whole(watched: Watched, tmp_path: Path) -> None:
    code = loop(after="import copy; other = copy.deepcopy(model); other(x)")
    code += "torch.save(model, 'whole.pt')\n"
    report = watched(code)
    assert report.watcher_error is None
    assert b"stepladder" not in (tmp_path / "whole.pt").read_bytes()
    model = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert not model._forward_hooks
    copy.deepcopy(model)


def test_a_watcher_that_fails_is_switched_off_and_the_script_continues(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*args: object) -> None:
        raise ZeroDivisionError("as planned")

    monkeypatch.setattr(losses_module.LossWatch, "_look", fails)
    report = watched(loop() + "open('done', 'w').close()\n")
    assert (tmp_path / "done").exists()
    assert report.exit_code == 0
    assert "as planned" in (report.watcher_error or "")
    assert any("as planned" in text for text in report.not_seen)


def test_what_was_seen_is_kept_while_the_script_runs(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session_module, "_WRITE_EVERY_S", 0.0)
    monkeypatch.setattr(session_module, "_WRITE_LATEST_S", 0.0)
    after = "import shutil; shutil.copy('watch.json', 'kept.json') if step == 15 else None"
    watched(loop(after=after))
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["is_complete"] is False
    assert kept["num_steps"] == 16


def test_phases_add_up_to_the_whole(watched: Watched, snippets: Snippets) -> None:
    report = watched(snippets["missing_zero_grad"][1])
    assert report.times
    assert sum(time.share for time in report.times) == pytest.approx(1.0)
    assert {"data_wait", "forward", "backward", "optimizer", "unexplained"} <= {
        time.name for time in report.times
    }
    assert report.step_s is not None
    assert report.step_s > 0


def test_the_page_escapes_and_names_every_alarm(watched: Watched, snippets: Snippets) -> None:
    report = watched(snippets["softmax_before_loss"][0])
    page = render_watch(report)
    assert "softmax_before_loss" in page
    assert "snippet.py:" in page
    assert page.count("<script") == 1  # its own


def test_a_block_is_watched_as_a_library(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stepladder.watch(tmp_path / "seen", quiet=True) as watching:
        for _ in range(12):
            F.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
            optimizer.step()
    assert watching.report is not None
    found = {f.check: f for f in watching.report.alarms}
    assert "missing_zero_grad" in found
    assert str(found["missing_zero_grad"].where).startswith("test_session.py:")
    assert (tmp_path / "seen" / "watch.html").exists()


def test_the_probe_replays_on_a_copy(watched: Watched, snippets: Snippets, tmp_path: Path) -> None:
    code = snippets["missing_zero_grad"][1] + "torch.save(model.state_dict(), 'last.pt')\n"
    report = watched(code, is_probing=True)
    names = {replay.name: replay for replay in report.replays}
    assert names["as_is"].example_s is not None
    assert names["larger_batch"].num_repeats >= 3
    assert names["channels_last"].why_not == "the model has no Conv2d layer"
    assert report.probe_s is not None


def test_compiled_models_are_inspected_from_outside(watched: Watched) -> None:
    code = loop(steps=12).replace(
        "optimizer = torch", "model = torch.compile(model, backend='eager')\noptimizer = torch"
    )
    report = watched(code)
    assert report.watcher_error is None
    assert report.exit_code == 0
    assert report.facts["is_compiled"] is True
    assert alarms(report) == []


def test_optimizers_that_take_turns_count_one_step_each_round(watched: Watched) -> None:
    code = loop().replace("optimizer.step()", "optimizer.step(); second.step()")
    code = code.replace(
        "for step", "second = torch.optim.SGD(model[2:].parameters(), 1e-3)\nfor step"
    )
    assert watched(code).num_steps == 20


def test_steps_keep_counting_with_the_optimizer_of_the_next_stage(watched: Watched) -> None:
    report = watched(loop() + loop(steps=15))
    assert report.num_steps == 20 + 14  # the first step of the second stage may have been a turn


def test_a_schedule_left_out_by_a_condition_is_not_an_alarm(watched: Watched) -> None:
    made = "plan = torch.optim.lr_scheduler.StepLR(optimizer, 5)\nfor step"
    code = loop(after="if None: plan.step()", steps=120).replace("for step", made)
    assert alarms(watched(code)) == []
    assert alarms(watched(loop(steps=120).replace("for step", made))) == ["schedule_misused"]


def test_a_state_without_weights_is_an_alarm(watched: Watched) -> None:
    code = loop() + "torch.save(nn.Module().state_dict(), 'empty.pt')\n"
    assert alarms(watched(code)) == ["checkpoint_incomplete"]


def test_the_order_is_read_from_the_batch_sampler_that_was_given(watched: Watched) -> None:
    code = """
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, {order}, TensorDataset
torch.manual_seed(0)
x = torch.randn(64, 20)
data = TensorDataset(x, (x[:, 0] > 0).long())
loader = DataLoader(data, batch_sampler=BatchSampler({order}(data), 8, False))
model = nn.Linear(20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for xb, yb in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(xb), yb).backward()
        optimizer.step()
"""
    assert alarms(watched(code.format(order="RandomSampler"))) == []
    assert alarms(watched(code.format(order="SequentialSampler"))) == ["no_shuffle"]


def test_accumulation_under_a_scaler_is_read_before_its_scale(watched: Watched) -> None:
    code = """
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(512, 20)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=16, shuffle=True)
model = nn.Linear(20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for idx, (xb, yb) in enumerate(loader):
    scaler.scale(F.cross_entropy(model(xb), yb){divided}).backward()
    if idx % 4 == 3:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
    assert alarms(watched(code.format(divided=" / 4"))) == []
    assert alarms(watched(code.format(divided=""))) == ["accumulation_unscaled"]


def test_validation_without_a_loader_is_timed_with_what_lies_between(watched: Watched) -> None:
    held_out = (
        "if step % 5 == 4:\n        model.eval()\n        for _ in range(3):\n"
        "            with torch.no_grad(): model(x)\n            time.sleep(0.02)\n"
        "        model.train()"
    )
    report = watched("import time\n" + loop(after=held_out, steps=40))
    shares = {time.name: time.total_s for time in report.times}
    assert shares["validation"] > 0.3  # at least seven of eight validations of 60 ms


def test_a_watcher_that_cannot_begin_is_reported_and_the_block_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(self: object) -> None:
        raise ImportError("half a package")

    monkeypatch.setattr(session_module.Session, "_begin", fails)
    with stepladder.watch(tmp_path / "seen", quiet=True) as watching:
        assert torch.ones(1).item() == 1
    assert watching.report is not None
    assert "half a package" in (watching.report.watcher_error or "")


def test_a_report_that_cannot_be_built_is_written_with_the_reason(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise ZeroDivisionError("as planned")

    monkeypatch.setattr(report_module, "times_of", fails)
    report = watched(loop())
    assert report.exit_code == 0
    assert report.ending == "it ran to completion"
    assert report.watcher_error == "ZeroDivisionError: as planned"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripting_works_while_watched(watched: Watched) -> None:
    code = loop(after="if step == 9: scripted = torch.jit.script(Net())").replace(
        "torch.manual_seed(0)\n",
        "import torch.distributed.optim\n"
        "torch.manual_seed(0)\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:\n"
        "        return F.cross_entropy(x, y)\n"
        "@torch.jit.script\n"
        "def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:\n"
        "    return F.mse_loss(x, y)\n",
        1,
    )
    report = watched(code + "scripted(torch.ones(2, 2), torch.tensor([0, 1]))\n")
    assert report.exit_code == 0, report.ending
    assert report.watcher_error is None
    assert report.num_steps == 20


def test_a_checkpoint_with_states_in_lists_is_whole(watched: Watched) -> None:
    saved = "{'epoch': 1, 'state_dict': model.state_dict(), 'states': [optimizer.state_dict()]}"
    assert alarms(watched(loop() + f"torch.save({saved}, 'whole.pt')\n")) == []


def test_metrics_over_the_training_data_are_no_validation(watched: Watched) -> None:
    code = """
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(64, 20)
data = TensorDataset(x, (x[:, 0] > 0).long())
loader, again = DataLoader(data, 8, shuffle=True), DataLoader(data, 8, shuffle=True)
model = nn.Linear(20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    model.train()
    for xb, yb in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(xb), yb).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for xb, yb in again:
            model(xb)
"""
    assert alarms(watched(code)) == []
