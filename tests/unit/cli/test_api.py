"""The public functions: the same run from Python and from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stepladder
from stepladder.cli.main import main
from stepladder.errors import DataError, UsageError
from stepladder.task.load import load_task, name_of

TASK = '''
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from stepladder import Task

class Signs(Task):
    """Whether a number is positive."""
    def build_model(self, recipe):
        return nn.Linear(1, 2)
    def data(self, split):
        numbers = torch.linspace(-1, 1, 32).unsqueeze(1)
        return TensorDataset(numbers, (numbers[:, 0] > 0).long())
    def loss(self, model, batch):
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

class Half(Task):
    def build_model(self, recipe):
        return nn.Linear(1, 2)

NOT_A_TASK = 3
made = Signs()
'''
FLAGS = [
    "--train",
    "all",
    "--batch.lr",
    "0.1",
    "--schedule.max-epochs",
    "2",
    "--device.threads",
    "1",
]


@pytest.fixture
def task_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "signs.py"
    file.write_text(TASK)
    return file


def test_python_and_command_line_train_the_same_run(task_file: Path) -> None:
    words = [*FLAGS, "--run.dir", "by_flags", "--task", f"{task_file}:Signs", "--quiet"]
    assert main(["train", *words]) == 0
    run = stepladder.train(
        dir="by_call",
        task=f"{task_file}:Signs",
        **{"train": "all", "batch.lr": 0.1, "schedule.max_epochs": 2, "device.threads": 1},
    )
    assert run.path == Path("by_call")
    other = stepladder.Run(Path("by_flags")).summary
    assert run.summary["val_loss"] == other["val_loss"]
    configs = [Path(name, "config.yaml").read_text() for name in ("by_flags", "by_call")]
    assert configs[0].replace("by_flags", "by_call") == configs[1]
    assert (run.path / "report.html").is_file()
    assert stepladder.verify(run.path) == []
    assert "<iframe" in run.show()._repr_html_()


def test_verify_finds_a_flipped_byte_and_ends_with_3(
    task_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stepladder.train(
        dir="run", task=f"{task_file}:made", **{"train": "all", "schedule.max_epochs": 1}
    )
    weights = max(Path("run/checkpoints").glob("step-*/model.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert main(["verify", "run", "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert len(told["problems"]) >= 1
    assert any("model.safetensors" in problem for problem in told["problems"])


def test_prepare_of_photographs_gives_a_sound_store(
    photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = stepladder.prepare(photos, "store", size=32, val_frac=0.3)
    assert result.manifest.classes == ("apple", "bread", "corn")
    assert result.manifest.size == 32
    assert stepladder.verify("store") == []


def test_a_store_is_checked_as_the_recipe_says(
    photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    stepladder.prepare(photos, "store", size=32, val_frac=0.3)
    shard = Path("store/train-all.parquet")
    data = bytearray(shard.read_bytes())
    data[2000] ^= 1  # in the pixels of the first picture
    shard.write_bytes(data)
    settings = {"model.name": "test_resnet", "model.weights": "none", "train": "all", "epochs": 1}
    with pytest.raises(DataError, match=r"train-all\.parquet"):
        stepladder.train(store="store", dir="checked", **settings)
    unchecked = {"data.verify_pages": "never"}
    assert stepladder.train(store="store", dir="unchecked", **settings, **unchecked).summary


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("signs.py:Sings", "Did you mean Signs?"),
        ("signs.py:Nothing", "Tasks in it: Signs."),
        ("signs.py:NOT_A_TASK", "NOT_A_TASK is not a Task"),
        ("signs.py:Half", "the Task Half cannot be used, because it does not define data, loss"),
        ("missing.py:Signs", "missing.py: the Task's file does not exist"),
        ("signs", "--task FILE.py:NAME"),
        ("signs.Signs", "--task FILE.py:NAME"),
        ("signs.py:", "--task FILE.py:NAME"),
    ],
)
def test_a_task_that_cannot_be_loaded_is_reported(task_file: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_task(name, store=Path("store"))
    assert words in str(caught.value)


def test_a_task_with_a_parameter_of_its_own_is_told_from_one_that_fails(task_file: Path) -> None:
    text = task_file.read_text()
    task_file.write_text(
        f"{text}\n\nclass Needs(Signs):\n    def __init__(self, root):\n        self.root = root\n"
        "\n\nclass Fails(Signs):\n    def __init__(self):\n        self.size = 1 + 'a'\n"
    )
    with pytest.raises(UsageError, match="except `store` a default value"):
        load_task("signs.py:Needs", store=Path("store"))
    with pytest.raises(TypeError, match="unsupported operand"):
        load_task("signs.py:Fails", store=Path("store"))


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = 1\nb = a / 0\n", 2), ("a = 1\n\nimport nothing_here\n", 3), ("a = (", 1)],
)
def test_a_task_file_that_fails_names_its_line(task_file: Path, text: str, line: int) -> None:
    Path("broken.py").write_text(text)
    with pytest.raises(UsageError) as caught:
        load_task("broken.py:Signs", store=Path("store"))
    assert str(caught.value).startswith(
        f"broken.py:{line}: the Python file of the Task raised an error when it was imported: "
    )


def test_a_task_file_may_import_its_neighbour(task_file: Path) -> None:
    Path("neighbour_of_user.py").write_text("from signs import Signs as Base\n")
    Path("mine.py").write_text(
        "import neighbour_of_user\nclass Mine(neighbour_of_user.Base): ...\n"
    )
    task = load_task("mine.py:Mine", store=Path("store"))
    assert name_of(task) == f"{task_file.with_name('mine.py')}:Mine"


def test_recipe_and_config_together_are_refused() -> None:
    with pytest.raises(UsageError, match="both"):
        stepladder.train(stepladder.Recipe(), config="run.yaml")


@pytest.mark.parametrize("function", [stepladder.report, stepladder.verify])
def test_a_folder_that_is_not_a_run_is_reported(function: object, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="this is not the folder of a run"):
        function(tmp_path)  # type: ignore[operator]


def test_an_unknown_format_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="onnx, torch"):
        stepladder.export(tmp_path, "tflite")


@pytest.mark.parametrize("mode", ["head", "head_then_all"])
@pytest.mark.parametrize("command", [stepladder.train, stepladder.climb, stepladder.advise])
def test_a_head_is_not_trained_on_a_random_trunk(
    command: Callable[..., object], mode: str, photos: Path, tmp_path: Path
) -> None:
    stepladder.prepare(photos, tmp_path / "store", size=32, val_frac=0.3)
    settings = {"model.name": "test_resnet", "model.weights": "none", "epochs": 1}
    with pytest.raises(UsageError, match=r"the others .trunk. have random weights") as caught:
        command(store=tmp_path / "store", train=mode, **settings)
    assert "--train all" in (caught.value.fix or "")
    assert "--model.weights hub" in (caught.value.fix or "")
    packaged = {"model.name": "tf_efficientnet_lite0"}
    with pytest.raises(UsageError, match=r"the others .trunk. have random weights") as caught:
        command(store=tmp_path / "store", train=mode, **settings | packaged)
    assert "--model.weights packaged" in (caught.value.fix or "")


def test_a_task_with_its_own_model_needs_no_weights(task_file: Path) -> None:
    settings = {"model.weights": "none", "train": "all", "epochs": 1, "device.threads": 1}
    assert stepladder.train(task=f"{task_file}:Signs", dir="own", **settings).summary
