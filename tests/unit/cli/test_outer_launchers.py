"""`--launch torchrun` names the command that trains under torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.cli.main import main


@pytest.fixture(autouse=True)
def _job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("job.yaml", "my job.yaml"):
        Path(name).write_text("data:\n  store: photos\n")


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (
            ("job.yaml", "--launch", "torchrun", "--devices", "4", "--epochs", "3"),
            "torchrun --nproc-per-node 4 -m stepladder train job.yaml --epochs 3",
        ),
        (("--run.launch=Slurm", "my job.yaml"), "srun -n 2 stepladder train 'my job.yaml'"),
    ],
)
def test_a_launcher_that_starts_stepladder_comes_with_its_command(
    words: tuple[str, ...], typed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words]) == 2
    said = capsys.readouterr().err
    assert f"Type: {typed}\n" in said


def test_an_unknown_launcher_lists_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "job.yaml", "--launch", "sparc"])
    said = "".join(capsys.readouterr())
    assert all(name in said for name in ("processes", "spark", "ray"))
