"""Recurrent networks: a running text in pieces, or padded sentences of different lengths."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

PAD, VOCAB = 0, 24


class Recurrent(nn.Module):
    """Embedding, LSTM or GRU, dropout, scores of the next token."""

    def __init__(self, cell, dropout):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 24, padding_idx=PAD)
        self.rnn = {"lstm": nn.LSTM, "gru": nn.GRU}[cell](24, 64, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(64, VOCAB)

    def forward(self, tokens, state=None, lengths=None):
        x = self.embed(tokens)
        if lengths is not None:
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        x, state = self.rnn(x, state)
        if lengths is not None:
            x, _ = pad_packed_sequence(x, batch_first=True)
        return self.out(self.dropout(x)), state


def melody(n, generator):
    """Tokens that rise by a stride, which changes now and then."""
    stride = 1 + torch.randint(3, (n,), generator=generator)
    is_new = torch.rand(n, generator=generator) < 0.15
    is_new[0] = True
    held = torch.where(is_new, torch.arange(n), torch.zeros(n, dtype=torch.long))
    steps = stride[held.cummax(0).values]
    return 1 + steps.cumsum(0) % (VOCAB - 1)


def detached(state):
    if isinstance(state, tuple):
        return tuple(part.detach() for part in state)
    return state.detach()


def pieces(text, num_streams, length):
    """Cut a text into streams that are read side by side, a piece after the other."""
    streams = text[: len(text) // num_streams * num_streams].view(num_streams, -1)
    for start in range(0, streams.shape[1] - length, length):
        window = streams[:, start : start + length + 1]
        yield window[:, :-1], window[:, 1:]


def collate(rows):
    lengths = torch.tensor([len(row) - 1 for row in rows])
    padded = pad_sequence(rows, batch_first=True, padding_value=PAD)
    return padded[:, :-1], padded[:, 1:], lengths


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cell", choices=["lstm", "gru"], default="lstm")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--optimizer", choices=["adam", "sgd", "rmsprop"], default="adam")
    parser.add_argument("--padded", action="store_true", help="sentences instead of one text")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--clip", type=float, default=2.0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(50 + args.seed)
    model = Recurrent(args.cell, args.dropout)
    rates = {"adam": 4e-3, "sgd": 0.5, "rmsprop": 2e-3}
    makers = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD, "rmsprop": torch.optim.RMSprop}
    optimizer = makers[args.optimizer](model.parameters(), lr=rates[args.optimizer])

    def forward(x, state=None, lengths=None):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            return model(x, state, lengths)

    def step(logits, y):
        loss = loss_of(logits.float(), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()

    if args.padded:
        sizes = torch.randint(6, 24, (1500,), generator=g).tolist()
        rows = [melody(n, g) for n in sizes]
        train_loader = DataLoader(rows[:1200], batch_size=32, shuffle=True, collate_fn=collate)
        val_loader = DataLoader(rows[1200:], batch_size=50, collate_fn=collate)
    else:
        train_text, val_text = melody(16000, g), melody(3000, g)
    for epoch in range(6):
        model.train()
        if args.padded:
            for x, y, lengths in train_loader:
                step(forward(x, lengths=lengths)[0], y)
        else:
            state = None
            for x, y in pieces(train_text, num_streams=20, length=20):
                logits, state = forward(x, state)
                step(logits, y)
                state = detached(state)  # gradients end at the border of a piece
        model.eval()
        with torch.no_grad():
            if args.padded:
                losses = [loss_of(forward(x, None, n)[0].float(), y) for x, y, n in val_loader]
            else:
                losses = []
                state = None
                for x, y in pieces(val_text, num_streams=20, length=20):
                    logits, state = forward(x, state)
                    losses.append(loss_of(logits.float(), y))
        print(f"epoch {epoch}: val loss {torch.stack(losses).mean().item():.3f}")


if __name__ == "__main__":
    main()
