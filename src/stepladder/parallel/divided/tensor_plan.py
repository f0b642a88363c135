"""Which layers of a model several devices can compute together, each some columns of a matrix.

Two matrices in a row are divided so that nothing is sent between them: of the first, each device
has some of the columns (of attention, some heads), of the second the rows that belong to them. What
they give is added up: twice in each block of a transformer, forward, and twice backward.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3, arXiv:1909.08053.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from stepladder.parallel.divided.sharding import shared_weights

_MLPS: Final = (("fc1", "fc2"), ("linear1", "linear2"))  # of timm; of torch's encoder layer
_ELEMENTWISE: Final = (
    nn.Identity,
    nn.Dropout,
    nn.ReLU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.LeakyReLU,
    nn.ELU,
    nn.Hardswish,
    nn.ReLU6,
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two linear layers that are divided together.

    Attributes:
        columns, rows: their names in the model.
        attention: the module whose heads are divided; None: an MLP.
        num: of heads, or hidden units; has to be a multiple of the number of devices.
    """

    columns: str
    rows: str
    attention: nn.Module | None = None
    num: int


def pairs_of(model: nn.Module) -> list[Pair]:
    """Return all pairs of layers of a model that can be divided, in the order of its modules.

    Known are the attention and MLP of timm's transformers, the MLP of torch's encoder layers, and
    linear layers in a Sequential with nothing but activations and dropout between.
    """
    shared = shared_weights(model)
    found: dict[str, Pair] = {}
    for name, module in model.named_modules():
        for pair in (*_attention(name, module), *_mlp(name, module), *_sequential(name, module)):
            layers = [model.get_submodule(layer) for layer in (pair.columns, pair.rows)]
            is_shared = any(id(w) in shared for one in layers for w in one.parameters())
            if pair.columns not in found and not is_shared:
                found[pair.columns] = pair
    return list(found.values())


def _attention(name: str, module: nn.Module) -> Iterator[Pair]:
    """Yield the pair of an attention with one matrix for q, k, v, one behind, and nothing else."""
    qkv, proj = getattr(module, "qkv", None), getattr(module, "proj", None)
    heads, head_dim = (getattr(module, key, None) for key in ("num_heads", "head_dim"))
    if not (isinstance(qkv, nn.Linear) and isinstance(proj, nn.Linear)):
        return
    if not (isinstance(heads, int) and isinstance(head_dim, int)):
        return
    width = heads * head_dim
    is_plain = (
        _is_timm(module, "Attention")
        and _has_only(module, "qkv", "proj")
        and getattr(module, "attn_dim", None) == width
    )
    if is_plain and qkv.out_features == 3 * width and proj.in_features == width:
        yield Pair(
            columns=_join(name, "qkv"), rows=_join(name, "proj"), attention=module, num=heads
        )


def _mlp(name: str, module: nn.Module) -> Iterator[Pair]:
    for first, second in _MLPS:
        one, two = getattr(module, first, None), getattr(module, second, None)
        if not (isinstance(one, nn.Linear) and isinstance(two, nn.Linear)):
            continue
        is_plain = (_is_timm(module, "Mlp") and _has_only(module, first, second)) or isinstance(
            module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
        )
        if is_plain and one.out_features == two.in_features:
            yield Pair(columns=_join(name, first), rows=_join(name, second), num=one.out_features)


def _sequential(name: str, module: nn.Module) -> Iterator[Pair]:
    if not isinstance(module, nn.Sequential):
        return
    first: tuple[str, nn.Linear] | None = None
    for key, child in module.named_children():
        if isinstance(child, nn.Linear) and first is not None:
            columns, rows = _join(name, first[0]), _join(name, key)
            yield Pair(columns=columns, rows=rows, num=first[1].out_features)
            first = None
        elif isinstance(child, nn.Linear):
            first = key, child
        elif not isinstance(child, _ELEMENTWISE):
            first = None


def _is_timm(module: nn.Module, name: str) -> bool:
    """Return whether a module is one of timm's, whose forward is known."""
    return type(module).__name__ == name and type(module).__module__.startswith("timm.")


def _has_only(module: nn.Module, *names: str) -> bool:
    """Return whether all weights of a module are in these of its children, once each."""
    weights = [name.partition(".")[0] for name, _ in module.named_parameters()]
    return bool(weights) and set(weights) <= set(names)


def _join(parent: str, child: str) -> str:
    return f"{parent}.{child}" if parent else child


def has_dropout(model: nn.Module, pair: Pair) -> bool:
    """Return whether there is dropout between the layers, of which devices have different units."""
    parent = model.get_submodule(pair.columns.rpartition(".")[0])
    if isinstance(parent, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        between: list[nn.Module] = [parent.dropout]
    elif pair.attention is not None:
        between = [one for one in [getattr(parent, "attn_drop", None)] if one is not None]
    else:
        names = [name for name, _ in parent.named_children()]
        first, last = (layer.rpartition(".")[2] for layer in (pair.columns, pair.rows))
        between = [
            parent.get_submodule(name) for name in names[names.index(first) : names.index(last)]
        ]
    return any(isinstance(one, nn.Dropout) and one.p > 0 for one in between)


def order_by_head(num_heads: int, head_dim: int, num_devices: int) -> Tensor:
    """Return the rows of a matrix for q, k, v so that each device gets q, k, v of its heads.

    Shapes: int64 (3 * num_heads * head_dim,); row i of the new matrix is row order[i] of the old.
    """
    rows = torch.arange(3 * num_heads * head_dim)
    by_device = rows.view(3, num_devices, num_heads // num_devices * head_dim)
    return by_device.transpose(0, 1).reshape(-1)
