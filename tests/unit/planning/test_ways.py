"""Ways of training: divided models, workers that do not wait, and devices that differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from stepladder.config.choices import Precision
from stepladder.errors import UsageError
from stepladder.parallel.collectives.algorithms import ALGORITHMS, Shape
from stepladder.parallel.collectives.cost import schedule_s
from stepladder.parallel.divided.choice import Kind
from stepladder.planning.costs.all_reduce import FORMULAS, Group, all_reduce_s
from stepladder.planning.hardware.connections import connection_named
from stepladder.planning.hardware.machines import machine_named
from stepladder.planning.job import PlannedJob, evenly
from stepladder.planning.outlook import outlook, why_not
from stepladder.planning.place import ASYNCHRONOUS, BACKUP_WORKERS, Place
from stepladder.planning.question import Question
from stepladder.planning.search import plan
from stepladder.records.collectives import Link
from stepladder.records.model_size import ModelSize
from stepladder.records.plan import PlanPoint

MakeJob = Callable[..., PlannedJob]
FOUR = Place(machine=machine_named("this@100Gbit"), hosts=4, devices=1, batch=64, all_reduce="ring")
SIZE = ModelSize(
    weights=100_000_000,
    trained=100_000_000,
    states=200_000_000,
    kept=1_000_000,
    unit=10_000_000,
    divided=100_000_000,
    shares=64,
    inner=1_000_000,
    summed=200_000,
    num_sums=2,
    cut=10_000,
    num_cuts=20,
)
LARGE = replace(SIZE, states=56_000_000_000)  # fits on four devices of 16 GB, not on two
SMALL = evenly(1_000_000)
PLAIN = Link.plain(alpha_s=1e-4, beta_s=1e-9)


def planned(job: PlannedJob, place: Place = FOUR, **changes: object) -> PlanPoint:
    return outlook(job, replace(place, **changes))  # type: ignore[arg-type]


def test_all_wait_for_a_slow_device(make_job: MakeJob) -> None:
    job = make_job(gradients=SMALL)
    alike, slow = (planned(job, slow_device=times) for times in (1.0, 3.0))
    assert slow.parts_s["stragglers"] == pytest.approx(2 * alike.parts_s["compute"])
    assert slow.limit.endswith("% of the step is waiting for the slowest device")


def test_asynchronous_workers_lose_only_the_work_of_a_slow_one(make_job: MakeJob) -> None:
    """Four workers of which one takes three times as long do the work of 3⅓."""
    job = make_job(gradients=SMALL)
    waits, free = (planned(job, all_reduce=way, slow_device=3.0) for way in ("ring", ASYNCHRONOUS))
    assert free.step_s.likely == pytest.approx(0.026 * 4 / (3 + 1 / 3), rel=0.05)
    assert free.step_s.likely < 0.5 * waits.step_s.likely
    assert free.mean_age == pytest.approx(3, rel=0.05)  # the other three
    assert free.limit.endswith("gradients are 3 updates old")
    assert waits.mean_age is None
    question = Question(
        machines=(FOUR.machine,),
        hosts=(4,),
        all_reduces=("ring", ASYNCHRONOUS),
        slow_device=3.0,
        deadline_s=1200,
    )
    found = plan(job, question)
    assert [one.is_best for one in found.points] == [True, False]  # its epochs are not known
    assert "ring" in found.answer
    assert any("so others are recommended" in note for note in found.notes)
    alone = plan(job, replace(question, all_reduces=(ASYNCHRONOUS,), deadline_s=400))
    assert "asynchronous" in alone.answer  # no other way was asked for


def test_a_server_takes_one_gradient_after_the_other(make_job: MakeJob) -> None:
    """Over 1 Gbit/s, of which 75 % are reached, 100 MB take 1.07 s."""
    machine = machine_named("this@1Gbit")
    found = planned(make_job(), machine=machine, hosts=16, all_reduce=ASYNCHRONOUS)
    assert found.step_s.likely == pytest.approx(16 * 8e8 / 0.75e9, rel=0.01)
    assert "of the step is communication" in found.limit
    assert found.network_steps_s[4] < 0.3 * found.network_steps_s[2]


def test_backup_workers_do_not_wait_for_a_slow_device(make_job: MakeJob) -> None:
    """The others compute a larger part: 64 examples by three are 22 each."""
    found = planned(make_job(gradients=SMALL), all_reduce=BACKUP_WORKERS, slow_device=9.0)
    assert found.micro_batch == 22
    assert found.parts_s["compute"] == pytest.approx(0.01 + 22 * 0.001)
    assert found.parts_s["stragglers"] == pytest.approx(0, abs=1e-9)


def test_workers_with_a_server_need_copies_of_the_model(make_job: MakeJob) -> None:
    job = make_job(size=SIZE)
    said = why_not(job, replace(FOUR, all_reduce=ASYNCHRONOUS, kinds=(Kind.TENSOR,)))
    assert "asynchronous workers have copies of the model; --parallelism data" in (said or "")
    large = make_job(size=replace(SIZE, weights=40_000_000_000), memory=None)
    assert "(data parallel)" in (why_not(large, replace(FOUR, all_reduce=ASYNCHRONOUS)) or "")


@pytest.mark.parametrize("name", FORMULAS)
def test_a_slower_network_of_one_host_lies_between_all_fast_and_all_slow(name: str) -> None:
    slow = Link.plain(alpha_s=1e-4, beta_s=4e-9)
    fast = Group(hosts=8, devices=1, inside=None, network=PLAIN)
    times = [
        all_reduce_s(name, group, 1e8)
        for group in (fast, replace(fast, slow=slow), replace(fast, network=slow))
    ]
    assert times[0] <= times[1] * 1.001
    assert times[1] <= times[2] * 1.001
    assert all_reduce_s(name, replace(fast, slow=PLAIN), 1e8) == pytest.approx(times[0], rel=0.03)
    if name == "ring":
        assert times[1] == pytest.approx(times[2])
    if name == "parameter_server":  # the others fill the connection of the server meanwhile
        assert times[1] == pytest.approx(times[0], rel=0.01)


def test_a_message_is_as_slow_as_its_slower_end() -> None:
    star = next(one for one in ALGORITHMS if one.name == "parameter_server")
    schedule = star.schedule(Shape(num_ranks=3))
    factors = np.array([1.0, 1.0, 10.0])
    link = Link.plain(alpha_s=0.0, beta_s=1.0)
    assert schedule_s(schedule, 1200, link) == 2 * 2 * 1200
    assert schedule_s(schedule, 1200, link, slower=factors) == 2 * 10 * 1200


def test_a_slow_network_slows_the_ring_and_hardly_asynchronous_workers(make_job: MakeJob) -> None:
    slow = connection_named("1Gbit")
    ring, free = (
        planned(make_job(), all_reduce=way, slow_network=slow).step_s.likely
        / planned(make_job(), all_reduce=way).step_s.likely
        for way in ("ring", ASYNCHRONOUS)
    )
    assert ring > 10
    assert free < 1.4


def test_each_kind_of_parallelism_is_planned_if_asked_for(make_job: MakeJob) -> None:
    job = make_job(size=SIZE, memory=None)
    found = plan(job, Question(machines=(FOUR.machine,), hosts=(1, 4), kinds=tuple(Kind)))
    kinds = [one.kind.partition(" on ")[0] for one in found.points]
    assert kinds == ["data parallel", *Kind]
    assert sum(one.is_best for one in found.points) >= 1
    only = make_job(size=replace(SIZE, shares=1, divided=0), memory=None)
    said = why_not(only, replace(FOUR, kinds=(Kind.TENSOR,))) or ""
    assert said.endswith(
        "a step cannot be divided within its layers over 4 devices; leave out --parallelism"
    )
    described = why_not(make_job(), replace(FOUR, kinds=(Kind.SHARDED,))) or ""
    assert "state_mb and activation_mb); leave out --parallelism" in described


def test_without_a_wish_a_model_that_does_not_fit_is_divided_in_the_fastest_way(
    make_job: MakeJob,
) -> None:
    job = make_job(size=replace(SIZE, states=20_000_000_000), memory=None)
    asked = {kind: planned(job, kinds=(kind,)) for kind in Kind if kind is not Kind.DATA}
    chosen = planned(job)
    assert chosen.step_s == min((one.step_s for one in asked.values()), key=lambda one: one.likely)
    assert why_not(job, replace(FOUR, kinds=(Kind.DATA,))) is not None


def test_layers_are_divided_within_a_host_and_copied_over_hosts(make_job: MakeJob) -> None:
    machine = machine_named("4xV100:nvlink2@100Gbit")
    job = make_job(size=replace(LARGE, shares=4), memory=None)
    place = replace(FOUR, machine=machine, devices=4, hosts=2, kinds=(Kind.TENSOR,))
    two, one = planned(job, place), planned(job, place, hosts=1, batch=32)
    assert (two.kind, one.kind) == (
        "tensor parallel on 4, data parallel on 2",
        "tensor parallel",
    )
    assert two.parts_s["compute"] == one.parts_s["compute"]
    assert two.memory_bytes == one.memory_bytes
    assert two.parts_s["communication"] >= one.parts_s["communication"]
    slow = planned(job, place, machine=machine_named("4xV100:nvlink2@1Gbit"))
    sent_s = slow.parts_s["communication"] - one.parts_s["communication"]
    whole_s = 2 * 0.5 * 8e8 / 0.75e9  # of both hosts, each with four quarters of the gradients
    assert 0.9 * whole_s < sent_s + two.parts_s["compute"]
    assert sent_s < 1.1 * whole_s


def test_several_precisions_are_compared(make_job: MakeJob) -> None:
    machine = machine_named("a2-highgpu-1g")
    both = (Precision.FP32, Precision.BF16)
    found = plan(make_job(), Question(machines=(machine,), hosts=(1, 2), precisions=both))
    assert [one.precision for one in found.points] == ["fp32", "bf16"] * 2
    assert found.points[1].step_s.likely < found.points[0].step_s.likely
    assert any("memory is that of steps in fp32" in note for note in found.notes)


def test_a_sharded_model_is_never_faster_than_its_messages_allow(make_job: MakeJob) -> None:
    """It sends what copies send, and fetches weights once more."""
    for device in ("cuda", "cpu"):
        job = make_job(size=SIZE, memory=None, device=device)
        for speed in ("1Gbit", "10Gbit", "100Gbit"):
            place = replace(FOUR, machine=machine_named(f"this@{speed}"), all_reduce="native")
            copies, sharded = (planned(job, place, kinds=(k,)) for k in (Kind.DATA, Kind.SHARDED))
            assert sharded.step_s.likely >= copies.step_s.likely * (1 - 1e-9)
    exchange_s = copies.parts_s["communication"]  # on a CPU, nothing is hidden
    assert sharded.parts_s["communication"] == pytest.approx(1.5 * exchange_s, rel=0.05)


def test_a_pipeline_is_as_fast_as_its_slowest_stage(make_job: MakeJob) -> None:
    job = make_job(size=LARGE, memory=None)
    plain, slow = (planned(job, kinds=(Kind.PIPELINE,), slow_device=times) for times in (1.0, 2.0))
    pass_s = (16 * 0.01 + 64 * 0.001) / 4  # 16 parts of 4 examples
    assert plain.parts_s["compute"] == pytest.approx(pass_s)
    assert plain.parts_s["bubble"] == pytest.approx(pass_s * 3 / 16)
    assert slow.parts_s["stragglers"] == pytest.approx(pass_s * 19 / 16)
    few = planned(job, kinds=(Kind.PIPELINE,), batch=4)  # an example is not divided
    assert few.parts_s["compute"] == pytest.approx((4 * 0.01 + 4 * 0.001) / 4)
    assert few.limit.endswith("% of the step is waiting for other stages")


def test_devices_that_share_examples_need_no_example_each(make_job: MakeJob) -> None:
    job = make_job(size=SIZE, memory=None)
    one = replace(FOUR, batch=1)
    assert "less than one example for each of 4" in (why_not(job, one) or "")
    assert planned(job, one, kinds=(Kind.TENSOR,)).micro_batch == 1
    large = make_job(size=replace(SIZE, inner=0, kept=4_000_000_000), memory=None)
    found = planned(large, kinds=(Kind.TENSOR,), batch=16)
    assert found.micro_batch == 2
    assert found.accumulation >= 4


def test_layers_are_divided_among_as_many_devices_as_they_allow(make_job: MakeJob) -> None:
    """Twelve heads cannot be divided among eight devices, but among four."""
    machine = machine_named("8xV100:nvlink2@100Gbit")
    job = make_job(size=replace(SIZE, shares=12), memory=None)
    found = planned(job, machine=machine, hosts=1, devices=8, kinds=(Kind.TENSOR,))
    assert found.kind in {f"tensor parallel on {n}, data parallel on {8 // n}" for n in (2, 4)}


def test_the_remedy_for_a_model_that_does_not_fit_is_what_was_not_asked_for(
    make_job: MakeJob,
) -> None:
    job = make_job(size=replace(SIZE, states=20_000_000_000), memory=None)
    said = why_not(job, replace(FOUR, kinds=(Kind.DATA,))) or ""
    assert said.endswith("sharded on 4 devices fits: leave out --parallelism")
    served = why_not(job, replace(FOUR, all_reduce=ASYNCHRONOUS)) or ""
    assert served.endswith("sharded on 4 devices fits: leave out asynchronous")


def test_divided_models_are_planned_whichever_exchange_is_named_first(make_job: MakeJob) -> None:
    job = make_job(size=replace(SIZE, states=20_000_000_000), memory=None)
    for ways in ((ASYNCHRONOUS, "native", "ring"), ("ring", ASYNCHRONOUS, "native")):
        found = plan(job, Question(machines=(FOUR.machine,), hosts=(4,), all_reduces=ways))
        assert len(found.points) == 1
        assert found.points[0].kind != Kind.DATA


def test_all_devices_of_a_machine_share_its_slow_network(make_job: MakeJob) -> None:
    slow = connection_named("1Gbit")
    machine = machine_named("8xV100:nvlink2@400Gbit")
    many = replace(FOUR, machine=machine, hosts=2, devices=8, all_reduce=ASYNCHRONOUS, batch=1024)
    one = replace(many, machine=machine_named("V100@400Gbit"), hosts=16, devices=1)
    eight_s, one_s = (planned(make_job(), place, slow_network=slow).step_s for place in (many, one))
    assert eight_s.likely > 1.5 * one_s.likely
    star = replace(many, all_reduce="parameter_server")
    quiet, mixed = (planned(make_job(), star, slow_network=net).step_s for net in (None, slow))
    assert mixed.likely < quiet.likely + 2 * 8 * 8e8 / 0.75e9


def test_backup_workers_do_not_wait_for_a_slow_network(make_job: MakeJob) -> None:
    quiet, slow = (
        planned(make_job(), all_reduce=BACKUP_WORKERS, slow_network=net).step_s.likely
        for net in (None, connection_named("100Mbit"))
    )
    assert slow == pytest.approx(quiet)


def test_the_measured_device_is_asked_for_its_arithmetic(make_job: MakeJob) -> None:
    place = replace(FOUR, hosts=1, precision=Precision.BF16)
    assert "no arithmetic in bf16; --precision fp16" in (why_not(make_job(), place) or "")


def test_a_fitted_network_is_not_slower_mixed_than_as_a_whole() -> None:
    fitted = replace(PLAIN, exchange_beta_s=2e-9)
    slow = Link.plain(alpha_s=1e-4, beta_s=1e-8)
    group = Group(hosts=8, devices=1, inside=None, network=fitted, slow=slow)
    for name in FORMULAS:
        whole_s = all_reduce_s(name, replace(group, network=slow, slow=None), 1e8)
        assert all_reduce_s(name, group, 1e8) <= whole_s


def test_asked_kinds_that_are_not_possible_are_no_plan(make_job: MakeJob) -> None:
    question = Question(machines=(FOUR.machine,), hosts=(1, 4), kinds=(Kind.SHARDED,))
    with pytest.raises(UsageError, match="state_mb and activation_mb"):
        plan(make_job(), question)
