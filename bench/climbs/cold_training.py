"""One training from a cold start: in a process of its own, with all caches empty.

Files that earlier trainings left next to the store are removed, the store is dropped from the page
cache, and the folders of compiled code are empty. The clock runs from before `stepladder.train` to
its return, minus the last evaluation of the held-out splits. So it includes building the model,
decoding a copy of the store and compiling, which `train_s` excludes. Imports that every training
needs are done before it; imports that only some recipes need, such as those of torch.compile, are
on the clock.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import stepladder
from bench.climbs.workloads import forget_artefacts, use_cores
from bench.measure import cold_caches
from bench.pictures import forget_pages
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig
from stepladder.config.show import dump_job
from stepladder.models.torchvision_shim import import_timm
from stepladder.reporting import page as _page  # noqa: F401  (imported before the clock)
from stepladder.task import image_classification as _built_in  # noqa: F401
from stepladder.training import run as _run  # noqa: F401
from stepladder.training.clock import Phase
from stepladder.training.output.display import Display

KEPT_KEYS = (
    "epochs",
    "steps",
    "train_s",
    "total_s",
    "phases_s",
    "data_wait_frac",
    "val_accuracy",
    "test_accuracy",
    "val_loss",
    "test_loss",
)
"""Keys of a run's summary that a round needs."""


def train_cold(
    job: JobConfig, *, task: str | None = None, store: Path | None, num_cores: int | None = None
) -> dict[str, Any]:
    """Train in a fresh process with all caches empty.

    Args:
        job: the run's folder must hold nothing else; a run in it is replaced.
        task: FILE.py:NAME; None: the built-in task.
        store: the store that the job reads, or None.
        num_cores: number of cores that the process may use; None: the same as this process.

    Returns:
        `wall_s`, from before the call to its return; `seconds`, the same without the last
        evaluation; and KEPT_KEYS.

    Raises:
        SystemExit: if the training fails.
    """
    forget_artefacts(store)
    if store is not None:
        forget_pages(path for path in store.rglob("*") if path.is_file())
    with tempfile.TemporaryDirectory(prefix="stepladder-cold-") as folder:
        config = Path(folder) / "job.yaml"
        config.write_text(dump_job(job), encoding="utf-8")
        command = [sys.executable, "-m", "bench.climbs.cold_training", str(config)]
        command += ["--task", task] if task is not None else []
        command += ["--cores", str(num_cores)] if num_cores is not None else []
        environment = os.environ | cold_caches(Path(folder))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the training in {job.run.dir} failed:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def train_here(job: JobConfig, task: str | None) -> dict[str, Any]:
    """Train in this process; return the same as `train_cold`."""
    display = Display(io.StringIO())
    started_s = time.perf_counter()
    run = stepladder.train(config=job, task=task, overwrite=True, display=display)
    wall_s = time.perf_counter() - started_s
    summary = run.summary
    seconds = wall_s - summary["phases_s"].get(Phase.TEST, 0.0)
    return {"seconds": seconds, "wall_s": wall_s, **{key: summary.get(key) for key in KEPT_KEYS}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="YAML of the job")
    parser.add_argument("--task", help="FILE.py:NAME")
    parser.add_argument("--cores", type=int, help="number of cores that this process may use")
    options = parser.parse_args()
    if options.cores is not None:
        use_cores(options.cores)
    import_timm()
    print(json.dumps(train_here(load_job(options.config), options.task)))


if __name__ == "__main__":
    main()
