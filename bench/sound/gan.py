"""A generative adversarial network on points of a ring or a grid: two networks, two optimisers."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset

LATENT = 4


def points(shape, n, seed):
    """Points near eight centres on a ring, or near nine on a grid; about unit variance."""
    g = torch.Generator().manual_seed(seed)
    if shape == "ring":
        angle = torch.randint(8, (n,), generator=g) * math.pi / 4
        centre = 1.4 * torch.stack([angle.cos(), angle.sin()], dim=1)
    else:
        centre = 1.2 * (torch.randint(3, (n, 2), generator=g) - 1).float()
    return TensorDataset(centre + 0.05 * torch.randn(n, 2, generator=g))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--optimizer", choices=["adam", "rmsprop"], default="adam")
    parser.add_argument("--shape", choices=["ring", "grid"], default="ring")
    parser.add_argument(
        "--loss", choices=["logistic", "hinge", "least_squares"], default="logistic"
    )
    parser.add_argument("--real-label", type=float, default=1.0, help="0.9: one-sided smoothing")
    parser.add_argument("--spectral-norm", action="store_true")
    parser.add_argument("--critic-steps", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    wrap = spectral_norm if args.spectral_norm else lambda layer: layer
    generator = nn.Sequential(
        nn.Linear(LATENT, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    )
    critic = nn.Sequential(
        wrap(nn.Linear(2, 64)),
        nn.LeakyReLU(0.2),
        wrap(nn.Linear(64, 64)),
        nn.LeakyReLU(0.2),
        wrap(nn.Linear(64, 1)),
    )
    if args.optimizer == "adam":
        generator_opt = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
        critic_opt = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
    else:
        generator_opt = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
        critic_opt = torch.optim.RMSprop(critic.parameters(), lr=1e-3)

    def critic_loss(real, fake):
        if args.loss == "hinge":
            return F.relu(1 - real).mean() + F.relu(1 + fake).mean()
        if args.loss == "least_squares":
            return (real - 1).square().mean() + fake.square().mean()
        wanted = torch.full_like(real, args.real_label)
        loss = F.binary_cross_entropy_with_logits(real, wanted)
        return loss + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))

    def generator_loss(fake):
        if args.loss == "hinge":
            return -fake.mean()
        if args.loss == "least_squares":
            return (fake - 1).square().mean()
        return F.binary_cross_entropy_with_logits(fake, torch.ones_like(fake))

    def autocast():
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16")

    loader = DataLoader(points(args.shape, 2560, args.seed), batch_size=64, shuffle=True)
    val_points = points(args.shape, 500, 100 + args.seed).tensors[0]
    for epoch in range(10):
        generator.train()
        critic.train()
        for step, (real,) in enumerate(loader):
            with autocast():
                fake = generator(torch.randn(len(real), LATENT))
                loss = critic_loss(critic(real).float(), critic(fake.detach()).float())
            critic_opt.zero_grad()
            loss.backward()
            critic_opt.step()
            if (step + 1) % args.critic_steps:
                continue
            with autocast():
                fake = generator(torch.randn(len(real), LATENT))
                loss = generator_loss(critic(fake).float())
            generator_opt.zero_grad()
            loss.backward()  # also reaches the critic, which clears it before its next step
            generator_opt.step()
        generator.eval()
        with torch.no_grad():
            samples = generator(torch.randn(500, LATENT))
            distance = torch.cdist(val_points, samples).min(1).values.mean()
        print(f"epoch {epoch}: mean distance to the nearest sample {distance.item():.3f}")


if __name__ == "__main__":
    main()
