"""The project that `init` writes trains and passes its tests unmodified."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stepladder.cli.commands.init import run, write_cluster, write_project
from stepladder.config.choices import Cluster
from stepladder.config.load import load_job
from stepladder.config.schema import ALIASES, options
from stepladder.errors import ResourceError, UsageError
from stepladder.parallel.place import place_of
from stepladder.task.load import load_task


@pytest.mark.slow
def test_its_tests_pass_unmodified(tmp_path: Path) -> None:
    folder = tmp_path / "shapes"
    assert run([str(folder), "--quiet"]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout


def test_its_files_are_complete_and_valid(tmp_path: Path) -> None:
    folder = tmp_path / "shapes"
    written = {str(path) for path in write_project(folder)}
    assert written == {
        ".github/workflows/ci.yml",
        ".gitignore",
        "README.md",
        "config.yaml",
        "pyproject.toml",
        "ruff.toml",
        "task.py",
        "tests/test_task.py",
    }
    text = "".join((folder / name).read_text() for name in written)
    assert "__NAME__" not in text
    assert "__VERSION__" not in text
    yaml.safe_load((folder / ".github/workflows/ci.yml").read_text())
    load_job(folder / "config.yaml")
    task = load_task(f"{folder / 'task.py'}:Shapes", store=Path("unused"))
    assert type(task).__name__ == "Shapes"


@pytest.mark.parametrize("name", ["1st", "two words", "class", "-x", "é", "a.b"])
def test_a_name_that_cannot_be_a_project_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid project name"):
        write_project(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "task.py").write_text("mine")
    with pytest.raises(ResourceError, match="nothing was written"):
        write_project(folder)
    assert [path.name for path in folder.iterdir()] == ["task.py"]
    assert (folder / "task.py").read_text() == "mine"


def test_without_a_name_it_writes_a_job_of_six_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([]) == 0
    assert "stepladder train job.yaml" in capsys.readouterr().out
    text = Path("job.yaml").read_text()
    assert len(text.splitlines()) == 6
    job = load_job(Path("job.yaml"))
    changed = {key for key, option in options().items() if option.value(job) != option.default}
    assert changed == {"data.store"}  # the other values are the defaults
    with pytest.raises(ResourceError, match="exists") as caught:
        run([])
    assert "stepladder init job-2.yaml" in (caught.value.fix or "")
    assert run(["job-2.yaml", "--quiet"]) == 0
    assert Path("job.yaml").read_text() == Path("job-2.yaml").read_text() == text


@pytest.mark.parametrize("cluster", list(Cluster))
def test_a_template_for_a_cluster_names_the_job_and_only_options_that_exist(
    tmp_path: Path, cluster: Cluster
) -> None:
    file = write_cluster(tmp_path / "My_Pets.yaml", cluster)
    text = file.read_text()
    assert "__" not in text
    assert "stepladder" in text
    assert "My_Pets.yaml" in text
    if file.suffix == ".yaml":
        document = yaml.safe_load(text)
        assert document["metadata"]["name"] == "my-pets"
        replicas = document["spec"]["pytorchReplicaSpecs"]
        assert replicas["Worker"]["template"] == replicas["Master"]["template"]
    else:
        assert subprocess.run(["bash", "-n", str(file)], check=False).returncode == 0
    known = {option.flag for option in options().values()} | {f"--{name}" for name in ALIASES}
    line = next(line for line in text.splitlines() if "train" in line and "My_Pets" in line)
    assert {word for word in line.split() if word.startswith("--")} <= known
    with pytest.raises(ResourceError, match="exists"):
        write_cluster(tmp_path / "My_Pets.yaml", cluster)


def test_a_cluster_needs_a_job_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="writes a script that trains with a job file"):
        write_cluster(tmp_path / "shapes", Cluster.SLURM)


def test_the_ports_of_the_slurm_template_are_those_of_place(tmp_path: Path) -> None:
    text = write_cluster(tmp_path / "job.yaml", Cluster.SLURM).read_text()
    place = place_of(
        {
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_TASKS_PER_NODE": "2",
            "SLURM_JOB_ID": "123456",
        }
    )
    assert place is not None
    assert place.port == 20000 + 123456 % 10000
    assert "$((20000 + SLURM_JOB_ID % 10000))" in text
