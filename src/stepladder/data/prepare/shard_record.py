"""What is known of a finished file of a store, and the JSON that says it is finished."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepladder.data.decoding.traits import Trait
from stepladder.data.prepare.encode import Looks, Seen, Sums
from stepladder.data.prepare.near_duplicates import LOOK_LENGTH
from stepladder.data.prepare.quarantine import Bad
from stepladder.records import ShardInfo


@dataclass(frozen=True)
class Finished:
    """What is known of a finished shard.

    Attributes:
        info: None if no picture of it could be used, and there is no file.
        labels: of its rows, in order.
        channel_sum, channel_sq_sum: over some pixels of each picture, (3,), int64.
        looks: of its rows, (num_rows, 75), uint8.
        bad: pictures put aside.
        traits: how many pictures have each.
    """

    key: str
    info: ShardInfo | None
    labels: tuple[int, ...]
    channel_sum: Sums
    channel_sq_sum: Sums
    looks: Looks
    bad: tuple[Bad, ...]
    traits: Mapping[Trait, int]

    @classmethod
    def of(
        cls, key: str, info: ShardInfo | None, seen: Sequence[Seen], bad: Sequence[Bad]
    ) -> Finished:
        """Sum up a shard's pictures."""
        zeros = np.zeros(3, dtype=np.int64)
        no_looks = np.zeros((0, LOOK_LENGTH), dtype=np.uint8)
        return cls(
            key=key,
            info=info,
            labels=tuple(item.row.label for item in seen),
            channel_sum=sum((item.channel_sum for item in seen), zeros),
            channel_sq_sum=sum((item.channel_sq_sum for item in seen), zeros),
            looks=np.stack([item.look for item in seen]) if seen else no_looks,
            bad=tuple(bad),
            traits=Counter(trait for item in seen for trait in item.traits),
        )

    @classmethod
    def from_json(cls, value: Any) -> Finished:
        """Read what `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: if it is something else.
        """
        looks = np.frombuffer(base64.b64decode(value["looks"]), dtype=np.uint8)
        return cls(
            key=str(value["key"]),
            info=None if value["info"] is None else ShardInfo(**value["info"]),
            labels=tuple(value["labels"]),
            channel_sum=np.array(value["channel_sum"], dtype=np.int64),
            channel_sq_sum=np.array(value["channel_sq_sum"], dtype=np.int64),
            looks=looks.reshape(-1, LOOK_LENGTH),
            bad=tuple(Bad(path, reason) for path, reason in value["bad"]),
            traits={Trait(name): int(count) for name, count in value["traits"].items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Give what `write_json` can write."""
        return {
            "key": self.key,
            "info": self.info,
            "labels": self.labels,
            "channel_sum": self.channel_sum.tolist(),
            "channel_sq_sum": self.channel_sq_sum.tolist(),
            "looks": base64.b64encode(self.looks.tobytes()).decode(),
            "bad": self.bad,
            "traits": {trait.value: count for trait, count in sorted(self.traits.items())},
        }
