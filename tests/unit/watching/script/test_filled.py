"""Nested loops that compute single values, by their source."""

from __future__ import annotations

import pytest

from stepladder.watching.script.filled import SIZES, VALUES, filled_by, function_of

TABLE = """
def forward(self, x):
    length = x.shape[1]
    table = torch.zeros(length, self.channels, device=x.device)
    for at in range(length):
        for i in range(0, self.channels, 2):
            table[at, i] = math.sin(at / 10000 ** (i / self.channels))  # here
    return x + table
"""
APPENDED = """
    def forward(self, x):
        rows = []
        for i in range(x.size(1)):
            row = []
            for j in range(x.size(1)):
                distance = min(abs(i - j), 8)
                row.append(math.exp(-distance))  # here
            rows.append(row)
        return x @ torch.tensor(rows)

    def other(self):
        return None
"""
HELPER = """
def encoding(length, channels):
    table = np.zeros((length, channels))
    for at in range(length):
        for i in range(channels):  # here
            table[at, i] = at / np.power(10000, 2 * (i // 2) / channels)
    return table
"""
MASK = """
def forward(self, x, lengths):
    mask = torch.ones(len(x), x.shape[1])
    for row in range(len(x)):
        for at in range(x.shape[1]):
            if at >= lengths[row]:
                mask[row, at] = 0.0  # here
    return x * mask[..., None]
"""
TIMES = """
def forward(self, x, times):
    table = torch.zeros(len(x), self.channels)
    for row in range(len(x)):
        for i in range(self.channels):
            table[row, i] = math.sin(times[row] * i)  # here
    return x + table
"""
CELLS = """
def forward(self, x):
    states = [x.new_zeros(len(x), 8) for _ in self.cells]
    for at in range(x.shape[1]):
        for i in range(len(self.cells)):
            states[i] = self.cells[i](x[:, at], states[i])  # here
    return states[-1]
"""
ONE_LOOP = """
def forward(self, x):
    for at in range(x.shape[1]):
        self.total[at] = x[:, at].sum()  # here
    return self.total
"""
SLICES = """
def forward(self, x):
    out = torch.zeros_like(x)
    for at in range(x.shape[1]):
        for i in range(3):
            out[:, at] += self.weights[i] * x[:, at - i]  # here
    return out
"""
WEIGHTS = """
def forward(self, x):
    table = torch.zeros(x.shape[1], x.shape[1])
    for i in range(x.shape[1]):
        for j in range(x.shape[1]):
            table[i, j] = self.bias[i - j]  # here
    return x @ table
"""
FOUND = {
    "table": (TABLE, SIZES),
    "appended": (APPENDED, SIZES),
    "helper": (HELPER, SIZES),
    "mask": (MASK, VALUES),
    "times": (TIMES, VALUES),
    "weights": (WEIGHTS, VALUES),
    "cells": (CELLS, ""),
    "one_loop": (ONE_LOOP, ""),
    "slices": (SLICES, ""),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_loops_compute_is_read(name: str) -> None:
    text, answer = FOUND[name]
    lines = text.lstrip("\n").splitlines(keepends=True)
    line = next(i for i, one in enumerate(lines, 1) if "# here" in one)
    body, at = function_of(["import math\n", "\n", *lines], 3, line + 2)
    assert "# here" in body[at - 1]
    assert filled_by(body, at) == answer


def test_long_functions_are_left_out() -> None:
    lines = ["def forward(x):\n", *["    x = x + 1\n"] * 300]
    assert function_of(lines, 1, 200) == ((), 0)
