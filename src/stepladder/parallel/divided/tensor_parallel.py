"""Let several devices compute each attention and each MLP together (tensor parallelism).

The layers are those of `tensor_plan.py`; torch's `parallelize_module` divides them. What is not
divided (norms, embeddings, the head) is computed on each device of a group, with equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.data.batch import Batch
from stepladder.errors import UsageError
from stepladder.models.sharded_tensors import row_order, set_row_order, whole
from stepladder.parallel.divided.contract import DividedModel, Losses
from stepladder.parallel.divided.joint import Groups, Joined, OwnRows, join
from stepladder.parallel.divided.sharding import ShardedCalls
from stepladder.parallel.divided.tensor_plan import Pair, has_dropout, order_by_head, pairs_of
from stepladder.parallel.world import World


class TensorParallelModel(DividedModel):
    """A model whose attentions and MLPs are computed by several ranks together.

    Ranks that compute together form a row; rows share every batch, and the weights of a rank are
    divided among the rows (FSDP2).

    Args:
        model: with equal weights on all ranks; some of its parameters become DTensors.
        num: ranks of a row.

    Raises:
        UsageError: if nothing in the model can be divided so.
    """

    def __init__(self, model: nn.Module, world: World, *, num: int, device: torch.device) -> None:
        super().__init__(model, world)
        pairs = require_pairs(model, num)
        self._groups = Groups(world, num, device)
        self.random_rank = self._groups.row  # what is not divided has to be equal on all
        self._orders = _divide(model, pairs, self._groups)
        self._calls = None
        if self._groups.num_rows > 1:
            self._calls = ShardedCalls(model, self._groups.data)
            self._mark_weights()

    def losses(self, losses: Losses, batch: Batch, *, weight: float, is_last: bool) -> Any:
        """Return the losses of this rank's examples; a collective."""
        joined = join(batch, self._groups, is_stand_in=weight == 0)
        if self._calls is not None:
            self._calls.send_gradients(is_last)
        found = self._call(losses, joined.batch)
        values, logs = found if isinstance(found, tuple) else (found, {})
        return self._own(values, joined), joined.own_logs(logs)

    def metrics(
        self, metrics: Callable[[nn.Module, Batch], Any], batch: Batch, *, is_stand_in: bool
    ) -> Any:
        """Return the metrics of this rank's examples; a collective."""
        joined = join(batch, self._groups, is_stand_in=is_stand_in)
        return joined.own_metrics(self._call(metrics, self.model, joined.batch))

    def norm(self, grads: list[Tensor]) -> Tensor:
        """Return the norm of all gradients, of which some are divided in other ways than others."""
        if not grads:
            return torch.zeros(())
        norms = [whole(torch.linalg.vector_norm(grad)) for grad in grads]
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return total

    def mark(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of the model that know the order of their rows."""
        for name, tensor in tensors.items():
            if name in self._orders:
                set_row_order(tensor, self._orders[name])
        return dict(tensors)

    def complete(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the optimizer's tensors, which know the order of their rows."""
        for path, tensor in state.items():
            order = self._orders.get(path.rpartition("/")[0])
            if order is not None and tensor.dim() and tensor.shape[0] == order.numel():
                set_row_order(tensor, order)
        return dict(state)

    def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args) if self._calls is None else self._calls(call, *args)

    def _own(self, values: Tensor, joined: Joined) -> Tensor:
        own: Tensor = OwnRows.apply(values, joined, self._groups)  # type: ignore[no-untyped-call]
        return own

    def _mark_weights(self) -> None:
        """Keep the order of rows with the weights, which have been replaced."""
        weights = dict(self.model.named_parameters())
        for name, order in self._orders.items():
            if row_order(weights[name]) is None:
                set_row_order(weights[name], order)


def require_pairs(model: nn.Module, num: int) -> list[Pair]:
    """Return the pairs of layers that are divided.

    Raises:
        UsageError: if the model has no such pair, or the devices cannot share one equally.
    """
    pairs = pairs_of(model)
    if not pairs:
        raise UsageError(
            f"nothing in this {type(model).__name__} can be computed by several devices together",
            where="device.tensor_parallel",
            why="Known are attentions and MLPs of timm's transformers, MLPs of "
            "nn.TransformerEncoderLayer, and linear layers of an nn.Sequential.",
            fix="Use --device.sharded or --device.pipeline-stages.",
        )
    for pair in pairs:
        if pair.num % num:
            what = "heads" if pair.attention is not None else "hidden units"
            raise UsageError(
                f"{pair.columns} has {pair.num} {what}, which {num} devices cannot share equally",
                where="device.tensor_parallel",
                fix=f"Use a divisor of {pair.num}.",
            )
        if has_dropout(model, pair):
            raise UsageError(
                f"there is dropout between {pair.columns} and {pair.rows}, where each device has "
                "other units",
                where="device.tensor_parallel",
                why="All devices draw the same random numbers, so they would drop the same places.",
                fix="Set the rate of this dropout to 0, or use --device.sharded.",
            )
    return pairs


def _divide(model: nn.Module, pairs: list[Pair], groups: Groups) -> dict[str, Tensor]:
    """Divide the layers among the ranks of a row.

    Returns:
        The order of the rows of each weight that has been rearranged, by name.
    """
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    num, orders = groups.num_parts, dict[str, Tensor]()
    plan: dict[str, Any] = {}
    for pair in pairs:
        plan[pair.columns], plan[pair.rows] = ColwiseParallel(), RowwiseParallel()
        if pair.attention is not None:
            orders |= _share_heads(model.get_submodule(pair.columns), pair, num)
    if any(isinstance(module, nn.TransformerEncoderLayer) for module in model.modules()):
        torch.backends.mha.set_fastpath_enabled(False)  # it takes the weights from the layers
    parallelize_module(model, groups.parts, plan)
    weights = dict(model.named_parameters())
    for name, order in orders.items():
        set_row_order(weights[name], order)
    return orders


@torch.no_grad()
def _share_heads(qkv: nn.Module, pair: Pair, num: int) -> dict[str, Tensor]:
    """Rearrange the rows of q, k, v by device, and let the attention compute its own heads."""
    attention: Any = pair.attention
    order = order_by_head(attention.num_heads, attention.head_dim, num)
    attention.num_heads //= num
    attention.attn_dim //= num
    found = {}
    for name, weight in qkv.named_parameters():
        weight.copy_(weight[order.to(weight.device)].clone())
        found[f"{pair.columns}.{name}"] = order
    return found
