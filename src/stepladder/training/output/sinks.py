"""TensorBoard files and MLflow: the same numbers as events.jsonl, under common tags.

Both are extras and write only if they are enabled. No server is started, and MLflow's own telemetry
is turned off.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stepladder.errors import MissingExtraError, ResourceError, UsageError
from stepladder.records import read_json, write_json

_GIB = 1024**3
_MIB = 1024**2

# Event value -> (tag, factor). Names as in Composer, Lightning and torchtitan.
_TAGS: dict[str, tuple[str, float]] = {
    "cpu_percent": ("system/cpu(%)", 1.0),
    "gpu_percent": ("system/gpu(%)", 1.0),
    "power_w": ("system/power(W)", 1.0),
    "energy_wh": ("system/energy(Wh)", 1.0),
    "disk_read_bytes_per_s": ("system/disk_read(MiB/s)", 1 / _MIB),
    "disk_write_bytes_per_s": ("system/disk_write(MiB/s)", 1 / _MIB),
    "network_bytes_per_s": ("system/network(MiB/s)", 1 / _MIB),
    "rss_bytes": ("memory/rss(GiB)", 1 / _GIB),
    "gpu_memory_bytes": ("memory/gpu(GiB)", 1 / _GIB),
    "num_read": ("reader/examples", 1.0),
    "read_bytes": ("reader/read(GiB)", 1 / _GIB),
    "fetch_s": ("reader/fetch(s)", 1.0),
    "decode_s": ("reader/decode(s)", 1.0),
    "wait_s": ("reader/wait(s)", 1.0),
    "num_threads": ("reader/threads", 1.0),
    "num_requests": ("reader/requests", 1.0),
    "num_retries": ("reader/retries", 1.0),
    "received_bytes": ("reader/received(GiB)", 1 / _GIB),
    "cache_hits": ("reader/cache_hits", 1.0),
    "cache_misses": ("reader/cache_misses", 1.0),
    "seconds": ("time_metrics/checkpoint(s)", 1.0),
    "num_bytes": ("memory/checkpoint(GiB)", 1 / _GIB),
}
_SCALAR_EVENTS = frozenset(
    {"train", "reader", "validation", "system", "devices", "checkpoint", "workers"}
)
_NOT_SCALARS = frozenset({"event", "step", "epoch", "attempt", "elapsed_s"})


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an event by tag; empty for events that are not measurements.

    `train_loss`, `val_loss`, `learning_rate`, `throughput/samples_per_sec` etc. keep their names;
    system values are under `system/` and `memory/`, those of the reader under `reader/`, and bytes
    are converted to GiB.
    """
    if record["event"] not in _SCALAR_EVENTS:
        return {}
    found: dict[str, float] = {}
    for host, num_bytes in enumerate(record.get("received_bytes_by_host") or ()):
        found[f"reader/received_host_{host}(GiB)"] = num_bytes / _GIB
    for rank, share in enumerate(record.get("busy_frac") or ()):
        found[f"system/device_{rank}(%)"] = 100 * share
    for key, value in record.items():
        if key in _NOT_SCALARS or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        tag, factor = _TAGS.get(key, (key, 1.0))
        found[tag] = float(value) * factor
    return found


class TensorBoardSink:
    """Write TensorBoard event files.

    Args:
        folder: the output folder, usually RUN/tensorboard.
        purge_after_step: the checkpoint's step on a resume; TensorBoard hides later values.

    Raises:
        MissingExtraError: if tensorboard is not installed.
    """

    def __init__(self, folder: Path, *, purge_after_step: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("TensorBoard files", "tensorboard") from error
        purge_step = None if purge_after_step is None else purge_after_step + 1
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge_step)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add the numbers of one event."""
        for tag, value in scalars(record).items():
            self._writer.add_scalar(tag, value, record["step"])
        if record["event"] == "validation":  # rare, and important to the user
            self._writer.flush()

    def close(self, status: str) -> None:  # noqa: ARG002 - TensorBoard has no status
        """Flush and close the file."""
        self._writer.close()


class MlflowSink:
    """Log to an MLflow tracking store: a folder, or the URL of a running server.

    The run's id is kept in RUN/mlflow.json, so that a resumed run continues the same MLflow run.

    Args:
        uri: a folder, `file:...`, `http(s)://...` or any other URI that MLflow supports.
        run_folder: the run's folder; its name is the MLflow run's name.
        params: resolved config by dotted name, logged once.

    Raises:
        MissingExtraError: if mlflow is not installed.
        UsageError: if this installation of MLflow cannot use the URI.
        ResourceError: if the store cannot be reached.
    """

    def __init__(
        self,
        uri: str,
        *,
        run_folder: Path,
        params: Mapping[str, object] | None = None,
        experiment: str = "stepladder",
    ) -> None:
        _prepare_environment(uri)
        try:
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise MissingExtraError("Logging to MLflow", "mlflow") from error
        self._metric = Metric
        try:
            self._client = MlflowClient(tracking_uri=uri)
            self._run_id = self._open_run(run_folder, experiment)
            if params:
                cut = [Param(_name(key), str(value)[:500]) for key, value in params.items()]
                for start in range(0, len(cut), 100):  # the limit of one MLflow call
                    self._client.log_batch(self._run_id, params=cut[start : start + 100])
        except Exception as error:
            raise _refusal(uri, error) from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Add the numbers of one event."""
        now_ms = int(time.time() * 1000)
        metrics = [
            self._metric(_name(tag), value, now_ms, record["step"])
            for tag, value in scalars(record).items()
        ]
        if metrics:
            self._client.log_batch(self._run_id, metrics=metrics)

    def close(self, status: str) -> None:
        """Mark the MLflow run as finished, killed (it can resume) or failed."""
        ended = {"finished": "FINISHED", "interrupted": "KILLED"}.get(status, "FAILED")
        self._client.set_terminated(self._run_id, status=ended)

    def _open_run(self, run_folder: Path, experiment: str) -> str:
        from mlflow.exceptions import MlflowException

        kept = run_folder / "mlflow.json"
        if kept.exists():
            run_id = str(read_json(kept)["run_id"])
            try:
                self._client.update_run(run_id, status="RUNNING")
            except MlflowException:
                pass  # another store, or it was cleaned: start a new run
            else:
                return run_id
        found = self._client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
        run_id = str(self._client.create_run(experiment_id, run_name=run_folder.name).info.run_id)
        write_json(kept, {"run_id": run_id, "experiment_id": experiment_id})
        return run_id


def _prepare_environment(uri: str) -> None:
    """Set environment variables that MLflow reads on import, unless the user has set them."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # A lost server must not block a run for the default of seven tries of two minutes each.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    if urlsplit(uri).scheme in {"", "file"}:
        # MLflow 3.7 and later need a flag for folders; the skinny client has no other store
        # that works offline (SQLite needs SQLAlchemy and the full package).
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")


def _refusal(uri: str, error: Exception) -> UsageError | ResourceError:
    parts = urlsplit(uri)
    shown = uri.replace(f"{parts.netloc.rpartition('@')[0]}@", "") if "@" in parts.netloc else uri
    reason = str(error).splitlines()[0].replace(uri, shown)[:200]
    if parts.scheme in {"", "file", "http", "https"}:
        return ResourceError(
            f"MLflow cannot write to this address ({reason})",
            where=f"run.mlflow_uri: {shown}",
            fix="Correct the address, or leave out --run.mlflow-uri: events.jsonl in the run "
            "folder has the same numbers.",
        )
    return UsageError(
        f"the installed MLflow package cannot use this address ({reason})",
        where=f"run.mlflow_uri: {shown}",
        why="The package mlflow-skinny can use folders and servers; a database needs the full "
        "package.",
        fix="Set --run.mlflow-uri to a folder or server, or: pip install mlflow",
    )


def _name(tag: str) -> str:
    """Replace characters that MLflow does not allow in a tag: `a/b(%)` becomes `a/b_percent`."""
    return re.sub(r"[^\w\-. :/]+", "_", tag.replace("(%)", "_percent")).strip("_")
