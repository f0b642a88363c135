"""A folder of pictures in place of a store, and the folder of the run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import stepladder
from stepladder.cli.main import main
from stepladder.config.load import load_job
from stepladder.errors import StepladderError
from stepladder.records.run_files import CONFIG_FILE

MODEL = {"model.name": "test_resnet", "model.weights": "none", "train": "all"}
FLAGS = [word for key, value in MODEL.items() for word in (f"--{key}", value)]
FLAGS += ["--epochs", "1", "--batch-size", "8"]


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    random = np.random.default_rng(0)
    for shade, name in enumerate(("apple", "bread", "corn")):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for idx in range(12):
            pixels = random.integers(0, 80, (40, 48, 3)) + 85 * shade
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{idx}.jpg")
    (tmp_path / "job.yaml").write_text("prepare:\n  size: 32\n  val_frac: 0.3\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(*words: str) -> int:
    return main(["train", *words, *FLAGS])


def test_a_folder_of_pictures_is_prepared_trained_and_predicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert trained("photos/") == 0
    out = capsys.readouterr().out
    assert "store photos-store prepared from photos: 3 classes; " in out
    assert "report: runs/photos/report.html" in out
    assert load_job(Path("runs/photos") / CONFIG_FILE).recipe.data.store == Path("photos-store")
    assert main(["predict", "runs/photos", "photos/apple/0.jpg"]) == 0


def test_a_store_that_is_up_to_date_is_reused(capsys: pytest.CaptureFixture[str]) -> None:
    assert trained("photos", "--run.dir", "a") == 0
    before = {path: path.stat().st_mtime_ns for path in Path("photos-store").iterdir()}
    capsys.readouterr()
    assert trained("photos", "--run.dir", "b") == 0
    assert "using the store photos-store: it is up to date with photos" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in Path("photos-store").iterdir()} == before


def test_a_store_is_written_again_when_its_pictures_have_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert trained("photos", "--run.dir", "a") == 0
    shutil.copy("photos/corn/3.jpg", "photos/corn/more.jpg")
    Image.open("photos/corn/3.jpg").rotate(90).save("photos/corn/rotated.jpg")
    capsys.readouterr()
    assert trained("photos", "--run.dir", "b") == 0
    assert "written again, as the pictures have changed" in capsys.readouterr().out


def test_a_store_with_other_options_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    stepladder.prepare("photos", "photos-store", size=48)
    assert trained("photos") == 2
    err = capsys.readouterr().err
    assert "size (that store has 48, you requested 224)" in err
    assert "stepladder prepare photos --out photos-store --overwrite" in err
    assert trained("--data", "photos-store") == 0


def test_options_of_prepare_are_those_of_the_file() -> None:
    assert trained("job.yaml", "--data", "photos") == 0
    assert stepladder.train(config="runs/job/config.yaml").path == Path("runs/job")
    manifest = stepladder.prepare("photos", "photos-store", size=32, val_frac=0.3)
    assert manifest.is_up_to_date


def test_python_prepares_too() -> None:
    run = stepladder.train(store="photos", epochs=1, batch_size=8, **MODEL)
    assert run.path == Path("runs/photos")
    assert run.summary["status"] == "finished"


def test_a_csv_of_pictures_is_prepared_beside_it() -> None:
    rows = [f"{path},{path.parent.name}" for path in sorted(Path("photos").rglob("*.jpg"))]
    Path("labels.csv").write_text("\n".join(["path,label", *rows]))
    assert trained("labels.csv") == 0
    assert Path("labels-store/manifest.json").is_file()
    assert Path("runs/labels/summary.json").is_file()


def test_the_current_folder_may_be_the_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("photos")
    assert trained(".", "--run.dir", "../here") == 0
    assert Path("../photos-store/manifest.json").is_file()


def test_a_remedy_that_is_an_option_of_prepare_names_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for idx in range(6):
        Path(f"photos/corn/bad{idx}.jpg").write_bytes(b"not a picture")
    assert trained("photos") == 3
    assert "stepladder prepare photos --out photos-store" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [
        ({"config": "job.yaml"}, "runs/job"),
        ({"store": "photos"}, "runs/photos"),
        ({"store": "photos", "dir": "runs/run"}, "runs/run"),
    ],
)
def test_the_run_is_named_after_its_job(arguments: dict[str, str], folder: str) -> None:
    from stepladder.api.call import job_of

    given = {"store": None, "dir": None, "config": None} | arguments
    assert job_of(None, **given, settings={}).run.dir == Path(folder)


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["my.job.yaml"], "runs/my.job"),
        (["sub folder/a job.yaml"], "runs/a-job"),
        (["task.py:Mine"], "runs/task-Mine"),
        (["my.job.yaml", "--task", "task.py:Mine"], "runs/my.job"),
        (["--data", "s3://bucket/pets"], "runs/pets"),
        (["photos/"], "runs/photos"),
        ([], "runs/store"),
        (["photos", "--run.dir", "runs/run"], "runs/run"),
    ],
)
def test_the_default_folder_is_named_after_file_task_or_data(words: list[str], folder: str) -> None:
    from stepladder.cli.commands import train

    Path("sub folder").mkdir()
    for name in ("my.job.yaml", "sub folder/a job.yaml"):
        Path(name).touch()
    assert train.read(words)[1].job.run.dir == Path(folder)


def test_two_jobs_of_one_name_do_not_replace_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("a").mkdir()
    for folder, lr in (("a", 0.01), (".", 0.02)):
        Path(folder, "one.yaml").write_text(f"batch:\n  lr: {lr}\ndata:\n  store: photos\n")
    assert trained("a/one.yaml") == 0
    capsys.readouterr()
    assert trained("one.yaml") == 2
    err = capsys.readouterr().err
    assert "this folder already has a run with other options" in err
    assert "--run.dir runs/one-2" in err
    assert trained("one.yaml", "--run.dir", "runs/one-2") == 0
    assert main(["climb", "one.yaml", *FLAGS, "--run.checks", "off"]) == 2
    assert "--run.dir runs/one-3" in capsys.readouterr().err


def test_a_finished_run_of_other_pictures_is_not_taken_for_this_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert trained("photos") == 0
    Image.open("photos/corn/3.jpg").rotate(90).save("photos/corn/rotated.jpg")
    capsys.readouterr()
    assert trained("photos") == 3
    err = capsys.readouterr().err
    assert "the training data have changed" in err
    assert "--overwrite" in err
    assert trained("photos", "--overwrite") == 0


def test_a_finished_run_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert trained("photos") == 0
    capsys.readouterr()
    assert trained("photos") == 0
    assert (
        "runs/photos is already finished; --overwrite trains it again, and --run.dir "
        "runs/photos-2 trains beside it."
    ) in capsys.readouterr().out


def test_a_missing_run_suggests_one_with_a_similar_name() -> None:
    assert trained("photos") == 0
    with pytest.raises(StepladderError, match="does not exist") as caught:
        stepladder.report("run/photo")
    assert caught.value.fix == "Did you mean runs/photos?"
