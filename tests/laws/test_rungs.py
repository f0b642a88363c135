"""Every rung is pure, refuses with a reason, predicts with provenance, and is documented."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import stepladder.rungs
from stepladder.cli.commands import climb as climb_command
from stepladder.cli.job_flags import read_job
from stepladder.config import choices
from stepladder.config.options import JobConfig, LadderConfig
from stepladder.config.recipe import (
    AugmentConfig,
    BatchConfig,
    DataConfig,
    DeviceConfig,
    FeaturesConfig,
    HeadConfig,
    LoaderConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.ladder import climb as climb_module
from stepladder.ladder import trial
from stepladder.ladder.accuracy.comparison import Comparison
from stepladder.ladder.advise import flags_of
from stepladder.ladder.climb import Climb
from stepladder.ladder.keys import learning_key, recipe_key, recipe_values
from stepladder.ladder.lab import Lab
from stepladder.ladder.ledger import Ledger
from stepladder.ladder.timing.speedup import Speed
from stepladder.ladder.trial import change_between
from stepladder.ladder.variants import Choice
from stepladder.ladder.verdict import Evidence
from stepladder.records import read_jsonl, to_json
from stepladder.records.collectives import Fit, Link
from stepladder.records.ladder import Aim, Exactness, Interval
from stepladder.records.model_size import ModelSize
from stepladder.records.profile import Curve, Devices, Profile, Provenance, TrainingTime
from stepladder.rungs import REMEDIES, RUNGS, Against, Rung, rungs_with
from stepladder.rungs.reference import page
from stepladder.training.output.display import Display

FOLDER = Path(stepladder.rungs.__file__).parent
PAGE = FOLDER.parents[2] / "docs" / "rungs.md"
LISTS = (RUNGS, REMEDIES)
LISTED = tuple(dict.fromkeys((*RUNGS, *REMEDIES)))
every_rung = pytest.mark.parametrize("rung", LISTED, ids=lambda rung: rung.name)
every_list = pytest.mark.parametrize("rungs", LISTS, ids=("RUNGS", "REMEDIES"))

seconds = st.floats(1e-6, 1e3)
rarely = st.sampled_from((False, False, False, True))
some_s = st.none() | seconds | seconds | seconds
counts = st.sampled_from((675, 30_000, 57, 2, 1, 0))
likely = st.sampled_from((True, True, True, False))
num_bytes = st.sampled_from((150_528, 10**9, 10**11, 4_096, 0))
times = st.builds(
    TrainingTime,
    one_time_s=st.just({})
    | st.dictionaries(st.sampled_from(("features", "load", "store", "compile")), seconds),
    epochs=st.floats(0.5, 100),
    steps_per_epoch=st.floats(0.1, 1e5),
    step_s=seconds,
    num_validations=st.floats(0, 100),
    validation_s=st.floats(0, 1e3),
    checkpoint_s=st.floats(0, 10),
)
curves = st.builds(
    Curve,
    epochs=st.floats(1, 100),
    val_losses=st.just((1.0, 0.5)),
    epochs_to_stop=st.none() | st.floats(1, 100),
    provenance=st.sampled_from((Provenance.MEASURED, Provenance.REPLAYED)),
)
variants = st.sampled_from(
    ("channels_last", "bf16", "channels_last+bf16", "folded", "fused_optimizer", "pointwise")
)
phases = st.sampled_from(("data_wait", "to_device", "augment", "forward", "backward", "optimizer"))
devices = st.builds(
    Devices,
    num=st.sampled_from((2, 2, 3, 8)),
    start_s=seconds,
    share_step_s=some_s,
    exchange_fixed_s=st.floats(0, 1),
    exchange_byte_s=st.floats(0, 1e-6),
)
devices_of_fit = st.builds(
    lambda found, num, native_s: replace(
        found,
        num=num,
        fit=Fit(
            num_ranks=num,
            num_local=1,
            link=Link.plain(alpha_s=1e-4, beta_s=1e-9),
            native_sizes=(1000, 10**6),
            native_s=(native_s, 2 * native_s),
        ),
    ),
    devices,
    st.sampled_from((2, 3)),
    seconds,
)
sizes = st.builds(
    ModelSize,
    weights=st.sampled_from((4 * 10**8, 10**6)),  # three times that is more than 10**9
    trained=st.sampled_from((4 * 10**8, 10**6)),
    states=st.sampled_from((4 * 10**8, 10**6)),
    kept=st.sampled_from((10**3, 10**3, 10**7)),
    unit=st.just(10**3),
    divided=st.sampled_from((0, 1000)),
    shares=st.just(6),
    num_cuts=st.just(12),
    cut=st.sampled_from((None, 10**4)),
)
profiles = st.builds(
    Profile,
    time=times,
    num_train=counts,
    num_val=counts,
    num_test=counts,
    is_built_in=likely,
    has_head=likely,
    is_trunk_frozen=st.booleans(),
    is_random_before_head=rarely,
    default_threads=st.sampled_from((None, None, 1, 0)),
    is_pretrained=st.booleans(),
    num_conv2d=st.integers(0, 60),
    num_batchnorm=st.just(0) | st.integers(0, 60),
    num_norms=st.sampled_from((None, 0, 0, 60)),
    num_blocks=st.sampled_from((0, 12)),
    weight_bytes=num_bytes,
    trainable_bytes=num_bytes,
    example_bytes=num_bytes,
    feature_bytes=st.none() | num_bytes,
    store_encoding=st.sampled_from(("jpeg", "jpeg", "jpeg", "pixels", None)),
    source_pixels=st.none() | st.floats(1, 5e7),
    stored_bytes=st.none() | st.floats(1, 1e6),
    is_store_near=st.sampled_from((None, True, False, False)),
    device=st.sampled_from(("cpu", "cpu", "cuda")),
    device_name=st.sampled_from(("A processor", "Tesla T4", "NVIDIA A100-SXM4-80GB")),
    num_cores=st.integers(1, 64),
    has_cuda=st.booleans(),
    has_bf16=st.booleans(),
    has_compiler=st.booleans(),
    free_memory_bytes=st.sampled_from((10**9, 10**9, 10**11, 150_528, 0)),
    free_host_bytes=st.none() | num_bytes,
    free_disk_bytes=st.sampled_from((10**15, 10**15, 10**9, 0)),
    peak_flops_per_s=st.none() | st.floats(1e9, 1e15),
    bandwidth_bytes_per_s=st.none() | st.floats(1e9, 1e13) | st.floats(1e9, 1e13),
    phases_s=st.dictionaries(phases, seconds),
    unexplained_frac=st.floats(0, 1),
    replay_host_s=some_s,
    replay_device_s=some_s,
    disk_bytes_per_s=st.none() | st.floats(1e5, 1e10),
    link_bytes_per_s=st.none() | st.floats(1e5, 1e10),
    cache_hit_frac=st.none() | st.floats(0, 1),
    save_s=some_s,
    loader_per_s=st.none() | st.floats(1e-2, 1e7),
    loader_cpu_s=some_s,
    loader_fetch_s=some_s,
    loader_decode_s=some_s | st.just(0.0),
    fetch_bytes_per_s=st.none() | st.floats(1e5, 1e10),
    step_fixed_s=st.none() | st.floats(0, 1) | st.floats(0.1, 1),
    step_per_example_s=st.none() | st.floats(0, 1) | st.floats(0, 0.01),
    step_by_batch_s=st.dictionaries(st.sampled_from((1, 16, 128)), seconds),
    memory_by_batch=st.sampled_from(({16: 10**9, 128: 3 * 10**9}, {16: 10**9}, {})),
    forward_flops=st.none() | st.floats(1e3, 1e12),
    step_flops=st.none() | st.floats(1e3, 1e12),
    forward_bytes=st.none() | st.floats(1e3, 1e12),
    conv_frac=st.none() | st.floats(0, 1),
    mfu=st.none() | st.floats(0, 1),
    trunk_s=some_s,
    head_step_s=some_s,
    head_validation_s=some_s,
    op_replays=st.dictionaries(variants, st.floats(0.05, 5)),
    curve=st.none() | curves,
    noise_scale=st.none() | st.floats(1e-3, 1e6),
    larger_trunks=st.sampled_from(
        ((), ("resnet50",), ("tf_efficientnet_lite1", "tf_efficientnet_lite2"), ("nothing_known",))
    ),
    devices=st.none() | devices | devices_of_fit,
    size=st.none() | sizes | sizes | sizes | sizes,
)
recipes = st.builds(
    Recipe,
    train=st.sampled_from((choices.TrainMode.HEAD, choices.TrainMode.ALL)),
    data=st.builds(
        DataConfig,
        fraction=st.sampled_from((0.01, 0.1, 1.0)),
        where=st.sampled_from(choices.Where),
        decode_once=rarely,
        order=st.sampled_from((choices.OrderMode.AUTO, choices.OrderMode.GLOBAL)),
        max_cache_bytes=st.sampled_from((10**11, 10**6, 0)),
    ),
    loader=st.builds(LoaderConfig, threads=st.sampled_from((0, 1, 2)), scaled_decode=st.booleans()),
    head=st.builds(
        HeadConfig, hidden=st.sampled_from((0, 0, 64)), dropout=st.sampled_from((0.0, 0.3))
    ),
    loss=st.builds(LossConfig, label_smoothing=st.sampled_from((0.0, 0.1))),
    model=st.builds(
        ModelConfig,
        name=st.sampled_from(("tf_efficientnet_lite0", "resnet18", "an_own_model")),
        weights=st.sampled_from(choices.WeightsSource),
        fold_batchnorm=rarely,
    ),
    features=st.builds(FeaturesConfig, cached=rarely, cached_views=st.sampled_from((0, 4))),
    batch=st.builds(
        BatchConfig,
        global_batch_size=st.sampled_from((1, 2, 16, 100, 4096)),
        micro_batch_size=st.sampled_from((None, 8)),
        lr_rule=st.sampled_from(choices.LrRule),
    ),
    optimizer=st.builds(
        OptimizerConfig,
        name=st.sampled_from(choices.OptimizerName),
        weight_decay=st.sampled_from((0.0, 0.01)),
        fused=rarely,
    ),
    schedule=st.builds(
        ScheduleConfig,
        max_epochs=st.sampled_from((1, 60)),
        max_steps=st.sampled_from((None, 1, 1000)),
        warmup_steps=st.sampled_from((0, 100)),
        kind=st.sampled_from(choices.ScheduleKind),
    ),
    augment=st.builds(
        AugmentConfig, flip=st.booleans(), randaugment_ops=st.sampled_from((0, 0, 2))
    ),
    stopping=st.builds(
        StoppingConfig,
        early=st.booleans(),
        restore_best=st.booleans(),
        monitor=st.sampled_from(choices.Monitor),
        validate_every_epochs=st.sampled_from((1, 2, 30)),
        validate_every_steps=st.sampled_from((None, None, 7)),
    ),
    device=st.builds(
        DeviceConfig,
        kind=st.sampled_from(choices.DeviceChoice),
        precision=st.sampled_from(choices.Precision),
        memory_format=st.sampled_from(choices.MemoryFormat),
        compile=rarely,
        gradient_checkpointing=rarely,
        threads=st.sampled_from((0, 1, 8)),
        count=st.sampled_from((1, 1, 2, 2, 3)),
    ),
)
jobs = st.tuples(profiles, recipes)
Job: TypeAlias = "tuple[Profile, Recipe]"


@every_list
def test_names_are_unique(rungs: tuple[Rung, ...]) -> None:
    assert len({rung.name for rung in rungs}) == len(rungs)


def test_remedies_are_for_accuracy_and_those_against_a_high_training_error_come_first() -> None:
    assert {rung.aim for rung in REMEDIES} == {Aim.ACCURACY}
    assert all(rung.exactness is Exactness.STATISTICAL for rung in REMEDIES)
    parts = [rung.against for rung in REMEDIES if rung.against is not None]
    num_first = parts.count(Against.TRAINING)
    assert parts == [Against.TRAINING] * num_first + [Against.GAP] * (len(parts) - num_first)


def test_more_data_and_what_makes_fitting_harder_are_against_the_gap_alone() -> None:
    against = {rung.name: rung.against for rung in REMEDIES}
    harder = ("augmentation", "dropout", "weight_decay", "label_smoothing", "earlier_stop")
    assert {against[name] for name in ("all_data", *harder)} == {Against.GAP}


@every_rung
def test_a_rung_lives_in_the_file_of_its_name(rung: Rung) -> None:
    assert type(rung).__module__.split(".")[-1] == rung.name


def test_no_rung_is_left_out_of_the_list() -> None:
    listed = {type(rung) for rung in (*LISTED, *rungs_with(machines=2))}
    for file in FOLDER.rglob("*.py"):
        name = ".".join(file.relative_to(FOLDER).with_suffix("").parts)
        module = importlib.import_module(f"stepladder.rungs.{name}")
        for kind in vars(module).values():
            if inspect.isclass(kind) and issubclass(kind, Rung) and not inspect.isabstract(kind):
                assert kind in listed, f"{kind.__name__} of {file.name} is not in RUNGS"


@every_list
def test_levels_ascend(rungs: tuple[Rung, ...]) -> None:
    levels = [rung.level for rung in rungs]
    assert levels == sorted(levels)
    assert all(1 <= level <= 12 for level in levels)


@every_rung
def test_what_is_tried_first_comes_earlier(rung: Rung) -> None:
    rungs = next(rungs for rungs in LISTS if rung in rungs)
    earlier = [other.name for other in rungs[: rungs.index(rung)]]
    assert set(rung.looks_first) <= set(earlier)


@every_rung
def test_the_docstring_says_what_it_does_what_it_trades_and_its_source(rung: Rung) -> None:
    doc = inspect.getdoc(type(rung)) or ""
    lines = doc.splitlines()
    assert lines[0].endswith(".")
    for mark in ("Trades: ", "Source: "):
        assert any(line.startswith(mark) and len(line) > len(mark) for line in lines)


NUM_JOBS = 10_000  # the rarest rungs let one of 200 through; which are drawn differs by machine


class AllFound(Exception):
    """Raised to end a search that has found everything."""


@pytest.fixture(name="let_through", scope="module")
def _let_through() -> dict[Rung, Job]:
    """A job for each rung that applies to it."""
    found: dict[Rung, Job] = {}

    @settings(max_examples=NUM_JOBS, phases=[Phase.generate], derandomize=True, database=None)
    @given(job=jobs)
    def look(job: Job) -> None:
        for rung in LISTED:
            if rung not in found and rung.why_not(*job) is None:
                found[rung] = job
        if len(found) == len(LISTED):
            raise AllFound

    with suppress(AllFound):
        look()
    return found


@every_rung
def test_it_has_jobs_that_it_lets_through(rung: Rung, let_through: dict[Rung, Job]) -> None:
    assert job_of(rung, let_through)


def job_of(rung: Rung, let_through: dict[Rung, Job]) -> Job:
    assert rung in let_through, (
        f"why_not of {rung.name} refuses all {NUM_JOBS} jobs of this law: vary in `profiles` or "
        "`recipes` of this file what it asks for"
    )
    return let_through[rung]


def what_is_said_to_change_learning_is_known_to_the_trainings_that_judge_it(
    job: Job, applicable: list[Rung]
) -> None:
    profile, recipe = job
    for rung in applicable:
        variants = () if rung.is_prediction_only else rung.variants(profile, recipe)
        for variant in variants:
            learns_alike = learning_key(variant) == learning_key(recipe)
            is_statistical = rung.exactness_of(variant) is Exactness.STATISTICAL
            assert learns_alike != is_statistical, rung.name


@every_rung
def test_what_takes_a_rung_by_hand_is_what_the_command_line_takes(
    rung: Rung, let_through: dict[Rung, Job]
) -> None:
    profile, recipe = job_of(rung, let_through)
    change = change_between(recipe, rung.apply(profile, recipe))
    words = [word for flag in flags_of(change) for word in flag.split()]
    _, resolved = read_job(climb_command.Flags, words, command="climb")
    values = recipe_values(resolved.job.recipe)
    assert {key: values[key] for key in change} == {key: new for key, (_, new) in change.items()}


def a_refusal_is_one_short_sentence(job: Job) -> None:
    for rung in LISTED:
        refusal = rung.why_not(*job)
        assert rung.why_not(*job) == refusal
        if refusal is not None:
            assert refusal == refusal.strip(), rung.name
            assert 0 < len(refusal) <= 120, f"{rung.name}: {refusal}"
            assert "\n" not in refusal, rung.name
            assert not refusal.endswith("."), rung.name


def a_prediction_is_finite_and_says_where_it_comes_from(job: Job, applicable: list[Rung]) -> None:
    profile, recipe = job
    for rung in applicable:
        found = rung.predict(profile, recipe)
        assert found == rung.predict(profile, recipe)
        assert found.rung == rung.name
        assert found.provenance in (Provenance.MODELLED, Provenance.REPLAYED)
        assert found.gain > 0
        assert found.memory_frac is None or 0 < found.memory_frac <= 1
        assert not found.note.endswith(".")
        assert json.loads(json.dumps(to_json(found), allow_nan=False))["rung"] == rung.name
        numbers = [found.gain, *found.inputs.values()]
        if found.time is not None:
            assert found.gain == pytest.approx(profile.time.total_s / found.time.total_s)
            parts = asdict(found.time)
            numbers += [*parts.pop("one_time_s").values(), *parts.values()]
        assert all(math.isfinite(number) and number >= 0 for number in numbers), rung.name


def trials_without_a_prediction(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the rungs that were tried without a new prediction for their recipe."""
    predicted: set[tuple[str, str]] = set()
    for line in lines:
        if line["kind"] == "prediction":
            predicted.add((line["rung"], line["recipe"]))
        elif line["kind"] == "trial" and line["trial"]["before_s"]:
            name = line["trial"]["rung"]
            if (name, line["trial"]["recipe"]) not in predicted:
                yield name
            predicted = {one for one in predicted if one[0] != name}


@every_rung
def test_a_prediction_is_written_down_before_anything_is_measured(
    rung: Rung, let_through: dict[Rung, Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, recipe = job_of(rung, let_through)
    folder = tmp_path / "run"  # own folder: another ledger may have such a rung
    folder.mkdir()
    ledger = Ledger(folder)
    was_written: list[bool] = []
    worse = Interval(estimate=-0.3, low=-0.4, high=-0.2)

    def choose(_: Lab, tried: Rung, *job: Any, **__: Any) -> Choice:
        *likelier, first = tried.variants(*job)
        return Choice(first=first, second=lambda: likelier[-1] if likelier else None)

    def measure(trying: Any, found: Any, _: float) -> Generator[Any, None, tuple[Any, Evidence]]:
        lines = [line for line in read_jsonl(ledger.path) if line["kind"] == "prediction"]
        own = recipe_key(trying.before), to_json(found.prediction)
        was_written.append(own in [(line["recipe"], line["prediction"]) for line in lines])
        faster = Interval(estimate=2.0, low=1.9, high=2.1)
        speed = Speed(
            interval=faster,
            before=profile.time,
            after=profile.time,
            before_s=(float(len(was_written)),),
            after_s=(1.0,),
        )
        found = replace(found, comparison=Comparison(num_seeds=3), speed=speed)
        yield found
        statistical = Exactness.STATISTICAL
        return found, Evidence(aim=Aim.TIME, exactness=statistical, speed=faster, accuracy=worse)

    num = profile.devices.num if profile.devices is not None else 1
    monkeypatch.setattr(climb_module, "why_not_here", lambda *_: None)
    monkeypatch.setattr(trial, "choose_variant", choose)
    monkeypatch.setattr(trial, "_gather", measure)
    climb = Climb(
        lab=Lab(
            job=JobConfig(recipe=recipe, ladder=LadderConfig(try_all=True, devices=num)),
            task=object(),  # type: ignore[arg-type]
            sources=object(),  # type: ignore[arg-type]
            device=torch.device("cpu"),
            cache=tmp_path / "cache",
            seed=0,
        ),
        ledger=ledger,
        display=Display(io.StringIO()),
        show=lambda _: None,
        job="job",
        machine="machine",
        recipe=recipe,
        rungs=(rung,),
        profiles=[profile],
    )
    for ground in (recipe, replace(recipe, seed=recipe.seed + 1), recipe):
        climb.recipe = ground
        climb.consider(rung)
    assert all(was_written)
    assert bool(was_written) != rung.is_prediction_only
    assert climb.num_from_ledger == (not rung.is_prediction_only), "the third call"
    assert list(trials_without_a_prediction(read_jsonl(ledger.path))) == []


def a_variant_is_predicted_as_soundly_and_the_likeliest_as_the_rung(
    job: Job, applicable: list[Rung]
) -> None:
    profile, recipe = job
    for rung in applicable:
        likeliest, *others = rung.variants(profile, recipe)
        assert rung.predict_variant(profile, recipe, likeliest) == rung.predict(profile, recipe)
        for variant in others:
            found = rung.predict_variant(profile, recipe, variant)
            assert found.rung == rung.name
            assert found.gain > 0
            assert not found.note.endswith(".")
            assert all(math.isfinite(n) and n >= 0 for n in found.inputs.values()), rung.name


def apply_gives_another_recipe_and_leaves_its_input(job: Job, applicable: list[Rung]) -> None:
    profile, recipe = job
    before = repr(job)
    for rung in applicable:
        after = rung.apply(profile, recipe)
        assert after == rung.apply(profile, recipe)
        assert (after == recipe) == rung.is_prediction_only
        found = rung.variants(profile, recipe)
        assert found[0] == after
        assert len(set(found)) == len(found)
        assert rung.is_prediction_only or recipe not in found
    assert repr(job) == before


def applied_again_and_again_a_rung_comes_to_refuse(job: Job, applicable: list[Rung]) -> None:
    profile, recipe = job
    for rung in applicable:
        if rung.is_prediction_only:
            continue
        changed = recipe
        for _ in range(8):  # as long as the longest trunk family
            if rung.why_not(profile, changed) is None:
                changed = rung.apply(profile, changed)
        assert rung.why_not(profile, changed) is not None, rung.name


def exactness_of_a_recipe_is_no_better_than_declared(job: Job, applicable: list[Rung]) -> None:
    order = ("bitwise", "rounding", "statistical")
    for rung in applicable:
        after = rung.apply(*job)
        assert order.index(rung.exactness_of(after)) >= order.index(rung.exactness)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(job=jobs)
def test_laws_of_every_rung_hold_for_any_job(job: Job) -> None:
    applicable = [rung for rung in LISTED if rung.why_not(*job) is None]
    what_is_said_to_change_learning_is_known_to_the_trainings_that_judge_it(job, applicable)
    a_refusal_is_one_short_sentence(job)
    a_prediction_is_finite_and_says_where_it_comes_from(job, applicable)
    a_variant_is_predicted_as_soundly_and_the_likeliest_as_the_rung(job, applicable)
    apply_gives_another_recipe_and_leaves_its_input(job, applicable)
    applied_again_and_again_a_rung_comes_to_refuse(job, applicable)
    exactness_of_a_recipe_is_no_better_than_declared(job, applicable)


def test_the_page_of_rungs_is_that_of_the_code() -> None:
    again = "python -m stepladder.rungs.reference > docs/rungs.md"
    assert PAGE.read_text(encoding="utf-8") == page(), again


def test_the_worked_example_is_the_file_that_the_page_shows() -> None:
    text = PAGE.with_name("adding-a-rung.md").read_text(encoding="utf-8")
    shown = text.partition("```python\n")[2].partition("```")[0]
    assert shown == (FOLDER / "speed" / "compute_threads.py").read_text(encoding="utf-8")
