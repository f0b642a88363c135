"""Calls of leaf modules, recorded and enlarged."""

from __future__ import annotations

import torch
from torch import nn

from stepladder.measuring.model.leaves import count_moved, enlarge, record_calls

X = torch.randn(2, 3, 8, 8)


def test_leaves_are_recorded_in_order_with_what_they_are() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4)
    ).eval()
    calls = record_calls(model, lambda: model(X))
    assert [call.module for call in calls] == list(model)
    assert [call.follows_conv for call in calls] == [False, True, False, False, False]
    assert [call.is_pointwise for call in calls] == [False, True, True, False, True]
    assert calls[1].args[0].shape == (2, 4, 8, 8)


def test_no_hook_is_left_behind() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    calls = record_calls(model, lambda: model(torch.ones(1, 3)))
    model(torch.ones(1, 3))
    assert len(calls) == 1


def test_equal_calls_have_equal_keys() -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(3)])
    model[2].requires_grad_(False)
    keys = [call.key for call in record_calls(model, lambda: model(torch.ones(1, 3)))]
    assert len(keys) == 3
    assert keys[0] != keys[1]  # the input of the second needs a gradient
    assert keys[1] != keys[2]  # the weights of the third do not
    again = [call.key for call in record_calls(model, lambda: model(torch.zeros(1, 3)))]
    assert again == keys


def test_a_module_that_is_called_twice_is_recorded_twice() -> None:
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, layer)
    assert len(record_calls(model, lambda: model(torch.ones(1, 3)))) == 2


def test_attention_is_one_operation() -> None:
    model = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.ones(2, 5, 4)
    calls = record_calls(model, lambda: model(x, x, x, need_weights=False))
    assert [type(call.module) for call in calls] == [nn.MultiheadAttention]
    assert calls[0].kwargs == {"need_weights": False}


def test_recorded_inputs_are_repeated_in_a_layout() -> None:
    ids = torch.tensor([[1, 2], [3, 4]])
    large, more, same = enlarge((X, ids, "text"), 3, memory_format=torch.channels_last)
    assert large.shape == (6, 3, 8, 8)
    assert large.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(large[2:4], X)
    assert more.tolist() == [[1, 2], [3, 4]] * 3
    assert same == "text"


def test_moved_bytes_are_those_read_and_written_by_each_operation() -> None:
    linear, relu = nn.Linear(3, 5), nn.ReLU()
    model = nn.Sequential(nn.Flatten(), linear, relu, nn.Dropout(0.5)).eval()
    moved = count_moved(model, lambda: model(torch.ones(2, 3, 1)))
    assert moved.weights == 4 * (3 * 5 + 5)
    assert moved.activations == 4 * 2 * ((3 + 5) + (5 + 5)), (
        "no view, and no dropout when it is off"
    )
    model.train()
    training = count_moved(model, lambda: model(torch.ones(2, 3, 1)))
    assert training.activations == moved.activations + 4 * 2 * (5 + 5)


def test_weights_are_read_once_a_batch() -> None:
    layer = nn.Linear(3, 5)
    one, two = (count_moved(layer, lambda n=n: layer(torch.ones(n, 3))) for n in (1, 2))
    assert two.weights == one.weights
    assert two.activations == 2 * one.activations
