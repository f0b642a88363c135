"""Move pictures after the draw of val, so that train and val have each class."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from stepladder.config.choices import Split


def moves(
    keys: Sequence[bytes], labels: Sequence[str], splits: Sequence[Split]
) -> dict[bytes, Split]:
    """Return the new split of each content, or group, that must move.

    Of a class that train lacks, the largest key is moved to train. Then, of a class that val
    lacks, the smallest is moved to val, unless train would lose a class. The result is empty if
    train and val have all classes.

    Args:
        keys: hash of each picture's content or group; its last 8 bytes have drawn the split.
        labels: class of each picture.
        splits: train or val.
    """
    in_val = Counter(
        label for label, split in zip(labels, splits, strict=True) if split is Split.VAL
    )
    in_train = Counter(labels)
    in_train.subtract(in_val)
    lacking = {label for label in in_train if not (in_train[label] and in_val[label])}
    if not lacking:
        return {}
    draw = _Draw(in_train, in_val)
    draw.add(lacking, keys, labels, splits)
    for label in sorted(lacking):
        draw.give_to_train(label)
    for label in sorted(lacking):
        draw.give_to_val(label)
    return draw.moved


class _Draw:
    """The classes of train and val, while pictures are moved."""

    def __init__(self, in_train: Counter[str], in_val: Counter[str]) -> None:
        self.moved: dict[bytes, Split] = {}
        self._in = {Split.TRAIN: in_train, Split.VAL: in_val}
        self._split: dict[bytes, Split] = {}
        self._labels: dict[bytes, Counter[str]] = {}
        self._keys: dict[str, list[bytes]] = defaultdict(list)  # of a class, sorted

    def add(
        self,
        lacking: set[str],
        keys: Sequence[bytes],
        labels: Sequence[str],
        splits: Sequence[Split],
    ) -> None:
        """Add the keys that have a picture of some classes, with all of their pictures."""
        pictures = list(zip(keys, labels, splits, strict=True))
        self._split = {key: split for key, label, split in pictures if label in lacking}
        self._labels = {key: Counter() for key in self._split}
        for key, label, _ in pictures:
            if key in self._labels:
                self._labels[key][label] += 1
        for key in sorted(self._labels, key=lambda key: (key[-8:], key)):
            for label in self._labels[key]:
                self._keys[label].append(key)

    def give_to_train(self, label: str) -> None:
        """Move a key of a class to train, if train has none."""
        if not self._in[Split.TRAIN][label]:
            self._move(self._keys[label][-1], Split.TRAIN)

    def give_to_val(self, label: str) -> None:
        """Move a key of a class to val, if val has none and train keeps each of its classes."""
        train, val = self._in[Split.TRAIN], self._in[Split.VAL]
        for key in () if val[label] else self._keys[label]:
            if all(train[other] > num for other, num in self._labels[key].items()):
                self._move(key, Split.VAL)
                return

    def _move(self, key: bytes, to: Split) -> None:
        self._in[self._split[key]].subtract(self._labels[key])
        self._in[to].update(self._labels[key])
        self._split[key] = self.moved[key] = to
