"""Logs of many trainers, in the shapes of public reports: each ends as a user would expect."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from stepladder.diagnosis.audit.audit import audit
from stepladder.errors import DataError
from stepladder.records.audit import LogRow

ROOT = Path(__file__).parents[3]


def _load_shapes() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "log_shapes", Path(__file__).parent / "log_shapes.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["log_shapes"] = module
    spec.loader.exec_module(module)
    return module


shapes = _load_shapes()


def is_evaluation(row: LogRow) -> bool:
    return any(value is not None for value in (row.val_accuracy, row.val_loss, row.score))


@pytest.mark.parametrize("shape", shapes.SHAPES, ids=lambda shape: shape.write.__name__)
def test_a_log_of_any_trainer_ends_as_a_user_would_expect(
    shape: shapes.Shape,  # type: ignore[name-defined]
    tmp_path: Path,
) -> None:
    if shape.trainer == "TensorBoard":
        pytest.importorskip("tensorboard")
    path = shapes.write_shape(shape, tmp_path)
    if shape.metric is None:
        with pytest.raises(DataError, match=shape.says):
            audit([str(path)])
        return
    runs = audit([str(path)]).runs
    assert len(runs) == shape.num_trainings
    for run in runs:
        assert (run.metric, run.best_epoch) == (shape.metric, shape.best_epoch)
        if shape.best_step is not None:
            assert run.best_step == shape.best_step
        assert run.result == pytest.approx(shape.best, abs=6e-4)
        assert len(run.log.rows) == shape.num
        assert all(map(is_evaluation, run.log.rows))
        if shape.train_loss is not None:
            assert run.log.rows[5].train_loss == pytest.approx(shape.train_loss, abs=6e-3)


def test_what_is_not_read_says_why_in_the_table() -> None:
    not_read = [shape for shape in shapes.SHAPES if shape.metric is None]
    assert len(not_read) >= 10
    assert all(shape.says and shape.why_not for shape in not_read)


@pytest.mark.parametrize("write", [shapes.wandb_folder, shapes.dvclive_folder])
def test_a_printed_command_makes_a_store_of_a_tracker_readable(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my logs").mkdir()
    monkeypatch.chdir(tmp_path)
    write(Path("my logs"))
    with pytest.raises(DataError) as caught:
        audit(["my logs"])
    command = str(caught.value.fix).splitlines()[0].partition(": ")[2]
    *first, last = command.split(" && ")
    for line in first:
        subprocess.run(line, shell=True, check=True)
    program, name, *logs = shlex.split(last)
    assert (program, name) == ("stepladder", "audit")
    (run,) = audit(logs).runs
    assert run.result == pytest.approx(shapes.BEST)


TEXTS = [shape for shape in shapes.SHAPES if shape.write.__annotations__["return"] == "str"]
DECIMAL = re.compile(r"\b\d+\.\d+\b")


@pytest.mark.parametrize("written", ["{}%", "{} s", "1,{}", "({})", "{}.5", "{}M", "≈{}", "1'{}"])
def test_numbers_with_units_signs_or_separators_never_end_in_a_crash(
    written: str, tmp_path: Path
) -> None:
    for idx, shape in enumerate(TEXTS):
        text = DECIMAL.sub(lambda found: written.format(found[0]), str(shape.write(tmp_path)))
        folder = tmp_path / str(idx)
        folder.mkdir()
        (folder / shape.name).write_text(text, encoding="utf-8")
        with contextlib.suppress(DataError):
            assert audit([str(folder / shape.name)]).runs


def test_the_page_lists_the_logs_that_were_tried() -> None:
    assert shapes.table() in (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
