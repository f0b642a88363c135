from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.errors import MissingExtraError, ResourceError, UsageError
from stepladder.training.output.events import EventLog
from stepladder.training.output.sinks import MlflowSink, TensorBoardSink, scalars

TRAIN = {
    "event": "train",
    "step": 50,
    "epoch": 1,
    "attempt": 1,
    "elapsed_s": 3.0,
    "train_loss": 0.75,
    "throughput/samples_per_sec": 512.0,
    "time_metrics/data_loading(%)": 2.5,
}


@pytest.fixture
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit MLflow's environment variables to the test."""
    for name in ("DISABLE_TELEMETRY", "HTTP_REQUEST_MAX_RETRIES", "HTTP_REQUEST_TIMEOUT"):
        monkeypatch.setenv(f"MLFLOW_{name}", "true" if name == "DISABLE_TELEMETRY" else "1")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def test_training_values_keep_the_names_people_know() -> None:
    assert scalars(TRAIN) == {
        "train_loss": 0.75,
        "throughput/samples_per_sec": 512.0,
        "time_metrics/data_loading(%)": 2.5,
    }


def test_system_values_are_grouped_and_bytes_become_gib() -> None:
    record = {
        "event": "system",
        "step": 1,
        "cpu_percent": 80,
        "rss_bytes": 2**31,
        "gpu_percent": None,
    }
    assert scalars(record) == {"system/cpu(%)": 80.0, "memory/rss(GiB)": 2.0}


def test_truth_values_words_and_plain_events_are_no_scalars() -> None:
    assert scalars({"event": "validation", "step": 1, "val_loss": 1, "is_best": True}) == {
        "val_loss": 1
    }
    assert scalars({"event": "stop", "step": 1, "reason": "done", "code": 3}) == {}


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with EventLog(tmp_path, attempt=1, sinks=(TensorBoardSink(tmp_path / "tensorboard"),)) as log:
        log.write("train", step=50, epoch=1, train_loss=0.75)
        log.write("train", step=100, epoch=1, train_loss=math.nan)
        log.write("validation", step=100, epoch=1, val_accuracy=0.5, is_best=True)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert found.Tags()["scalars"] == ["train_loss", "val_accuracy"]
    losses = found.Scalars("train_loss")
    assert [(event.step, event.value) for event in losses[:1]] == [(50, 0.75)]
    assert math.isnan(losses[1].value)


def test_a_resumed_tensorboard_hides_the_steps_that_are_repeated(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TensorBoardSink(tmp_path)
    for step in (1, 2, 3):
        first.write({"event": "train", "step": step, "train_loss": 1.0})
    first.close("interrupted")
    second = TensorBoardSink(tmp_path, purge_after_step=2)
    second.write({"event": "train", "step": 3, "train_loss": 0.5})
    second.close("finished")
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in found.Scalars("train_loss")] == [
        (1, 1.0),
        (2, 1.0),
        (3, 0.5),
    ]


@pytest.mark.usefixtures("_own_environment")
def test_mlflow_logs_to_a_plain_folder_and_resumes_the_same_run(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    run = tmp_path / "my-run"
    run.mkdir()
    uri = str(tmp_path / "mlruns")
    first = MlflowSink(uri, run_folder=run, params={"batch.lr": 1e-3, "odd(%)": "x" * 9000})
    first.write(TRAIN)
    first.close("interrupted")
    second = MlflowSink(uri, run_folder=run)
    second.write(TRAIN | {"step": 100, "train_loss": 0.5})
    second.close("finished")

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("stepladder")
    [found] = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("my-run", "FINISHED")
    assert found.data.params["batch.lr"] == "0.001"
    assert found.data.metrics["time_metrics/data_loading_percent"] == 2.5
    history = client.get_metric_history(found.info.run_id, "train_loss")
    assert [(metric.step, metric.value) for metric in history] == [(50, 0.75), (100, 0.5)]


@pytest.mark.usefixtures("_own_environment")
def test_a_database_without_the_full_package_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pip install mlflow"):
        MlflowSink("notascheme://store", run_folder=tmp_path)


@pytest.mark.usefixtures("_own_environment")
def test_an_unreachable_server_is_named_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(ResourceError) as raised:
        MlflowSink("http://me:canary@127.0.0.1:9/", run_folder=tmp_path)
    assert "127.0.0.1:9" in str(raised.value)
    assert "canary" not in str(raised.value)


@pytest.mark.parametrize(
    ("blocked", "make"),
    [
        ("tensorboard", lambda path: TensorBoardSink(path)),
        ("mlflow.entities", lambda path: MlflowSink(str(path), run_folder=path)),
    ],
)
@pytest.mark.usefixtures("_own_environment")
def test_a_missing_extra_gives_the_install_command(
    blocked: str, make: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, blocked, None)
    with pytest.raises(
        MissingExtraError, match=r"pip install 'stepladder\[(tensorboard|mlflow)\]'"
    ):
        make(tmp_path)  # type: ignore[operator]


def test_importing_the_sinks_imports_neither_engine() -> None:
    code = (
        "import sys, stepladder.training.output.sinks\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'mlflow', 'tensorboard')))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0
