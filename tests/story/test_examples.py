"""Everything shown in the documentation works: examples, flags, snippets, links."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from safetensors.torch import save_file

from stepladder.cli.commands.completion import flags_of_commands
from stepladder.cli.main import main
from stepladder.config.choices import Split, WeightsSource
from stepladder.config.load import load_job
from stepladder.config.recipe import ModelConfig
from stepladder.models.trunk import build_trunk
from stepladder.records import read_json, read_jsonl
from stepladder.rungs import RUNGS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text()
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])


class Command(Protocol):
    folder: Path

    def __init__(self, folder: Path) -> None: ...

    def __call__(self, *words: str, code: int = 0) -> str: ...


@pytest.mark.slow
def test_python_api_runs_from_photographs_to_an_export(
    train_photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["python_api.py", str(train_photographs)])
    runpy.run_path(str(EXAMPLES / "python_api.py"), run_name="__main__")
    first, second, *predictions, exported = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d\d training pictures in .*store", first)
    assert re.fullmatch(r"validation accuracy [\d.]+%, report in runs/example/report.html", second)
    assert len(predictions) == 3
    assert (tmp_path / exported).is_file()


def test_own_task_trains_by_the_command_that_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docstring = ast.get_docstring(ast.parse((EXAMPLES / "own_task.py").read_text()))
    assert docstring is not None
    (command,) = re.findall(r"stepladder (train (?:.*\\\n)*.*)", docstring)
    words = shlex.split(command.replace("\\\n", " "))
    assert words[1:3] == ["--task", "examples/own_task.py:Sine"]
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main([*words, "--quiet", "--device.threads", "1"]) == 0
    assert read_json(tmp_path / "runs/sine/summary.json")["val_loss"] < 0.2  # a straight line: 0.5


def words_of_climb(file: str) -> list[str]:
    """Return the arguments of the `stepladder climb` command in an example's docstring."""
    docstring = ast.get_docstring(ast.parse((EXAMPLES / file).read_text()))
    assert docstring is not None
    (command,) = re.findall(r"stepladder climb ((?:.*\\\n)*.*)", docstring)
    return shlex.split(command.replace("\\\n", " "))


@pytest.mark.parametrize(
    ("file", "epochs", "metric", "low", "high"),
    [
        ("text_task.py", 1, "val_accuracy", 0.4, 1.0),  # the most common module alone: 0.25
        ("tabular_task.py", 2, "val_loss", 1.0, 8.0),  # the noise: 1; a constant: 24
    ],
)
def test_a_users_job_learns_by_the_flags_that_it_gives(
    file: str,
    epochs: int,
    metric: str,
    low: float,
    high: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, *flags = words_of_climb(file)
    assert task.startswith(f"examples/{file}:")
    flags[flags.index("--schedule.max-epochs") + 1] = str(epochs)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ["train", "--task", task, *flags, "--quiet", "--device.threads", "1"]
    assert main(words) == 0
    (summary,) = tmp_path.glob("runs/*/summary.json")
    assert low < read_json(summary)[metric] < high


def test_text_lines_are_held_out_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    text_task = importlib.import_module("text_task")
    source = Path(importlib.import_module("tarfile").__file__ or "").read_text().splitlines()
    for split, block in ((Split.VAL, 0), (Split.TEST, 1), (Split.TRAIN, 2)):
        start = block * text_task.BLOCK_LINES
        lines = [line.strip() for line in source[start : start + text_task.BLOCK_LINES]]
        wanted = [line for line in lines if len(text_task.words_of(line)) > 1]
        assert wanted
        assert text_task.lines_of("tarfile", split)[: len(wanted)] == wanted


def test_fine_tune_shows_where_its_values_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(EXAMPLES / "fine_tune.yaml"), "--show-config"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"train: head_then_all +# .*fine_tune.yaml:5", shown)


STEPS = [  # step, fraction of the data, batch size, learning rate, dropout, early stopping
    (1, 0.1, 2, 0.001, 0.0, False),
    (2, 0.1, 2, 0.001, 0.0, True),
    (3, 0.1, 16, 0.004, 0.5, True),
    (4, 1.0, 16, 0.004, 0.5, True),
    (5, 1.0, 64, 0.008, 0.5, True),
    (6, 1.0, 128, 0.012, 0.5, True),
]


@pytest.mark.parametrize(
    ("step", "fraction", "batch", "lr", "dropout", "stops_early"), STEPS, ids=lambda value: value
)
def test_published_steps_have_the_listings_numbers(
    step: int, fraction: float, batch: int, lr: float, dropout: float, stops_early: bool
) -> None:
    path = EXAMPLES / "six_steps" / f"step{step}.yaml"
    assert main(["train", str(path), "--show-config"]) == 0
    recipe = load_job(path).recipe
    assert recipe.data.fraction == fraction
    assert recipe.batch.global_batch_size == batch
    assert recipe.batch.lr == lr
    assert recipe.head.dropout == dropout
    stopping = recipe.stopping
    assert stopping.early is stops_early
    if stops_early:  # the callback's patience, and its min_delta of 0: any improvement counts
        assert (stopping.patience, stopping.monitor) == (3, "val_accuracy")
        assert (stopping.min_improvement_frac, stopping.allow_noise) == (0, False)
    assert recipe.model.name == "legacy_xception"
    assert recipe.optimizer.name == "nadam"


BRIEFLY = [  # the parts of a climb, each as short as possible
    *("--ladder.block-s", "0.02", "--ladder.num-seeds", "2", "--device.threads", "1"),
]


def check_climb_of_all_weights(run: Path, table: str) -> None:
    """Check that each rung is decided, those for a frozen trunk refused, and both ends reported."""
    told = [line["trial"] for line in read_jsonl(run / "trials.jsonl") if line["kind"] == "trial"]
    verdicts = {trial["rung"]: trial["verdict"] for trial in told}
    assert verdicts.keys() == {rung.name for rung in RUNGS}
    page = (run / "report.html").read_text()
    for name in ("cached_features", "folded_trunk"):
        assert verdicts[name]["decision"] == "not_here"
        assert verdicts[name]["reason"].startswith("the trunk is trained")
        assert name in table
        assert verdicts[name]["reason"] in page
    assert {"kept", "dropped", "undecided", "skipped"} & {v["decision"] for v in verdicts.values()}
    climb = read_json(run / "climb.json")
    assert climb["baseline"]["total_s"] > 0
    assert climb["result"]["total_s"] > 0
    assert read_json(run / "summary.json")["status"] == "finished"


@pytest.mark.slow
def test_a_users_job_climbs_by_the_command_that_it_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stepladder_in: type[Command]
) -> None:
    task, *flags = words_of_climb("tabular_task.py")
    flags[flags.index("--schedule.max-epochs") + 1] = "4"
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    table = stepladder_in(tmp_path)("climb", task, *flags, *BRIEFLY, "--budget", "5s")
    (run,) = (tmp_path / "runs").iterdir()
    check_climb_of_all_weights(run, table)
    assert not list(tmp_path.rglob(".ladder-*"))


@pytest.fixture(scope="module")
def small(stepladder_in_store: Command) -> list[str]:
    """Return flags for a job with the smallest trunk and one epoch, or one per stage."""
    config = ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)
    weights = build_trunk(config).model.state_dict()
    save_file(weights, stepladder_in_store.folder / "trunk.safetensors")
    model = ["--model.name", "test_efficientnet", "--model.weights", "trunk.safetensors"]
    return ["--data.store", "store", *model, "--schedule.max-epochs", "1"]


@pytest.mark.slow
def test_full_fine_tune_trains_all_weights(stepladder_in_store: Command, small: list[str]) -> None:
    run = stepladder_in_store
    words = ["--run.dir", "full", "--device.threads", "1", "--quiet"]
    run("train", str(EXAMPLES / "full_fine_tune.yaml"), *small, *words)
    checkpoints = run.folder / "full" / "checkpoints"
    assert list(checkpoints.glob("step-*"))
    assert not list(checkpoints.glob("frozen-*.safetensors")), "a weight did not change"


@pytest.mark.slow
def test_fine_tune_trains_both_stages(stepladder_in_store: Command, small: list[str]) -> None:
    run = stepladder_in_store
    words = ["--run.dir", "fine", "--schedule.warmup-steps", "1", "--device.threads", "1"]
    run("train", str(EXAMPLES / "fine_tune.yaml"), *small, *words, "--quiet")
    summary = read_json(run.folder / "fine" / "summary.json")
    assert summary["status"] == "finished"
    assert summary["epochs"] == 2  # one epoch per stage


def test_a_store_opens_and_is_ordered_by_the_code_in_its_docs(
    stepladder_in_store: Command,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(stepladder_in_store.folder)
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs/store.md").read_text(), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:  # they assert the fingerprint and the golden vectors
        exec(compile(snippet, "docs/store.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) == 60  # one line per training picture


def flags_in(text: str) -> Iterator[str]:
    yield from re.findall(r"(?<![\w-])--[a-z][\w-]*(?:\.[\w-]+)*", text)


@pytest.fixture(name="flags", scope="module")
def _flags() -> dict[str, list[str]]:
    """The flags of each command, as listed in its help."""
    return flags_of_commands()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_that_is_named_exists(page: Path, flags: dict[str, list[str]]) -> None:
    known = {flag for listed in flags.values() for flag in listed}
    known |= {f"--{flag.removeprefix('--run.')}" for flag in known if "baseline" in flag}  # short
    others = {
        "--check",
        "--epochs",
        "--page",
        "--from",
        "--group",
        "--caltech",
        "--index-url",
        "--max-restarts",
        "--nnodes",
        "--nproc-per-node",
        "--rdzv-backend",
        "--rdzv-conf",
        "--rdzv-endpoint",
        "--rdzv-id",
        "--total",
        "--val",
    }  # of sha256sum, watched scripts, bench/, pip, torchrun, an example; aliases in prepare
    assert set(flags_in(page.read_text())) - known - others == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    inside = [link for link in links if "://" not in link]
    assert [link for link in inside if not (page.parent / link).exists()] == []
