"""The rank because of which an all-reduce failed is named."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from stepladder.parallel.collectives import blame
from stepladder.parallel.collectives.blame import blamed

USUAL, OTHER = "sum 3: float32[100]", "sum 3: float32[90]"


def said(signatures: dict[int, str], size: int, rank: int = 0) -> str:
    store = HashStore()
    store.set_timeout(timedelta(seconds=1))
    for other, signature in signatures.items():
        store.set(f"stepladder/collective/{other}", signature)
    return str(blamed(store, rank=rank, size=size, signature=signatures[rank], cause="timed out"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "_WAIT_S", 0.2)


def test_a_rank_that_answers_nothing_has_ended_or_hangs() -> None:
    text = said({0: USUAL, 2: USUAL}, 3)
    assert text.startswith("rank 1 did not take part in an all-reduce")
    assert USUAL in text
    assert said({0: USUAL}, 4).startswith("ranks 1, 2, 3 did not take part")


def test_the_odd_rank_is_named_with_what_it_adds_up() -> None:
    text = said({0: USUAL, 1: OTHER, 2: USUAL}, 3)
    assert text.startswith(f"rank 1 was at {OTHER}, but ranks 0, 2 at {USUAL}")
    assert said({0: USUAL, 1: OTHER}, 2).startswith(f"rank 1 was at {OTHER}, but rank 0 at")


def test_if_all_agree_the_network_is_to_blame() -> None:
    assert said({0: USUAL, 1: USUAL}, 2).startswith("the network failed during sum 3")
