"""Where a loader is, as a few plain values: written, and looked at before it is gone on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from stepladder.config.choices import OrderMode, Sampling
from stepladder.config.recipe import DataConfig
from stepladder.data.order.order import ORDER_VERSION, Order
from stepladder.errors import UsageError

_VERSION: Final = 1
_SHUFFLED: Final = (OrderMode.GLOBAL.value, OrderMode.WINDOWED.value)


@dataclass(frozen=True)
class Place:
    """Where a loader is.

    Attributes:
        epoch: that it is in.
        position: examples of the epoch that were given, over all ranks.
        epochs_done: of the iteration.
    """

    epoch: int = 0
    position: int = 0
    epochs_done: int = 0


def facts_of(order: Order) -> dict[str, int | str]:
    """Say of what loader a state is."""
    return {
        "version": _VERSION,
        "order_version": ORDER_VERSION,
        "seed": order.seed,
        "mode": order.mode.value,
        "window_rows": order.window_rows,
        "sample": (Sampling.FILES if order.is_sample_of_blocks else Sampling.ROWS).value,
        "num_examples": order.num_samples,
        "fingerprint": order.fingerprint,
    }


def order_in(state: Mapping[str, Any], order: Order, wanted: DataConfig) -> Order:
    """Give a loader's order, with what was left to `auto` as a state has it.

    Raises:
        UsageError: if the state is of other data or of another order.
    """
    if not isinstance(state, Mapping):
        raise _of_another(f"it is {type(state).__name__}, and no dictionary")
    order = _as_before(state, order, wanted)
    here = facts_of(order)
    odd = [key for key in here if state.get(key) != here[key]]
    if odd or not {"epoch", "position", "epochs_done"} <= state.keys():
        named = ", ".join(f"{key} {state.get(key)!r}, here {here[key]!r}" for key in odd)
        raise _of_another(named or "it names no place")
    return order


def place_in(state: Mapping[str, Any], *, num_examples: int) -> Place:
    """Give the place that a state names.

    Raises:
        UsageError: if an epoch of so many examples has no such place.
    """
    names = ("epoch", "position", "epochs_done")
    odd = [name for name in names if type(state[name]) is not int or state[name] < 0]
    if not odd and state["position"] >= num_examples:
        odd = ["position"]
    if odd:
        named = ", ".join(f"{name} {state[name]!r}" for name in odd)
        raise UsageError(
            f"this state names no place in an epoch of {num_examples} examples ({named})",
            why="Examples would be left out, or come twice.",
            fix="Give the state as state_dict gave it.",
        )
    return Place(*(state[name] for name in names))


def _as_before(state: Mapping[str, Any], order: Order, wanted: DataConfig) -> Order:
    if not order.block_rows:
        return order
    mode, window_rows = order.mode, order.window_rows
    if wanted.order is OrderMode.AUTO and state.get("mode") in _SHUFFLED:
        mode = OrderMode(state["mode"])
    if not wanted.window_rows and isinstance(state.get("window_rows"), int):
        window_rows = max(state["window_rows"], 1 if mode is OrderMode.WINDOWED else 0)
    return replace(
        order,
        mode=mode,
        window_rows=window_rows,
        is_sample_of_blocks=state.get("sample") == Sampling.FILES,
    )


def _of_another(named: str) -> UsageError:
    return UsageError(
        f"this state is of another loader ({named})",
        fix="Make the loader with the data, seed and order that it had.",
    )
