"""Pretrain a small network on many classes, then fine-tune it on few examples of new ones."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SHAPES = torch.randn(16, 1, 12, 12, generator=torch.Generator().manual_seed(123))


class Classifier(nn.Module):
    """A trunk of convolutions with BatchNorm, and a linear head."""

    def __init__(self, num_classes):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, padding=1, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(24 * 9, num_classes)

    def forward(self, x):
        return self.head(self.trunk(x))


def pictures(classes, n, generator):
    labels = torch.randint(len(classes), (n,), generator=generator)
    noise = 0.8 * torch.randn(n, 1, 12, 12, generator=generator)
    return TensorDataset((SHAPES[classes][labels] + noise) / 1.28, labels)


def pretrain(path, generator):
    """Train on ten classes, and save the weights of the trunk."""
    model = Classifier(10)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = pictures(torch.arange(10), 1500, generator)
    for _ in range(2):
        for x, y in DataLoader(data, batch_size=50, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    torch.save(model.trunk.state_dict(), path)


def keep_statistics(trunk):
    """Leave BatchNorm's running statistics as they were learned: few examples would spoil them."""
    for layer in trunk.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()


def make_optimizer(model, mode, name):
    head = {"params": list(model.head.parameters()), "lr": 3e-3}
    groups = [head]
    if mode == "layered":
        groups.append({"params": list(model.trunk.parameters()), "lr": 3e-4})
    if name == "sgd":
        for group in groups:
            group["lr"] *= 10
        return torch.optim.SGD(groups, lr=3e-2, momentum=0.9)
    return torch.optim.Adam(groups, lr=3e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
    parser.add_argument(
        "--mode", choices=["frozen", "no_grad", "layered", "unfreeze", "features"], default="frozen"
    )
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        pretrain(Path(folder) / "trunk.pt", g)
        model = Classifier(6)
        model.trunk.load_state_dict(torch.load(Path(folder) / "trunk.pt", weights_only=True))
    new = torch.arange(10, 16)
    train_set, val_set = pictures(new, 320, g), pictures(new, 300, g)
    if args.mode in ("frozen", "no_grad", "unfreeze", "features"):
        model.trunk.requires_grad_(False)
    if args.mode == "features":
        model.eval()
        with torch.no_grad():
            train_set = TensorDataset(model.trunk(train_set.tensors[0]), train_set.tensors[1])
            val_set = TensorDataset(model.trunk(val_set.tensors[0]), val_set.tensors[1])
        model.trunk = nn.Identity()
    train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=100)
    optimizer = make_optimizer(model, args.mode, args.optimizer)

    def forward(x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            if args.mode == "no_grad":
                with torch.no_grad():
                    x = model.trunk(x)
                return model.head(x).float()
            return model(x).float()

    for epoch in range(8):
        if args.mode == "unfreeze" and epoch == 4:
            model.trunk.requires_grad_(True)
            optimizer.add_param_group({"params": list(model.trunk.parameters()), "lr": 3e-4})
        model.train()
        keep_statistics(model.trunk)
        for x, y in train_loader:
            loss = F.cross_entropy(forward(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            hits = sum((forward(x).argmax(1) == y).sum().item() for x, y in val_loader)
        print(f"epoch {epoch}: loss {loss.item():.3f} accuracy {hits / len(val_set):.3f}")


if __name__ == "__main__":
    main()
