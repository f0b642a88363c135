"""Compress pictures of blobs with an autoencoder in two modules."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Encoder(nn.Module):
    """Pictures to codes."""

    def __init__(self, code):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, code))

    def forward(self, x):
        return self.net(x)


class Decoder(nn.Module):
    """Codes to pictures."""

    def __init__(self, code):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, 256))

    def forward(self, z):
        return self.net(z).view(-1, 1, 16, 16)


def pictures(n, generator):
    centre = torch.rand(n, 2, 1, 1, generator=generator) * 10 + 3
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    image = torch.exp(-((y - centre[:, 0]) ** 2 + (x - centre[:, 1]) ** 2) / 8)
    return ((image - 0.1) / 0.22).unsqueeze(1)


generator = torch.Generator().manual_seed(5)
train_loader = DataLoader(TensorDataset(pictures(1500, generator)), batch_size=50, shuffle=True)
val_images = pictures(300, generator)

encoder, decoder = Encoder(8), Decoder(8)
parameters = [*encoder.parameters(), *decoder.parameters()]
optimizer = torch.optim.Adam(parameters, lr=2e-3)
criterion = nn.MSELoss()

for epoch in range(10):
    encoder.train()
    decoder.train()
    for (images,) in train_loader:
        optimizer.zero_grad()
        loss = criterion(decoder(encoder(images)), images)
        loss.backward()
        optimizer.step()
    encoder.eval()
    decoder.eval()
    with torch.no_grad():
        val_loss = criterion(decoder(encoder(val_images)), val_images)
    print(f"epoch {epoch:2d}  val {val_loss:.4f}")
