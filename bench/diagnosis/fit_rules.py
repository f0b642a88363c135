"""Hits and false alarms of the fit rules, on small nets with a known fault.

Fifteen jobs of a net of two layers on points of five classes, three seeds each, judged in eval mode
and as logged. Prints what was expected and how often it was diagnosed.

    python -m bench.diagnosis.fit_rules
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.diagnosis.fit.curves import Curves, Point
from stepladder.diagnosis.fit.fit import judge_fit
from stepladder.records.diagnosis import Fit, FitKind

NUM_FEATURES, NUM_CLASSES, SEEDS = 20, 5, (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training. The `scale` of the inputs sets the difficulty of the task."""

    num_train: int
    epochs: int
    lr: float
    width: int = 64
    num_val: int = 300
    wrong: float = 0.0
    scale: float = 1.0
    is_linear: bool = False
    is_sgd: bool = False


TOO_HIGH = "learning rate too high"
JOBS: Mapping[str, tuple[str, Job]] = {
    "few examples": ("overfit", Job(num_train=200, epochs=30, lr=3e-3)),
    "wrong labels": ("overfit", Job(num_train=300, epochs=30, lr=3e-3, wrong=0.3)),
    "random labels": ("overfit", Job(num_train=1000, epochs=20, lr=3e-3, wrong=1.0)),
    "a line": ("underfit", Job(num_train=4000, epochs=12, lr=3e-3, is_linear=True)),
    "two units": ("underfit", Job(num_train=4000, epochs=15, lr=3e-3, width=2)),
    "too short": ("underfit", Job(num_train=2000, epochs=3, lr=1e-3)),
    "stopped early": ("", Job(num_train=2000, epochs=8, lr=1e-3)),
    "many examples": (
        "",
        Job(num_train=20_000, epochs=12, lr=1e-3, num_val=500, scale=0.3),
    ),
    "Adam, 1e-5": ("underfit", Job(num_train=2000, epochs=12, lr=1e-5)),
    "SGD, 1e-4": ("underfit", Job(num_train=2000, epochs=12, lr=1e-4, is_sgd=True)),
    "Adam, 0.1": (TOO_HIGH, Job(num_train=2000, epochs=12, lr=0.1)),
    "Adam, 0.3": (TOO_HIGH, Job(num_train=2000, epochs=12, lr=0.3)),
    "Adam, 1": (TOO_HIGH, Job(num_train=2000, epochs=12, lr=1.0)),
    "SGD, 1": (TOO_HIGH, Job(num_train=2000, epochs=12, lr=1.0, is_sgd=True)),
    "SGD, 5": (TOO_HIGH, Job(num_train=2000, epochs=12, lr=5.0, is_sgd=True)),
}


def points(job: Job, num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw points, and classes assigned by a fixed net, some of them wrong."""
    fixed = torch.Generator().manual_seed(123)
    teacher = nn.Sequential(nn.Linear(NUM_FEATURES, 32), nn.Tanh(), nn.Linear(32, NUM_CLASSES))
    for weight in teacher.parameters():
        weight.data = torch.randn(weight.shape, generator=fixed) * (1 if weight.dim() > 1 else 0.3)
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(num, NUM_FEATURES, generator=random)
    with torch.no_grad():
        y = teacher(x * job.scale).argmax(1)
    is_wrong = torch.rand(num, generator=random) < job.wrong
    return x, torch.where(is_wrong, torch.randint(NUM_CLASSES, (num,), generator=random), y)


def curves(job: Job, seed: int) -> Curves:
    """Train, and measure after each epoch."""
    torch.manual_seed(seed)
    x, y = points(job, job.num_train, 1)
    held_x, held_y = points(job, job.num_val, 2)
    w = job.width
    net: nn.Module = nn.Linear(NUM_FEATURES, NUM_CLASSES)
    if not job.is_linear:
        first = (nn.Linear(NUM_FEATURES, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU())
        net = nn.Sequential(*first, nn.Linear(w, NUM_CLASSES))
    optimizer: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), lr=job.lr)
    if job.is_sgd:
        optimizer = torch.optim.SGD(net.parameters(), lr=job.lr, momentum=0.9)
    best: Tensor | None = None
    found = []
    for epoch in range(1, job.epochs + 1):
        total, hits = 0.0, 0
        for rows in torch.randperm(job.num_train).split(32):
            optimizer.zero_grad()
            scores = net(x[rows])
            loss = F.cross_entropy(scores, y[rows])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
            hits += int((scores.argmax(1) == y[rows]).sum())
        with torch.no_grad():
            held, shown = net(held_x), net(x[: job.num_val])
            losses = F.cross_entropy(held, held_y, reduction="none")
            equal = F.cross_entropy(shown, y[: job.num_val]).item()
        rise = None if best is None else (best - losses).std().item() / math.sqrt(job.num_val)
        best = losses if best is None or losses.mean() < best.mean() else best
        found.append(
            Point(
                step=epoch * math.ceil(job.num_train / 32),
                epoch=epoch,
                train_loss=total / job.num_train,
                train_accuracy=hits / job.num_train,
                equal_train_loss=equal,
                equal_train_accuracy=(shown.argmax(1) == y[: job.num_val]).float().mean().item(),
                val_loss=losses.mean().item(),
                val_loss_sem=losses.std().item() / math.sqrt(job.num_val),
                rise_sem=rise,
                val_accuracy=(held.argmax(1) == held_y).float().mean().item(),
            )
        )
    return Curves(points=tuple(found), num_val=job.num_val, num_classes=NUM_CLASSES)


def as_logged(found: Curves) -> Curves:
    """Remove the training loss and accuracy that were measured in eval mode."""
    logged = (replace(p, equal_train_loss=None, equal_train_accuracy=None) for p in found.points)
    return replace(found, points=tuple(logged))


def said(fit: Fit) -> str:
    """Return a judgement as a cell of the table."""
    if fit.is_learning_rate_too_high:
        return TOO_HIGH
    return {FitKind.NOT_YET_KNOWN: "not yet known", FitKind.GOOD_FIT: "good fit"}.get(
        fit.kind, fit.kind.value
    )


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| job | expected | said |\n|---|---|---|")
    for name, (expected, job) in JOBS.items():
        answers: Counter[str] = Counter()
        for seed in SEEDS:
            found = curves(job, seed)
            answers.update(said(judge_fit(each)) for each in (found, as_logged(found)))
        counts = ", ".join(f"{answer} {num}" for answer, num in answers.most_common())
        print(f"| {name} | {expected or '–'} | {counts} |")


if __name__ == "__main__":
    main()
