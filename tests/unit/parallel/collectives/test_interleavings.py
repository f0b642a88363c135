"""No order in which ranks run can make them wait for each other for ever: a small model checker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from stepladder.parallel.collectives.algorithms import ALGORITHMS, RING, Algorithm, Shape
from stepladder.parallel.collectives.executor import Executor
from stepladder.parallel.collectives.transport import Work

law = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
Key = tuple[int, int, int]  # source, target, number among their messages
SEND, RECEIVE = 0, 1


@dataclass
class Recorder:
    """Notes what one rank does, in its order: posting both halves of messages, and waiting."""

    rank: int
    size: int
    done: list[tuple[str, int, Key]] = field(default_factory=list)
    sizes: dict[tuple[int, Key], int] = field(default_factory=dict)
    _numbers: defaultdict[tuple[int, int, int], int] = field(
        default_factory=lambda: defaultdict(int)
    )

    def send(self, tensor: Tensor, target: int, tag: int) -> Work:
        return self._post(SEND, tensor, (self.rank, target), tag)

    def receive(self, tensor: Tensor, source: int, tag: int) -> Work:
        return self._post(RECEIVE, tensor, (source, self.rank), tag)

    def _post(self, side: int, tensor: Tensor, pair: tuple[int, int], _tag: int) -> Work:
        key = (*pair, self._numbers[side, *pair])
        self._numbers[side, *pair] += 1
        self.done.append(("post", side, key))
        self.sizes[side, key] = tensor.numel()
        return _Noted(self, side, key, tensor, tensor.clone())


@dataclass
class _Noted:
    recorder: Recorder
    side: int
    key: Key
    tensor: Tensor
    before: Tensor
    num_waits: int = 0

    def wait(self) -> None:
        self.num_waits += 1
        assert self.num_waits == 1  # gloo waits for ever the second time
        self.recorder.done.append(("wait", self.side, self.key))
        bits = self.tensor.view(torch.int32), self.before.view(torch.int32)
        assert torch.equal(*bits), "changed on its way"  # scratch may be NaN
        if self.side == RECEIVE:
            self.tensor += 1.0


def recorded(algorithm: Algorithm, shape: Shape, piece_bytes: int) -> list[Recorder]:
    schedule = algorithm.schedule(shape)
    recorders = [Recorder(rank, shape.num_ranks) for rank in range(shape.num_ranks)]
    for recorder in recorders:
        executor = Executor(recorder, piece_bytes=piece_bytes)
        executor.sum_(torch.zeros(shape.num_elements), schedule)
    return recorders


def ends(programs: Sequence[Sequence[tuple[str, int, Key]]]) -> tuple[set[tuple[int, ...]], int]:
    """Return all states in which no rank can do anything more, and the number of states.

    A state is how much of its program each rank has done. A wait is over when the other half of the
    message has been posted. Posting never waits and hinders nobody, so a rank posts at once; waits
    that follow each other are one move, because no other rank notices what is in between.
    """
    places = {
        (side, key): (rank, place)
        for rank, program in enumerate(programs)
        for place, (what, side, key) in enumerate(program)
        if what == "post"
    }

    def through(what: str, rank: int, place: int) -> int:
        program = programs[rank]
        while place < len(program) and program[place][0] == what:
            place += 1
        return place

    def can_move(state: tuple[int, ...], rank: int) -> bool:
        waits = programs[rank][state[rank] : through("wait", rank, state[rank])]
        others = [places.get((1 - side, key)) for _, side, key in waits]
        return bool(waits) and all(one is not None and state[one[0]] > one[1] for one in others)

    def moved(state: tuple[int, ...], rank: int) -> tuple[int, ...]:
        place = through("post", rank, through("wait", rank, state[rank]))
        return (*state[:rank], place, *state[rank + 1 :])

    start = tuple(through("post", rank, 0) for rank in range(len(programs)))
    seen, todo, stuck = {start}, [start], set()
    while todo:
        state = todo.pop()
        new = {moved(state, rank) for rank in range(len(programs)) if can_move(state, rank)}
        if not new:
            stuck.add(state)
        todo += new - seen
        seen |= new
    return stuck, len(seen)


def shapes(algorithm: Algorithm, num_ranks: int) -> list[Shape]:
    return [
        Shape(num_ranks=num_ranks, num_elements=num, num_local=local, num_segments=segments)
        for num in (2, num_ranks)
        for local in ((1, 2) if algorithm.has_hosts and num_ranks % 2 == 0 else (1,))
        for segments in ((1, 2) if algorithm.has_segments else (1,))
    ]


@law
@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5])
def test_every_interleaving_ends_with_all_ranks_done(algorithm: Algorithm, num_ranks: int) -> None:
    for shape in shapes(algorithm, num_ranks):
        recorders = recorded(algorithm, shape, piece_bytes=64)
        stuck, _ = ends([recorder.done for recorder in recorders])
        assert stuck == {tuple(len(recorder.done) for recorder in recorders)}


@law
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_messages_in_pieces_end_as_well(algorithm: Algorithm, num_ranks: int) -> None:
    shape = Shape(num_ranks=num_ranks, num_elements=6 * num_ranks)
    recorders = recorded(algorithm, shape, piece_bytes=8)
    stuck, num_states = ends([recorder.done for recorder in recorders])
    assert stuck == {tuple(len(recorder.done) for recorder in recorders)}
    assert num_states > num_ranks


@law
def test_both_halves_of_a_message_have_one_size(algorithm: Algorithm) -> None:
    for num_ranks in range(2, 12):
        for shape in shapes(algorithm, num_ranks):
            sent: dict[Key, int] = {}
            received: dict[Key, int] = {}
            for recorder in recorded(algorithm, shape, piece_bytes=8):
                for (side, key), size in recorder.sizes.items():
                    (sent if side == SEND else received)[key] = size
            assert sent == received


def test_a_rank_that_waits_too_early_is_found() -> None:
    """The checker itself: ranks that wait for their sends before they receive."""
    recorders = recorded(RING, Shape(num_ranks=3, num_elements=3), piece_bytes=64)
    programs = []
    for recorder in recorders:
        first, second = recorder.done[:2]
        assert (first[:2], second[:2]) == (("post", SEND), ("post", RECEIVE))
        programs.append([first, ("wait", *first[1:]), *recorder.done[1:]])
    stuck, _ = ends(programs)
    assert stuck == {(1, 1, 1)}
