"""The headline of a climb: its ratio, the times that belong to it, and what is in doubt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepladder.ladder.summary.climb_summary import (
    default_words,
    doubts,
    headline_words,
    pairs_words,
    spread_words,
)
from stepladder.ladder.summary.machine import machine_line, machine_words
from stepladder.records.climb import Baseline, ClimbSummary, RatioFrom, Result
from stepladder.records.ladder import Interval


def interval(estimate: float, low: float, high: float) -> Interval:
    return Interval(estimate=estimate, low=low, high=high)


PAIRED = interval(154.0, 140.0, 168.0)
CLIMB = ClimbSummary(
    baseline=Baseline(total_s=1080.0, runs_s=(1060.0, 1080.0)),
    result=Result(total_s=9.0, paired_s=7.0),
    speedup=154.0,
    speedup_from=RatioFrom.PAIRS,
    speedup_bounds=PAIRED,
    paired=PAIRED,
    num_pairs=8,
)


def test_the_ratio_has_its_bounds_its_pairs_and_the_times_of_the_pairs() -> None:
    assert headline_words(CLIMB) == "154× [140, 168] from 8 pairs (18 min → 7.0 s)"
    assert doubts(CLIMB) == ()
    assert spread_words(CLIMB) == ""


@pytest.mark.parametrize(("num", "said"), [(2, "2 pairs"), (1, "1 pair"), (7, "7 pairs")])
def test_fewer_than_eight_pairs_are_named(num: int, said: str) -> None:
    few = replace(CLIMB, num_pairs=num)
    why = f"only {said} were timed, fewer than 8, because the time ran out"
    assert doubts(few) == (why,)
    assert headline_words(few) == f"154× [140, 168] from {said} (18 min → 7.0 s; {why})"


def test_a_ratio_that_is_not_from_pairs_says_why() -> None:
    alone = replace(
        CLIMB,
        num_pairs=0,
        paired=None,
        speedup=120.0,
        speedup_bounds=None,
        speedup_from=RatioFrom.TIMINGS,
        result=Result(total_s=9.0),
        why_no_pairs="timing both in turn failed: ran out of memory",
    )
    assert headline_words(alone) == (
        "120× (18 min → 9.0 s; the ratio is not from pairs timed in turn: "
        "timing both in turn failed: ran out of memory)"
    )
    assert pairs_words(alone) == ""


def test_where_the_rungs_multiply_to_a_smaller_ratio_it_is_shown_beside_that_of_the_pairs() -> None:
    chain = interval(110.0, 100.0, 120.0)
    other = replace(
        CLIMB, speedup=110.0, speedup_bounds=chain, speedup_from=RatioFrom.CHAIN, chain=chain,
        has_other_chain=True,
    )  # fmt: skip
    assert headline_words(other) == (
        "110× [100, 120] (18 min → 7.0 s; 8 pairs gave 154× [140, 168]; the kept rungs' gains "
        "multiply to 110× [100, 120], the smaller is shown)"
    )
    larger = interval(300.0, 280.0, 320.0)
    assert headline_words(replace(CLIMB, chain=larger, has_other_chain=True)) == (
        "154× [140, 168] from 8 pairs (18 min → 7.0 s; the kept rungs' gains multiply to "
        "300× [280, 320], the smaller is shown)"
    )
    unpaired = replace(other, num_pairs=0, paired=None, result=Result(total_s=9.0))
    assert "the times of both give 120×; the kept rungs' gains" in headline_words(unpaired)


def test_timings_of_the_original_job_that_differ_are_named_beside_the_number() -> None:
    far = replace(CLIMB, baseline=Baseline(total_s=540.0, runs_s=(540.0, 1080.0)))
    said = "the original job took 9.0 min and 18 min: other processes used the machine"
    assert doubts(far) == (f"{said}, so the shorter time is used",)
    chain = interval(40.0, 38.0, 42.0)
    both = replace(
        far, speedup=40.0, speedup_from=RatioFrom.CHAIN, chain=chain, has_other_chain=True
    )
    assert [text.partition(" ")[0] for text in doubts(both)] == ["8", "the"]
    assert doubts(both)[1] == said, "the shorter time is not the one of this ratio"
    slower = replace(far, baseline=Baseline(total_s=1080.0, runs_s=(540.0, 1080.0)))
    assert doubts(slower) == (said,), "the pairs are shown, with the longer time"
    near = replace(CLIMB, baseline=Baseline(total_s=1080.0, runs_s=(940.0, 1080.0)))
    assert doubts(near) == ()
    assert spread_words(near) == "the original job took 16 min and 18 min"


def test_noise_larger_than_the_effect_does_not_hide_the_other_doubts() -> None:
    noise = interval(1.02, 0.97, 1.08)
    found = doubts(
        replace(
            CLIMB, speedup=1.02, speedup_bounds=noise, paired=noise, num_pairs=3,
            chain=interval(1.5, 1.4, 1.6), has_other_chain=True,
        )
    )  # fmt: skip
    assert [text[:9] for text in found] == ["only 3 pa", "the kept ", "the origi"]
    assert found[-1].endswith("18 min: the noise is larger than the effect")


def test_a_climb_that_kept_nothing_has_no_doubts() -> None:
    same = replace(CLIMB, is_as_written=True, num_pairs=0)
    assert headline_words(same) == "nothing paid off: the original job, 9.0 s"
    assert doubts(same) == ()
    assert headline_words(ClimbSummary()) == "not measured: the climb did not finish"


def test_the_ratio_against_the_default_is_one_sentence() -> None:
    said = default_words(replace(CLIMB, over_default=4.61))
    assert "about 4.6× as fast." in said
    assert said.count(".") == 2  # and the one in the number
    assert ";" not in said


MACHINE = {
    "model": "AMD EPYC", "num_cores": 2, "num_cores_of_machine": 64, "threads": 2,
    "threads_before": 2, "instructions": ["sse4_2", "avx", "avx2", "fma"],
    "waiting": {"GOMP_SPINCOUNT": "3000"},
}  # fmt: skip


def test_the_machine_is_named_with_all_that_speed_depends_on() -> None:
    assert machine_words(MACHINE) == (
        "AMD EPYC, 2 of 64 cores, 2 threads, avx2, fma, idle threads wait by GOMP_SPINCOUNT=3000"
    )
    other = MACHINE | {
        "num_cores_of_machine": 2, "threads": 1, "instructions": ["avx"], "waiting": {},
        "gpu": "NVIDIA H100",
    }  # fmt: skip
    assert machine_words(other) == (
        "NVIDIA H100, AMD EPYC, 2 cores, 2 → 1 threads, avx, idle threads wait by the default of "
        "OpenMP"
    )
    assert machine_words({"model": "AMD EPYC", "num_cores": 1}) == "AMD EPYC, 1 core"
    assert machine_words({}) == ""


def test_the_terminal_names_the_machine_below_the_result() -> None:
    line = machine_line({"machine": MACHINE}, 140)
    assert line == f" {'machine':<36}{machine_words(MACHINE)}"
    assert machine_line({"machine": MACHINE}, 60).startswith(" machine: AMD EPYC, 2 of 64 cores")
    assert machine_line({}) == machine_line({"machine": None}) == ""
    assert "\x1b" not in machine_line({"machine": {"model": "\x1b[2Jgone"}})
