"""Learn when a lift should leave, by Q-learning from a memory of transitions."""

import random

import torch
import torch.nn.functional as F
from torch import nn

random.seed(5)
torch.manual_seed(5)
MOST, GAMMA = 6, 0.95


def ride(waiting, leaves):
    """Return the next number of people waiting, the reward, and whether the lift has left."""
    if leaves or waiting == MOST:
        return 0, waiting - 2.0, True
    return waiting + random.randint(0, 1), -0.1, False


def one_hot(waiting):
    return F.one_hot(torch.as_tensor(waiting), MOST + 1).float()


class Memory:
    """Transitions, of which some are drawn."""

    def __init__(self):
        self.rows = []

    def add(self, *row):
        self.rows.append(row)

    def draw(self, num):
        rows = random.sample(self.rows, num)
        waiting, action, reward, next_waiting, done = (
            torch.tensor(c) for c in zip(*rows, strict=True)
        )
        return one_hot(waiting), action, reward, one_hot(next_waiting), done.float()


net, slow = (nn.Sequential(nn.Linear(MOST + 1, 32), nn.ReLU(), nn.Linear(32, 2)) for _ in "ab")
slow.load_state_dict(net.state_dict())
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
memory = Memory()


def learn():
    state, action, reward, next_state, done = memory.draw(48)
    value = net(state).gather(1, action.unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        best = slow(next_state).amax(1)
        target = reward + GAMMA * best * (1 - done)
    loss = F.smooth_l1_loss(value, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


waiting, total = 0, 0.0
for step in range(1, 701):
    leaves = random.random() < 0.5
    if step > 300 and random.random() > 0.2:
        with torch.no_grad():
            leaves = bool(net(one_hot(waiting)).argmax())
    after, reward, done = ride(waiting, leaves)
    memory.add(waiting, int(leaves), reward, after, done)
    waiting = after
    if step > 100:
        total += learn()
    if step % 25 == 0:
        slow.load_state_dict(net.state_dict())
    if step > 100 and step % 100 == 0:
        with torch.no_grad():
            values = net(one_hot(0)).tolist()
        print(f"step {step}: loss {total / 100:.4f}, value of waiting {values[0]:.2f}")
        total = 0.0
