"""Plans: what fits, what is best, and the words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stepladder.config.choices import Precision
from stepladder.errors import UsageError
from stepladder.parallel.divided.choice import Kind
from stepladder.planning.answer import answer_words
from stepladder.planning.hardware.connections import connection_named
from stepladder.planning.hardware.gpus import Gpu
from stepladder.planning.hardware.machines import Machine, machine_named
from stepladder.planning.job import PlannedJob, split_step
from stepladder.planning.memory import (
    checkpointed,
    fits_of,
    largest_batch,
    missing_words,
    step_bytes,
)
from stepladder.planning.outlook import outlook, why_not
from stepladder.planning.place import Place
from stepladder.planning.question import Question
from stepladder.planning.search import plan
from stepladder.planning.step.step import Driver
from stepladder.planning.target import more_examples, scaled_lr
from stepladder.records.model_size import ModelSize
from stepladder.records.plan import Bounds, PlanPoint

MakeJob = Callable[..., PlannedJob]
SIZE = ModelSize(
    weights=4_000_000_000,
    trained=4_000_000_000,
    states=8_000_000_000,
    kept=100_000_000,
    unit=100_000_000,
    cut=1_000_000,
    num_cuts=20,
)
THIS = machine_named("this@100Gbit")


def at(job: PlannedJob, hosts: int, **changes: object) -> PlanPoint:
    place = Place(machine=THIS, hosts=hosts, devices=1, batch=job.batch, all_reduce="ring")
    return outlook(job, replace(place, **changes))  # type: ignore[arg-type]


def test_one_device_takes_what_was_measured(make_job: MakeJob) -> None:
    found = at(make_job(), 1)
    assert found.step_s == Bounds(best=0.074, likely=0.074, worst=0.074)
    assert found.epoch_s.likely == pytest.approx(74)
    assert found.total_s.likely == pytest.approx(740)
    assert (found.efficiency, found.limit) == (
        pytest.approx(1),
        "1 node × 1: 100 % of the step is compute",
    )


def test_four_devices_take_a_quarter_of_the_examples_and_send(make_job: MakeJob) -> None:
    found = at(make_job(spread=make_job().spread), 4)
    assert found.parts_s["compute"] == pytest.approx(0.01 + 16 * 0.001)
    assert found.parts_s["communication"] > 0
    assert found.step_s.best < found.step_s.likely < found.step_s.worst  # of the data sheet
    assert found.examples_per_s == pytest.approx(64 / found.step_s.likely)
    assert len(found.network_steps_s) == 5
    assert found.network_steps_s[0] > found.network_steps_s[2] > found.network_steps_s[4]
    assert found.network_steps_s[2] == pytest.approx(found.step_s.likely)


def test_a_driver_is_named_as_the_limit(make_job: MakeJob) -> None:
    found = at(make_job(), 4, driver=Driver(example_s=0.01))
    assert found.limit.endswith("% of the step is the driver")


def test_larger_batches_need_more_examples(make_job: MakeJob) -> None:
    assert more_examples(1000, 1000, 500) == 1
    assert more_examples(2000, 1000, 1000) == pytest.approx(1.5)
    assert more_examples(2000, 1000, None) == 1
    found = at(make_job(noise_scale=64.0), 1, batch=128)
    assert found.more_examples_frac == pytest.approx(0.5)
    assert found.epochs.likely == pytest.approx(15)


def test_learning_rates_are_capped_at_the_noise_scale() -> None:
    assert scaled_lr(256, 64, is_adaptive=False, noise_scale=None) == 4
    assert scaled_lr(256, 64, is_adaptive=True, noise_scale=None) == 2
    assert scaled_lr(256, 64, is_adaptive=False, noise_scale=128) == 2
    assert scaled_lr(256, 64, is_adaptive=False, noise_scale=8) == 1


def test_a_step_that_does_not_fit_takes_several_passes(make_job: MakeJob) -> None:
    job = make_job()
    assert largest_batch(job, 16e9) == 142  # 95 % of 16 GB, less 1 GB
    (fit,) = fits_of(job, batch=512, devices=1, limit=16e9)
    assert (fit.kind, fit.micro_batch, fit.accumulation) == (Kind.DATA, 128, 4)
    assert at(job, 1, batch=512).limit.endswith("memory: 4 passes of 128 a device")


def test_a_model_that_does_not_fit_is_divided_or_refused(make_job: MakeJob) -> None:
    job = make_job(size=SIZE, memory=None)
    assert step_bytes(job, 1) == pytest.approx(16.1e9)
    assert not fits_of(job, batch=1, devices=1, limit=16e9)
    fit = fits_of(job, batch=4, devices=4, limit=16e9)[0]
    assert fit.kind is Kind.SHARDED
    said = missing_words(job, devices=1, limit=16e9)
    assert said.startswith("needs 16.1 GB a device for one example (data parallel), 0.9 GB more")
    assert said.endswith("sharded on 2 devices fits")
    place = Place(machine=THIS, hosts=1, devices=1, batch=64, all_reduce="")
    assert "sharded on 2 devices fits" in (why_not(job, place) or "")
    assert at(job, 4, kinds=(Kind.SHARDED,)).kind == "sharded"
    with pytest.raises(UsageError, match="no training is possible"):
        plan(job, Question(machines=(THIS,), hosts=(1,)))


def test_checkpointing_keeps_the_inputs_of_blocks() -> None:
    found = checkpointed(SIZE, 10)
    assert found.kept == 10 * 1_000_000 + 10_000_000
    assert checkpointed(SIZE, 1) == SIZE
    assert checkpointed(SIZE, 200) == SIZE  # the inputs alone would need more
    counted = replace(SIZE, peaks=((100_000_000, 4_000_000_000),))
    assert checkpointed(counted, 10).step_bytes(8) == found.step_bytes(8) < counted.step_bytes(8)


def test_a_batch_below_one_example_a_device_is_refused(make_job: MakeJob) -> None:
    place = Place(machine=THIS, hosts=128, devices=1, batch=64, all_reduce="ring")
    said = why_not(make_job(), place) or ""
    assert "less than one example for each of 128 devices; --batch 128 or more" in said
    unknown = make_job(rates=None, device_name="cpu", device="cpu")
    other = replace(place, machine=machine_named("p3.2xlarge"), hosts=1)
    assert "--machines this" in (why_not(unknown, other) or "")


def test_the_best_are_those_that_no_other_beats_in_time_and_price(make_job: MakeJob) -> None:
    slow = replace(THIS, name="slow", network=connection_named("100Mbit"))
    found = plan(make_job(), Question(machines=(THIS, slow), hosts=(1, 2, 4, 8)))
    best = [one for one in found.points if one.is_best]
    for one in found.points:
        beaten = any(
            two.total_s.likely <= one.total_s.likely
            and two.num * two.total_s.likely < one.num * one.total_s.likely * (1 - 1e-9)
            for two in found.points
        )
        assert not (one.is_best and beaten)
    assert not any(one.machine == "slow" and one.hosts > 1 for one in best)
    assert sum(one.is_knee for one in found.points) == 1
    assert next(one for one in found.points if one.is_knee).is_best
    assert found.answer.startswith("more devices stop paying at ")


def test_deadline_and_budget_choose_the_cheapest_and_the_fastest(make_job: MakeJob) -> None:
    gpus = (
        Gpu(
            name="V100",
            half_flops_per_s=125e12,
            fp32_flops_per_s=15.7e12,
            bytes_per_s=900e9,
            price_per_hour=3.0,
        ),
    )
    machine: Machine = replace(machine_named("p3.2xlarge"), network=connection_named("100Gbit"))
    question = Question(machines=(machine,), hosts=(1, 2, 4, 8), gpus=gpus)
    found = plan(make_job(), question)
    alone = next(one for one in found.points if one.num == 1)
    assert alone.cost is not None
    assert alone.cost.likely == pytest.approx(3.0 * alone.total_s.likely / 3600)
    late = replace(question, deadline_s=700)
    said = answer_words(found.points, late)
    assert said.startswith("the cheapest within 12 min is 2 × p3.2xlarge")
    none = answer_words(found.points, replace(question, deadline_s=1))
    assert none.startswith("nothing ends within 1.0 s; the fastest is")
    rich = answer_words(found.points, replace(question, budget=100.0))
    assert rich.startswith("the fastest for 100 or less is 8 × p3.2xlarge")
    assert answer_words(found.points, replace(question, budget=0.01)).startswith("nothing costs")


def test_the_classic_question_is_answered_for_ring_and_parameter_server(make_job: MakeJob) -> None:
    """A total batch of 1,024: one server is worth few nodes, a ring many."""
    question = Question(
        machines=(replace(THIS, network=connection_named("10gbe")),),
        hosts=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
        batches=(1024,),
        all_reduces=("ring", "parameter_server"),
    )
    found = plan(make_job(memory=None), question)

    def fastest(name: str) -> PlanPoint:
        return min(
            (one for one in found.points if one.all_reduce == name),
            key=lambda one: one.epoch_s.likely,
        )

    ring, server = fastest("ring"), fastest("parameter_server")
    assert ring.hosts > server.hosts
    assert ring.epoch_s.likely < server.epoch_s.likely
    last = next(one for one in found.points if one.hosts == 512 and one.all_reduce == "ring")
    assert last.limit.startswith("512 nodes × 1: ")
    assert last.limit.endswith("% of the step is communication")


def test_every_number_has_an_origin(make_job: MakeJob) -> None:
    found = plan(make_job(), Question(machines=(machine_named("p3.16xlarge"),), hosts=(1, 2)))
    names = [one.name for one in found.inputs]
    assert "p3.16xlarge: nvlink2" in names
    assert all(one.source and one.provenance for one in found.inputs)
    assert any("no prices" in note for note in found.notes)


def test_a_step_of_one_size_is_split_within_bounds() -> None:
    fixed, example = split_step(1.0, 10, source="a test")
    assert (fixed.best, fixed.likely, fixed.worst) == (0, 0.05, 0.2)
    for case in ("best", "likely", "worst"):
        assert getattr(fixed, case) + 10 * getattr(example, case) == pytest.approx(1.0)


def test_another_precision_is_a_range_and_bf16_needs_its_arithmetic(make_job: MakeJob) -> None:
    a100, v100 = (machine_named(name) for name in ("a2-highgpu-1g", "p3.2xlarge"))
    place = Place(machine=a100, hosts=1, devices=1, batch=64, all_reduce="")
    same = outlook(make_job(), place)
    half = outlook(make_job(), replace(place, precision=Precision.BF16))
    assert half.step_s.best < same.step_s.best
    assert half.step_s.worst == pytest.approx(same.step_s.worst)  # at worst, it gives nothing
    old = replace(place, machine=v100, precision=Precision.BF16)
    assert "no arithmetic in bf16; --precision fp16" in (why_not(make_job(), old) or "")
    back = why_not(make_job(precision=Precision.BF16), place)
    assert "what fp32 gives cannot be predicted from steps in bf16" in (back or "")


def test_a_machine_is_paid_for_as_a_whole(make_job: MakeJob) -> None:
    eight = machine_named("p3.16xlarge")
    place = Place(machine=eight, hosts=1, devices=4, batch=64, all_reduce="native")
    assert outlook(make_job(), place).paid_devices == 8


def test_a_batch_larger_than_an_epoch_is_refused(make_job: MakeJob) -> None:
    place = Place(machine=THIS, hosts=1, devices=1, batch=64_001, all_reduce="")
    assert "--batch 64000 or less" in (why_not(make_job(), place) or "")


def test_the_worst_case_is_never_shorter_than_the_best(make_job: MakeJob) -> None:
    """With more examples than were timed, a small fixed time is the worst case."""
    fixed, example = split_step(0.1, 32, source="a test")
    job = make_job(fixed_s=fixed, per_example_s=example, batch=32)
    for batch in (8, 512):
        found = at(job, 1, batch=batch).step_s
        assert found.best <= found.likely <= found.worst
        assert found.best < found.worst


def test_interruptions_make_a_training_longer(make_job: MakeJob) -> None:
    quiet, spot = (at(make_job(), 4, interrupted_every_s=every) for every in (None, 3600.0))
    assert spot.total_s.likely > 1.05 * quiet.total_s.likely
    assert spot.step_s == quiet.step_s
    place = Place(
        machine=THIS, hosts=4, devices=1, batch=64, all_reduce="ring", interrupted_every_s=60.0
    )
    said = why_not(make_job(), place) or ""
    assert "one of 4 machines is lost every 15 s, sooner than another has started" in said


def test_a_sharded_model_fetches_its_weights_in_each_pass(make_job: MakeJob) -> None:
    slow = replace(THIS, network=connection_named("1Gbit"))
    job = make_job(size=SIZE, memory=None)
    kinds = (Kind.SHARDED,)
    place = Place(machine=slow, hosts=4, devices=1, batch=64, all_reduce="ring", kinds=kinds)
    one, four = (outlook(job, replace(place, batch=batch)) for batch in (64, 2048))
    assert (one.kind, one.all_reduce) == ("sharded", "")
    assert four.accumulation > one.accumulation
    assert four.parts_s["communication"] > 2 * one.parts_s["communication"]


def test_checkpointing_comes_before_division(make_job: MakeJob) -> None:
    small = replace(SIZE, weights=1_000_000_000, trained=1_000_000_000, states=2_000_000_000)
    large = replace(small, kept=20_000_000_000)
    job = make_job(size=large, memory=None, num_blocks=20)
    found = at(job, 4, batch=64)
    assert found.kind == "data parallel, checkpointed"
    plain = at(make_job(size=small, memory=None), 4, batch=64)
    assert found.parts_s["compute"] > 1.2 * plain.parts_s["compute"]


def test_a_step_that_is_dearer_than_faster_does_not_pay(make_job: MakeJob) -> None:
    """Over 500 Mbit/s, two devices are hardly faster than one, for twice the price."""
    slow = replace(THIS, network=connection_named("500Mbit"))
    found = plan(make_job(), Question(machines=(slow,), hosts=(1, 2)))
    assert found.answer.startswith("one device is enough")


def test_a_network_that_is_named_wins() -> None:
    given = connection_named("10Gbit")
    assert machine_named("4xA100:nvlink3@100Gbit", network=given).network == given
    assert machine_named("A100@100Gbit").devices == 1
    with pytest.raises(UsageError, match="neither a known connection") as error:
        machine_named("4xH100:nvlnk4")
    assert "4xA100:nvlink3@100Gbit" in (error.value.fix or "")
