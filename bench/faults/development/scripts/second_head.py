"""Train a second head on the trunk of a first task, which keeps its accuracy."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
rules = torch.randn(2, 16, 4)


def task(number, n):
    x = torch.randn(n, 16) + number
    return TensorDataset(x, (x.abs() @ rules[number]).argmax(1))


trunk = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
heads = [nn.Linear(96, 4), nn.Linear(96, 4)]
tests = [task(0, 500).tensors, task(1, 500).tensors]
for number, head in enumerate(heads):
    model = nn.Sequential(trunk, head)
    if number == 1:
        for weight in trunk.parameters():
            weight.requires_grad = False
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(5):
        for x, y in DataLoader(task(number, 3000), batch_size=64, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        for tested, (x, y) in enumerate(tests[: number + 1]):
            accuracy = (heads[tested](trunk(x)).argmax(1) == y).float().mean()
            print(f"after task {number}: accuracy {accuracy:.3f} on task {tested}")
