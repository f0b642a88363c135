"""Learn which of several offers to show, by policy gradients."""

import torch
from torch import nn
from torch.distributions import Categorical

OFFERS, FEATURES = 5, 6


def pays(visitors, shown, tastes):
    """Return rewards around 20, of which little depends on what is shown."""
    fit = (visitors @ tastes)[torch.arange(len(visitors)), shown]
    return 20 + torch.tanh(fit) + 0.1 * torch.randn(len(visitors))


def main():
    torch.manual_seed(6)
    tastes = torch.randn(FEATURES, OFFERS)
    policy = nn.Sequential(nn.Linear(FEATURES, 48), nn.Tanh(), nn.Linear(48, OFFERS))
    opt = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for step in range(400):
        visitors = torch.randn(64, FEATURES)
        choice = Categorical(logits=policy(visitors))
        shown = choice.sample()
        paid = pays(visitors, shown, tastes)
        gain = (paid - paid.mean()) / (paid.std() + 1e-8)
        loss = -(choice.log_prob(shown) * gain).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 100 == 99:
            with torch.no_grad():
                visitors = torch.randn(2000, FEATURES)
                best = policy(visitors).argmax(1)
            print(f"{step}: pays {pays(visitors, best, tastes).mean():.3f}")


main()
