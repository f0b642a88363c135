from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from stepladder.config.choices import ExportFormat, Fit, WeightsSource
from stepladder.config.recipe import HeadConfig, ModelConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.data.decoding.decode import decode_picture
from stepladder.errors import DataError, MissingExtraError, ResourceError, UsageError
from stepladder.exporting import Trained, export_run, load_trained, predict, write
from stepladder.models.classifier import build_classifier
from stepladder.optim.master import halve_
from stepladder.task.contract import Task
from stepladder.training.checkpoint.checkpoint import Checkpoints

SIZE = 32
CLASSES = ("apple", "bread", "corn", "dill", "egg", "fig")
RECIPE = Recipe(
    model=ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE),
    head=HeadConfig(hidden=8, dropout=0.5),
)
CONFIG = """
model:
  name: test_efficientnet
  weights: packaged
head:
  hidden: 8
  dropout: 0.5
"""
FACTS = {"classes": list(CLASSES), "size": SIZE, "fit": "crop"}


def a_model(seed: int = 3) -> nn.Module:
    return build_classifier(RECIPE.model, RECIPE.head, seed=seed, num_classes=len(CLASSES)).eval()


def save_run(run: Path, model: nn.Module, **state: object) -> Path:
    """Write what a finished run stores of its model: frozen trunk, trained head."""
    weights = model.state_dict()
    frozen = {name: value for name, value in weights.items() if name.startswith("trunk.")}
    learned = {name: value for name, value in weights.items() if name not in frozen}
    state = {"task": "image_classification", "describe": FACTS, **state}
    checkpoints = Checkpoints(run / "checkpoints")
    checkpoints.save("best-000000002", {"model": learned}, state, frozen)
    later = {name: value + 1 for name, value in learned.items()}
    top = [{"name": "best-000000002"}]
    checkpoints.save("step-000000005", {"model": later}, {**state, "top": top}, frozen)
    (run / "config.yaml").write_text(CONFIG)
    return run


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("trained") / "run", a_model())


@pytest.fixture(scope="module")
def exported(
    shared_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[ExportFormat], Path]:
    """Return a function that exports a run; once per format."""
    run = shutil.copytree(shared_run, tmp_path_factory.mktemp("exported") / "run")
    return cache(partial(export_run, run))


def test_each_step_of_an_export_is_named(
    shared_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[str] = []
    doing = write.doing
    monkeypatch.setattr(write, "doing", lambda what: named.append(what) or doing(what))
    export_run(shared_run, ExportFormat.TORCH, tmp_path / "net.pt2")
    assert named == [
        "loading it",
        "tracing it",
        "writing net.pt2",
        "comparing net.pt2 with the model",
    ]


@pytest.fixture
def run(shared_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared_run, tmp_path / "run"))


@dataclass
class OwnTask(Task):
    def build_model(self, recipe: Recipe) -> nn.Module:
        assert recipe.model.weights is WeightsSource.NONE
        return nn.Sequential(nn.Flatten(), _ToFloat(), nn.Linear(3 * SIZE * SIZE, len(CLASSES)))

    def data(self, split: object) -> None:
        return None

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        raise NotImplementedError


class _ToFloat(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / 255


@pytest.fixture
def run_of_task(tmp_path: Path) -> Path:
    return save_run(tmp_path / "run", OwnTask().build_model(RECIPE), task="mine.py:OwnTask")


def pixels(n: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)


def test_best_weights_are_loaded_and_not_the_last(run: Path) -> None:
    trained = load_trained(run)
    assert (trained.classes, trained.size, trained.fit) == (CLASSES, SIZE, Fit.CROP)
    with torch.no_grad():
        assert torch.equal(trained.model(pixels()), a_model()(pixels()))
    assert not trained.model.training


def test_the_last_weights_are_loaded_where_the_recipe_ends_with_them(run: Path) -> None:
    (run / "config.yaml").write_text(CONFIG + "stopping:\n  restore_best: false\n")
    trained = load_trained(run)
    last = Checkpoints(run / "checkpoints").load("step-000000005").weights
    best = Checkpoints(run / "checkpoints").load("best-000000002").weights
    state = trained.model.state_dict()
    assert all(torch.equal(state[name], weight) for name, weight in last.items())
    assert not all(torch.equal(state[name], weight) for name, weight in best.items())


def test_half_weights_become_fp32(tmp_path: Path) -> None:
    model = halve_(a_model())
    trained = load_trained(save_run(tmp_path / "run", model))
    assert {weight.dtype for weight in trained.model.parameters()} == {torch.float32}
    with torch.no_grad():
        found, wanted = trained.model(pixels()), model(pixels()).float()
    torch.testing.assert_close(found, wanted, atol=5e-3, rtol=5e-3)


@pytest.mark.thorough
def test_torch_export_runs_with_torch_alone(
    exported: Callable[[ExportFormat], Path], tmp_path: Path
) -> None:
    path = exported(ExportFormat.TORCH)
    assert path.name == "model.pt2"
    assert {item.name for item in path.parent.iterdir()} >= {"checkpoints", "model.json"}
    np.save(tmp_path / "pictures.npy", pixels(5).numpy())
    program = """
import sys, warnings
for name in ("stepladder", "timm", "torchvision"):
    sys.modules[name] = None
import numpy, torch
pictures = torch.from_numpy(numpy.load(sys.argv[2]))
with torch.no_grad():
    numpy.save(sys.argv[3], torch.export.load(sys.argv[1]).module()(pictures).numpy())
"""
    result = tmp_path / "logits.npy"
    command = [sys.executable, "-c", program, str(path), str(tmp_path / "pictures.npy"), result]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        wanted = a_model()(pixels(5)).numpy()
    np.testing.assert_allclose(np.load(result), wanted, atol=1e-5)


def test_onnx_export_runs_in_onnxruntime_for_any_number_of_pictures(
    exported: Callable[[ExportFormat], Path],
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = exported(ExportFormat.ONNX)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for n in (1, 4, 7):
        with torch.no_grad():
            wanted = a_model()(pixels(n)).numpy()
        found = session.run(["logits"], {"pictures": pixels(n).numpy()})[0]
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == list(CLASSES)
    assert (json.loads(facts["size"]), json.loads(facts["fit"])) == (SIZE, "crop")
    assert [item.name for item in path.parent.iterdir() if item.suffix == ".data"] == []


@pytest.mark.parametrize("format", ExportFormat)
def test_export_says_what_goes_in_and_comes_out_and_names_no_place(
    exported: Callable[[ExportFormat], Path], format: ExportFormat
) -> None:
    path = exported(format)
    run = path.parent
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts["classes"] == list(CLASSES)
    assert facts["input"]["shape"] == ["n", 3, SIZE, SIZE]
    assert facts["largest_difference"] <= write.TOLERANCE
    data = path.read_bytes()
    for place in (str(Path(torch.__file__).parent), str(Path(write.__file__).parent), str(run)):
        assert place.encode() not in data
    assert not [item for item in run.iterdir() if item.name.startswith(".")]


def test_an_export_that_computes_something_else_is_refused_and_removed(
    run_of_task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "TOLERANCE", -1.0)
    with pytest.raises(
        ResourceError, match="the model was not exported, because its outputs would differ"
    ):
        export_run(run_of_task, ExportFormat.TORCH, task=OwnTask())
    assert sorted(item.name for item in run_of_task.iterdir()) == ["checkpoints", "config.yaml"]


def test_onnx_without_its_extra_says_what_to_install(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"stepladder\[onnx\]"):
        export_run(run, ExportFormat.ONNX)


def test_a_place_that_cannot_be_written_is_a_resource_error(run_of_task: Path) -> None:
    (run_of_task / "file").write_text("")
    out = run_of_task / "file" / "model.pt2"
    with pytest.raises(ResourceError, match="cannot be written"):
        export_run(run_of_task, ExportFormat.TORCH, out, task=OwnTask())


class ChoosesByValue(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).float() if x.sum() > 0 else -x.flatten(1).float()


def test_a_model_that_cannot_be_traced_says_why() -> None:
    trained = Trained(model=ChoosesByValue(), classes=CLASSES, size=SIZE, fit=Fit.PAD)
    with pytest.raises(UsageError, match=r"torch\.export cannot export this model"):
        write.trace(trained)


def save_pictures(folder: Path, n: int = 3) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{idx} ü.png" for idx in range(n)]
    for path, picture in zip(paths, pixels(n), strict=True):
        Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy()).save(path)
    return paths


def test_predictions_are_the_models_softmax(run: Path, tmp_path: Path) -> None:
    paths = save_pictures(tmp_path / "new")
    found = predict(run, paths)
    images = [decode_picture(path.read_bytes(), size=SIZE, fit=Fit.CROP) for path in paths]
    batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    with torch.no_grad():
        wanted = a_model()(batch).softmax(1)
    for item, path, row in zip(found, paths, wanted, strict=True):
        assert item.path == path
        assert item.label == CLASSES[int(row.argmax())]
        assert item.probability == pytest.approx(row.max().item(), abs=1e-6)
        assert item.top[0] == (item.label, item.probability)
        assert len(item.top) == 5
        assert [p for _, p in item.top] == sorted((p for _, p in item.top), reverse=True)
        assert item.error is None


def test_folders_are_searched_without_hidden_files_or_other_types(
    run: Path, tmp_path: Path
) -> None:
    wanted = save_pictures(tmp_path / "new" / "deep", 2)
    save_pictures(tmp_path / "new" / ".hidden", 1)
    (tmp_path / "new" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "new" / "notes.txt").write_text("x")
    (tmp_path / "new" / "loop").symlink_to(tmp_path / "new")
    assert [item.path for item in predict(run, [tmp_path / "new"])] == wanted


def test_unreadable_pictures_are_reported_in_their_place(run: Path, tmp_path: Path) -> None:
    good, half, text, pipe = save_pictures(tmp_path / "new", 4)
    half.write_bytes(half.read_bytes()[:200])
    text.write_text("not a picture")
    pipe.unlink()
    os.mkfifo(pipe)
    found = predict(run, [half, good, text, pipe])
    assert [item.path for item in found] == [half, good, text, pipe]
    assert [bool(item.error) for item in found] == [True, False, True, True]
    assert found[3].error == "is not a regular file"
    with pytest.raises(DataError, match="none of the pictures can be read"):
        predict(run, [half, text])


def test_missing_pictures_and_empty_folders_are_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jpg"):
        predict(run, [tmp_path / "none.jpg"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no files that are pictures"):
        predict(run, [tmp_path / "empty"])


def test_a_run_without_checkpoints_or_facts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(DataError, match="no checkpoint"):
        load_trained(tmp_path / "run")
    with pytest.raises(DataError, match="describe"):
        load_trained(save_run(tmp_path / "other", a_model(), describe={}))


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", a_model())
    (run / "config.yaml").write_text(CONFIG.replace("hidden: 8", "hidden: 9"))
    with pytest.raises(DataError, match="do not fit the model"):
        load_trained(run)


def test_a_run_of_a_users_task_needs_that_task(run_of_task: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mine\.py:OwnTask"):
        load_trained(run_of_task)
    picture = save_pictures(tmp_path / "new", 1)
    assert predict(run_of_task, picture, task=OwnTask())[0].label in CLASSES
    out = run_of_task / "out" / "classifier.pt2"
    assert export_run(run_of_task, ExportFormat.TORCH, out, task=OwnTask()) == out
    assert out.is_file()


def test_pictures_are_decoded_as_in_training(run: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    photo = tmp_path / "large.jpg"
    Image.fromarray(rng.integers(0, 256, (4 * SIZE, 4 * SIZE, 3)).astype(np.uint8)).save(photo)
    scaled = predict(run, [photo])
    with (run / "config.yaml").open("a") as file:
        file.write("loader:\n  scaled_decode: false\n")
    assert not load_trained(run).is_scaled
    assert predict(run, [photo])[0].probability != scaled[0].probability
