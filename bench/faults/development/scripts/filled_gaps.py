"""Fill gaps in short signals: close to the truth, and like a real one to a second network."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LENGTH = 16


def signals(n, seed):
    g = torch.Generator().manual_seed(seed)
    phase = 6.3 * torch.rand(n, 1, generator=g)
    whole = torch.sin(phase + torch.arange(LENGTH) * (0.4 + 0.4 * torch.rand(n, 1, generator=g)))
    holes = (torch.rand(n, LENGTH, generator=g) > 0.4).float()
    return TensorDataset(whole * holes, whole)


def network(num_out):
    return nn.Sequential(nn.Linear(LENGTH, 64), nn.LeakyReLU(0.2), nn.Linear(64, num_out))


def says(judge, x, is_real):
    return F.binary_cross_entropy_with_logits(judge(x).squeeze(1), torch.full((len(x),), is_real))


def main():
    torch.manual_seed(9)
    loader = DataLoader(signals(2400, 1), batch_size=48, shuffle=True)
    filler, judge = network(LENGTH), network(1)
    of_filler = torch.optim.Adam(filler.parameters(), lr=1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
    for epoch in range(5):
        sums = torch.zeros(2)
        for holed, whole in loader:
            filled = filler(holed)
            judged = says(judge, whole, 1.0) + says(judge, filled.detach(), 0.0)
            of_judge.zero_grad()
            judged.backward()
            of_judge.step()

            loss = F.l1_loss(filled, whole) + 0.1 * says(judge, filled, 1.0)
            of_filler.zero_grad()
            loss.backward()
            of_filler.step()
            sums += torch.tensor([judged.item(), loss.item()])
        print(f"{epoch}: judge {sums[0] / len(loader):.3f}, filler {sums[1] / len(loader):.3f}")


main()
