"""Regression or classification of a table with a multilayer perceptron."""

import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset, random_split


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=["number", "label"], default="number")
    parser.add_argument(
        "--optimizer", choices=["sgd", "adam", "adamw", "rmsprop", "nadam", "lbfgs"], default="adam"
    )
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp64"], default="fp32")
    parser.add_argument("--one-cycle", action="store_true")
    parser.add_argument("--plateau", action="store_true", help="lower the rate on a plateau")
    parser.add_argument("--clip", type=float, default=None, help="norm that few gradients exceed")
    parser.add_argument("--clear-by-hand", action="store_true", help="set p.grad to None")
    parser.add_argument("--swa", action="store_true", help="average the weights of the last epochs")
    parser.add_argument("--epochs", type=int, default=8)
    return parser.parse_args()


def table(n, seed):
    """Eight columns of different units, and a number that depends on five of them."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, 8, generator=g)
    number = torch.sin(z[:, 0]) * z[:, 1] + 0.5 * z[:, 2] ** 2 - z[:, 3] + 0.3 * z[:, 4]
    number = number + 0.1 * torch.randn(n, generator=g)
    columns = 5 + z * torch.tensor([1.0, 2, 10, 0.1, 3, 7, 0.5, 4])
    return columns, (number - 0.5) / 1.5


def make_optimizer(name, model):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if name == "rmsprop":
        return torch.optim.RMSprop(model.parameters(), lr=1e-3)
    if name == "nadam":
        return torch.optim.NAdam(model.parameters(), lr=2e-3)
    if name == "lbfgs":
        return torch.optim.LBFGS(model.parameters(), max_iter=10, line_search_fn="strong_wolfe")
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=2e-3)
    return torch.optim.Adam(model.parameters(), lr=2e-3)


def main():
    args = parse()
    torch.manual_seed(args.seed)
    dtype = torch.float64 if args.precision == "fp64" else torch.float32
    columns, number = table(2500, 300 + args.seed)
    target = number if args.target == "number" else (number > 0).float()
    dataset = TensorDataset(columns.to(dtype), target.to(dtype))
    g = torch.Generator().manual_seed(args.seed)
    train_set, val_set = random_split(dataset, [2000, 500], generator=g)
    rows = dataset.tensors[0][train_set.indices]
    mean, std = rows.mean(0), rows.std(0)
    is_full_batch = args.optimizer == "lbfgs"
    batch_size = len(train_set) if is_full_batch else 50
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=100)

    model = nn.Sequential(
        nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
    ).to(dtype)
    average = AveragedModel(model) if args.swa else None
    criterion = nn.SmoothL1Loss() if args.target == "number" else nn.BCEWithLogitsLoss()
    optimizer = make_optimizer(args.optimizer, model)
    num_epochs = 12 if is_full_batch else args.epochs
    num_steps = num_epochs * len(train_loader)
    cycle = plateau = None
    if args.one_cycle:
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=num_steps)
    if args.plateau:
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)

    def loss_of(x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            output = model((x - mean) / std).squeeze(1)
        return criterion(output.to(dtype), y)

    def backward(x, y):
        if args.clear_by_hand:
            for parameter in model.parameters():
                parameter.grad = None
        else:
            optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        if args.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        return loss

    for epoch in range(num_epochs):
        model.train()
        for x, y in train_loader:
            if is_full_batch:
                optimizer.step(lambda x=x, y=y: backward(x, y))
            else:
                backward(x, y)
                optimizer.step()
            if cycle is not None:
                cycle.step()
        if average is not None and epoch >= num_epochs // 2:
            average.update_parameters(model)
        model.eval()
        with torch.no_grad():
            val_loss = sum(loss_of(x, y).item() for x, y in val_loader) / len(val_loader)
        if plateau is not None:
            plateau.step(val_loss)
        print(f"epoch {epoch}: val loss {val_loss:.4f}")
    if average is not None:
        average.eval()
        x, y = next(iter(DataLoader(val_set, batch_size=500)))
        with torch.no_grad():
            final = criterion(average((x - mean) / std).squeeze(1), y)
        print(f"averaged: val loss {final.item():.4f}")


if __name__ == "__main__":
    main()
