"""Steel bars with notches, as profiles of 48 heights: a variational autoencoder draws new ones."""

import torch
import torch.nn.functional as F
from torch import nn

LENGTH, CODES = 48, 6


class Profiles(nn.Module):
    """Encoder and decoder."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(LENGTH, 64), nn.ReLU())
        self.to_mean = nn.Linear(64, CODES)
        self.to_log_std = nn.Linear(64, CODES)
        self.decoder = nn.Sequential(nn.Linear(CODES, 64), nn.ReLU(), nn.Linear(64, LENGTH))

    def forward(self, profiles):
        hidden = self.encoder(profiles)
        mean, log_std = self.to_mean(hidden), self.to_log_std(hidden)
        codes = mean + log_std.exp() * torch.randn_like(mean)
        return self.decoder(codes), mean, log_std


def bars(num, seed):
    draws = torch.Generator().manual_seed(seed)
    places = torch.arange(LENGTH)
    profiles = torch.ones(num, LENGTH)
    for _ in range(2):
        at = torch.randint(4, LENGTH - 4, (num, 1), generator=draws)
        depth = torch.rand(num, 1, generator=draws) + 0.5
        profiles -= depth * torch.exp(-((places - at) ** 2) / 8.0)
    return profiles - profiles.mean()


def loss_of(outputs, profiles):
    rebuilt, mean, log_std = outputs
    error = F.mse_loss(rebuilt, profiles, reduction="sum") / len(profiles)
    divergence = 0.5 * (mean**2 + torch.exp(2 * log_std) - 2 * log_std - 1)
    return error + 0.2 * divergence.sum(1).mean()


def main():
    torch.manual_seed(4)
    train, held_out = bars(1600, 1), bars(200, 2)
    model = Profiles()
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(8):
        model.train()
        for rows in torch.randperm(len(train)).split(32):
            loss = loss_of(model(train[rows]), train[rows])
            adam.zero_grad()
            loss.backward()
            adam.step()
        model.eval()
        with torch.no_grad():
            drawn = model.decoder(torch.randn(200, CODES))
            off = (drawn.std(0) - held_out.std(0)).abs().mean()
            held = loss_of(model(held_out), held_out)
        print(f"epoch {epoch}: loss {held:.3f}, spread of drawn profiles off by {off:.3f}")


if __name__ == "__main__":
    main()
