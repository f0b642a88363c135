"""The project that `init` writes trains and passes its tests unmodified."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from stepladder.cli.commands.init import run, write_cluster, write_project
from stepladder.config.choices import Cluster
from stepladder.config.load import load_job
from stepladder.config.schema import ALIASES, options
from stepladder.data.spark.slots import TASK_GPUS
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
    assert {word for word in line.split() if word.startswith("--") and word != "--"} <= known
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


SRUN = """#!/bin/bash
trap 'exit {at_signal}' USR1
touch started
for _ in $(seq {tenths}); do sleep 0.1; done
exit {code}
"""


def submitted(
    folder: Path, *, code: int, restarts: int = 0, reaches_limit: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run the template of Slurm with programs that record what it calls.

    Args:
        folder: for the template; what it calls is in the file `requeued`.
        code: exit code of srun.
        restarts: of the job so far.
        reaches_limit: Slurm sends its signal before srun has ended; then srun ends with `code`.
    """
    programs = folder / "bin"
    programs.mkdir()
    at_signal, tenths = (code, 300) if reaches_limit else (0, 1)
    (programs / "srun").write_text(SRUN.format(at_signal=at_signal, tenths=tenths, code=code))
    (programs / "scontrol").write_text(
        '#!/bin/bash\n[ "$1" = requeue ] && echo "$2" >> requeued\necho host\n'
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    script = write_cluster(folder / "job.yaml", Cluster.SLURM)
    process = subprocess.Popen(
        ["bash", str(script)],
        cwd=folder,
        env=os.environ
        | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NODELIST": "host",
            "SLURM_RESTART_COUNT": str(restarts),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while reaches_limit and not (folder / "started").exists():
        time.sleep(0.01)
    if reaches_limit:
        process.send_signal(signal.SIGUSR1)
    out, error = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def test_the_slurm_template_resumes_after_each_time_limit(tmp_path: Path) -> None:
    done = submitted(tmp_path, code=138, restarts=40, reaches_limit=True)
    assert done.returncode == 138
    assert "saved before the time limit" in done.stdout
    assert (tmp_path / "requeued").read_text() == "77\n"


@pytest.mark.parametrize("code", [137, 138])
def test_the_slurm_template_restarts_a_lost_task_three_times(tmp_path: Path, code: int) -> None:
    for restarts, is_requeued in ((2, True), (3, False)):
        folder = tmp_path / str(restarts)
        folder.mkdir()
        done = submitted(folder, code=code, restarts=restarts)
        assert done.returncode == code
        assert "a task was lost" in (done.stdout if is_requeued else done.stderr)
        assert (folder / "requeued").exists() == is_requeued


@pytest.mark.parametrize("reaches_limit", [False, True])
def test_the_slurm_template_does_not_repeat_an_error(tmp_path: Path, reaches_limit: bool) -> None:
    done = submitted(tmp_path, code=5, reaches_limit=reaches_limit)
    assert done.returncode == 5
    assert not (tmp_path / "requeued").exists()


# As `ray job submit`: the words are joined for the shell of the cluster, which starts elsewhere
RAY = """#!{python}
import subprocess, sys
words = sys.argv[sys.argv.index("--") + 1:]
sys.exit(subprocess.run(subprocess.list2cmdline(words), shell=True, cwd="/").returncode)
"""


def test_the_ray_template_trains_in_its_folder(tmp_path: Path) -> None:
    folder, programs = tmp_path / "my pets", tmp_path / "bin"
    programs.mkdir()
    (programs / "ray").write_text(RAY.format(python=sys.executable))
    (programs / "stepladder").write_text('#!/bin/sh\npwd\necho "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    script = write_cluster(folder / "job.yaml", Cluster.RAY)
    done = subprocess.run(
        ["bash", str(script)],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [
        str(folder),
        "train job.yaml --launch ray --devices 8",
    ]


@pytest.mark.parametrize("has_gpus", [False, True])
def test_the_spark_template_passes_options_that_give_each_process_a_gpu(
    tmp_path: Path, has_gpus: bool
) -> None:
    script = write_cluster(tmp_path / "job.yaml", Cluster.SPARK)
    if has_gpus:
        script.write_text(script.read_text().replace("# options+=", "options+="))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "stepladder").write_text('#!/bin/sh\necho "$PYSPARK_SUBMIT_ARGS"\n')
    (programs / "stepladder").chmod(0o755)
    done = subprocess.run(
        ["bash", str(script)],
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith("pyspark-shell\n")
    assert (f"{TASK_GPUS}=1" in done.stdout) == has_gpus
