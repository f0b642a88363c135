"""What names causes, as functions of plain data."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from stepladder.records.watch import PhaseTime
from stepladder.watching import advice
from stepladder.watching.advice import next_step
from stepladder.watching.causes.contract import Cause, Evidence
from stepladder.watching.causes.growth import growth_causes, growth_of
from stepladder.watching.causes.lines import heaviest, inner_loops, kind_of, own_lines
from stepladder.watching.causes.rhythm import rhythm_causes
from stepladder.watching.hooks.costs.waste import enlarged_from
from stepladder.watching.seen.costs import (
    BACKWARD,
    DATA,
    FORWARD,
    HOOK,
    OPTIMIZER,
    OWN,
    SAVE,
    SampleSeen,
    Spot,
    StacksSeen,
)
from stepladder.watching.seen.models import ModelSeen
from stepladder.watching.seen.seen import Seen

LOOP = ("for xb, yb in loader:",)
STEP = Spot(where="train.py:10", function="main", text="loss.backward()", loops=LOOP)


def spot(line: int, text: str, *loops: str, function: str = "main") -> Spot:
    return Spot(where=f"train.py:{line}", function=function, text=text, loops=(*loops, *LOOP))


def sample(part: str, seconds: float, *spots: Spot, calls: tuple[str, ...] = ()) -> SampleSeen:
    return SampleSeen(part=part, is_validation=False, spots=spots, calls=calls, seconds=seconds)


def seen_of(*samples: SampleSeen) -> Seen:
    seen = Seen()
    seen.costs.stacks = StacksSeen(num=100, samples=list(samples))
    return seen


def evidence_of(*samples: SampleSeen, device: str = "cpu", busy: float = 0.0) -> Evidence:
    return Evidence(
        seen=seen_of(*samples),
        shares={},
        whole_s=1.0,
        num_steps=100,
        facts={"device": device},
        busy=busy,
    )


COMPUTED = (sample(BACKWARD, 0.4, STEP), sample(FORWARD, 0.2, spot(9, "loss = model(xb)")))


@pytest.mark.parametrize(
    ("text", "calls", "kind"),
    [
        ("time.sleep(1)", (), "no_sleep"),
        ("gc.collect()", (), "memory_cleanup"),
        ("torch.cuda.empty_cache()", ("torch/cuda/memory.py:empty_cache",), "memory_cleanup"),
        ("print(loss)", (), "less_printing"),
        ("bar.set_postfix(loss=1)", ("tqdm/std.py:set_postfix",), "less_printing"),
        ("log.info(loss)", ("logging/__init__.py:info",), "less_printing"),
        ("w.add_scalar(a, b)", ("torch/utils/tensorboard/writer.py:add_scalar",), "less_logging"),
        ("f1 = f1_score(a, b)", ("sklearn/metrics/_classification.py:f1",), "fewer_metrics"),
        ("np.save(path, rows)", ("numpy/lib/npyio.py:save",), "fewer_checkpoints"),
        ("rows = pd.read_csv(path)", ("pandas/io/parsers.py:read_csv",), "read_once"),
        ("x = x + 1", (), None),
        ("x = swaim(x)", ("swaim/x.py:swaim",), None),
    ],
)
def test_lines_are_recognised(text: str, calls: tuple[str, ...], kind: str | None) -> None:
    assert kind_of(sample(OWN, 1.0, spot(3, text), calls=calls), has_gpu=False) == kind


def test_reading_a_value_costs_only_on_a_gpu() -> None:
    one = sample(OWN, 0.15, spot(12, "total += loss.item()"))
    assert own_lines(evidence_of(*COMPUTED, one)) == []
    cause = own_lines(evidence_of(*COMPUTED, one, device="NVIDIA H100"))[0]
    assert cause.name == "host_reads"
    assert cause.share == pytest.approx(0.2)
    assert "train.py:12" in cause.text


def test_the_host_saves_no_time_in_which_a_gpu_computes() -> None:
    one = sample(OWN, 0.6, spot(12, "total += loss.item()"))
    assert evidence_of(*COMPUTED, one, device="A100", busy=0.9).share_of(0.6) == pytest.approx(0.1)


def test_loops_of_training_are_not_counted() -> None:
    inner = spot(12, "norm += value", "for value in values:", function="clip")
    assert inner_loops((spot(11, "clip()"), inner), STEP)[0] == "for value in values:"
    assert inner_loops((spot(11, "clip()"),), STEP) == ()


def test_the_line_with_most_of_the_time_is_named() -> None:
    call, slow, fast = spot(11, "augment(xb)"), spot(3, "slow"), spot(4, "fast")
    found, seconds = heaviest([sample(OWN, 0.8, call, slow), sample(OWN, 0.2, call, fast)])
    assert (found, seconds) == (slow, 0.8)
    found, _ = heaviest([sample(OWN, 0.5, call, slow), sample(OWN, 0.5, call, fast)])
    assert found == call


def test_a_loss_and_a_librarys_loop_are_no_slow_lines() -> None:
    loss = sample(OWN, 0.5, spot(9, "loss = ((out - yb) ** 2).mean()"))
    library = sample(OWN, 0.5, STEP, calls=("lightning/loop.py:run",))
    assert own_lines(evidence_of(*COMPUTED, loss, library)) == []
    after = sample(OWN, 0.5, spot(12, "losses = update(losses)"))
    assert own_lines(evidence_of(*COMPUTED, after))[0].name == "slow_line"


def test_a_line_that_calls_a_whole_step_is_no_loss() -> None:
    """`loss = agent.update(buffer.sample())`: the function that samples is named."""
    call = spot(20, "loss = agent.update(buffer.sample(32))", function="run")
    backward = spot(5, "loss.backward()", function="update")
    draw = Spot(where="train.py:3", function="sample", text="idx = choice(n, 32)")
    samples = (
        sample(BACKWARD, 0.2, call, backward),
        sample(FORWARD, 0.2, call, spot(4, "out = net(x)", function="update")),
        sample(OWN, 0.6, call, draw),
    )
    (cause,) = own_lines(evidence_of(*samples))
    assert "train.py:3" in cause.text
    assert cause.name == "slow_line"  # the loop of training is no loop to vectorise


def test_evaluations_in_training_mode_are_named_if_they_are_frequent() -> None:
    call = spot(21, "history.append((loss, validate()))", function="run")
    inner = spot(7, "error = (model(x) - y).abs()", function="validate")
    model = Spot(where="train.py:2", function="forward", text="return net(x)")
    one = replace(sample(FORWARD, 0.6, call, inner, model), followed_s=0.6, outside_s=0.6)
    evidence = evidence_of(*COMPUTED, one)
    seen = evidence.seen
    seen.num_backwards = 100
    seen.models.append(ModelSeen(built="Net", num_train_without_grad=3))
    assert rhythm_causes(evidence) == []
    seen.models[0].num_train_without_grad = 90
    (cause,) = rhythm_causes(evidence)
    assert cause.name == "fewer_validations"
    assert "train.py:7" in cause.text


def test_a_script_without_modules_has_no_slow_lines() -> None:
    model = sample(OWN, 0.5, spot(9, "out = x @ w"))
    assert own_lines(evidence_of(sample(BACKWARD, 0.5, STEP), model)) == []


@pytest.mark.parametrize(
    ("block_s", "is_growing"),
    [
        ([float(i) for i in range(1, 13)], True),
        ([1.0 + 0.1 * i for i in range(12)], True),
        ([1.0] * 12, False),
        ([1.0] * 11 + [50.0], False),
        ([3.0, 1.0] * 6, False),
        ([float(12 - i) for i in range(12)], False),
        ([1.0, 9.0], False),
    ],
)
def test_steps_that_become_slower(block_s: list[float], is_growing: bool) -> None:
    assert (growth_of(block_s) is not None) == is_growing


def test_growth_in_numbers() -> None:
    found = growth_of([1.0] * 3 + [2.0] * 3 + [3.0] * 3)
    assert found is not None
    assert found[0] == 3.0
    assert found[1] == pytest.approx(0.5)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("is_rounded", [False, True])
def test_enlarged_images_are_recognised(mode: str, is_rounded: bool) -> None:
    torch.manual_seed(0)
    large = F.interpolate(torch.rand(1, 3, 32, 32), size=224, mode=mode)[0]
    large = (255 * large).round() / 255 if is_rounded else large
    found = enlarged_from((large - 0.45) / 0.22)
    assert found is not None
    assert found[0] == (224, 224)
    assert abs(found[1][0] - 32) <= 1


def test_other_images_are_not_taken_for_enlarged_ones() -> None:
    torch.manual_seed(0)
    noise = torch.rand(3, 128, 128)
    ramp = torch.linspace(0, 1, 128).expand(3, 128, 128)
    smooth = torch.sin(torch.arange(128) / 9)[None, :, None] * torch.cos(torch.arange(128) / 7)
    page = torch.ones(1, 128, 128)
    page[:, 40:80, 30:90] = (torch.rand(1, 40, 60) > 0.5).float()
    for image in (noise, ramp, smooth.expand(3, 128, 128), page, torch.zeros(3, 128, 128)):
        assert enlarged_from(image) is None


def times(**shares: float) -> list[PhaseTime]:
    return [PhaseTime(name=name, total_s=share, share=share) for name, share in shares.items()]


def test_a_fused_optimizer_does_not_come_before_a_line_that_takes_more() -> None:
    seen = seen_of(*COMPUTED, sample(OWN, 0.3, spot(12, "time.sleep(1)")))
    found = next_step(
        times(forward=0.1, backward=0.15, optimizer=0.45, own_code=0.3),
        100,
        {"fused": False},
        seen=seen,
    )
    assert found.next is not None
    assert found.next.rung == "no_sleep"
    assert [step.rung for step in found.others] == ["fused_optimizer"]


def test_spinning_threads_come_after_what_takes_more() -> None:
    facts = {"cores_missing": 0.9, "threads": 2, "waiting": ""}
    phases = times(forward=0.2, backward=0.2, own_code=0.6)
    seen = seen_of(*COMPUTED, sample(OWN, 2.0, spot(12, "time.sleep(1)")))
    found = next_step(phases, 100, facts, seen=seen)
    assert found.next is not None
    assert found.next.rung == "no_sleep"
    assert [step.rung for step in found.others] == ["threads_sleep"]


@pytest.mark.parametrize("part", [DATA, FORWARD, BACKWARD, OPTIMIZER, SAVE, HOOK, OWN])
@pytest.mark.parametrize("is_validation", [False, True])
def test_samples_in_no_line_of_the_script_are_no_error(part: str, *, is_validation: bool) -> None:
    bare = replace(sample(part, 1.0), is_validation=is_validation, num_inside=1)
    phases = times(forward=0.3, backward=0.3, optimizer=0.1, data_wait=0.1, own_code=0.2)
    for samples in ([bare], [*COMPUTED, bare], [bare, bare]):
        seen = seen_of(*samples)
        seen.costs.num_nodes = 100_000
        found = next_step(phases, 100, {"device": "cpu"}, seen=seen)
        assert found.errors == ()


def test_an_error_of_one_cause_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Evidence) -> list[Cause]:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(advice, "_CAUSES", (fails, *advice._CAUSES))
    seen = seen_of(*COMPUTED, sample(OWN, 0.6, spot(12, "time.sleep(1)")))
    found = next_step(times(forward=0.2, own_code=0.8), 100, {"device": "cpu"}, seen=seen)
    assert found.next is not None
    assert found.next.rung == "no_sleep"
    assert found.errors == ("IndexError: tuple index out of range",)


def test_a_gain_is_bounded_by_amdahls_law() -> None:
    assert Cause(name="a", share=0.5, text="").gain == pytest.approx(2.0)
    assert Cause(name="a", share=1.0, text="").gain == pytest.approx(50.0)


def test_a_line_whose_share_grows_is_named() -> None:
    model = sample(BACKWARD, 9.0, STEP)
    history = sample(OWN, 9.0, spot(12, "history = torch.cat([history, xb])"))
    model.by_block = dict.fromkeys(range(9), 1.0)
    for growth, is_named in ((0.25, True), (0.0, False)):
        history.by_block = {block: 0.1 + growth * block for block in range(9)}
        history.seconds = sum(history.by_block.values())
        evidence = evidence_of(model, history)
        stacks = evidence.seen.costs.stacks
        stacks.num, stacks.last_step = 400, 8
        causes = growth_causes(evidence)
        assert bool(causes) == is_named
        assert not causes or "train.py:12" in causes[0].text
