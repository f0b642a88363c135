"""Which layers devices compute together, and how the rows of q, k, v are given to them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepladder.errors import UsageError
from stepladder.models.torchvision_shim import import_timm
from stepladder.parallel.divided.tensor_parallel import require_pairs
from stepladder.parallel.divided.tensor_plan import order_by_head, pairs_of


def timm_model(name: str) -> nn.Module:
    with torch.device("meta"):
        model: nn.Module = import_timm().create_model(name, num_classes=3)
    return model


def test_attention_and_mlp_of_each_block_of_a_vit() -> None:
    pairs = pairs_of(timm_model("vit_tiny_patch16_224"))
    assert len(pairs) == 24
    assert (pairs[0].columns, pairs[0].rows) == ("blocks.0.attn.qkv", "blocks.0.attn.proj")
    assert pairs[0].num == 3
    assert (pairs[1].columns, pairs[1].rows) == ("blocks.0.mlp.fc1", "blocks.0.mlp.fc2")


@pytest.mark.parametrize(
    ("name", "num"),
    [
        ("vit_base_patch16_siglip_224", 25),  # its pooling has an MLP of its own
        ("swin_tiny_patch4_window7_224", 12),  # MLPs: its attention has a table of positions
        ("vit_medium_patch16_gap_256", 24),
        ("resnet18", 0),
    ],
)
def test_what_has_other_weights_is_left_whole(name: str, num: int) -> None:
    assert len(pairs_of(timm_model(name))) == num


def test_a_weight_that_is_used_elsewhere_is_left_whole() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(8, 4)
            self.head = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 8, bias=False))
            self.head[2].weight = self.embed.weight

    assert pairs_of(Tied()) == []


def test_modules_of_others_are_left_whole() -> None:
    """What they do between the two layers is not known."""

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 4)

    assert pairs_of(Mlp()) == []


def test_gated_mlps_are_left_whole() -> None:
    """Their first matrix has two halves, which are multiplied with each other."""
    gated = import_timm().layers.GluMlp(8, hidden_features=16)
    assert pairs_of(gated) == []


def test_layers_of_torch_and_of_a_sequential() -> None:
    assert [pair.rows for pair in pairs_of(nn.TransformerEncoderLayer(8, 2))] == ["linear2"]
    chain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    assert [(pair.columns, pair.rows) for pair in pairs_of(chain)] == [("0", "2")]
    normed = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    assert pairs_of(normed) == []


def test_each_device_gets_q_k_and_v_of_its_heads() -> None:
    """Four heads of two rows, on two devices: q 0 to 7, k 8 to 15, v 16 to 23."""
    first, second = order_by_head(4, 2, 2).chunk(2)
    assert first.tolist() == [*range(4), *range(8, 12), *range(16, 20)]
    assert second.tolist() == [*range(4, 8), *range(12, 16), *range(20, 24)]


def test_heads_that_cannot_be_shared_equally_are_refused() -> None:
    with pytest.raises(UsageError, match="has 3 heads, which 2 devices cannot share") as error:
        require_pairs(timm_model("vit_tiny_patch16_224"), 2)
    assert error.value.fix == "Use a divisor of 3."
