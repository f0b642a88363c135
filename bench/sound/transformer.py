"""A causal transformer learns to write four digits backwards, character by character."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

CHARS = "0123456789="
LENGTH = 8


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a LayerNorm."""

    def __init__(self, width, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x, mask):
        h = self.norm1(x)
        h, _ = self.attention(h, h, h, attn_mask=mask, need_weights=False)
        x = x + h
        return x + self.mlp(self.norm2(x))


class CausalTransformer(nn.Module):
    """Token and place embeddings, two blocks, scores of the next character."""

    def __init__(self, width=48, dropout=0.0, is_tied=False, is_checkpointed=False):
        super().__init__()
        self.token = nn.Embedding(len(CHARS), width)
        self.place = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList([Block(width, dropout) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, len(CHARS), bias=False)
        nn.init.normal_(self.token.weight, std=0.1)
        if is_tied:
            self.out.weight = self.token.weight
        self.is_checkpointed = is_checkpointed

    def forward(self, tokens):
        t = tokens.shape[1]
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
        x = self.token(tokens) + self.place(torch.arange(t))
        for block in self.blocks:
            if self.is_checkpointed and self.training:
                x = checkpoint(block, x, mask, use_reentrant=False)
            else:
                x = block(x, mask)
        return self.out(self.norm(x))


def reversals(numbers):
    """Write abcd=dcba for numbers (n,) below 10000; only what follows the sign is to be learnt."""
    rows = [f"{a:04d}=" + f"{a:04d}"[::-1] for a in numbers.tolist()]
    tokens = torch.tensor([[CHARS.index(c) for c in row] for row in rows])
    targets = tokens[:, 1:].clone()
    targets[:, :4] = -100
    return TensorDataset(tokens[:, :-1], targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--optimizer", choices=["adam", "adamw", "nadam"], default="adamw")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--tied", action="store_true", help="one matrix for input and output")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    numbers = torch.randperm(10000)
    train_set, val_set = reversals(numbers[:2400]), reversals(numbers[2400:2900])
    train_loader = DataLoader(train_set, batch_size=50, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=250)

    model = CausalTransformer(
        dropout=args.dropout, is_tied=args.tied, is_checkpointed=args.checkpointing
    )
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    elif args.optimizer == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    else:
        optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3)
    num_steps = args.epochs * len(train_loader)

    def rate(step):
        if step < args.warmup:
            return step / args.warmup  # from zero
        done = (step - args.warmup) / max(1, num_steps - args.warmup)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for epoch in range(args.epochs):
        model.train()
        for x, y in train_loader:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
                logits = model(x)
            loss = F.cross_entropy(
                logits.float().flatten(0, 1), y.flatten(), label_smoothing=args.label_smoothing
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
        model.eval()
        hits = 0
        with torch.no_grad():
            for x, y in val_loader:
                hits += (model(x).argmax(2) == y)[:, 4:].float().mean(1).sum().item()
        print(f"epoch {epoch}: digits right {hits / len(val_set):.3f}")


if __name__ == "__main__":
    main()
