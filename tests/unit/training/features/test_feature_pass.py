"""Examples on their way through the trunk."""

from __future__ import annotations

import torch

from stepladder.training.evaluate import EVALUATION_BATCH_SIZE
from stepladder.training.features.feature_pass import batch_size_on


def test_more_examples_at_once_go_through_the_trunk_on_a_gpu() -> None:
    assert batch_size_on(torch.device("cpu")) == EVALUATION_BATCH_SIZE == 32
    assert batch_size_on(torch.device("cuda")) == 128
    assert batch_size_on(torch.device("cuda:1")) == 128
