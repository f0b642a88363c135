"""Sound programs that look faulty, faulty ones that look sound, and both written by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stepladder.records.watch import WatchReport
from stepladder.watching.hooks import patches
from stepladder.watching.hooks.steps.backwards import Waiting, follow_graph

Watched = Callable[..., WatchReport]


@pytest.fixture(autouse=True)
def _time_for_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the watcher sample whenever it wants, so that its coverage is the same on any machine."""
    monkeypatch.setattr(patches, "_FIRST_S", 60.0)


START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
slow = torch.optim.SGD(net.parameters(), 1e-4)
def learn(loss, *optimizers):
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
def some(n=32):
    return torch.randint(320, (n,))
def train(model, num, *optimizers):
    optimizers = optimizers or (torch.optim.SGD(model.parameters(), 1e-2),)
    for step in range(num):
        rows = some()
        learn(F.cross_entropy(model(x[rows]), y[rows]), *optimizers)
def epoch_of(model, optimizer, size=32):
    for rows in torch.randperm(256).split(size):
        learn(F.cross_entropy(model(x[rows]), y[rows]), optimizer)
"""

# each: the fault, the sound program, and the change that makes it faulty
PAIRS = {
    "an_init_that_seeds_nothing": (
        "same_draws_in_workers",
        """
import numpy as np
from torch.utils.data import get_worker_info
class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)
    def __len__(self):
        return 320
    def __getitem__(self, i):
        return x[i] + float(self.rng.normal()), y[i]
def init(number):
    torch.set_num_threads(1)
    get_worker_info().dataset.rng = np.random.default_rng(number)
for epoch in range(2):
    for a, b in DataLoader(Noisy(), 64, shuffle=True, num_workers=2, worker_init_fn=init):
        learn(F.cross_entropy(net(a), b), sgd)
""",
        ("    get_worker_info().dataset.rng = np.random.default_rng(number)\n", ""),
    ),
    "parts_of_the_loss_are_added_up": (
        "graph_retained",
        """
total = 0.0
for step in range(60):
    rows = some()
    fit = F.cross_entropy(net(x[rows]), y[rows])
    size = sum(p.square().sum() for p in net.parameters())
    learn(fit + 1e-4 * size, sgd)
    total = total + fit.item()
""",
        ("fit.item()", "fit"),
    ),
    "micro_batches_in_a_closure": (
        "accumulation_unscaled",
        """
for step in range(40):
    parts = some().split(8)
    def closure():
        sgd.zero_grad()
        for rows in parts:
            loss = F.cross_entropy(net(x[rows]), y[rows]) / len(parts)
            loss.backward()
    sgd.step(closure)
""",
        (" / len(parts)", ""),
    ),
    "a_generator_that_is_there_already": (
        "same_draws_in_workers",
        """
import numpy as np
from torch.utils.data import get_worker_info
class Noisy(Dataset):
    def __init__(self):
        self.rng = None
    def __len__(self):
        return 320
    def __getitem__(self, i):
        if self.rng is None:
            self.rng = np.random.default_rng(get_worker_info().seed)
        return x[i] + float(self.rng.normal()), y[i]
for epoch in range(2):
    for a, b in DataLoader(Noisy(), 64, shuffle=True, num_workers=2):
        learn(F.cross_entropy(net(a), b), sgd)
""",
        (
            "        self.rng = None\n    def __len__",
            "        self.rng = np.random.default_rng(0)\n    def __len__",
        ),
    ),
    "votes_of_several_heads": (
        "softmax_before_loss",
        """
heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(3))
sgd = torch.optim.SGD(heads.parameters(), 1e-2)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
for step in range(40):
    rows = some()
    learn(criterion(torch.stack([head(x[rows]) for head in heads]).mean(0), y[rows]), sgd)
""",
        ("[head(x[rows])", "[head(x[rows]).softmax(-1)"),
    ),
    "the_schedule_of_another": (
        "schedule_misused",
        """
first = torch.optim.Adam(net.parameters(), 1e-3)
def epoch(optimizer):
    epoch_of(net, optimizer)
epoch(first)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=10)
for _ in range(10):
    epoch(sgd)
    schedule.step()
""",
        ("CosineAnnealingLR(sgd,", "CosineAnnealingLR(first,"),
    ),
    "an_average_is_validated": (
        "train_mode_in_validation",
        """
import copy
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
average = copy.deepcopy(model).requires_grad_(False)
sgd = torch.optim.SGD(model.parameters(), 1e-2)
train = DataLoader(TensorDataset(x[:256], y[:256]), 32, shuffle=True)
held = DataLoader(TensorDataset(x[256:], y[256:]), 32)
for epoch in range(3):
    for a, b in train:
        learn(F.cross_entropy(model(a), b), sgd)
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters()):
                mine.lerp_(theirs, 0.1)
            for mine, theirs in zip(average.buffers(), model.buffers()):
                mine.copy_(theirs)
    average.eval()
    with torch.no_grad():
        for a, b in held:
            average(a)
""",
        ("average.eval()", "model.train()"),
    ),
    "chunks_of_batches_and_two_losses": (
        "accumulation_unscaled",
        """
def both(a, b):
    scores = net(a)
    return F.cross_entropy(scores, b) + F.mse_loss(scores.mean(1), a[:, 0])
for step in range(60):
    rows = some()
    for mine, theirs in zip(x[rows].chunk(4), y[rows].chunk(4)):
        loss = both(mine, theirs) / 4
        loss.backward()
    sgd.step()
    sgd.zero_grad()
""",
        ("both(mine, theirs) / 4", "both(mine, theirs)"),
    ),
    "the_copy_is_trained": (
        "parameters_never_step",
        """
import copy
old = copy.deepcopy(net)
for step in range(10):
    rows = some()
    net.zero_grad()
    F.cross_entropy(net(x[rows]), y[rows]).backward()
    sgd.step()
net.load_state_dict(old.state_dict())
for step in range(140):
    rows = some()
    net.zero_grad()
    F.cross_entropy(net(x[rows]), y[rows]).backward()
    sgd.step()
""",
        ("net.load_state_dict(old.state_dict())", "net = old"),
    ),
    "own_optimizer_climbs": (
        "loss_maximised",
        """
class Own(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad / (p.grad.norm() + 1e-6), alpha=group["lr"])
own = Own(net.parameters(), 3e-3)
train(net, 60, own)
""",
        ("p.sub_(", "p.add_("),
    ),
    "the_schedule_steps_with_held_out_batches": (
        "schedule_misused",
        """
schedule = torch.optim.lr_scheduler.ExponentialLR(sgd, 0.9)
for epoch in range(4):
    epoch_of(net, sgd)
    with torch.no_grad():
        for rows in torch.arange(256, 320).split(16):
            net(x[rows])
    schedule.step()
""",
        ("    schedule.step()", "            schedule.step()"),
    ),
    "norms_among_the_decayed": (
        "decay_on_norms_and_biases",
        """
net = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))
def is_spared(name, p):
    return p.dim() <= 1
own, spared = [], []
for name, p in net.named_parameters():
    (spared if is_spared(name, p) else own).append(p)
groups = [{"params": own, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}]
adam = torch.optim.AdamW(groups, 1e-3)
train(net, 40, adam)
""",
        ("return p.dim() <= 1", "return name.endswith('bias')"),
    ),
    "own_layers_begin_alike": (
        "bad_initialisation",
        """
class Dense(nn.Module):
    def __init__(self, num_in, num_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_in, num_out) / num_in ** 0.5)
    def forward(self, a):
        return F.dropout(a @ self.weight, 0.2, self.training)
model = nn.Sequential(Dense(8, 16), nn.ReLU(), Dense(16, 3))
train(model, 40)
""",
        ("torch.randn(num_in, num_out) / num_in ** 0.5", "torch.full((num_in, num_out), 0.1)"),
    ),
    "dropout_that_is_not_told_the_mode": (
        "train_mode_in_validation",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.p = nn.Linear(8, 32), nn.Linear(32, 3), 0.2
    def forward(self, x):
        return self.b(F.dropout(F.relu(self.a(x)), self.p, training=self.training))
model = Net()
sgd = torch.optim.SGD(model.parameters(), 1e-2)
for epoch in range(3):
    model.train()
    epoch_of(model, sgd)
    model.eval()
    with torch.no_grad():
        model(x[256:])
""",
        ("self.p, training=self.training", "self.p"),
    ),
    "batches_held_out_without_a_loader": (
        "gradients_in_validation",
        """
def right(rows):
    return (net(x[rows]).argmax(1) == y[rows]).float().mean().item()
for epoch in range(3):
    epoch_of(net, sgd)
    with torch.no_grad():
        print(sum(right(rows) for rows in torch.arange(256, 320).split(16)))
""",
        ("    with torch.no_grad():\n        print", "    print"),
    ),
    "matrices_of_ones": (
        "bad_initialisation",
        """
class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 8, 6))
        self.scale = nn.Parameter(torch.ones(1, 6))
        self.grid = nn.Parameter(torch.ones(3, 6))
        self.out = nn.Linear(6, 3)
    def forward(self, a):
        mixed = torch.einsum("ni,kij->nkj", a, self.table).tanh() * self.grid
        return self.out(mixed.sum(1) * self.scale)
model = Mix()
train(model, 40)
""",
        ("torch.randn(3, 8, 6)", "torch.full((3, 8, 6), 0.3)"),
    ),
    "whitened_in_the_model_too": (
        "double_normalisation",
        """
mean, std = torch.tensor([0.5, 0.4, 0.6]).view(3, 1, 1), torch.full((3, 1, 1), 0.1)
raw = (mean + std * torch.randn(64, 3, 8, 8)).clamp(0, 1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)
    def forward(self, a):
        return self.out(self.conv((a - mean) / std).relu().mean((2, 3)))
model, labels = Net(), torch.arange(64) % 3
sgd = torch.optim.SGD(model.parameters(), 1e-3)
for step in range(40):
    rows = torch.randint(64, (16,))
    learn(F.cross_entropy(model(raw[rows]), labels[rows]), sgd)
""",
        ("model(raw[rows])", "model(((raw - mean) / std)[rows])"),
    ),
    "one_row_kept_for_many": (
        "duplicated_inputs",
        """
class Signals(Dataset):
    def __init__(self):
        rows = []
        for i in range(240):
            room = torch.empty(20) if i % 8 == 0 else room
            rows.append(room.normal_().clone())
        self.data = torch.stack(rows).numpy()
    def __len__(self):
        return len(self.data)
    def __getitem__(self, i):
        return self.data[i], i % 3
model = nn.Linear(20, 3)
sgd = torch.optim.SGD(model.parameters(), 1e-2)
for epoch in range(2):
    for a, b in DataLoader(Signals(), 8, shuffle=True):
        learn(F.cross_entropy(model(a), b), sgd)
""",
        (".clone()", ""),
    ),
    "labels_as_an_index": (
        "label_range",
        """
for step in range(60):
    rows = some()
    scores = F.log_softmax(net(x[rows]), -1)
    target = y[rows]
    learn(-scores[torch.arange(32), target].mean(), sgd)
""",
        ("target = y[rows]", "target = y[rows] - 1"),
    ),
    "labels_weighed_and_gathered": (
        "loss_reduction_mismatch",
        """
for step in range(40):
    rows = some()
    picked = net(x[rows]).log_softmax(1).gather(1, y[rows, None])
    weights = torch.tensor([1.0, 1.2, 0.8])[y[rows], None]
    learn((weights * -picked * (1 - picked.exp()) ** 2).mean(), sgd)
""",
        ("** 2).mean()", "** 2).sum() * 0.5"),
    ),
    "rows_in_an_order_of_their_own": (
        "no_shuffle",
        """
for epoch in range(8):
    order = torch.randperm(320)
    for rows in order.split(16):
        learn(F.cross_entropy(net(x[rows]), y[rows]), sgd)
""",
        ("torch.randperm(320)", "torch.arange(320).flip(0)"),
    ),
    "two_optimizers": (
        "parameters_never_step",
        """
body, head = nn.Linear(8, 16), nn.Linear(16, 3)
first = torch.optim.SGD(body.parameters(), 1e-2)
second = torch.optim.SGD(head.parameters(), 1e-2)
for step in range(60):
    rows = some()
    loss = F.cross_entropy(head(body(x[rows]).relu()), y[rows])
    learn(loss, first, second)
""",
        ("learn(loss, first, second)", "first.zero_grad(), learn(loss, second)"),
    ),
    "time_comes_first": (
        "softmax_wrong_dim",
        """
data, tags = torch.randn(64, 9, 8), torch.randint(3, (64, 9))
for step in range(40):
    rows = torch.randint(64, (16,))
    scores = net(data[rows].transpose(0, 1)).log_softmax(2)
    learn(F.nll_loss(scores.flatten(0, 1), tags[rows].t().flatten()), sgd)
""",
        ("log_softmax(2)", "log_softmax(1)"),
    ),
    "errors_that_part_and_meet": (
        "target_broadcast",
        """
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
adam = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(40):
    rows = some()
    error = model(x[rows])[:, 0] - x[rows, 0]
    size = error.abs()
    learn(torch.where(size < 1, 0.5 * error**2, size - 0.5).mean(), adam)
""",
        ("model(x[rows])[:, 0]", "model(x[rows])"),
    ),
}

SOUND = {
    "gradients_of_a_copy_that_is_not_trained": """
import copy
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
def task():
    for step in range(50):
        rows = some()
        learn(F.cross_entropy(net(x[rows]), y[rows]), sgd)
task()
old = copy.deepcopy(net)
for row in range(20):
    old.zero_grad()
    F.cross_entropy(old(x[row : row + 1]), y[row : row + 1]).backward()
task()
for row in range(20):
    old.zero_grad()
    F.cross_entropy(old(x[row : row + 1]), y[row : row + 1]).backward()
""",
    "validation_that_fails_once": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 32), nn.Linear(32, 3)
    def forward(self, x):
        h = F.relu(self.a(x))
        if not self.training and len(x) < 8:
            raise ValueError("a short batch")
        return self.b(F.dropout(h, 0.2, training=self.training))
net = Net()
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for epoch in range(3):
    net.train()
    epoch_of(net, sgd)
    net.eval()
    with torch.no_grad():
        try:
            net(x[:4])
        except ValueError:
            net(x[256:])
assert F.dropout.__module__ == "torch.nn.functional" and not hasattr(F.dropout, "__wrapped__")
""",
    "pairs_of_views_some_left_out": """
for step in range(80):
    rows = some()
    first, second = net(x[rows]), net(x[rows] + 0.1)
    if step in (17, 29, 60):
        continue
    learn((first - second).square().mean() + F.cross_entropy(first, y[rows]), sgd)
""",
    "an_actor_that_waits_for_its_critic": """
actor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
slow, sgd = torch.optim.SGD(actor.parameters(), 1e-3), torch.optim.SGD(critic.parameters(), 1e-2)
for episode in range(3):
    logs = []
    for step in range(40):
        state = x[some(1)]
        logs.append(actor(state).log_softmax(1)[:, 0])
        learn((critic(state) - 1).square().mean(), sgd)
    learn(-torch.stack(logs).mean(), slow)
""",
    "complex_weights_and_odd_answers": """
class Odd:
    def __init__(self, out):
        self.out = out
    def values(self, name):
        return self.out
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wave = nn.Parameter(torch.full((8, 5), 1 + 1j))
        self.out = nn.Linear(5, 3)
    def forward(self, a):
        return Odd(self.out((a.to(torch.cfloat) @ self.wave).abs()))
net = Net()
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(40):
    rows = some()
    learn(F.cross_entropy(net(x[rows]).values("out"), y[rows]), sgd)
""",
    "a_learned_average": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.full((32, 32), 1 / 32))
        self.out = nn.Linear(8, 3)
    def forward(self, a):
        return self.out(a) + self.mix @ self.out(a)
net = Net()
train(net, 60)
""",
    "the_first_model_is_kept": """
import copy
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
def epochs(model, optimizer, num):
    for epoch in range(num):
        model.train()
        epoch_of(model, optimizer, 16)
        model.eval()
        with torch.no_grad():
            model(x[256:])
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
epochs(net, optimizer, 2)
first = net
net = copy.deepcopy(first)
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
epochs(net, optimizer, 6)
with torch.no_grad():
    first.eval()(x[256:])
""",
    "functions_that_a_model_keeps_are_saved": """
import io
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.drop = nn.Linear(8, 3), F.dropout
        self.attend, self.loss = F.scaled_dot_product_attention, F.cross_entropy
    def forward(self, a):
        a = a.unsqueeze(1)
        return self.out(self.drop(self.attend(a, a, a), 0.1, training=self.training)[:, 0])
net = Net()
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(40):
    rows = some()
    learn(net.loss(net(x[rows]), y[rows]), sgd)
file = io.BytesIO()
torch.save([net.drop, net.attend, net.loss], file)
assert len(torch.load(io.BytesIO(file.getvalue()), weights_only=False)) == 3
""",
    "an_optimizer_with_copies_of_its_own": """
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
masters = [p.detach().clone() for p in net.parameters()]
sgd = torch.optim.SGD([nn.Parameter(master) for master in masters], 1e-2)
masters = sgd.param_groups[0]["params"]
for step in range(80):
    rows = some()
    net.zero_grad()
    F.cross_entropy(net(x[rows]), y[rows]).backward()
    for master, p in zip(masters, net.parameters()):
        master.grad = p.grad.clone()
    sgd.step()
    for master, p in zip(masters, net.parameters()):
        p.data.copy_(master.data)
""",
    "weights_that_join_later": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Linear(8, 32), nn.Linear(32, 3)
    def forward(self, a):
        return self.head(F.relu(self.trunk(a)))
net = Net()
net.trunk.requires_grad_(False)
sgd = torch.optim.SGD(net.head.parameters(), 1e-2)
for step in range(80):
    if step == 31:
        net.trunk.requires_grad_(True)
        sgd.add_param_group({"params": list(net.trunk.parameters()), "lr": 1e-3})
    rows = some()
    learn(F.cross_entropy(net(x[rows]), y[rows]), sgd)
""",
    "members_summed_each_with_a_mean": """
members = nn.ModuleList(nn.Linear(8, 1) for _ in range(5))
class All(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = members
    def forward(self, a):
        return torch.stack([member(a).squeeze(1) for member in self.members])
model = All()
sgd = torch.optim.SGD(model.parameters(), 1e-2)
for step in range(40):
    rows = some()
    learn((model(x[rows]) - x[rows][:, 0]).square().mean(1).sum(), sgd)
""",
    "one_schedule_after_another": """
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
warm, fall = LinearLR(sgd, 0.1, total_iters=10), CosineAnnealingLR(sgd, T_max=30)
schedule = SequentialLR(sgd, [warm, fall], milestones=[10])
for step in range(40):
    train(net, 1, sgd)
    schedule.step()
""",
    "one_model_after_another": """
def session():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    sgd = torch.optim.SGD(model.parameters(), 1e-2)
    for epoch in range(4):
        epoch_of(model, sgd, 16)
        model.eval()
        with torch.no_grad():
            model(x[256:])
        model.train()
session()
session()
""",
    "chunks_of_batches": """
for step in range(80):
    rows = some()
    for mine, theirs in zip(x[rows].chunk(4), y[rows].chunk(4)):
        (F.cross_entropy(net(mine), theirs) / 4).backward()
    sgd.step()
    sgd.zero_grad()
""",
    "the_model_gives_its_loss": """
class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    def forward(self, a, b):
        return F.cross_entropy(self.net(a), b)
model = Whole()
sgd = torch.optim.SGD(model.parameters(), 1e-2)
for step in range(300):
    rows = some()
    learn(model(x[rows], y[rows]), sgd)
""",
    "bad_batches_are_left_out": """
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(80):
    rows = some()
    loss = F.cross_entropy(net(x[rows]), y[rows])
    if step in (17, 29, 60):
        continue
    learn(loss, sgd)
""",
    "acts_before_it_learns": """
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(60):
    action = net(x[:1]).argmax(1).item()
    rows = some()
    learn(F.cross_entropy(net(x[rows]), y[rows]), sgd)
""",
    "sharpness_once_in_a_while": """
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(80):
    if step % 20 == 19:
        for rows in (x[:32], x[32:64]):
            loss = F.cross_entropy(net(rows), y[:32])
            norm = torch.autograd.grad(loss, list(net.parameters()))[0].norm().item()
            del loss
    rows = some()
    learn(F.cross_entropy(net(x[rows]), y[rows]), sgd)
""",
    "advantages_are_no_mean": """
for step in range(40):
    chosen = net(x[some()]).log_softmax(1).gather(1, torch.randint(3, (32, 1)))
    learn(-(chosen * torch.randn(32, 1)).sum() * 1e-2, sgd)
""",
    "returns_are_no_mean_either": """
for step in range(40):
    chosen = net(x[some()]).log_softmax(1)[torch.arange(32), torch.randint(3, (32,))]
    learn(-chosen.sum() * (0.5 + torch.rand(()).item()), slow)
""",
    "padding_is_the_last_index_and_masked": """
for step in range(60):
    rows = some()
    target = torch.where(torch.rand(32) < 0.2, -1, y[rows])
    picked = F.log_softmax(net(x[rows]), -1)[torch.arange(32), target]
    learn(-(picked * (target >= 0)).mean(), sgd)
""",
    "the_whole_set_four_times": """
data = TensorDataset(torch.randn(80, 20).repeat(4, 1), torch.arange(320) % 3)
model = nn.Linear(20, 3)
sgd = torch.optim.SGD(model.parameters(), 1e-2)
for a, b in DataLoader(data, 8, shuffle=True):
    learn(F.cross_entropy(model(a), b), sgd)
""",
    "one_batch_again_and_again": """
for step in range(80):
    learn(F.cross_entropy(net(x), y), sgd)
""",
    "the_second_one_comes_later": """
body, head = nn.Linear(8, 16), nn.Linear(16, 3)
first = torch.optim.SGD(body.parameters(), 1e-2)
second = torch.optim.SGD(head.parameters(), 1e-2)
for step in range(160):
    rows = some()
    body.zero_grad(), head.zero_grad()
    loss = F.cross_entropy(head(body(x[rows]).relu()), y[rows])
    learn(loss, second if step < 100 else first)
""",
    "pixels_are_brought_to_another_convention": """
pictures, labels = torch.rand(64, 3, 8, 8) * 2 - 1, torch.arange(64) % 3
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)
    def forward(self, a):
        return self.out(self.conv((a / 2 + 0.5 - 0.48) / 0.23).relu().mean((2, 3)))
model = Net()
sgd = torch.optim.SGD(model.parameters(), 1e-2)
for step in range(40):
    rows = torch.randint(64, (16,))
    learn(F.cross_entropy(model(pictures[rows]), labels[rows]), sgd)
""",
    "scores_capped_softly": """
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for step in range(40):
    rows = some()
    scores = 30 * torch.sigmoid(model(x[rows]) / 7.5)
    learn(F.cross_entropy(scores, y[rows]), optimizer)
""",
    "two_optimizers_that_share_weights_and_each_go_back": """
body, head, other = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)
first = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
second = torch.optim.Adam([*body.parameters(), *other.parameters()], 1e-3)
for step in range(40):
    rows = some()
    first.zero_grad()
    F.cross_entropy(head(body(x[rows]).relu()), y[rows]).backward()
    first.step()
    second.zero_grad()
    F.mse_loss(other(body(x[rows]).relu()).squeeze(1), x[rows, 0]).backward()
    second.step()
""",
    "an_optimizer_around_another": """
class Slow(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        self.inner.step(closure)

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad()


model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = Slow(torch.optim.Adam(model.parameters(), 1e-2))
for step in range(40):
    rows = some()
    learn(F.cross_entropy(model(x[rows]), y[rows]), optimizer)
""",
    "quantiles_of_all_pairs": """
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for step in range(40):
    rows = some()
    target = x[rows, :1] + torch.randn(32, 5)
    out = model(x[rows])
    loss = F.smooth_l1_loss(out.unsqueeze(2), target.unsqueeze(1), reduction="none")
    learn(loss.sum(1).mean(), optimizer)
""",
    "two_losses_of_two_loaders": """
body, head, other = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)
weights = [*body.parameters(), *head.parameters(), *other.parameters()]
optimizer = torch.optim.Adam(weights, 1e-3)
labelled = DataLoader(TensorDataset(x, y), 32, shuffle=True)
unlabelled = DataLoader(TensorDataset(x.flip(0)), 32, shuffle=True)
for epoch in range(4):
    for (a, b), (c,) in zip(labelled, unlabelled):
        optimizer.zero_grad()
        F.cross_entropy(head(body(a).relu()), b).backward()
        F.mse_loss(other(body(c).relu()).squeeze(1), c[:, 0]).backward()
        optimizer.step()
""",
    "one_domain_and_the_other": """
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
ones, zeros = torch.ones(32).long(), torch.zeros(32).long()
def loss_of(rows, labels):
    return F.cross_entropy(model(rows), labels)
for step in range(60):
    one, other = loss_of(torch.randn(32, 8) + 1, ones), loss_of(torch.randn(32, 8) - 1, zeros)
    learn(one + other, optimizer)
""",
    "text_read_on_in_order": """
text = torch.randint(0, 20, (16, 200))
class Windows(Dataset):
    def __len__(self):
        return 19
    def __getitem__(self, i):
        return text[:, 10 * i : 10 * i + 11]
windows = DataLoader(Windows(), batch_size=None)
embed, cell, out = nn.Embedding(20, 16), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 20)
weights = [*embed.parameters(), *cell.parameters(), *out.parameters()]
optimizer = torch.optim.Adam(weights, 2e-3)
for epoch in range(3):
    state = None
    for rows in windows:
        state = None if state is None else tuple(v.detach() for v in state)
        answer, state = cell(embed(rows[:, :-1]), state)
        loss = F.cross_entropy(out(answer).reshape(-1, 20), rows[:, 1:].reshape(-1))
        learn(loss, optimizer)
""",
    "boards_of_ones_and_zeros": """
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(40):
    boards = F.one_hot(torch.randint(16, (64,)), 16).float()
    learn(F.mse_loss(model(boards), torch.randn(64, 4)), optimizer)
""",
    "closure_that_clears": """
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
def closure():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss
for step in range(12):
    optimizer.step(closure)
""",
    "little_clipped_by_value": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(60):
    rows = some()
    optimizer.zero_grad()
    F.cross_entropy(model(x[rows]), y[rows]).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
""",
}


# by fault
FAULTY = {
    "parameters_twice": """
body, head, other = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)
first = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
second = torch.optim.Adam([*body.parameters(), *other.parameters()], 1e-3)
for step in range(40):
    rows = some()
    first.zero_grad()
    second.zero_grad()
    hidden = body(x[rows]).relu()
    loss = F.cross_entropy(head(hidden), y[rows])
    (loss + F.mse_loss(other(hidden).squeeze(1), x[rows, 0])).backward()
    first.step()
    second.step()
""",
    "missing_zero_grad": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
for epoch in range(4):
    for a, b in loader:
        def closure():
            loss = F.cross_entropy(model(a), b)
            loss.backward()
            return loss
        optimizer.step(closure)
""",
    "frozen_by_accident": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
    def forward(self, a):
        return self.head(self.body(a).relu().detach())
model = Net()
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(40):
    rows = some()
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        return loss
    optimizer.step(closure)
""",
    "softmax_before_loss": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(40):
    rows = some()
    learn(F.nll_loss(F.log_softmax(model(x[rows]), 1), y[rows]), optimizer)
""",
    "target_broadcast": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(40):
    rows = some()
    learn(torch.log(torch.cosh(model(x[rows]) - x[rows, 0])).mean(), optimizer)
""",
    "schedule_misused": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
plan = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0)
for epoch in range(8):
    total = 0.0
    for rows in torch.randperm(320).split(32):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        total += loss.item()
    plan.step(total)
""",
    "clipping_always_active": """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), 5.0)
for step in range(100):
    rows = some()
    optimizer.zero_grad()
    F.cross_entropy(model(x[rows]), y[rows]).backward()
    nn.utils.clip_grad_value_(model.parameters(), 1e-3)
    optimizer.step()
""",
}

# validated in one call in training mode, with gradients
HELD_OUT = """
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for epoch in range(4):
    epoch_of(net, sgd)
    right = net(x[256:]).argmax(1) == y[256:]
"""


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.filterwarnings("ignore")
def test_the_fault_alone_is_named(name: str, watched: Watched) -> None:
    fault, sound, (right, wrong) = PAIRS[name]
    assert sound.count(right) == 1
    report = watched(START + sound.replace(right, wrong))
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    assert [alarm.fault for alarm in report.alarms] == [fault], report.alarms


@pytest.mark.parametrize("name", [*PAIRS, *SOUND])
@pytest.mark.filterwarnings("ignore")
def test_a_sound_one_is_not_accused(name: str, watched: Watched) -> None:
    report = watched(START + (SOUND[name] if name in SOUND else PAIRS[name][1]))
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    assert not report.alarms, report.alarms


@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.filterwarnings("ignore")
def test_a_faulty_program_is_found(name: str, watched: Watched) -> None:
    report = watched(START + FAULTY[name])
    assert report.ending == "it ran to completion"
    assert [alarm.fault for alarm in report.alarms] == [name], report.alarms


@pytest.mark.parametrize("clear", ["optimizer.zero_grad()", ""])
def test_a_long_run_is_followed_at_first_and_then_now_and_again(
    clear: str, watched: Watched
) -> None:
    code = f"""
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
for step in range(160):
    {clear}
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
    (found,) = [f for f in watched(START + code).findings if f.check == "missing_zero_grad"]
    assert (found.fault is None) is bool(clear)
    # 32 steps at first and five from 50, 100 and 150 on; each except a row's first has one before
    # it
    assert "43 of" in found.evidence


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_is_ended_early_accuses_no_optimizer_of_waiting(watched: Watched) -> None:
    _, sound, (right, wrong) = PAIRS["two_optimizers"]
    report = watched(START + sound.replace(right, wrong), max_steps=50)
    assert not report.alarms, report.alarms


def test_a_validation_in_one_call_is_reported_with_its_line(watched: Watched) -> None:
    report = watched(START + HELD_OUT)
    found = {alarm.fault: alarm.where for alarm in report.alarms}
    assert set(found) == {"train_mode_in_validation", "gradients_in_validation"}
    number = next(i for i, line in enumerate((START + HELD_OUT).splitlines(), 1) if "right" in line)
    assert {str(where).rpartition(":")[2] for where in found.values()} == {str(number)}


def test_a_call_that_is_learnt_from_is_not_let_go() -> None:
    loss = (torch.ones(2, requires_grad=True) * 2).sum()
    first, again = follow_graph(loss.grad_fn), follow_graph(loss.grad_fn)
    calls = [Waiting(None, True, True, None, graph, None) for graph in (first, again)]  # type: ignore[arg-type]
    assert [one.is_dropped for one in calls] == [False, False]
    del loss
    assert [one.is_dropped for one in calls] == [True, True]
