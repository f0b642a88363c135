"""A population: it finds what its members alone do not, and survives a kill at any moment."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from stepladder.config.choices import Monitor, Perturbed, Selection
from stepladder.errors import DataError, DivergedError, UsageError
from stepladder.populations.population import (
    MAX_EPOCHS,
    MAX_TIME,
    NO_PROGRESS,
    STATE_FILE,
    TARGET,
    Limits,
    read_moments,
    read_state,
)
from stepladder.records.population import LINEAGE_FILE, Score
from tests.unit.populations.toy import BEST, STALLED, ToyMembers, toy


def test_members_alone_stall() -> None:
    alone = ToyMembers()
    alone.train([(1.0, 0.0), (0.0, 1.0)], 2000)
    assert [alone.quality(weights) for weights in alone.weights] == pytest.approx([STALLED] * 2)


@pytest.mark.parametrize("selection", Selection)
@pytest.mark.parametrize("perturbed", Perturbed)
def test_a_population_reaches_the_optimum(tmp_path, selection, perturbed) -> None:
    members = ToyMembers()
    population = toy(tmp_path, members, steps=1000, selection=selection, perturbed=perturbed)
    state = population.run()
    assert state.ended == MAX_EPOCHS
    assert members.quality(members.kept) == pytest.approx(BEST, abs=0.01)
    assert state.best is not None
    assert -state.best.score.loss == pytest.approx(BEST, abs=0.01)


class Killed(BaseException):
    """The process is gone."""


def test_a_kill_at_any_moment_changes_nothing(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepladder.populations import population as module

    whole = tmp_path / "whole"
    expected = toy(whole, ToyMembers(4), steps=100).run()
    moments = read_moments(whole)
    assert len(moments) == 40

    for fatal in range(1, 60):
        folder = tmp_path / f"killed-{fatal}"
        left = [fatal]

        def dying(call, left=left):
            def wrapped(*args, **kwargs):
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return call(*args, **kwargs)

            return wrapped

        class Mortal(ToyMembers):
            train = dying(ToyMembers.train)
            inherit = dying(ToyMembers.inherit)
            keep = dying(ToyMembers.keep)
            save = dying(ToyMembers.save)

        with monkeypatch.context() as patch:
            for name in ("write_json", "write_moments", "_remove"):
                patch.setattr(module, name, dying(getattr(module, name)))
            with suppress(Killed):
                toy(folder, Mortal(4), steps=100).run()
        resumed = ToyMembers(4)
        found = toy(folder, resumed, steps=100).run()
        assert replace(found, seconds=0.0) == replace(expected, seconds=0.0)
        assert read_moments(folder) == moments
        np.testing.assert_array_equal(resumed.weights[0], ToyMembersOf(whole, expected.saved))


def ToyMembersOf(folder, name):
    members = ToyMembers(4)
    members.load(folder, name)
    return members.weights[0]


def test_a_population_that_has_ended_is_not_trained_again(tmp_path) -> None:
    first = toy(tmp_path, ToyMembers(), steps=50).run()
    members = ToyMembers()
    population = toy(tmp_path, members, steps=50)
    assert population.run() == first
    assert members.calls == []
    assert len(population.moments) == 10


def test_another_population_in_the_folder_is_kept(tmp_path) -> None:
    state = toy(tmp_path, ToyMembers(), steps=50).run()
    other = toy(tmp_path, ToyMembers(), steps=50)
    other.key = "another"
    with pytest.raises(UsageError, match="another population"):
        other.run()
    assert read_state(tmp_path) == state


def test_only_the_last_members_are_on_disk(tmp_path) -> None:
    state = toy(tmp_path, ToyMembers(), steps=50).run()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted([STATE_FILE, LINEAGE_FILE, state.saved])


def test_a_damaged_state_is_named(tmp_path) -> None:
    toy(tmp_path, ToyMembers(), steps=50).run()
    (tmp_path / STATE_FILE).write_text('{"key": 3}')
    with pytest.raises(DataError, match="key"):
        toy(tmp_path, ToyMembers(), steps=50).run()


def test_a_signal_ends_it_between_intervals_and_it_resumes(tmp_path) -> None:
    expected = toy(tmp_path / "whole", ToyMembers(), steps=100).run()
    population = toy(tmp_path / "cut", ToyMembers(), steps=100)
    population.is_cancelled = lambda: len(population.moments) >= 6
    assert population.run().ended is None
    found = toy(tmp_path / "cut", ToyMembers(), steps=100).run()
    assert replace(found, seconds=0.0) == replace(expected, seconds=0.0)


def test_each_end(tmp_path) -> None:
    reached = toy(tmp_path / "a", ToyMembers(), steps=5000, target=-1.1).run()
    assert reached.ended == TARGET
    assert reached.examples < 5000
    stuck = toy(tmp_path / "b", ToyMembers(lr=0.0), steps=5000, patience=3).run()
    assert (stuck.ended, stuck.generation) == (NO_PROGRESS, 4)
    late = toy(tmp_path / "c", ToyMembers(), steps=5000)
    late.limits = Limits(examples=5000, seconds=0.0)
    assert late.run().ended == MAX_TIME
    short = toy(tmp_path / "d", ToyMembers(), steps=25).run()
    assert (short.ended, short.examples, short.generation) == (MAX_EPOCHS, 25, 3)


def test_a_member_that_diverges_is_replaced(tmp_path) -> None:
    class Wild(ToyMembers):
        """The first member diverges in each interval that it begins with its own weights."""

        def scores(self) -> list[Score]:
            found = super().scores()
            return [Score(loss=math.nan), *found[1:]] if len(self.calls) < 4 else found

    population = toy(tmp_path, Wild(4), steps=50, top_frac=0.25)
    population.run()
    lost = [moment for moment in population.moments if not moment.score.is_finite]
    assert [(moment.generation, moment.member) for moment in lost] == [(0, 0)]
    heir = next(m for m in population.moments if (m.generation, m.member) == (1, 0))
    assert heir.parent != 0


def test_if_all_diverge_the_range_of_the_learning_rate_is_named(tmp_path) -> None:
    class Lost(ToyMembers):
        def scores(self) -> list[Score]:
            return [Score(loss=math.inf)] * len(self.weights)

    population = toy(tmp_path, Lost(), steps=50)
    population.genes = tuple(replace(gene, key="batch.lr", high=10.0) for gene in population.genes)
    with pytest.raises(DivergedError) as caught:
        population.run()
    assert caught.value.exit_code == 5
    assert "0..0.1" in str(caught.value.fix)
    assert read_state(tmp_path) is None, "with another range, it begins again in this folder"


def test_equal_accuracies_are_ranked_by_loss(tmp_path) -> None:
    population = toy(tmp_path, ToyMembers(), steps=10)
    population.monitor = Monitor.VAL_ACCURACY
    worse, better = Score(loss=0.5, accuracy=0.9), Score(loss=0.4, accuracy=0.9)
    assert population._loss(better) < population._loss(worse)
    assert population._loss(worse) < population._loss(Score(loss=0.1, accuracy=0.8))
    assert not math.isfinite(population._loss(Score(loss=math.nan, accuracy=0.9)))
