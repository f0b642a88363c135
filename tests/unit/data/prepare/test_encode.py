"""What a store records of a picture: sums over some pixels, as if it were padded to its square."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.resize import pad_white
from stepladder.data.prepare.encode import channel_sums, num_summed, ready_pictures
from stepladder.data.prepare.hashing import Hashed
from stepladder.data.prepare.plan import Row
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.reading.memory import Buffers


@pytest.mark.parametrize(
    ("size", "height", "width"),
    [(24, 24, 24), (24, 7, 24), (127, 100, 127), (299, 225, 299), (299, 299, 199), (299, 3, 299)],
)
def test_sums_are_those_of_evenly_spaced_pixels_of_the_square(
    size: int, height: int, width: int
) -> None:
    random = np.random.default_rng(0)
    content = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(content).save(file, "png")
    row = Row("a.png", 0, Hashed(bytes(32), (0, 0, 0)))
    config = PrepareConfig(size=size)
    squares = Buffers((size, size, 3), capacity=1, is_pinned=False)
    [ready] = ready_pictures([row], lambda _: file.getvalue(), config=config, squares=squares)
    assert not isinstance(ready, Bad)
    square = pad_white(content, size)
    assert bytes(ready.page.data) == square.tobytes()
    step = 4 if size == 299 else 1
    values = square[::step, ::step].reshape(-1, 3).astype(np.int64)
    assert len(values) == num_summed(size)
    assert ready.seen.channel_sum.tolist() == values.sum(axis=0).tolist()
    assert ready.seen.channel_sq_sum.tolist() == np.square(values).sum(axis=0).tolist()
    for ours, its in zip(channel_sums(square), (values, np.square(values)), strict=True):
        assert ours.tolist() == its.sum(axis=0).tolist()
