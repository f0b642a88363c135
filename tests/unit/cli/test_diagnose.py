"""`stepladder diagnose`: its output, its JSON, and its errors."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.cli.main import main
from stepladder.records.diagnosis import Diagnosis
from stepladder.records.from_json import from_json


@pytest.fixture
def overfit(tmp_path: Path) -> Path:
    """The files of a ten-epoch run whose fourth epoch was the best, as training writes them."""
    run = tmp_path / "first"
    run.mkdir()
    lines = [{"event": "start", "step": 0, "epoch": 0, "attempt": 1, "elapsed_s": 0.0}]
    val = [1.8, 1.2, 0.9, 0.8, 0.95, 1.1, 1.25, 1.4, 1.5, 1.6]
    for epoch, loss in enumerate(val, start=1):
        shared = {"step": 10 * epoch, "epoch": epoch, "attempt": 1, "elapsed_s": float(epoch)}
        fall = 2 * math.exp(-epoch / 2)
        accuracy = 1 - math.exp(-epoch / 2)
        train = {"train_loss": fall, "train_accuracy": accuracy}
        noise = {"val_loss_sem": 0.02, "val_accuracy": 0.7 - 0.01 * epoch}
        lines += [
            {"event": "train", **shared, **train},
            {"event": "validation", **shared, "val_loss": loss, **noise},
        ]
    lines.append({"event": "stop", "step": 100, "epoch": 10, "reason": "max_epochs"})
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {
        "status": "finished",
        "stop_reason": "max_epochs",
        "num_val": 500,
        "classes": ["a", "b", "c"],
        "phases_s": {"data_wait": 6.0, "forward": 3.0, "backward": 1.0},
        "data_wait_frac": 0.6,
    }
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "config.yaml").write_text("batch:\n  lr: 0.01\n")
    return run


def test_it_prints_the_fit_the_remedies_and_the_machine(
    overfit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(overfit), "--no-remeasure"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("first (finished): overfitting, likely")
    assert "rose after epoch 4: its last" in out
    assert "Try in this order:" in out
    assert "1. more_data" in out
    assert "60.0 % of the steps' time was spent waiting for data" in out
    assert out.rstrip().endswith("diagnosis.html")
    assert (overfit / "diagnosis.html").stat().st_size > 5_000


def test_json_is_the_record(overfit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(overfit), "--no-remeasure", "--json", "--quiet"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((overfit / "diagnosis.json").read_text())
    assert from_json(Diagnosis, printed).fit.best_epoch == 4


def test_a_store_that_is_gone_is_said_and_the_rest_too(
    overfit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (overfit / "config.yaml").write_text("data:\n  store: nowhere/store\n")
    assert main(["diagnose", str(overfit)]) == 0
    out = capsys.readouterr().out
    assert "overfit" in out
    assert "Unknown:" in out
    assert "nowhere/store" in out


def test_a_folder_without_a_run_is_exit_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(tmp_path / "gone")]) == 3
    assert "the folder does not exist" in capsys.readouterr().err
    assert main(["diagnose", str(tmp_path)]) == 3
    assert "this is not the folder of a run" in capsys.readouterr().err


def test_a_target_error_in_percent_is_exit_2(
    overfit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(overfit), "--no-remeasure", "--target-error", "5"]) == 2
    assert "--target-error" in capsys.readouterr().err


def test_its_help_imports_no_torch() -> None:
    code = (
        "import sys\nfrom stepladder.cli.main import main\ntry:\n    main(['diagnose', "
        "'--help'])\nexcept SystemExit:\n    pass\nsys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--learning-curve" in done.stdout
