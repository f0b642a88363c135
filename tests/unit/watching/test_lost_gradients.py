"""Gradients that are cleared between the backwards of one step, and what only looks like that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport
from stepladder.watching.hooks import patches

Watched = Callable[..., WatchReport]
NAME = "zero_grad_before_step"


@pytest.fixture(autouse=True)
def _time_for_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher sample whenever it wants, so that its coverage is the same on any machine."""
    monkeypatch.setattr(patches, "_FIRST_S", 60.0)


START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(352, 8)
y = x[:, :3].argmax(1)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
loader = DataLoader(TensorDataset(x[:320], y[:320]), 16, shuffle=True)
"""

ACCUMULATED = """
for epoch in range(6):
    for i, (a, b) in enumerate(loader):
        CLEAR
        loss = F.cross_entropy(net(a), b) / 4
        loss.backward()
        if (i + 1) % 4 == 0:
            sgd.step()
"""

CLEARED = {
    "by_the_optimizer": "sgd.zero_grad()",
    "by_the_model": "net.zero_grad()",
    "to_zeros": "sgd.zero_grad(set_to_none=False)",
    "by_hand": "for p in net.parameters(): p.grad = None",
    "by_hand_to_zeros": "[p.grad.zero_() for p in net.parameters() if p.grad is not None]",
    "uncounted": "[p.grad.data.zero_() for p in net.parameters() if p.grad is not None]",
}

# each takes gradients twice in a step, or clears some, on purpose
SOUND = {
    "twice_in_a_row": ACCUMULATED.replace(
        "        CLEAR\n",
        "        if i % 4 == 0:\n            sgd.zero_grad()\n"
        "            sgd.zero_grad()\n            net.zero_grad()\n",
    ),
    "a_generator_and_its_discriminator": """
noise = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
for_noise = torch.optim.Adam(noise.parameters(), 1e-3)
for_critic = torch.optim.Adam(critic.parameters(), 1e-3)
for epoch in range(3):
    for real, _ in loader:
        fake = noise(torch.randn(len(real), 4))
        for_critic.zero_grad()
        F.softplus(-critic(real)).mean().backward()
        F.softplus(critic(fake.detach())).mean().backward()
        for_critic.step()
        for_noise.zero_grad()
        F.softplus(-critic(fake)).mean().backward()
        for_noise.step()
""",
    "a_generator_whose_step_comes_last": """
noise = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
for_noise = torch.optim.Adam(noise.parameters(), 1e-3)
for_critic = torch.optim.Adam(critic.parameters(), 1e-3)
for epoch in range(3):
    for real, _ in loader:
        fake = noise(torch.randn(len(real), 4))
        for_noise.zero_grad()
        F.softplus(-critic(fake)).mean().backward()
        for_critic.zero_grad()
        F.softplus(-critic(real)).mean().backward()
        F.softplus(critic(fake.detach())).mean().backward()
        for_noise.step()
        for_critic.step()
""",
    "a_gradient_penalty": """
critic = nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 1))
adam = torch.optim.Adam(critic.parameters(), 1e-3)
for epoch in range(3):
    for real, _ in loader:
        adam.zero_grad()
        real.requires_grad_()
        scores = critic(real)
        (slope,) = torch.autograd.grad(scores.sum(), real, create_graph=True)
        (F.softplus(-scores).mean() + slope.square().sum(1).mean()).backward()
        adam.step()
""",
    "attacked_inputs": """
for step in range(60):
    rows = torch.randint(320, (16,))
    shift = torch.zeros(16, 8, requires_grad=True)
    F.cross_entropy(net(x[rows] + shift), y[rows]).backward()
    sgd.zero_grad()
    F.cross_entropy(net(x[rows] + 0.1 * shift.grad.sign()), y[rows]).backward()
    sgd.step()
""",
    "gradients_combined_by_hand": """
for epoch in range(6):
    batches = iter(loader)
    for first, second in zip(batches, batches):
        kept = []
        for a, b in (first, second):
            sgd.zero_grad()
            F.cross_entropy(net(a), b).backward()
            kept.append([p.grad.clone() for p in net.parameters()])
        for p, one, other in zip(net.parameters(), *kept):
            p.grad.copy_((one + other) / 2)
        sgd.step()
""",
    "an_inner_step_by_hand": """
for epoch in range(6):
    batches = iter(loader)
    for (a, b), (c, d) in zip(batches, batches):
        F.cross_entropy(net(a), b).backward()
        for p in net.parameters():
            p.data.sub_(0.01 * p.grad)
        sgd.zero_grad()
        F.cross_entropy(net(c), d).backward()
        sgd.step()
        sgd.zero_grad()
""",
    "losses_that_are_not_finite_are_skipped": """
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        sgd.zero_grad()
        loss = F.cross_entropy(net(a), b) * (float("inf") if i % 5 == 0 else 1.0)
        loss.backward()
        if torch.isfinite(loss):
            sgd.step()
""",
    "steps_that_a_scaler_skips": """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=10**6)
for epoch in range(3):
    for a, b in loader:
        sgd.zero_grad()
        loss = F.cross_entropy(net(a), b)
        scaler.scale(loss * 1e3 if scaler.get_scale() > 2.0**100 else loss).backward()
        scaler.step(sgd)
        scaler.update()
""",
    "fisher_information_after_training": """
for epoch in range(2):
    for a, b in loader:
        sgd.zero_grad()
        F.cross_entropy(net(a), b).backward()
        sgd.step()
for a, b in loader:
    net.zero_grad()
    F.cross_entropy(net(a), b).backward()
sgd.zero_grad()
""",
}


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == NAME]
    return one


@pytest.mark.parametrize("how", CLEARED)
@pytest.mark.parametrize("has_loader", [True, False])
def test_gradients_that_are_cleared_between_backwards_are_counted(
    how: str, has_loader: bool, watched: Watched
) -> None:
    code = START + ACCUMULATED.replace("CLEAR", CLEARED[how])
    if not has_loader:
        code = code.replace("enumerate(loader)", "enumerate(zip(x.split(16), y.split(16)))")
        code = code.replace("x = torch.randn(352, 8)", "x = torch.randn(320, 8)")
    report = watched(code)
    one = found(report)
    assert one.outcome is Outcome.FAILED, one.evidence
    assert (one.numbers["num_lost"], one.numbers["num_backwards"]) == (3, 4)
    assert "3 of 4 gradients never reach a step" in one.evidence
    assert NAME in [alarm.fault for alarm in report.alarms]
    assert one.where is not None


def test_the_line_that_clears_is_named(watched: Watched) -> None:
    code = START + ACCUMULATED.replace("CLEAR", "sgd.zero_grad()")
    line = code.splitlines().index("        sgd.zero_grad()") + 1
    assert found(watched(code)).where == f"snippet.py:{line}"


def test_an_undivided_loss_is_not_blamed_if_only_one_gradient_arrives(watched: Watched) -> None:
    code = START + ACCUMULATED.replace("CLEAR", "sgd.zero_grad()").replace(" / 4", "")
    assert [alarm.fault for alarm in watched(code).alarms] == [NAME]


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.filterwarnings("ignore")
def test_gradients_taken_for_another_purpose_are_not_lost(name: str, watched: Watched) -> None:
    one = found(watched(START + SOUND[name]))
    assert one.fault is None, one.evidence


@pytest.mark.parametrize(
    ("num", "outcome"),
    [(320, None), (352, Outcome.WARNED), (320 + 16 * 61, Outcome.PASSED)],
)
def test_the_last_batches_of_epochs_are_a_warning_with_their_share(
    num: int, outcome: Outcome | None, watched: Watched
) -> None:
    code = START.replace("x[:320], y[:320]", f"x[:{num}], y[:{num}]").replace(
        "randn(352", f"randn({max(352, num)}"
    ) + ACCUMULATED.replace("CLEAR", "sgd.zero_grad() if i % 4 == 0 else None")
    one = found(watched(code))
    if outcome is None:
        assert one.fault is None, one.evidence
        return
    lost = num // 16 % 4
    assert one.fault == NAME, one.evidence
    assert one.outcome is outcome
    assert one.numbers["num_lost"] == lost * 5  # those of the last epoch are not cleared
    assert one.numbers["share"] == pytest.approx(lost * 5 / (6 * (num // 16)))


def test_comparing_gradients_changes_no_result(watched: Watched) -> None:
    code = START + ACCUMULATED.replace("CLEAR", "sgd.zero_grad()")
    code += "torch.save([net.state_dict(), torch.rand(4)], 'end.pt')\n"
    assert found(watched(code)).fault == NAME
    first = torch.load("end.pt")
    exec(compile(code, "snippet.py", "exec"), {"__name__": "__main__"})
    second = torch.load("end.pt")
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
    assert torch.equal(first[1], second[1])
