"""TF32 is off in a comparison on a GPU, and restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stepladder.models.tf32 import without_tf32

SETTINGS = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def found() -> list[str]:
    return [setting.fp32_precision for setting in SETTINGS]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    before = found()
    yield
    for setting, value in zip(SETTINGS, before, strict=True):
        if setting.fp32_precision != value:
            setting.fp32_precision = value


def set_all(value: str) -> None:
    for setting in SETTINGS:
        setting.fp32_precision = value


def test_tf32_is_off_within_and_on_again_afterwards() -> None:
    set_all("tf32")
    with without_tf32(CUDA):
        assert found() == ["ieee"] * 3
    assert found() == ["tf32"] * 3


def test_code_that_reads_the_older_settings_of_cudnn_works() -> None:
    before = found()
    with without_tf32(CUDA):
        assert not torch.backends.cudnn.allow_tf32
        with torch.backends.cudnn.flags(enabled=False):
            pass
        assert "tf32" not in found()
    assert torch.backends.cudnn.allow_tf32
    assert found() == before


def test_tf32_is_on_again_after_an_error() -> None:
    set_all("tf32")
    with pytest.raises(ZeroDivisionError), without_tf32(CUDA):
        raise ZeroDivisionError
    assert found() == ["tf32"] * 3


def test_what_is_not_tf32_is_not_touched() -> None:
    before = found()
    assert before[0] == "none", "as torch sets it for matrix products"
    with without_tf32(CUDA):
        assert found() == ["none", "ieee", "ieee"]
    assert found() == before
    assert torch.backends.cudnn.allow_tf32, "the older settings can be read again"


@pytest.mark.filterwarnings("ignore:Please use the new API settings:UserWarning")  # from torch
@pytest.mark.parametrize("older", ["high", "medium"])
def test_the_older_setting_of_matrix_products_says_the_same(older: str) -> None:
    try:
        torch.set_float32_matmul_precision(older)
        with without_tf32(CUDA):
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == older
        assert found() == ["tf32"] * 3
    finally:
        torch.set_float32_matmul_precision("highest")


def test_nothing_is_set_for_a_cpu() -> None:
    set_all("tf32")
    with without_tf32(CPU):
        assert found() == ["tf32"] * 3
