"""Held-out examples that are scaled with their own statistics, and what resembles that."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from stepladder.records.watch import WatchReport
from stepladder.watching.script.own_scales import own_scales

Watched = Callable[..., WatchReport]
NAME = "distribution_shift"

PROGRAM = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(0)
torch.manual_seed(0)
class StandardScaler:
    def fit(self, x):
        self.mean, self.std = x.mean(0), x.std(0)
        return self
    def transform(self, x):
        return (x - self.mean) / self.std
    def fit_transform(self, x):
        return self.fit(x).transform(x)
class MinMaxScaler(StandardScaler):
    def fit(self, x):
        self.mean, self.std = x.min(0), x.max(0) - x.min(0)
        return self
def standardize(x):
    return (x - x.mean(0)) / x.std(0)
def scaled_by(x, reference):
    return (x - reference.mean(0)) / reference.std(0)
x_train, x_test = rng.normal(5, 2, (256, 4)), rng.normal(6, 3, (64, 4))
y_train, y_test = x_train[:, :1] / 2, x_test[:, :1] / 2
SCALE
def tensor(x):
    return torch.as_tensor(x, dtype=torch.float32)
x_train, y_train, x_test, y_test = map(tensor, (x_train, y_train, x_test, y_test))
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
adam = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(8):
    rows = torch.randperm(256)[:32]
    adam.zero_grad()
    nn.functional.mse_loss(net(x_train[rows]), y_train[rows]).backward()
    adam.step()
net.eval()
with torch.no_grad():
    EVALUATE
"""
WHOLE = "print(nn.functional.mse_loss(net(x_test), y_test))"
LOADER = """
    for x, y in DataLoader(TensorDataset(x_test, y_test), batch_size=16):
        nn.functional.mse_loss(net(x), y)
"""

FITTED_AGAIN = {
    "a_scaler": (
        "scaler = StandardScaler()\nx_train = scaler.fit_transform(x_train)\n"
        "x_test = scaler.fit_transform(x_test)",
        WHOLE,
    ),
    "a_scaler_each": (
        "x_train = StandardScaler().fit_transform(x_train)\n"
        "x_test = StandardScaler().fit_transform(x_test)",
        LOADER.strip(),
    ),
    "a_range": (
        "scaler = MinMaxScaler()\nx_train, x_test = "
        "scaler.fit_transform(x_train), scaler.fit_transform(x_test)",
        WHOLE,
    ),
    "a_function": ("x_train = standardize(x_train)\nx_test = standardize(x_test)", WHOLE),
    "a_formula": (
        "x_train = (x_train - x_train.mean(0)) / x_train.std(0)\n"
        "mean, std = x_test.mean(axis=0), x_test.std(axis=0)\n"
        "x_test = (x_test - mean) / (std + 1e-8)",
        WHOLE,
    ),
}
SOUND = {
    "a_scaler": (
        "scaler = StandardScaler()\nx_train = scaler.fit_transform(x_train)\n"
        "x_test = scaler.transform(x_test)",
        WHOLE,
    ),
    "a_formula": (
        "mean, std = x_train.mean(0), x_train.std(0)\n"
        "x_train = (x_train - mean) / std\nx_test = (x_test - mean) / std",
        WHOLE,
    ),
    "a_reference": (
        "x_test = scaled_by(x_test, x_train)\nx_train = scaled_by(x_train, x_train)",
        WHOLE,
    ),
    "training_examples_are_evaluated": (
        "scaler = StandardScaler()\nraw_test = x_test\nx_train = scaler.fit_transform(x_train)\n"
        "x_test = scaler.transform(raw_test)\nshown_test = scaler.fit_transform(raw_test)",
        "print(net(x_train).mean())",
    ),
    "a_plot_of_held_out_examples": (
        "scaler = StandardScaler()\nraw_test = x_test\nx_train = scaler.fit_transform(x_train)\n"
        "x_test = scaler.transform(raw_test)\nshown_test = scaler.fit_transform(raw_test)",
        WHOLE,
    ),
    "subjects": (
        "x_train = np.concatenate([standardize(x_train[i::4]) for i in range(4)])\n"
        "subject = standardize(x_test)\nx_test = subject",
        WHOLE,
    ),
}


def code(scale: str, evaluate: str) -> str:
    return PROGRAM.replace("SCALE", scale).replace("EVALUATE", evaluate)


@pytest.mark.parametrize("name", FITTED_AGAIN)
def test_scales_fitted_to_held_out_examples_are_found(name: str, watched: Watched) -> None:
    program = code(*FITTED_AGAIN[name])
    report = watched(program)
    assert report.watcher_error is None
    assert report.exit_code == 0
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault == NAME, found.evidence
    assert "their own" in found.evidence
    assert found.numbers == {"num_rows": 64, "num_columns": 4}
    line = next(
        i for i, text in enumerate(program.splitlines(), 1) if "x_test = " in text and i > 25
    )
    assert found.where == f"snippet.py:{line}"


@pytest.mark.parametrize("name", SOUND)
def test_scales_of_training_examples_are_sound(name: str, watched: Watched) -> None:
    report = watched(code(*SOUND[name]))
    assert report.watcher_error is None
    assert report.exit_code == 0
    found = {one.check: one for one in report.findings}[NAME]
    assert found.fault is None, found.evidence


SOURCES = {
    "x_train = s.fit_transform(a)\nx_val = s.transform(b)": 0,
    "x = s.fit_transform(a[train_idx])\nx_val = s.fit_transform(a[val_idx])": 1,
    "x = StandardScaler().fit(a).transform(a)\nx_val = StandardScaler().fit(b).transform(b)": 1,
    "x_scaler.fit(x_train)\nx_scaler.fit(x_test)": 1,
    "model.fit(x_train)\nmodel.fit(x_test)": 0,
    "points = TSNE().fit_transform(test_features)": 0,
    "x_train = s.fit_transform(x_train)\ny_test = t.fit_transform(y_test)": 0,
    "x_train -= x_train.mean(0)\nx_test -= x_test.mean(0)": 1,
    "x_train -= mean\nx_test -= mean": 0,
    "x_train = normalise(x_train)\nx_test = normalise(x_test)": 0,
}


@pytest.mark.parametrize("source", SOURCES)
def test_statements_are_read(source: str) -> None:
    assert len(own_scales(ast.parse(source))) == SOURCES[source]
