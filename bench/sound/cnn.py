"""Classify four kinds of texture with a convolutional network."""

import argparse
import copy
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
parser.add_argument("--optimizer", choices=["sgd", "adam", "adamw"], default="sgd")
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--warmup-steps", type=int, default=0)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--label-smoothing", type=float, default=0.0)
parser.add_argument("--class-weights", action="store_true", help="for classes that are rare")
parser.add_argument("--ema", action="store_true", help="validate a moving average of the weights")
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--keep-grad-tensors", action="store_true", help="zero_grad by zeros")
args = parser.parse_args()


class Net(nn.Module):
    """Two blocks of convolution and BatchNorm, pooling, a classifier."""

    def __init__(self, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(24)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(24, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.relu(self.norm2(self.conv2(x)))
        return self.fc(self.dropout(x.mean(dim=(2, 3))))


def textures(n, seed, shares):
    g = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(shares, n, replacement=True, generator=g)
    phase = 6.3 * torch.rand(n, 1, 1, generator=g)
    y, x = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    ways = torch.stack([y, x, (y + x) / 1.4, (y - x) / 1.4])
    waves = torch.sin(1.3 * ways[labels] + phase).unsqueeze(1)
    images = waves + 1.5 * torch.randn(n, 3, 14, 14, generator=g)
    return TensorDataset(images / images.std(), labels)


def weight_groups(model, decay):
    """Give matrices and kernels weight decay, norms and biases none."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


torch.manual_seed(args.seed)
shares = torch.tensor([0.4, 0.3, 0.2, 0.1] if args.class_weights else [0.25] * 4)
train_set = textures(1600, 1000 + args.seed, shares)
val_set = textures(400, 2000 + args.seed, shares)
train_loader = DataLoader(train_set, batch_size=50, shuffle=True)
val_loader = DataLoader(val_set, batch_size=100)

model = Net(args.dropout)
if args.channels_last:
    model = model.to(memory_format=torch.channels_last)
average = copy.deepcopy(model) if args.ema else None
if args.optimizer == "sgd":
    optimizer = torch.optim.SGD(weight_groups(model, 5e-4), lr=0.05, momentum=0.9, nesterov=True)
elif args.optimizer == "adam":
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
else:
    optimizer = torch.optim.AdamW(weight_groups(model, 0.05), lr=3e-3)
num_steps = args.epochs * len(train_loader)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer,
    lambda step: (
        min(1.0, step / args.warmup_steps) if args.warmup_steps else 1.0 - 0.9 * step / num_steps
    ),
)
weights = (1 / (4 * shares)).clamp(max=3.0) if args.class_weights else None
criterion = nn.CrossEntropyLoss(weight=weights, label_smoothing=args.label_smoothing)


def autocast():
    if args.precision == "bf16":
        return torch.autocast("cpu", dtype=torch.bfloat16)
    return nullcontext()


@torch.no_grad()
def update_average(decay=0.95):
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight, 1 - decay)
    for mean, value in zip(average.buffers(), model.buffers(), strict=True):
        mean.copy_(value)


for epoch in range(args.epochs):
    model.train()
    for images, labels in train_loader:
        if args.channels_last:
            images = images.to(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=not args.keep_grad_tensors)
        with autocast():
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        if average is not None:
            update_average()

    judged = model if average is None else average
    judged.eval()
    hits = 0
    with torch.no_grad(), autocast():
        for images, labels in val_loader:
            hits += (judged(images).argmax(1) == labels).sum().item()
    print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {hits / len(val_set):.3f}")
