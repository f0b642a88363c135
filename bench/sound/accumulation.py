"""Gradient accumulation with mixed precision, by token classification."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VOCAB, LENGTH, NUM_TAGS = 60, 14, 4


class Tagger(nn.Module):
    """Embeddings, convolutions over time, LayerNorm, a score for each tag."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 48)
        self.conv1 = nn.Conv1d(48, 48, 3, padding=1)
        self.conv2 = nn.Conv1d(48, 48, 3, padding=1)
        self.norm = nn.LayerNorm(48)
        self.out = nn.Linear(48, NUM_TAGS)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        x = F.gelu(self.conv1(x))
        x = x + F.gelu(self.conv2(x))
        return self.out(self.norm(x.transpose(1, 2)))


def sentences(n, seed):
    """A token's tag depends on itself and on the token before it."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (n, LENGTH), generator=g)
    before = torch.cat([torch.zeros(n, 1, dtype=torch.long), tokens[:, :-1]], dim=1)
    tags = 2 * (tokens < VOCAB // 2).long() + (before < VOCAB // 2).long()
    return TensorDataset(tokens, tags)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp16")
    parser.add_argument("--optimizer", choices=["adam", "sgd", "adamw"], default="adam")
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--clip", type=float, default=None, help="norm that few gradients exceed")
    parser.add_argument("--by-tokens", action="store_true", help="divide sums by all tokens")
    parser.add_argument("--save", action="store_true", help="write whole checkpoints")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(sentences(1400, 30 + args.seed), batch_size=16, shuffle=True)
    val_loader = DataLoader(sentences(400, 40 + args.seed), batch_size=100)
    model = Tagger()
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    elif args.optimizer == "adamw":
        matrices = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0}]
        optimizer = torch.optim.AdamW(groups, lr=3e-3)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=args.precision == "fp16")
    dtype = torch.float16 if args.precision == "fp16" else torch.bfloat16

    def forward(tokens):
        with torch.autocast("cpu", dtype=dtype, enabled=args.precision != "fp32"):
            return model(tokens).float()

    def step():
        if args.clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    folder = Path(tempfile.mkdtemp())
    num_batches = len(train_loader)
    for epoch in range(4):
        model.train()
        optimizer.zero_grad()
        for idx, (tokens, tags) in enumerate(train_loader):
            first = idx - idx % args.accumulate
            window = min(args.accumulate, num_batches - first)  # the last one may be shorter
            logits = forward(tokens).flatten(0, 1)
            if args.by_tokens:
                num_tokens = min(first * 16 + window * 16, 1400) - first * 16
                loss = F.cross_entropy(logits, tags.flatten(), reduction="sum")
                loss = loss / (num_tokens * LENGTH)
            else:
                loss = F.cross_entropy(logits, tags.flatten()) / window
            scaler.scale(loss).backward()
            if idx + 1 == first + window:
                step()
        model.eval()
        hits = 0
        with torch.no_grad():
            for tokens, tags in val_loader:
                hits += (forward(tokens).argmax(2) == tags).float().mean(1).sum().item()
        print(f"epoch {epoch}: accuracy {hits / 400:.3f}")
        if args.save:
            state = {
                "epoch": epoch,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
                "rng": torch.get_rng_state(),
            }
            torch.save(state, folder / "last.pt")


if __name__ == "__main__":
    main()
