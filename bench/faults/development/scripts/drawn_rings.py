"""Draw small rings with a critic whose gradient is penalised."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE = 10


def rings(n, seed):
    g = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    radius = 2 + 2 * torch.rand(n, 1, 1, generator=g)
    far = ((x - 4.5) ** 2 + (y - 4.5) ** 2).sqrt()
    return TensorDataset(torch.exp(-((far - radius) ** 2))[:, None] * 2 - 1)


class Critic(nn.Module):
    """Scores pictures."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.LeakyReLU(0.2))
        self.score = nn.Linear(16 * 25, 1)

    def forward(self, x):
        return self.score(self.body(x).flatten(1))


def penalty(critic, real, fake):
    part = torch.rand(len(real), 1, 1, 1)
    mixed = (part * real + (1 - part) * fake).requires_grad_()
    slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    return ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()


def main():
    torch.manual_seed(5)
    loader = DataLoader(rings(1600, 1), batch_size=32, shuffle=True)
    critic = Critic()
    artist = nn.Sequential(
        nn.Linear(8, 64),
        nn.ReLU(),
        nn.Linear(64, SIZE * SIZE),
        nn.Tanh(),
        nn.Unflatten(1, (1, SIZE, SIZE)),
    )
    of_critic = torch.optim.Adam(critic.parameters(), lr=5e-4, betas=(0.5, 0.9))
    of_artist = torch.optim.Adam(artist.parameters(), lr=5e-4, betas=(0.5, 0.9))
    for epoch in range(4):
        gaps = []
        for idx, (real,) in enumerate(loader):
            fake = artist(torch.randn(len(real), 8)).detach()
            gap = critic(real).mean() - critic(fake).mean()
            loss = 10 * penalty(critic, real, fake) - gap
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()
            gaps.append(gap.item())
            if idx % 3 == 0:
                drawn = -critic(artist(torch.randn(32, 8))).mean()
                of_artist.zero_grad()
                drawn.backward()
                of_artist.step()
        print(f"{epoch}: gap {sum(gaps) / len(gaps):.3f}")


main()
