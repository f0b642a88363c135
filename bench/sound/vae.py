"""A variational autoencoder of binary or grey pictures."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    """Gaussian code, dense encoder and decoder."""

    def __init__(self, latent, dropout):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Dropout(dropout))
        self.mean = nn.Linear(64, latent)
        self.log_var = nn.Linear(64, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 100))

    def forward(self, x):
        h = self.encoder(x.flatten(1))
        mean, log_var = self.mean(h), self.log_var(h)
        code = mean
        if self.training:
            code = mean + torch.exp(0.5 * log_var) * torch.randn_like(mean)
        return self.decoder(code), mean, log_var


def bars(n, seed, kind):
    """Pictures of one row and one column, as 0 and 1 or as standardised grey values."""
    g = torch.Generator().manual_seed(seed)
    image = torch.zeros(n, 10, 10)
    image[torch.arange(n), torch.randint(10, (n,), generator=g)] = 1
    image[torch.arange(n), :, torch.randint(10, (n,), generator=g)] = 1
    if kind == "grey":
        image = (image + 0.2 * torch.randn(n, 10, 10, generator=g) - 0.19) / 0.44
    return TensorDataset(image)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--optimizer", choices=["adam", "adamw", "rmsprop"], default="adam")
    parser.add_argument("--kind", choices=["binary", "grey"], default="binary")
    parser.add_argument(
        "--sum", action="store_true", help="sum over the batch, as the paper's code"
    )
    parser.add_argument("--beta", type=float, default=1.0)
    parser.add_argument("--beta-warmup", type=int, default=0, help="steps until beta is whole")
    parser.add_argument("--dropout", type=float, default=0.0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(bars(2000, 10 + args.seed, args.kind), batch_size=50, shuffle=True)
    val_loader = DataLoader(bars(400, 500 + args.seed, args.kind), batch_size=100)
    model = VAE(latent=10, dropout=args.dropout)
    if args.optimizer == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    elif args.optimizer == "adamw":
        matrices = [p for p in model.parameters() if p.dim() > 1]
        biases = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0}]
        optimizer = torch.optim.AdamW(groups, lr=3e-3)
    else:
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    def loss_of(x, beta):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            output, mean, log_var = model(x)
        output, mean, log_var = output.float(), mean.float(), log_var.float()
        x = x.flatten(1)
        if args.kind == "binary":
            likelihood = F.binary_cross_entropy_with_logits(output, x, reduction="sum")
        else:
            likelihood = F.mse_loss(output, x, reduction="sum") / (2 * 0.5**2)
        divergence = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum()
        total = likelihood + beta * divergence
        return total if args.sum else total / len(x)

    step = 0
    for epoch in range(8):
        model.train()
        for (x,) in train_loader:
            step += 1
            ramp = min(1.0, step / args.beta_warmup) if args.beta_warmup else 1.0
            loss = loss_of(x, args.beta * ramp)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            val = sum(loss_of(x, args.beta).item() for (x,) in val_loader) / len(val_loader)
        print(f"epoch {epoch}: val loss {val:.2f}")


if __name__ == "__main__":
    main()
