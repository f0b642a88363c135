"""Jobs from YAML and from a watched script."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.errors import DataError, UsageError
from stepladder.planning.described import job_of_watch, job_of_yaml
from stepladder.records.watch import PhaseTime, WatchReport

TEXT = """\
name: ResNet-50
device: V100
step_ms: {32: 95, 64: 180}
weights_mb: 102
examples: 1281167
epochs: [80, 100]
batch: 256
memory_gb: {32: 4.2, 64: 7.9}
"""


def job_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_job_is_described_in_a_few_lines(tmp_path: Path) -> None:
    job = job_of_yaml(job_file(tmp_path, TEXT))
    assert job.fixed_s.likely == pytest.approx(0.01)
    assert job.per_example_s.likely == pytest.approx(0.085 / 32)
    assert job.num_bytes == pytest.approx(102e6, rel=1e-6)
    assert (job.epochs.best, job.epochs.likely, job.epochs.worst) == (80, 90, 100)
    assert job.memory is not None
    assert job.memory.example_bytes == pytest.approx(3.7e9 / 32)
    assert job.memory_bytes == 16 * 1024**3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("batch: 0", "0 is not a number of 1 or above"),
        ("batch: many", "many is not a number"),
        ("device: Abacus", "'Abacus' is in no list of devices"),
        ("step_ms: 95", "step_ms needs a number by examples"),
        ("epochs: [100, 80]", "the least and the most"),
        ("batch: 2.9", "2.9 is not a whole number"),
        ("step_ms: {32: 361, 128: 95}", "a step of more examples is shorter"),
        ("memory_gb: {32: 4}", "one size is no line"),
        ("weights_mb: 102MB", "102MB is not a number above 0"),
        ("precision: fp12", "'fp12' is no precision"),
        ("colour: red", "colour is no key of a job"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    name = line.partition(":")[0]
    kept = [one for one in TEXT.splitlines() if not one.startswith(f"{name}:")]
    path = job_file(tmp_path, "\n".join([*kept, line]) + "\n")
    with pytest.raises(UsageError, match=said.replace("[", r"\[")) as error:
        job_of_yaml(path)
    assert str(error.value.where) == f"{path}:{len(kept) + 1}"


def test_missing_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the job lacks device, step_ms") as error:
        job_of_yaml(job_file(tmp_path, "batch: 4\nweights_mb: 1\nexamples: 9\nepochs: 1\n"))
    assert "Add device: text" in (error.value.fix or "")


def test_a_job_may_be_sharded(tmp_path: Path) -> None:
    job = job_of_yaml(job_file(tmp_path, TEXT + "state_mb: 204\nactivation_mb: 90\n"))
    assert job.size is not None
    assert job.size.fixed == 102e6 + 102e6 + 204e6


def report(**changes: object) -> WatchReport:
    facts = {"batch_size": 32, "num_params": 1_000_000, "device": "Tesla T4"}
    times = (
        PhaseTime(name="data_wait", total_s=5.0, share=0.25),
        PhaseTime(name="forward", total_s=5.0, share=0.25),
        PhaseTime(name="backward", total_s=10.0, share=0.5),
    )
    values = {"script": "train.py", "num_steps": 100, "step_s": 0.2, "times": times, "facts": facts}
    return WatchReport(**{**values, **changes})  # type: ignore[arg-type]


def test_a_watched_script_is_a_job() -> None:
    job = job_of_watch(report(), examples=5000, epochs=3)
    assert job.step_s() == pytest.approx(0.15)  # without waiting for data
    assert job.loader_example_s == pytest.approx(0.2 / 32)
    assert job.backward_frac == pytest.approx(2 / 3)
    assert job.num_bytes == pytest.approx(4e6, rel=1e-4)
    assert (job.num_train, job.epochs.likely) == (5000, 3)
    seen = job_of_watch(report(), examples=None, epochs=None)
    assert seen.num_train == 3200


def test_a_script_without_a_timed_step_is_refused() -> None:
    with pytest.raises(DataError, match="no step of the script was timed"):
        job_of_watch(report(step_s=None), examples=None, epochs=None)
    with pytest.raises(DataError, match="size of the script's batches was not seen"):
        job_of_watch(report(facts={}), examples=None, epochs=None)
