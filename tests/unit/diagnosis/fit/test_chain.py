"""A chain of networks: the broken stage is the one to improve first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stepladder


@pytest.fixture(scope="module")
def chain_run(train_run: Any) -> Path:
    found = train_run("Chain", lr=0.1, epochs=8)
    assert isinstance(found, Path)
    return found


def test_the_broken_stage_is_named(chain_run: Path, task_file: Path) -> None:
    found = stepladder.diagnose(chain_run, task=f"{task_file}:Chain").chain
    assert found is not None
    radius, ring = found.stages
    assert found.improve_first == "radius"
    assert found.num_examples == 200
    assert radius.own_error is not None
    assert radius.own_error > 0.2  # it was never trained
    assert radius.end_error is not None
    assert radius.end_error < 0.1 < found.end_error
    assert radius.gain is not None
    assert ring.gain is not None
    assert radius.gain + ring.gain == pytest.approx(found.end_error)
    assert radius.time_frac + ring.time_frac == pytest.approx(1)


def test_the_page_and_the_text_show_the_stages(chain_run: Path, task_file: Path) -> None:
    stepladder.diagnose(chain_run, task=f"{task_file}:Chain")
    page = (chain_run / "diagnosis.html").read_text()
    assert "Improve <b>radius</b> first" in page


def test_a_last_stage_without_an_error_is_named(
    chain_run: Path, task_file: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "chain_without_error.py"
    broken.write_text(task_file.read_text().replace(", error=wrong)", ")"))
    found = stepladder.diagnose(chain_run, task=f"{broken}:Chain")
    assert found.chain is None
    assert any(
        "the last stage of the model, ring, has no error" in said for said in found.could_not
    )


def test_errors_of_another_shape_are_named(
    chain_run: Path, task_file: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "chain_of_means.py"
    source = task_file.read_text().replace(
        "!= batch.targets).float()", "!= batch.targets).float().mean()"
    )
    broken.write_text(source)
    found = stepladder.diagnose(chain_run, task=f"{broken}:Chain")
    assert any("of the stage ring" in said for said in found.could_not)


def test_one_network_has_no_stages(underfit_run: Path, task_file: Path) -> None:
    assert stepladder.diagnose(underfit_run, task=f"{task_file}:Straight").chain is None
