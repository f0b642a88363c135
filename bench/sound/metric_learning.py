"""Learn an embedding in which items of one kind lie together; judged on kinds never seen."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

NUM_KINDS, NUM_NEW_KINDS = 20, 8


class SameKinds(Sampler):
    """Batches of P kinds with K items of each, drawn anew in every epoch."""

    def __init__(self, labels, num_kinds, num_items, num_batches):
        self.rows = [torch.nonzero(labels == kind).squeeze(1) for kind in labels.unique()]
        self.num_kinds, self.num_items, self.num_batches = num_kinds, num_items, num_batches

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        for _ in range(self.num_batches):
            batch = []
            for kind in torch.randperm(len(self.rows))[: self.num_kinds].tolist():
                rows = self.rows[kind]
                batch += rows[torch.randperm(len(rows))[: self.num_items]].tolist()
            yield batch


class Embedder(nn.Module):
    """A small network whose outputs lie on the unit sphere."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(40, 96), nn.ReLU(), nn.Linear(96, 16))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def triplet_loss(z, labels):
    """Margin loss with the hardest positive and negative of the batch (Hermans et al. 2017)."""
    distance = torch.cdist(z, z)
    same = labels[:, None] == labels[None, :]
    positive = distance.masked_fill(~same, 0).max(1).values
    negative = distance.masked_fill(same, 9).min(1).values
    return F.relu(positive - negative + 0.3).mean()


def supervised_contrastive_loss(z, labels, temperature=0.2):
    """Pull items of one kind together against all others (Khosla et al. 2020)."""
    scores = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool)
    log_p = scores.masked_fill(itself, -1e4).log_softmax(1)
    same = (labels[:, None] == labels[None, :]) & ~itself
    return -(log_p * same).sum(1).div(same.sum(1)).mean()


def pairs_loss(z, labels, temperature=0.1):
    """Tell each item's partner among the batch (van den Oord et al. 2018, InfoNCE)."""
    first, second = z[0::2], z[1::2]
    kinds = labels[0::2]
    clash = (kinds[:, None] == kinds[None, :]) & ~torch.eye(len(kinds), dtype=torch.bool)
    scores = (first @ second.T / temperature).masked_fill(clash, -1e4)
    return F.cross_entropy(scores, torch.arange(len(first)))


LOSSES = {
    "triplet": triplet_loss,
    "contrastive": supervised_contrastive_loss,
    "pairs": pairs_loss,
}


def items(kinds, per_kind, generator):
    """Items of a kind share eight hidden numbers; thirty-two others are noise."""
    mix = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(0)))[0]
    labels = torch.arange(len(kinds)).repeat_interleave(per_kind)
    hidden = torch.randn(len(labels), 40, generator=generator)
    hidden[:, :8] = kinds[labels] + 0.4 * hidden[:, :8]
    return (hidden @ mix) / hidden.std(), labels


def recall_at_one(z, labels):
    distance = torch.cdist(z, z).fill_diagonal_(9)
    return (labels[distance.argmin(1)] == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--optimizer", choices=["adam", "sgd", "adamw"], default="adam")
    parser.add_argument("--loss", choices=list(LOSSES), default="triplet")
    parser.add_argument("--cosine", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    kinds = torch.randn(NUM_KINDS + NUM_NEW_KINDS, 8, generator=g)
    train_x, train_labels = items(kinds[:NUM_KINDS], 60, g)
    val_x, val_labels = items(kinds[NUM_KINDS:], 30, g)
    sampler = SameKinds(train_labels, num_kinds=12, num_items=4, num_batches=40)
    loader = DataLoader(TensorDataset(train_x, train_labels), batch_sampler=sampler)

    model = Embedder()
    if args.optimizer == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    elif args.optimizer == "adamw":
        matrices = [p for p in model.parameters() if p.dim() > 1]
        biases = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": matrices}, {"params": biases, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.05)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    num_epochs = 6
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_epochs * len(loader))
    for epoch in range(num_epochs):
        model.train()
        for x, labels in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
                z = model(x)
            loss = LOSSES[args.loss](z.float(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if args.cosine:
                cosine.step()
        model.eval()
        with torch.no_grad():
            recall = recall_at_one(model(val_x), val_labels)
        print(f"epoch {epoch}: loss {loss.item():.3f} recall@1 of new kinds {recall:.3f}")


if __name__ == "__main__":
    main()
