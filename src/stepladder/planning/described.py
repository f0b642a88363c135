"""Jobs that were not measured here: a watched script's step, or a few lines of YAML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import yaml

from stepladder.config.choices import Precision
from stepladder.config.yaml_file import entries, place, read_yaml
from stepladder.errors import DataError, UsageError
from stepladder.planning.hardware.gpus import GPUS, OLDER_GPUS, gpu_named
from stepladder.planning.hardware.ranges import Range
from stepladder.planning.hardware.speed import Rates
from stepladder.planning.job import (
    MemoryLine,
    PlannedJob,
    assumed_spread,
    evenly,
    exact_input,
    split_step,
)
from stepladder.records.model_size import ModelSize
from stepladder.records.plan import Bounds
from stepladder.records.profile import Provenance
from stepladder.records.watch import WATCH_FILE, WatchReport

_UNITS: Final = 20
"""Parts of a model that a sharded one puts together one after the other, where it is not known."""
_FP32_BYTES: Final = 4
_MB: Final = 1e6
_GB: Final = 1e9
_DATA_WAIT: Final = "data_wait"
_SHARED: Final = ("data_wait", "validation", "checkpoint")
_KEYS: Final = {
    "name": "text: what is trained",
    "device": "text: on which the steps were timed, such as V100",
    "step_ms": "by examples: milliseconds of a step on one device, such as {32: 95, 64: 180}",
    "weights_mb": "trained weights in fp32, in MB",
    "examples": "of an epoch",
    "epochs": "until training ends; or two: [40, 60]",
    "batch": "examples of a step",
    "loader_per_s": "examples a second of a machine's loader",
    "noise_scale": "gradient noise scale in examples",
    "precision": "of the timed steps: fp32, bf16 or fp16",
    "state_mb": "of the optimizer; with activation_mb, the model can be sharded",
    "activation_mb": "that a step keeps of an example for its backward pass",
    "memory_gb": "by examples: peak of a step in GB, at two sizes",
    "validation_s": "of all validations",
    "start_s": "until several processes have met",
}
_NEEDED: Final = ("device", "step_ms", "weights_mb", "examples", "epochs", "batch")


def keys() -> Mapping[str, str]:
    """Return the keys of a job in YAML, and what each is."""
    return {name: what if name in _NEEDED else f"{what} (optional)" for name, what in _KEYS.items()}


def job_of_watch(report: WatchReport, *, examples: int | None, epochs: float | None) -> PlannedJob:
    """Return the job of a watched script: its measured step, and what its loader takes.

    Args:
        examples, epochs: of the training; None: as many as were watched, in one epoch.

    Raises:
        DataError: if no step was timed.
    """
    batch = report.facts.get("batch_size")
    if not report.step_s or not isinstance(batch, int):
        raise DataError(
            "no step of the script was timed"
            if not report.step_s
            else "the size of the script's batches was not seen, as it uses no DataLoader",
            where=f"{report.script}: {WATCH_FILE}",
            fix="Watch it until it has taken some ten steps: stepladder watch "
            f"{report.script}; or describe the job in a YAML file (docs/planner.md).",
        )
    shares = {part.name: part.share for part in report.times}
    wait_s = shares.get(_DATA_WAIT, 0.0) * report.step_s
    beside = sum(shares.get(name, 0.0) for name in _SHARED)
    computed_s = max(0.0, (1 - beside) * report.step_s)
    source = f"{WATCH_FILE}: {report.num_steps:,} steps of {report.script}"
    fixed_s, example_s = split_step(computed_s, batch, source=source)
    num = report.facts.get("num_params")
    num_bytes = _FP32_BYTES * num if isinstance(num, int) else 0
    device = str(report.facts.get("device", "cpu"))
    forward, backward = shares.get("forward", 0.0), shares.get("backward", 0.0)
    is_known = examples is not None and epochs is not None
    seen = max(1, report.num_steps) * batch
    length = float(epochs if epochs is not None else 1)
    return PlannedJob(
        name=report.script,
        device_name=device,
        device="cpu" if device == "cpu" else "cuda",
        rates=None if device == "cpu" else Rates(name=device),
        fixed_s=fixed_s,
        per_example_s=example_s,
        backward_frac=backward / (forward + backward) if forward + backward > 0 else 2 / 3,
        gradients=evenly(num_bytes),
        batch=batch,
        num_train=examples if examples is not None else seen,
        epochs=Bounds(best=length, likely=length, worst=length),
        # while the step computes, the loader works too: only its wait is known to be too long
        loader_example_s=(computed_s + wait_s) / batch if wait_s > 0.05 * report.step_s else 0.0,
        spread=assumed_spread(),
        inputs=(
            exact_input(
                "weights that send gradients",
                "MB",
                num_bytes / _MB,
                Provenance.ASSUMED,
                "all weights of the script's model, in fp32",
            ),
            exact_input(
                "examples of the training",
                "",
                (examples or seen) * length,
                Provenance.READ if is_known else Provenance.ASSUMED,
                "--examples and --epochs" if is_known else "as many as were watched",
            ),
        ),
    )


def job_of_yaml(path: Path) -> PlannedJob:
    """Return the job that a YAML file describes.

    Raises:
        UsageError: if a key is unknown, missing, or no possible number; names file:line.
    """
    given = _Given(path)
    device = given.text("device", "")
    gpu = gpu_named((*GPUS, *OLDER_GPUS), device)
    is_cpu = device.lower() == "cpu"
    if gpu is None and not is_cpu:
        names = ", ".join(one.name for one in (*GPUS, *OLDER_GPUS))
        given.refuse("device", f"{device!r} is in no list of devices", f"Use one of: cpu, {names}.")
    batch = given.count("batch")
    times = given.table("step_ms")
    source = f"{path.name}: step_ms"
    if len(times) == 1:
        (size, seconds), *_ = times.items()
        fixed_s, example_s = split_step(seconds / 1e3, size, source=source)
    else:
        if list(times.values()) != sorted(times.values()):
            given.refuse(
                "step_ms",
                "a step of more examples is shorter",
                "Time them again, when nothing else runs, and without the first steps.",
            )
        a, c = _line(times)
        fixed_s = Range.exact(a / 1e3, Provenance.READ, source)
        example_s = Range.exact(c / 1e3, Provenance.READ, source)
    low, high = given.pair("epochs")
    peaks = given.table("memory_gb") if given.has("memory_gb") else {}
    memory = None
    if len(peaks) > 1:
        a, c = _line(peaks)
        memory = MemoryLine(fixed_bytes=a * _GB, example_bytes=c * _GB)
    elif peaks:
        given.refuse("memory_gb", "one size is no line", "Give the peak at two sizes.")
    rate = given.number("loader_per_s", default=math.inf)
    job = PlannedJob(
        name=given.text("name", path.stem),
        device_name=device,
        device="cpu" if is_cpu else "cuda",
        rates=None if is_cpu else Rates(name=device),
        fixed_s=fixed_s,
        per_example_s=example_s,
        gradients=evenly(int(given.number("weights_mb") * _MB)),
        batch=batch,
        num_train=given.count("examples"),
        epochs=Bounds(best=low, likely=(low + high) / 2, worst=high),
        loader_example_s=1 / rate,
        validation_s=given.number("validation_s", default=0.0, least=0.0),
        start_s=given.number("start_s", default=3.0, least=0.0),
        spread=assumed_spread(),
        noise_scale=given.number("noise_scale") if given.has("noise_scale") else None,
        noise_source=(Provenance.READ, f"{path.name}: noise_scale"),
        precision=given.precision(),
        size=given.size(),
        memory=memory,
        memory_bytes=None if gpu is None else gpu.memory_bytes,
    )
    return replace(
        job,
        inputs=(
            exact_input(
                "order of the gradients",
                "",
                0.0,
                Provenance.ASSUMED,
                "evenly over the backward pass",
            ),
        ),
    )


def _line(values: Mapping[int, float]) -> tuple[float, float]:
    """Return a and c of a + c b through the smallest and the largest size, neither negative."""
    (small, first), *_, (large, last) = sorted(values.items())
    slope = max(0.0, (last - first) / (large - small))
    return max(0.0, first - small * slope), slope


class _Given:
    """The keys of a YAML file, with errors that name file and line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        node = read_yaml(path)
        self._nodes = {} if node is None else {n: value for n, _, value in entries(path, node)}
        for name in self._nodes:
            if name not in _KEYS:
                self.refuse(name, f"{name} is no key of a job", f"Keys: {', '.join(_KEYS)}.")
        missing = [name for name in _NEEDED if name not in self._nodes]
        if missing:
            raise UsageError(
                f"the job lacks {', '.join(missing)}",
                where=str(path),
                fix=f"Add {missing[0]}: {_KEYS[missing[0]]}.",
            )

    def has(self, name: str) -> bool:
        """Return True if a key is given."""
        return name in self._nodes

    def text(self, name: str, default: str) -> str:
        """Return a text."""
        node = self._nodes.get(name)
        return str(node.value) if isinstance(node, yaml.ScalarNode) else default

    def number(self, name: str, *, default: float | None = None, least: float = 1e-12) -> float:
        """Return a number that is not below the least possible one."""
        node = self._nodes.get(name)
        if node is None:
            assert default is not None, name
            return default
        return self._number(name, node, least)

    def count(self, name: str) -> int:
        """Return a whole number of 1 or more."""
        return self._whole(name, self._nodes[name])

    def precision(self) -> Precision:
        """Return the precision of the timed steps."""
        text = self.text("precision", Precision.FP32)
        if text not in list(Precision):
            self.refuse("precision", f"{text!r} is no precision", f"Use {', '.join(Precision)}.")
        return Precision(text)

    def size(self) -> ModelSize | None:
        """Return what decides how the model is divided; None if it is not given."""
        if not (self.has("state_mb") and self.has("activation_mb")):
            return None
        weights = int(self.number("weights_mb") * _MB)
        return ModelSize(
            weights=weights,
            trained=weights,
            states=int(self.number("state_mb", least=0.0) * _MB),
            kept=int(self.number("activation_mb") * _MB),
            unit=weights // _UNITS,
        )

    def pair(self, name: str) -> tuple[float, float]:
        """Return two numbers, or one twice."""
        node = self._nodes[name]
        if isinstance(node, yaml.SequenceNode):
            values = [self._number(name, item, 1e-12) for item in node.value]
            if len(values) != 2 or values[0] > values[1]:
                self.refuse(
                    name, f"{name} needs a number, or the least and the most", "Write [40, 60]."
                )
            return values[0], values[1]
        value = self._number(name, node, 1e-12)
        return value, value

    def table(self, name: str) -> dict[int, float]:
        """Return numbers by examples."""
        node = self._nodes[name]
        if not isinstance(node, yaml.MappingNode) or not node.value:
            self.refuse(name, f"{name} needs a number by examples", "Write {32: 95, 64: 180}.")
        assert isinstance(node, yaml.MappingNode)
        return {
            self._whole(name, key): self._number(name, value, 1e-12) for key, value in node.value
        }

    def _whole(self, name: str, node: yaml.Node) -> int:
        value = self._number(name, node, 1)
        if not value.is_integer():
            self.refuse(name, f"{value:g} is not a whole number", f"{name}: {_KEYS[name]}.")
        return int(value)

    def _number(self, name: str, node: yaml.Node, least: float) -> float:
        try:
            value = float(node.value) if isinstance(node, yaml.ScalarNode) else math.nan
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            shown = node.value if isinstance(node, yaml.ScalarNode) else "a group"
            kind = "of 0 or above" if least == 0 else "of 1 or above" if least == 1 else "above 0"
            fix = f"Write {name} without a unit: {_KEYS[name]}."
            self.refuse(name, f"{shown} is not a number {kind}", fix)
        return value

    def refuse(self, name: str, what: str, fix: str) -> None:
        """Raise the error of a key.

        Raises:
            UsageError: always.
        """
        node = self._nodes.get(name)
        where = str(self.path) if node is None else place(self.path, node)
        raise UsageError(what, where=where, fix=fix)
