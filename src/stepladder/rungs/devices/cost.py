"""Cost of a training on more devices: its price per hour, and up to which price it is worth it."""

from __future__ import annotations

from collections.abc import Iterable

from stepladder.planning.hardware.gpus import Gpu, price_per_hour
from stepladder.records.profile import Profile
from stepladder.training.output.wording import percent


def times_price(
    gpus: Iterable[Gpu],
    profile: Profile,
    before: tuple[int, int],
    after: tuple[int, int],
) -> float | None:
    """Return the price per hour after a change over that before; None: not known.

    Args:
        gpus: the user's list; on a CPU, its rows named `cpu`.
        before, after: machines, and devices of each.
    """
    rows = tuple(gpus)
    name = profile.device_name if profile.device == "cuda" else profile.device
    first, second = (
        price_per_hour(rows, name, machines=machines, devices=devices)
        for machines, devices in (before, after)
    )
    return None if first is None or second is None else second / first


def cost_words(gain: float, price: float | None) -> str:
    """Return what a training costs that is so many times as fast, and what it may cost.

    `1.28× as fast at +6 % per hour costs 17 % less; worth it up to +28 % per hour`

    Args:
        gain: time before, over time after.
        price: per hour, over that before; None: not known, and only the limit is returned.
    """
    limit = (
        f"worth it up to {signed_percent(gain)} per hour"
        if gain > 1
        else "worth it at no higher price"
    )
    if price is None:
        return limit
    change = price / gain - 1
    how = percent(abs(change), 0)
    than = "as much as before" if how == "0 %" else f"{how} {'more' if change > 0 else 'less'}"
    return f"{gain:.2f}× as fast at {signed_percent(price)} per hour costs {than}; {limit}"


def signed_percent(ratio: float) -> str:
    """Format a ratio as a change in percent: `+28 %`, `−6 %`."""
    return f"{100 * (ratio - 1):+.0f} %".replace("-", "−")
