"""Steps that are only counted: a long training gets the same findings as if all were followed."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport
from stepladder.watching.seen.seen import Seen
from stepladder.watching.step_times import BACKWARD, CHECKPOINT, FORWARD, VALIDATION, Phases, Rest

Watched = Callable[..., WatchReport]
COUNTED = "num_steps_only_counted"

START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
def some(n=16):
    return torch.randint(320, (n,))
def learn(optimizer, *losses):
    optimizer.zero_grad()
    for loss in losses:
        loss.backward()
    optimizer.step()
def usual():
    rows = some()
    learn(sgd, F.cross_entropy(net(x[rows]), y[rows]))
def validate():
    net.eval()
    with torch.no_grad():
        for part in range(3):
            net(x[part::3])
    net.train()
"""

# each: a sound training, and whether some of its steps may be skipped
TRAININGS = {
    "plain": ("for step in range(150):\n    usual()\n", True),
    "epochs_with_validation": (
        """
loader = DataLoader(TensorDataset(x, y), 16, shuffle=True)
held_out = DataLoader(TensorDataset(torch.randn(64, 8), y[:64]), 16)
for epoch in range(8):
    for a, b in loader:
        learn(sgd, F.cross_entropy(net(a), b))
    net.eval()
    with torch.no_grad():
        for a, b in held_out:
            net(a)
    net.train()
""",
        True,
    ),
    "validation_without_a_loader": (
        "for step in range(150):\n    usual()\n    if step % 40 == 39:\n        validate()\n",
        True,
    ),
    "accumulation": (
        """
for step in range(150):
    rows = [some() for _ in range(4)]
    learn(sgd, *(F.cross_entropy(net(x[r]), y[r]) / 4 for r in rows))
""",
        True,
    ),
    "two_optimizers": (
        """
judge = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
other = torch.optim.Adam(judge.parameters(), 1e-3)
for step in range(150):
    made, real = net(x[some()]), torch.randn(16, 3)
    told = torch.cat([judge(real), judge(made.detach())])
    learn(other, F.binary_cross_entropy_with_logits(told, torch.ones(32, 1)))
    learn(sgd, F.binary_cross_entropy_with_logits(judge(net(x[some()])), torch.ones(16, 1)))
""",
        True,
    ),
    "a_schedule_of_each_step": (
        """
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 150)
for step in range(150):
    usual()
    schedule.step()
""",
        True,
    ),
    "a_second_stage": (
        """
for step in range(100):
    usual()
net[0].requires_grad_(False)
sgd = torch.optim.SGD(net[3].parameters(), 1e-3)
for step in range(200):
    usual()
""",
        True,
    ),
    "a_teacher_in_every_step": (
        """
import copy
teacher = copy.deepcopy(net).eval()
for step in range(150):
    rows = some()
    with torch.no_grad():
        goal = teacher(x[rows]).softmax(1)
    learn(sgd, F.cross_entropy(net(x[rows]), goal))
""",
        False,
    ),
    "a_closure": (
        """
quasi = torch.optim.LBFGS(net.parameters(), 0.05, max_iter=2)
for step in range(100):
    def closure():
        quasi.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss
    quasi.step(closure)
""",
        False,
    ),
    "slices_in_a_new_order": (
        """
for epoch in range(8):
    order = torch.randperm(20)
    for idx in order.tolist():
        part = slice(16 * idx, 16 * idx + 16)
        learn(sgd, F.cross_entropy(net(x[part]), y[part]))
""",
        False,
    ),
}

WITH_TWO_INPUTS = """
class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 3)
    def forward(self, first, second):
        return self.inner(first + second)
net = Sum()
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(200):
    rows = some()
    first, second = x[rows], x[rows].clone()
    if step == 134:
        second[0, 0] = float("nan")
    learn(sgd, F.cross_entropy(net(CALL), y[rows]))
"""

# each: a training with a late and rare event, or one that is not a fault of the data
LATE_AND_ALIKE = {
    "backwards_that_raise": """
for step in range(200):
    rows = some()
    loss = F.cross_entropy(net(x[rows]), y[rows])
    sgd.zero_grad()
    loss.backward()
    if step in (124, 135, 186):
        try:
            loss.backward()
        except RuntimeError:
            pass
    sgd.step()
""",
    "a_scaler": """
scaler = torch.amp.GradScaler("cpu")
for step in range(240):
    rows = some()
    loss = F.cross_entropy(net(x[rows]), y[rows])
    if step < 121:
        learn(sgd, loss)
        continue
    sgd.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(sgd)
    scaler.update()
""",
    "numbers_that_are_lost_within_the_model": """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.by = nn.Linear(8, 16), nn.Linear(16, 3), 1.0
    def forward(self, given):
        return self.head(torch.relu(self.body(given)) * self.by)
net = Scaled()
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(200):
    rows = some()
    aside = net.head(torch.randn(16, 16))
    if step == 134:
        net.by = float("inf")
    learn(sgd, aside.pow(2).mean() + F.cross_entropy(net(x[rows]), y[rows]))
""",
    "data_by_name": WITH_TWO_INPUTS.replace("CALL", "second=second, first=first"),
    "data_in_the_second_place": WITH_TWO_INPUTS.replace("CALL", "first, second"),
}

# each: the fault, and a training that shows it only when most steps are only counted
LATE = {
    "validation_in_training_mode": (
        "train_mode_in_validation",
        """
for step in range(300):
    usual()
    if step >= 80 and step % 40 == 0:
        with torch.no_grad():
            for part in range(3):
                net(x[part::3])
""",
    ),
    "the_same_over_a_loader": (
        "train_mode_in_validation",
        """
for step in range(300):
    usual()
    if step in (117, 217):
        for a, b in DataLoader(TensorDataset(x, y), 64):
            F.cross_entropy(net(a), b).item()
""",
    ),
    "validation_that_keeps_graphs": (
        "gradients_in_validation",
        """
for step in range(400):
    usual()
    if step >= 80 and step % 40 == 0:
        for part in range(3):
            net(x[part::3])
""",
    ),
    "evaluation_mode_stays_on": (
        "eval_mode_in_training",
        "for step in range(300):\n    usual()\n    if step == 120:\n        net.eval()\n",
    ),
    "a_second_stage_that_clears_nothing": (
        "missing_zero_grad",
        """
for step in range(120):
    usual()
late = torch.optim.SGD(net.parameters(), 1e-5)
for step in range(120):
    rows = some()
    F.cross_entropy(net(x[rows]), y[rows]).backward()
    late.step()
""",
    ),
    "validation_in_one_call_with_a_graph": (
        "gradients_in_validation",
        """
for step in range(700):
    usual()
    if step % 137 == 136:
        net(x)
""",
    ),
    "losses_that_are_kept": (
        "graph_retained",
        """
kept = []
for step in range(280):
    rows = some()
    loss = F.cross_entropy(net(x[rows]), y[rows])
    learn(sgd, loss)
    if step >= 110:
        kept.append(loss)
""",
    ),
    "outputs_that_are_kept": (
        "graph_retained",
        """
kept = []
for step in range(280):
    rows = some()
    out = net(x[rows])
    learn(sgd, F.cross_entropy(out, y[rows]))
    if step >= 110:
        kept.append(out)
""",
    ),
    "a_loss_of_every_hundredth_step": (
        "target_broadcast",
        """
head = nn.Linear(3, 1)
both = torch.optim.SGD([*net.parameters(), *head.parameters()], 1e-2)
for step in range(420):
    rows = some()
    out = net(x[rows])
    loss = F.cross_entropy(out, y[rows])
    if step % 100 == 99:
        loss = loss + 0.1 * F.mse_loss(head(out), x[rows, 0])
    learn(both, loss)
""",
    ),
    "accumulation_that_is_not_divided": (
        "accumulation_unscaled",
        """
for step in range(200):
    rows = [some() for _ in range(4)]
    learn(sgd, *(F.cross_entropy(net(x[r]), y[r]) for r in rows))
""",
    ),
}


def told(report: WatchReport) -> list[tuple[str, str]]:
    """Return the answer of each detector."""
    return sorted((one.check, one.outcome.value) for one in report.findings)


@pytest.mark.parametrize("name", TRAININGS)
def test_findings_are_the_same_as_if_all_steps_were_followed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    code, may_rest = TRAININGS[name]
    report = require_alike(watched, monkeypatch, code)
    assert (report.facts[COUNTED] > 0) is may_rest
    assert not [one for one in report.findings if one.outcome.value in ("failed", "warned")]


@pytest.mark.parametrize("name", LATE_AND_ALIKE)
def test_late_events_are_reported_in_the_same_way(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    report = require_alike(watched, monkeypatch, LATE_AND_ALIKE[name])
    assert report.facts[COUNTED] > 0
    at_fault = {one.fault for one in report.findings}
    assert ("not_finite_data" in at_fault) is name.startswith("data")


def require_alike(watched: Watched, monkeypatch: pytest.MonkeyPatch, code: str) -> WatchReport:
    """Watch a training with and without following all steps; return the findings of the former."""
    report = watched(START + code)
    assert report.watcher_error is None
    monkeypatch.setattr(Rest, "_is_usual", lambda _: False)
    followed = watched(START + code)
    assert followed.facts[COUNTED] == 0
    assert told(report) == told(followed)
    assert report.num_steps == followed.num_steps
    assert report.facts["num_backwards"] == followed.facts["num_backwards"]
    assert report.loss_steps == followed.loss_steps
    assert report.loss_values == pytest.approx(followed.loss_values, nan_ok=True, rel=0, abs=0)
    return report


@pytest.mark.parametrize("name", LATE)
def test_a_fault_that_shows_late_is_found(watched: Watched, name: str) -> None:
    fault, code = LATE[name]
    report = watched(START + code)
    assert fault in {one.fault for one in report.findings}
    if name != "evaluation_mode_stays_on":
        assert report.facts[COUNTED] > 0


def test_a_loss_that_is_lost_while_steps_are_only_counted_is_reported_with_its_step(
    watched: Watched,
) -> None:
    code = """
for step in range(200):
    rows = some()
    batch = x[rows]
    if step == 134:
        batch[0, 0] = float("nan")
    learn(sgd, F.cross_entropy(net(batch), y[rows]))
"""
    report = watched(START + code)
    found = next(one for one in report.findings if one.fault == "not_finite_data")
    assert "step 134" in found.evidence
    assert report.facts[COUNTED] > 50


def test_a_model_that_is_called_in_evaluation_mode_wakes() -> None:
    from torch import nn

    seen = Seen()
    rest, module = Rest(seen), nn.Linear(2, 2)
    for seen.num_steps in range(1, 80):
        rest.lets_pass(module)
        rest.step_ended(is_close=False)
    assert rest.is_on
    assert rest.lets_pass(module)
    assert not rest.lets_pass(module.eval())
    assert not rest.is_on


def test_a_rest_ends_at_a_sampled_step() -> None:
    seen = Seen()
    rest = Rest(seen)
    for seen.num_steps in range(1, 70):
        rest.step_ended(is_close=False)
    assert rest.is_on
    seen.num_steps = 70
    rest.step_ended(is_close=True)
    assert not rest.is_on
    seen.num_steps = 71
    rest.step_ended(is_close=False)
    assert rest.is_on


def test_what_comes_in_every_step_ends_resting_for_long() -> None:
    seen = Seen()
    rest = Rest(seen)
    for seen.num_steps in range(1, 400):
        rest.step_ended(is_close=False)
        if seen.num_steps > 100:
            rest.wake()
    assert rest.num_steps < 60


def test_the_parts_of_steps_that_were_not_timed_are_those_of_the_others() -> None:
    phases = counting()
    for number in range(10):
        phases.is_sampling = number < 4
        phases.add(FORWARD, 2.0)
        phases.add(BACKWARD, 3.0)
        phases.add(CHECKPOINT, 1.0)
        phases.step_ended()
    assert phases.num_steps == 10
    assert phases.whole_s(FORWARD) == pytest.approx(20.0)
    assert phases.whole_s(BACKWARD) == pytest.approx(30.0)
    assert phases.whole_s(CHECKPOINT) == pytest.approx(10.0)


def test_steps_at_round_numbers_represent_only_themselves() -> None:
    phases = counting()
    for number in range(100):
        phases.is_own = number % 10 == 0
        phases.is_sampling = number % 50 < 14
        phases.add(FORWARD, 9.0 if number % 50 == 0 else 1.0)
        phases.step_ended()
    assert phases.whole_s(FORWARD) == pytest.approx(2 * 9.0 + 98.0)


def test_a_range_of_steps_represents_only_itself() -> None:
    phases = counting()
    for number in range(150):
        phases.is_sampling = number < 50 or number % 50 < 10
        phases.add(BACKWARD, 1.0 if number < 50 else 5.0)
        phases.step_ended()
    assert phases.whole_s(BACKWARD) == pytest.approx(50 + 500.0)


def test_an_open_validation_ends_where_steps_are_only_counted() -> None:
    phases = counting()
    phases.open_validation()
    phases.still_validation()
    phases.pause()
    taken = phases.whole_s(VALIDATION)
    time.sleep(0.01)
    phases.close_validation()
    assert taken > 0
    assert phases.whole_s(VALIDATION) == taken


def counting() -> Phases:
    """Return phases after their first, discarded steps."""
    phases = Phases()
    for _ in range(3):
        phases.step_ended()
    return phases
