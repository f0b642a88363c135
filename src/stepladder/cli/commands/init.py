"""`stepladder init`: a job file of six lines, or an example project."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Final

import tyro
from tyro.conf import Positional

from stepladder import __version__
from stepladder.cli.parse import Output, Unprefixed, is_config, parse
from stepladder.config.choices import Cluster
from stepladder.errors import ResourceError, UsageError

_NAME = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII)
# Template files end in .txt, so that linters, packaging tools and git ignore them here.
_RENAMED = {"gitignore.txt": ".gitignore", "github": ".github"}


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Write a first job.yaml; or, with a name, a small example project: config, Task, tests, CI.

    The job file has six lines: the pictures, the batch size and the number of epochs. The tests of
    the project pass without changes.

    Examples:
      stepladder init                   write job.yaml, to train on a folder of pictures
      stepladder init pets.yaml         the same, to a file of another name
      stepladder init shapes            create the folder shapes, ready to train and test
      stepladder init --cluster slurm   write train.sbatch, which trains job.yaml on a cluster
    """

    name: Annotated[Positional[Path], tyro.conf.arg(metavar="[JOB.yaml|NAME]")] = Path("job.yaml")
    """YAML file to write, or folder to create; its last part is the name of the project."""
    cluster: Cluster | None = None
    """Write a template that trains the job on a cluster: slurm, kubernetes, spark or ray."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="init")
    if flags.cluster is not None:
        file = write_cluster(flags.name, flags.cluster)
        facts = {"folder": file.parent, "files": [file.name]}
        flags.output.print_done(
            facts, f"{file} was written. Next:\n  {_NEXT_CLUSTER[flags.cluster]}"
        )
        return 0
    if is_config(str(flags.name)):
        write_job(flags.name)
        facts = {"folder": flags.name.parent, "files": [flags.name.name]}
        flags.output.print_done(facts, _NEXT_JOB.format(flags))
        return 0
    files = write_project(flags.name)
    text = "\n".join([f"{flags.name}:", *(f"  {file}" for file in files), _NEXT.format(flags)])
    flags.output.print_done({"folder": flags.name, "files": files}, text)
    return 0


JOB: Final = """\
data:
  store: photos          # a folder with one folder of pictures per class, or a store
batch:
  global_batch_size: 16
schedule:
  max_epochs: 60         # early stopping usually ends sooner
"""
_NEXT_JOB = """{0.name} was written. Next:
  name your folder of pictures in it
  stepladder train {0.name}     # prepares a store beside the pictures, and trains
  stepladder climb {0.name}     # then makes the training faster"""
_NEXT = """Next:
  cd {0.name}
  stepladder train config.yaml --task task.py:Shapes
  python -m pytest"""


def write_job(file: Path) -> None:
    """Write a job file of six lines.

    Raises:
        ResourceError: if it exists, or cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(JOB)
    except FileExistsError:
        raise ResourceError(
            "the job file already exists; nothing was written",
            where=str(file),
            fix=f"Train with it: stepladder train {file}. Or write another one: stepladder init "
            f"{file.with_stem(file.stem + '-2')}",
        ) from None


_CLUSTER_FILES: Final = {
    Cluster.SLURM: "train.sbatch",
    Cluster.KUBERNETES: "train.yaml",
    Cluster.SPARK: "train_spark.sh",
    Cluster.RAY: "train_ray.sh",
}
_NEXT_CLUSTER: Final = {
    Cluster.SLURM: "set nodes, tasks and time in it, then type: sbatch train.sbatch",
    Cluster.KUBERNETES: "set IMAGE, CLAIM and the replicas in it, then type: "
    "kubectl apply -f train.yaml",
    Cluster.SPARK: "set SPARK_MASTER and the number of devices in it, then type: "
    "bash train_spark.sh",
    Cluster.RAY: "set RAY_ADDRESS and the number of devices in it, then type: bash train_ray.sh",
}


def write_cluster(job: Path, cluster: Cluster) -> Path:
    """Write a template that trains a job on a cluster, beside the job, and return its path.

    Raises:
        UsageError: if the job is not a YAML file.
        ResourceError: if the template exists, or cannot be written.
    """
    if not is_config(str(job)):
        raise UsageError(
            "--cluster writes a script that trains with a job file, but this is not the name of a "
            "YAML file",
            where=str(job),
            fix=f"Name the job file: stepladder init job.yaml --cluster {cluster}",
        )
    text = (resources.files("stepladder.cli") / "clusters" / f"{cluster}.txt").read_text("utf-8")
    name = re.sub(r"[^a-z0-9-]+", "-", job.stem.lower()).strip("-") or "job"
    file = job.parent / _CLUSTER_FILES[cluster]
    try:
        job.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text.replace("__JOB__", job.name).replace("__NAME__", name))
    except FileExistsError:
        raise ResourceError(
            "the file to be written already exists; nothing was written",
            where=str(file),
            fix="Move the existing file away, then run the command again.",
        ) from None
    return file


def write_project(folder: Path) -> list[Path]:
    """Write the template to a new or empty folder, and return the paths of its files.

    Raises:
        UsageError: if the name is not valid.
        ResourceError: if the folder is not empty.
    """
    name = folder.absolute().name
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name} is not a valid project name",
            fix="Use lowercase letters, digits, - and _, starting with a letter, such as `shapes`.",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ResourceError(
            "the folder of the new project already exists and is not empty; nothing was written",
            where=str(folder),
            fix="Choose another name for the project.",
        )
    written = []
    for place, text in sorted(_template_files(resources.files("stepladder.cli") / "template")):
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(
            text.replace("__NAME__", name).replace("__VERSION__", __version__), encoding="utf-8"
        )
        written.append(place)
    return written


def _template_files(folder: Traversable, inside: Path = Path()) -> Iterator[tuple[Path, str]]:
    for item in folder.iterdir():
        place = inside / _RENAMED.get(item.name, item.name.removesuffix(".txt"))
        if item.is_dir():
            yield from _template_files(item, place)
        else:
            yield place, item.read_text(encoding="utf-8")
