"""Reshapes where a transpose is meant, and what only resembles that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from stepladder.records.watch import WatchReport
from stepladder.watching.hooks.models.reshapes import mixed_by
from stepladder.watching.seen.models import Mixed

Watched = Callable[..., WatchReport]
NAME = "reshape_instead_of_transpose"

START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
def fit(net, batches, steps=6):
    sgd = torch.optim.SGD(net.parameters(), 1e-2)
    for step in range(steps):
        for x, y in batches:
            sgd.zero_grad()
            F.mse_loss(net(x), y).backward()
            sgd.step()
"""
SERIES = """
x, y = torch.randn(48, 20), torch.randn(48)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.LSTM(1, 8, num_layers=2)
        self.head = nn.Linear(8, 1)
    def forward(self, x):
        TURNED
        return self.head(self.read(x)[0][-1])[:, 0]
"""
STATES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.read = nn.LSTM(3, 8, bidirectional=True, batch_first=True)
        self.head = nn.Linear(16, 1)
    def forward(self, x):
        h = self.read(x)[1][0]
        return self.head(STATE)[:, 0]
fit(Net(), [(torch.randn(24, 5, 3), torch.randn(24))])
"""
HEADS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 1)
    def forward(self, x):
        n, t, d = x.shape
        q, k, v = (SPLIT for one in self.qkv(x).chunk(3, -1))
        h = F.scaled_dot_product_attention(q, k, v)
        return self.out(MERGE).mean((1, 2))
fit(Net(), [(torch.randn(16, 7, 12), torch.randn(16))])
"""
SPLIT, MERGE = "one.reshape(n, t, 4, 3).transpose(1, 2)", "h.transpose(1, 2).reshape(n, t, d)"
IMAGES = """
class Images(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, i):
        image = torch.full((9, 11, 3), i / 48)
        return MOVED, torch.tensor(i / 48)
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(0))
net[2] = nn.Sequential(nn.Flatten(), nn.Linear(4, 1), nn.Flatten(0))
fit(net, DataLoader(Images(), 16))
"""
SHIFTS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(6, 10)
    def forward(self, x):
        r = self.one(x)  # (t, n, j)
        t, n, j = r.shape
        r = F.pad(r.permute(1, 0, 2).contiguous(), (1, 0))
        r = r.view(n, j + 1, t)[:, 1:].reshape(n, t, j)
        return r.mean((1, 2))
fit(Net(), [(torch.randn(7, 16, 6), torch.randn(16))])
"""
BACK = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(6, 10)
    def forward(self, x):
        i, j, d = x.shape
        r = self.one(x)
        r = r.reshape(j, i, 10)
        r = r[1:]
        r = r.reshape(i, j - 1, 10)
        return r.mean((1, 2))
fit(Net(), [(torch.randn(16, 30, 6), torch.randn(16))])
"""

MIXED = {
    "positions_and_heads": (
        HEADS.replace("SPLIT", "one.contiguous().view(n, t, 4, 3).view(n, 4, t, 3)").replace(
            "MERGE", MERGE
        ),
        "from (16, 7, 4, 3) to (16, 4, 7, 3)",
    ),
    "a_whole_set_before_training": (
        SERIES.replace("TURNED", "") + "x = x.reshape(20, -1, 1)\nfit(Net(), [(x, y)])",
        "from (48, 20) to (20, 48, 1)",
    ),
    "a_whole_set_that_is_sliced": (
        SERIES.replace("TURNED", "")
        + "x = x.view(20, -1, 1)\nfit(Net(), [(x[:, i : i + 16], y[i : i + 16]) for i in (0, 16)])",
        "from (48, 20) to (20, 48, 1)",
    ),
    "a_batch_within_forward": (
        SERIES.replace("TURNED", "x = torch.reshape(x, (20, -1, 1))") + "fit(Net(), [(x, y)])",
        "does not exchange the first two dimensions",
    ),
    "last_states": (STATES.replace("STATE", "h.view(24, -1)"), "from (2, 24, 8) to (24, 16)"),
    "heads_that_are_split": (
        HEADS.replace("SPLIT", "one.reshape(n, 4, t, 3)").replace("MERGE", MERGE),
        "from (16, 7, 12) to (16, 4, 7, 3)",
    ),
    "heads_that_are_merged": (
        HEADS.replace("SPLIT", SPLIT).replace("MERGE", "h.contiguous().reshape(n, t, d)"),
        "from (16, 4, 7, 3) to (16, 7, 12)",
    ),
    "channels_of_a_dataset": (
        IMAGES.replace("MOVED", "image.view(3, 9, 11)"),
        "from (9, 11, 3) to (3, 9, 11)",
    ),
    "channels_of_a_whole_set": (
        """
x = torch.rand(48, 9, 9, 3).reshape(-1, 3, 9, 9)
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(196, 1), nn.Flatten(0))
fit(net, DataLoader(TensorDataset(x, torch.randn(48)), 16))
""",
        "from (48, 9, 9, 3) to (48, 3, 9, 9)",
    ),
}

SOUND = {
    "a_transpose_and_a_reshape": (
        SERIES.replace("TURNED", "") + "x = x.t().reshape(20, -1, 1)\nfit(Net(), [(x, y)])"
    ),
    "one_feature": (
        SERIES.replace("TURNED", "x = x.t().contiguous().view(20, -1, 1)") + "fit(Net(), [(x, y)])"
    ),
    "last_states_that_are_transposed": STATES.replace("STATE", "h.transpose(0, 1).reshape(24, -1)"),
    "heads": HEADS.replace("SPLIT", SPLIT).replace("MERGE", MERGE),
    "channels_that_are_moved": IMAGES.replace("MOVED", "image.permute(2, 0, 1)"),
    "a_shift_of_relative_positions": SHIFTS,
    "a_shift_with_memory": BACK,
    "a_set_that_no_model_receives": (
        SERIES.replace("TURNED", "x = x.t().unsqueeze(-1)")
        + "shown = x.reshape(20, 48)\nfit(Net(), [(x, y)])"
    ),
    "weights": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 16))
    def forward(self, x):
        return (x @ self.table.tanh().view(16, 6).t()[:6, :6]).mean(1)
fit(Net(), [(torch.randn(24, 6), torch.randn(24))])
""",
}


@pytest.mark.parametrize("name", MIXED)
def test_a_reshape_that_mixes_dimensions_is_found(name: str, watched: Watched) -> None:
    program, words = MIXED[name]
    report = watched(START + program)
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault == NAME, found.evidence
    assert words in found.evidence
    assert found.where is not None
    assert "view" in (START + program).splitlines()[int(found.where.split(":")[1]) - 1] or (
        "reshape" in (START + program).splitlines()[int(found.where.split(":")[1]) - 1]
    )


@pytest.mark.parametrize("name", SOUND)
def test_sound_reshapes_are_not_reported(name: str, watched: Watched) -> None:
    report = watched(START + SOUND[name])
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault is None, found.evidence


@pytest.mark.parametrize(
    ("before", "after", "mixed"),
    [
        ((32, 20), (20, 32, 1), Mixed.FIRST_TWO),
        ((20, 32, 8), (32, 20, 8), Mixed.FIRST_TWO),
        ((20, 32, 8), (32, 20, 2, 4), Mixed.FIRST_TWO),
        ((32, 24, 24, 3), (32, 3, 24, 24), Mixed.CHANNELS),
        ((32, 20, 5), (32, 5, 20), Mixed.CHANNELS),
        ((32, 20, 64), (32, 8, 20, 8), Mixed.SPLIT_HEADS),
        ((32, 8, 20, 8), (32, 20, 64), Mixed.MERGED_HEADS),
        ((32, 64), (4, 32, 16), Mixed.LAYERS),
        ((32, 20), (32, 20, 1), None),
        ((1, 20, 8), (20, 1, 8), None),
        ((32, 8, 12, 12), (32, 1152), None),
        ((32, 10, 3, 24, 24), (320, 3, 24, 24), None),  # crops
        ((32, 16, 12, 12), (32, 4, 4, 12, 12), None),  # groups of channels
        ((32, 64, 16), (32, 16, 64), Mixed.CHANNELS),
        ((32, 16, 8, 8), (32, 8, 128), None),  # 8 groups of channels
        ((32, 56, 56, 96), (32, 8, 7, 8, 7, 96), None),  # windows
        ((8, 4, 6, 12, 12), (8, 4, 2, 3, 12, 12), None),
        ((32, 10, 11), (32, 110), None),
        ((10, 11, 32, 4), (11, 10, 32, 4), None),  # a shift of relative positions
    ],
)
def test_shapes_show_what_a_reshape_mixes(
    before: tuple[int, ...], after: tuple[int, ...], mixed: Mixed | None
) -> None:
    assert mixed_by(before, after) is mixed


def test_functions_are_restored_after_the_first_steps(watched: Watched) -> None:
    program = START + "fit(nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), BATCHES, steps=9)\n"
    program = program.replace("BATCHES", "[(torch.randn(8, 4).view(8, 4), torch.randn(8))]")
    program += "seen = torch.zeros(4).view(2, 2)\nis_own = 'view' in vars(torch.Tensor)\n"
    program += "assert not is_own\n"
    view, reshape = Tensor.view, torch.reshape
    assert watched(program).ending == "it ran to completion"
    assert Tensor.view is view
    assert torch.reshape is reshape
