"""A faulty program for each detector, and the same one fixed."""

from __future__ import annotations

BASE = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
x = torch.randn(192, 20)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
val = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=32)
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
groups = [
    {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.01},
    {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
losses = []
for epoch in range(4):
    model.train()
    for xb, yb in train:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        for xb, yb in val:
            model(xb).argmax(1)
"""

STORED = BASE.replace(
    "train = DataLoader(TensorDataset(x[:128], y[:128])",
    """class Noisy(Dataset):
    def __init__(self):
        self.x = x[:128].clone()

    def __len__(self):
        return 128

    def __getitem__(self, i):
        row = self.x[i].clone()
        row += 0.1 * torch.randn(20)
        return row, y[i]

train = DataLoader(Noisy()""",
)

STOPPED = (
    BASE.replace("losses = []\n", "losses = []\nbest, num_bad, patience = 9.0, 0, 20\n")
    + """
    value = [1.0, 1.1, 0.9, 0.8][epoch]
    if value < best:
        best = value
        num_bad = 0
    else:
        num_bad += 1
        if num_bad >= patience:
            break
"""
)

MASKED = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
ids = torch.randint(1, 20, (64, 12))
ids[torch.arange(12) >= torch.randint(4, 12, (64, 1))] = 0
labels = (ids == 5).any(1).long()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.attend = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, ids):
        h = self.attend(self.embed(ids), src_key_padding_mask=ids == 0)
        return self.head(h[:, 0])

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(20):
    batch = torch.randperm(64)[:16]
    optimizer.zero_grad()
    F.cross_entropy(model(ids[batch]), labels[batch]).backward()
    optimizer.step()
"""

PICTURES = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images = torch.rand(64, 3, 16, 16)
images = (images - 0.5) / 0.29
labels = torch.arange(64) % 2
loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.image_size = 16
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for xb, yb in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(xb), yb).backward()
        optimizer.step()
"""

REGRESSION = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 5)
y = x.sum(1)
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(60):
    order = torch.randperm(64)[:32]
    optimizer.zero_grad()
    out = model(x[order]).squeeze(1)
    loss = F.mse_loss(out, y[order])
    loss.backward()
    optimizer.step()
"""

AVERAGE = (
    PICTURES.replace(
        "optimizer = ",
        """import copy
ema = copy.deepcopy(model)
@torch.no_grad()
def follow():
    for old, new in zip(ema.parameters(), model.parameters()):
        old.lerp_(new, 0.1)
    for old, new in zip(ema.buffers(), model.buffers()):
        old.copy_(new)

optimizer = """,
    ).replace("        optimizer.step()\n", "        optimizer.step()\n        follow()\n")
    + """    ema.eval()
    with torch.no_grad():
        ema(images)
"""
)

TOKENS = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
ids = torch.randint(1, 20, (64, 12))
lengths = torch.randint(4, 12, (64, 1))
ids[torch.arange(12) >= lengths] = 0
model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(20):
    batch = ids[torch.randperm(64)[:16]]
    optimizer.zero_grad()
    out = model(batch[:, :-1])
    F.cross_entropy(out.reshape(-1, 20), batch[:, 1:].reshape(-1), ignore_index=0).backward()
    optimizer.step()
"""

PAIRS = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
centres = torch.randn(8, 12)

def draw(labels):
    return centres[labels] + 0.5 * torch.randn(len(labels), 12)

model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(30):
    labels = torch.randint(0, 8, (32,))
    others = (labels + torch.randint(1, 8, (32,))) % 8
    anchor, positive, negative = model(draw(labels)), model(draw(labels)), model(draw(others))
    optimizer.zero_grad()
    loss = F.triplet_margin_loss(anchor, positive, negative)
    loss.backward()
    optimizer.step()
"""

SINGLE = (
    BASE.replace("nn.Linear(32, 3)", "nn.Linear(32, 1)")
    .replace(
        "F.cross_entropy(model(xb), yb)",
        "F.binary_cross_entropy_with_logits(model(xb).squeeze(1), (yb > 0).float())",
    )
    .replace("model(xb).argmax(1)", "model(xb).squeeze(1) > 0")
)

FROZEN_LAYER = BASE.replace("losses = []", "losses = []\nmodel[0].requires_grad_(False)")

OWN_FUNCTION = BASE.replace(
    "model = nn.Sequential(nn.Linear(20, 32), nn.ReLU()",
    "class Root(torch.autograd.Function):\n"
    "    @staticmethod\n"
    "    def forward(ctx, x):\n"
    "        ctx.save_for_backward(x)\n"
    "        return (1 + x * x).sqrt()\n"
    "    @staticmethod\n"
    "    def backward(ctx, grad):\n"
    "        (x,) = ctx.saved_tensors\n"
    "        return grad * x / (1 + x * x).sqrt()\n"
    "class Own(nn.Module):\n"
    "    def forward(self, x):\n"
    "        return Root.apply(x)\n"
    "model = nn.Sequential(nn.Linear(20, 32), Own()",
)

TERMS = BASE.replace(
    "loss = F.cross_entropy(model(xb), yb)",
    "size = model[0].weight.abs().mean()\n"
    "        loss = F.cross_entropy(model(xb), yb) + 0.1 * size",
)

WEIGHTED = (
    BASE.replace("losses = []", "losses = []\ncounts = torch.bincount(y).float()")
    .replace("model(xb), yb)", "model(xb), yb, weight=counts.sum() / counts)")
    .replace("(x[:, 1] > 0).long()", "(x[:, 1] > 1).long()")
)

VARIATIONAL = BASE.replace("nn.Linear(32, 3))", "nn.Linear(32, 6))").replace(
    "loss = F.cross_entropy(model(xb), yb)",
    "mean, log_var = model(xb).chunk(2, 1)\n"
    "        codes = mean + torch.exp(0.5 * log_var) * torch.randn_like(mean)\n"
    "        apart = 0.5 * (mean**2 + log_var.exp() - log_var - 1).sum(1)\n"
    "        loss = F.cross_entropy(codes, yb) + 0.01 * apart.mean()",
)

ACCUMULATION = BASE.replace(
    """        optimizer.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
""",
    """        loss = F.cross_entropy(model(xb), yb) / 2
        loss.backward()
        losses.append(loss.item())
        if len(losses) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
).replace("        losses.append(loss.item())\n    model", "    model")

SCHEDULE = BASE.replace(
    "losses = []",
    "losses = []\nplan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)",
).replace("    model.eval()", "    plan.step()\n    model.eval()")

PRECISION = BASE.replace(
    "losses = []", 'losses = []\nscaler = torch.amp.GradScaler("cpu")'
).replace(
    """        loss.backward()
        optimizer.step()
""",
    """        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        scaler.step(optimizer)
        scaler.update()
""",
)

WORKERS = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)

class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 32

    def __getitem__(self, idx):
        return torch.tensor(np.random.normal(size=8), dtype=torch.float32), idx % 2

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for xb, yb in DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=2):
    optimizer.zero_grad()
    F.cross_entropy(model(xb), yb).backward()
    optimizer.step()
"""

DISTRIBUTED = BASE.replace(
    "batch_size=16, shuffle=True)",
    "batch_size=16, sampler=torch.utils.data.DistributedSampler("
    "TensorDataset(x[:128], y[:128]), num_replicas=2, rank=0))",
).replace("    model.train()", "    train.sampler.set_epoch(epoch)\n    model.train()")

SAVING = (
    BASE
    + """
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
               "checkpoint.pt")
"""
)

CLIPPED = BASE.replace(
    "        optimizer.step()",
    "        nn.utils.clip_grad_norm_(model.parameters(), 100.0)\n        optimizer.step()",
)


HEADS = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 10, 8)
y = (x[:, 3, 0] > 0).long()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.head = nn.Linear(8, 24), nn.Linear(80, 2)

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (
            one.reshape(n, t, 4, 2).transpose(1, 2) for one in self.enter(x).chunk(3, 2)
        )
        h = F.scaled_dot_product_attention(q, k, v)
        return self.head(h.transpose(1, 2).flatten(1))

net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for epoch in range(3):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
"""

VALUES = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
slow = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
slow.load_state_dict(net.state_dict())
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(30):
    state, next_state = torch.randn(32, 4), torch.randn(32, 4)
    memory = (state, torch.randint(2, (32, 1)), state[:, 0], next_state, state[:, 1] > 1)
    state, action, reward, next_state, done = memory
    with torch.no_grad():
        goal = reward + 0.9 * slow(next_state).amax(1) * (1 - done.float())
    optimizer.zero_grad()
    F.smooth_l1_loss(net(state).gather(1, action)[:, 0], goal).backward()
    optimizer.step()
"""

FROZEN_TRUNK = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
net = nn.Module()
net.trunk = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
net.head = nn.Linear(16, 3)
net.forward = lambda x: net.head(net.trunk(x))
with torch.no_grad():
    for _ in range(20):
        net(x)
net.trunk.requires_grad_(False)
optimizer = torch.optim.SGD(net.head.parameters(), lr=0.05)
for step in range(30):
    net.train()
    net.trunk.eval()
    rows = torch.randperm(320)[:32]
    optimizer.zero_grad()
    F.cross_entropy(net(x[rows]), y[rows]).backward()
    optimizer.step()
"""


def _edit(sound: str, *pairs: tuple[str, str]) -> tuple[str, str]:
    broken = sound
    for old, new in pairs:
        assert old in broken, old
        broken = broken.replace(old, new)
    return broken, sound


_STEP = "        loss.backward()\n        optimizer.step()\n"
_CLEAR = "        optimizer.zero_grad()\n"
_LOSS = "F.cross_entropy(model(xb), yb)"

SNIPPETS: dict[str, tuple[str, str]] = {
    "missing_zero_grad": _edit(BASE, ("        optimizer.zero_grad()\n", "")),
    "zero_grad_before_step": _edit(
        BASE,
        ("        optimizer.zero_grad()\n", ""),
        (
            _STEP,
            "        loss.backward()\n        optimizer.zero_grad()\n        optimizer.step()\n",
        ),
    ),
    "parameters_never_step": _edit(
        BASE, ("losses = []", "import copy\nmodel = copy.deepcopy(model)\nlosses = []")
    ),
    "parameters_not_in_optimizer": _edit(BASE, ("AdamW(groups", "AdamW(model[3].parameters()")),
    "parameters_twice": _edit(
        BASE, ("AdamW(groups", "AdamW([*model.parameters(), *model[3].parameters()]")
    ),
    "frozen_by_accident": _edit(
        BASE, (_LOSS, "F.cross_entropy(model[3](model[:3](xb).detach()), yb)")
    ),
    "not_frozen": _edit(
        FROZEN_LAYER, ("model[0].requires_grad_(False)", "model[0].requires_grad = False")
    ),
    "unregistered_modules": _edit(
        PICTURES,
        ("self.conv = nn.Conv2d(3, 4, 3, padding=1)", "self.convs = [nn.Conv2d(3, 4, 3)]"),
        ("self.conv(x)", "self.convs[0](x)"),
    ),
    "loss_maximised": _edit(BASE, ("loss = F.", "loss = -F."), ("lr=1e-3", "lr=1e-2")),
    "learning_rate_too_high": _edit(BASE, ("lr=1e-3", "lr=3.0")),
    "learning_rate_too_low": _edit(
        REGRESSION,
        ("lr=1e-2", "lr=1e-7"),
    ),
    "schedule_misused": _edit(
        SCHEDULE,
        ("    plan.step()\n", ""),
        ("        optimizer.step()\n", "        optimizer.step()\n        plan.step()\n"),
    ),
    "mixed_precision_misused": _edit(PRECISION, ("        scaler.unscale_(optimizer)\n", "")),
    "accumulation_unscaled": _edit(ACCUMULATION, ("yb) / 2", "yb)")),
    "clipping_without_effect": _edit(
        CLIPPED.replace("100.0", "0.8"),
        (
            "        nn.utils.clip_grad_norm_(model.parameters(), 0.8)\n        optimizer.step()",
            "        optimizer.step()\n        nn.utils.clip_grad_norm_(model.parameters(), 0.8)",
        ),
    ),
    "clipping_always_active": _edit(CLIPPED, ("100.0", "1e-3")),
    "decay_on_norms_and_biases": _edit(BASE, ("AdamW(groups", "AdamW(model.parameters()")),
    "bad_initialisation": _edit(
        BASE, ("losses = []", "losses = []\nnn.init.constant_(model[0].weight, 0.1)")
    ),
    "samples_not_independent": _edit(
        BASE,
        (
            "model = nn.Sequential(nn.Linear(20, 32), ",
            "class Centre(nn.Module):\n    def forward(self, x):\n        return x - x.mean(0)\n"
            "model = nn.Sequential(nn.Linear(20, 32), Centre(), ",
        ),
    ),
    "line_without_effect": _edit(
        BASE.replace(
            "        optimizer.zero_grad()\n",
            "        xb = xb.clamp(-2, 2)\n        optimizer.zero_grad()\n",
            1,
        ),
        ("xb = xb.clamp(-2, 2)", "xb.clamp(-2, 2)"),
    ),
    "normalised_in_part": _edit(
        BASE.replace(
            "        optimizer.zero_grad()\n",
            "        xb = (xb - xb.mean()) / xb.std()\n        optimizer.zero_grad()\n",
            1,
        ),
        ("(xb - xb.mean()) / xb.std()", "xb - xb.mean() / xb.std()"),
    ),
    "one_layer_for_many": _edit(
        BASE.replace(
            "nn.Linear(20, 32)", "*[nn.Linear(20, 20) for _ in range(2)], nn.Linear(20, 32)"
        ),
        ("*[nn.Linear(20, 20) for _ in range(2)]", "*[nn.Linear(20, 20)] * 2"),
    ),
    "positions_without_effect": _edit(
        BASE.replace(
            "model = nn.Sequential(",
            """class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.pos = nn.Parameter(torch.randn(1, 50, 8))
        self.read = nn.Linear(1, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.out = nn.Linear(8, 3)
    def forward(self, x):
        x = self.read(x[..., None]) + self.pos[:, : x.shape[1]]
        return self.out(self.layer(x).mean(1))
model = nn.Sequential(""",
        ).replace(
            "nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))",
            "Reader()",
        ),
        ("self.pos[:, : x.shape[1]]", "self.pos[:, :1]"),
    ),
    "batch_norm_tiny_batch": _edit(PICTURES, ("batch_size=8", "batch_size=2")),
    "softmax_before_loss": _edit(BASE, (_LOSS, "F.cross_entropy(model(xb).softmax(1), yb)")),
    "nll_without_log_softmax": _edit(
        BASE.replace(_LOSS, "F.nll_loss(F.log_softmax(model(xb), 1), yb)"),
        ("F.log_softmax(model(xb), 1)", "model(xb)"),
    ),
    "softmax_wrong_dim": _edit(
        BASE.replace(_LOSS, "F.nll_loss(F.log_softmax(model(xb), 1), yb)"),
        ("model(xb), 1)", "model(xb), 0)"),
    ),
    "target_broadcast": _edit(
        REGRESSION.replace("F.mse_loss(out, y[order])", "((out - y[order]) ** 2).mean()"),
        (".squeeze(1)", ""),
    ),
    "loss_kind_mismatch": _edit(REGRESSION, ("nn.Linear(16, 1))", "nn.Linear(16, 1), nn.ReLU())")),
    "contrastive_loss_misused": _edit(
        PAIRS, ("loss(anchor, positive, negative)", "loss(anchor, negative, positive)")
    ),
    "loss_term_lost": _edit(TERMS, ("0.1 * size", "0.1 * size.item()")),
    "backward_ignores_gradient": _edit(OWN_FUNCTION, ("return grad * x", "return x")),
    "metric_wrong": _edit(SINGLE, ("model(xb).squeeze(1) > 0", "model(xb).argmax(1)")),
    "divergence_wrong": _edit(VARIATIONAL, ("- log_var - 1", "- 2 * log_var - 1")),
    "loss_weights_inverted": _edit(WEIGHTED, ("counts.sum() / counts", "counts / counts.sum()")),
    "loss_reduction_mismatch": _edit(BASE, ("yb)\n", 'yb, reduction="sum")\n')),
    "label_range": _edit(
        BASE, (".long()\n", ".long() + 1\n"), ("nn.Linear(32, 3)", "nn.Linear(32, 4)")
    ),
    "unnormalised_input": _edit(PICTURES, ("(images - 0.5) / 0.29", "images * 255")),
    "double_normalisation": _edit(PICTURES, ("(images - 0.5) / 0.29", "images / 255")),
    "loss_not_finite": _edit(
        BASE,
        (
            "loss = F.cross_entropy(model(xb), yb)",
            "out = model(xb)\n        loss = F.cross_entropy(out, yb)"
            " + (out - out.detach()).pow(2).sum().sqrt()",
        ),
    ),
    "not_finite_data": _edit(BASE, ("y = (x[:, 0]", "x[::7, 3] = float('nan')\ny = (x[:, 0]")),
    "duplicated_inputs": _edit(BASE, ("train = ", "x[:128] = x[0].clone()\ntrain = ")),
    "stored_data_changes": _edit(STORED, ("self.x[i].clone()", "self.x[i]")),
    "label_in_inputs": _edit(BASE, (".long()\ntrain", ".long()\nx[:, 7] = y.float() - 1\ntrain")),
    "labels_misaligned": _edit(
        BASE.replace("range(4)", "range(12)"),
        ("    for xb, yb in train:\n", "    for xb, yb in train:\n        yb = yb.roll(1)\n"),
    ),
    "unmixed_batches": _edit(
        BASE,
        ("train = ", "x, y = x[y[:128].argsort()], y[:128].sort().values\ntrain = "),
        ("shuffle=True", "shuffle=False"),
    ),
    "no_shuffle": _edit(BASE, ("shuffle=True", "shuffle=False")),
    "loader_left_early": _edit(
        BASE,
        ("shuffle=True", "shuffle=False"),
        (
            "    for xb, yb in train:\n",
            "    for _ in range(len(train)):\n        xb, yb = next(iter(train))\n",
        ),
    ),
    "few_examples_drawn": _edit(
        BASE,
        (
            "batch_size=16, shuffle=True)",
            "batch_size=16, sampler=torch.utils.data.WeightedRandomSampler([1.0, 2.0, 1.0], 128))",
        ),
    ),
    "split_leakage": _edit(BASE, ("x[128:], y[128:]", "x[96:], y[96:]")),
    "sampler_without_set_epoch": _edit(DISTRIBUTED, ("    train.sampler.set_epoch(epoch)\n", "")),
    "same_draws_in_workers": _edit(WORKERS, ("np.random.normal", "self.rng.normal")),
    "input_too_large": _edit(PICTURES, ("torch.rand(64, 3, 16, 16)", "torch.rand(64, 3, 64, 64)")),
    "tokens_out_of_vocabulary": _edit(TOKENS, (", ignore_index=0", "")),
    "channel_order": _edit(
        PICTURES.replace(
            "images = torch.rand(64, 3, 16, 16)\n",
            "images = torch.rand(64, 18, 18, 3).unfold(1, 3, 1).unfold(2, 3, 1).mean((4, 5))\n"
            "images = images.permute(0, 3, 1, 2)\n",
        ),
        ("images.permute(0, 3, 1, 2)", "images.reshape(-1, 3, 16, 16)"),
    ),
    "reshape_instead_of_transpose": _edit(
        HEADS, ("one.reshape(n, t, 4, 2).transpose(1, 2)", "one.reshape(n, 4, t, 2)")
    ),
    "terminal_states_ignored": _edit(VALUES, (" * (1 - done.float())", "")),
    "padding_misread": _edit(MASKED, ("ids == 0)", "ids != 0)")),
    "optimizer_recreated": _edit(
        BASE,
        (
            "        optimizer.zero_grad()\n",
            "        optimizer = torch.optim.AdamW(groups, lr=1e-3)\n"
            "        optimizer.zero_grad()\n",
        ),
    ),
    "distribution_shift": _edit(BASE, ("TensorDataset(x[128:]", "TensorDataset(9 * x[128:]")),
    "wrong_checkpoint_kept": _edit(
        BASE.replace("losses = []", "import copy\nlosses = []")
        + "    if epoch == 1:\n        best = copy.deepcopy(model.state_dict())\n"
        "model.load_state_dict(best)\n",
        ("copy.deepcopy(model.state_dict())", "model.state_dict()"),
    ),
    "frozen_batch_norm_moves": _edit(FROZEN_TRUNK, ("    net.trunk.eval()\n", "")),
    "pretrained_not_loaded": _edit(
        BASE.replace(
            "losses = []",
            "losses = []\nstate = {k: v.clone() for k, v in model.state_dict().items()}\n"
            "model.load_state_dict(state, strict=False)",
        ),
        ("{k: v.clone()", "{'module.' + k: v.clone()"),
    ),
    "batch_norm_stale": _edit(
        AVERAGE,
        ("    for old, new in zip(ema.buffers(), model.buffers()):\n        old.copy_(new)\n", ""),
    ),
    "augmented_validation": _edit(
        BASE,
        (
            "val = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=32)",
            "class Noisy(TensorDataset):\n    def __getitem__(self, i):\n"
            "        a, b = super().__getitem__(i)\n        return a + torch.randn(20), b\n"
            "val = DataLoader(Noisy(x[128:], y[128:]), batch_size=32)",
        ),
    ),
    "train_mode_in_validation": _edit(BASE, ("    model.eval()\n", "")),
    "eval_mode_in_training": _edit(
        BASE, ("    model.train()\n", ""), ("losses = []", "losses = []\nmodel.train()")
    ),
    "gradients_in_validation": _edit(BASE, ("with torch.no_grad():", "if True:")),
    "graph_retained": _edit(BASE, ("losses.append(loss.item())", "losses.append(loss)")),
    "stopping_on_noise": _edit(STOPPED, ("        num_bad = 0\n", "")),
    "checkpoint_incomplete": _edit(SAVING, ('"optimizer": optimizer.state_dict(), ', "")),
    "seeds_wrong": _edit(
        BASE,
        (
            "        optimizer.zero_grad()\n",
            "        torch.manual_seed(1)\n        optimizer.zero_grad()\n",
        ),
    ),
}
