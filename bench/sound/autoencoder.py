"""Autoencoders of small pictures: dense, convolutional, denoising or sparse."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Dense(nn.Module):
    """Linear layers down to a code and up again, optionally with tied weights."""

    def __init__(self, code, *, is_tied):
        super().__init__()
        self.down = nn.Linear(144, 64)
        self.inner = nn.Linear(64, code)
        self.outer = nn.Linear(code, 64)
        self.up = None if is_tied else nn.Linear(64, 144)
        self.up_bias = nn.Parameter(torch.zeros(144)) if is_tied else None

    def encode(self, x):
        return self.inner(F.relu(self.down(x.flatten(1))))

    def forward(self, x):
        h = F.relu(self.outer(self.encode(x)))
        y = F.linear(h, self.down.weight.T, self.up_bias) if self.up is None else self.up(h)
        return y.view_as(x)


class Convolutional(nn.Module):
    """Strided convolutions down, transposed convolutions up."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
        )
        self.decode = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
        )

    def forward(self, x):
        return self.decode(self.encode(x))


def pictures(n, seed):
    """Pictures of two soft spots, standardised."""
    g = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    image = torch.zeros(n, 12, 12)
    for _ in range(2):
        centre = 11 * torch.rand(n, 2, 1, 1, generator=g)
        image += torch.exp(-((y - centre[:, 0]) ** 2 + (x - centre[:, 1]) ** 2) / 8)
    return TensorDataset((image.unsqueeze(1) - 0.28) / 0.34)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--optimizer", choices=["adam", "sgd", "adamw"], default="adam")
    parser.add_argument("--model", choices=["dense", "tied", "convolutional"], default="dense")
    parser.add_argument("--noise", type=float, default=0.0, help="denoising where above 0")
    parser.add_argument("--sparsity", type=float, default=0.0, help="weight of the code's L1 norm")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(pictures(1600, 70 + args.seed), batch_size=50, shuffle=True)
    val_loader = DataLoader(pictures(400, 170 + args.seed), batch_size=200)
    if args.model == "convolutional":
        model = Convolutional()
    else:
        model = Dense(12, is_tied=args.model == "tied")
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    elif args.optimizer == "adamw":
        groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.01)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(8):
        model.train()
        for (clean,) in train_loader:
            noisy = clean + args.noise * torch.randn_like(clean) if args.noise else clean
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
                output = model(noisy)
                code = model.encode(noisy) if args.sparsity else None
            loss = F.mse_loss(output.float(), clean)
            if code is not None:
                loss = loss + args.sparsity * code.float().abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            errors = [F.mse_loss(model(clean), clean).item() for (clean,) in val_loader]
        print(f"epoch {epoch}: val mse {sum(errors) / len(errors):.4f}")


if __name__ == "__main__":
    main()
