"""Recognise glyphs of a toy alphabet."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
NUM_GLYPHS = 10
glyphs = (
    torch.rand(NUM_GLYPHS, 1, 12, 12, generator=torch.Generator().manual_seed(9)) > 0.6
).float()


class GlyphNet(nn.Module):
    """One convolution and two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(8 * 6 * 6, 64)
        self.fc2 = nn.Linear(64, NUM_GLYPHS)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv(x)))
        x = torch.relu(self.fc1(torch.flatten(x, 1)))
        return torch.log_softmax(self.fc2(x), dim=1)


def get_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(NUM_GLYPHS, (n,), generator=g)
    x = glyphs[y] + 0.5 * torch.randn(n, 1, 12, 12, generator=g)
    return TensorDataset((x - 0.4) / 0.7, y)


trainloader = DataLoader(get_data(2000, 1), batch_size=50, shuffle=True)
testloader = DataLoader(get_data(500, 2), batch_size=100, shuffle=False)
net = GlyphNet()
criterion = nn.NLLLoss()
optimizer = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

for epoch in range(6):
    net.train()
    running_loss = 0.0
    for inputs, labels in trainloader:
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    correct = total = 0
    net.eval()
    with torch.no_grad():
        for images, labels in testloader:
            predicted = net(images).argmax(1)
            total += labels.size(0)
            correct += (predicted == labels).sum().item()
    print(f"[{epoch + 1}] loss: {running_loss / len(trainloader):.3f} acc: {correct / total:.3f}")
