"""Watch the first steps of a script, and write down what it makes and what a step costs."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterable
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import psutil
import torch
from torch import Tensor

from stepladder.machine import available_memory_bytes, instruction_set, num_cores
from stepladder.records import write_json
from stepladder.records.script import ScriptFacts
from stepladder.records.watch import WATCH_FILE, WatchReport
from stepladder.scripts.inside.anomaly import AnomalyCalls
from stepladder.scripts.inside.gate import Enough
from stepladder.scripts.inside.logs import Logs
from stepladder.scripts.inside.metric_blocks import MetricBlocks
from stepladder.scripts.inside.places import Places, install_places
from stepladder.scripts.inside.recomputation import Recomputation
from stepladder.scripts.inside.repeats import Repeats
from stepladder.scripts.inside.saves import SaveTimes
from stepladder.scripts.inside.spec import Spec
from stepladder.scripts.inside.tables import tables_of
from stepladder.watching.hooks.patches import Patches, Switch, activate
from stepladder.watching.script.own_code import OwnCode
from stepladder.watching.script.script import Ending
from stepladder.watching.script.session import Session

FACTS_FILE: Final = "facts.json"
_FIRST: Final = 3  # steps that are not counted
_BFLOAT16: Final = ("avx512_bf16", "amx_bf16")
_MALLOC: Final = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


class Scout:
    """Watches a script until enough steps were seen."""

    def __init__(
        self,
        spec: Spec,
        own: OwnCode,
        places: Places,
        metrics: MetricBlocks,
        *,
        is_guarded: bool,
    ) -> None:
        self._metrics = metrics
        self._is_guarded = is_guarded
        self._spec = spec
        self._places = places
        self._folder = Path(spec.folder)
        self._session = Session(spec.script, spec.args, own, self._folder, self._publish)
        self._report: WatchReport | None = None
        self._main: int | None = None
        self._pid = os.getpid()
        self._num_steps = 0
        self._began = self._first = self._last = 0.0
        self._cpu = (0.0, 0.0)
        self._end_cpu = (0.0, 0.0)
        self._uses_autocast = False
        self._outputs: set[bool] = set()
        self._anomaly_calls = AnomalyCalls(places)
        self._is_anomaly = False
        self._num_anomaly = 0
        self._logs = Logs(own)
        self._saves = SaveTimes(own)
        self._repeats = Repeats(places.models)
        self._recomputation = Recomputation(own)
        self._start_bytes = 0
        self._is_enough = False
        self._device, self._dtype = torch.device("cpu"), "float32"

    def begin(self) -> None:
        """Install the watcher, and count steps."""
        from torch.nn.modules.module import (
            register_module_forward_hook,
            register_module_forward_pre_hook,
        )
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._session.begin()
        switch = Switch()
        patches = Patches(switch)
        install_places(self._places, patches)
        patches.wrap(torch.autocast, "__enter__", after=self._entered)
        activate(switch)
        register_module_forward_pre_hook(self._called)
        register_module_forward_hook(self._answered)
        self._logs.install()
        self._saves.install()
        self._anomaly_calls.install()
        self._recomputation.install()
        register_optimizer_step_post_hook(self._stepped)

    def _publish(self, report: WatchReport) -> None:
        self._report = report
        write_json(self._folder / WATCH_FILE, report)

    def _entered(self, _note: Any, args: Any, _kwargs: Any, _result: Any) -> None:
        self._uses_autocast = self._uses_autocast or bool(args[0]._enabled)

    def _called(self, module: Any, _inputs: Any) -> None:
        if not self._start_bytes and id(module) in self._places.models:
            self._start_bytes = _used_bytes(_device(module.parameters()))
        if not self._is_anomaly and torch.is_anomaly_enabled():
            self._is_anomaly = id(module) in self._places.models
        self._repeats.called(module)

    def _answered(self, module: Any, inputs: Any, output: Any) -> None:
        self._repeats.answered(module, inputs, output)
        if id(module) in self._places.models and len(self._outputs) < 2:
            self._outputs.add(isinstance(output, Tensor) and output.is_floating_point())

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if os.getpid() != self._pid:
            return
        if self._main is None:
            self._main = id(optimizer)
            self._began = perf_counter()
            self._saves.begin()
            self._metrics.begin_training()
        if id(optimizer) != self._main:
            return
        self._num_steps += 1
        self._num_anomaly += self._is_anomaly or torch.is_anomaly_enabled()
        self._is_anomaly = False
        self._places.stepped()
        if self._num_steps <= _FIRST:
            params = self._places.params()  # at the end, these may be gone
            self._device, self._dtype = _device(params), _dtype(params)
        if self._num_steps == _FIRST - 1:
            self._places.read_examples()  # while the loader exists, and before steps are timed
        self._last = perf_counter()
        if self._num_steps == _FIRST:
            self._first, self._cpu = self._last, _cpu()
        self._end_cpu = _cpu()
        spec = self._spec
        is_long = self._last - self._began > spec.max_s and self._num_steps >= spec.min_steps
        if is_long or self._num_steps >= spec.max_steps:
            self._is_enough = True
            raise Enough

    def finish(self, ending: Ending) -> None:
        """Write the facts."""
        if os.getpid() != self._pid:
            return
        self._session.finish(ending)
        report, seen = self._report, self._session.seen
        shares = {time.name: time.share for time in report.times} if report else {}
        counted = max(1, self._num_steps - _FIRST)
        user_s, kernel_s = (b - a for a, b in zip(self._cpu, self._end_cpu, strict=True))
        device = self._device
        has_gpu = device.type == "cuda"
        elapsed_s = self._last - self._began
        facts = ScriptFacts(
            has_gpu=has_gpu,
            num_cores=num_cores(),
            threads=torch.get_num_threads(),
            num_steps=self._num_steps,
            is_whole=not self._is_enough,
            step_s=(self._last - self._first) / counted if self._num_steps > _FIRST else 0.0,
            shares=shares,
            batch_size=_whole(report.facts.get("batch_size")) if report else None,
            optimizers=tuple(self._places.optimizers),
            loaders=tuple(self._places.loaders),
            uses_autocast=self._uses_autocast,
            output_is_tensor=self._outputs == {True},
            keeps_freed_memory=any(os.environ.get(name) for name in _MALLOC),
            memory_bytes=available_memory_bytes() or 0,
            has_compiler=has_gpu or shutil.which("g++") is not None,
            dtype=self._dtype,
            kernel_share=kernel_s / (user_s + kernel_s) if user_s + kernel_s > 0 else 0.0,
            has_bfloat16=torch.cuda.is_bf16_supported()
            if has_gpu
            else any(name in _BFLOAT16 for name in instruction_set()),
            is_guarded=self._is_guarded,
            has_fast_matmul=torch.get_float32_matmul_precision() != "highest",
            has_cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
            repeated_share=min(1.0, self._repeats.seconds / elapsed_s) if elapsed_s else 0.0,
            why_not_once=self._repeats.why_not,
            logs=self._logs.in_each_step(elapsed_s),
            metrics=self._metrics.found(elapsed_s),
            save_share=min(1.0, self._saves.seconds / elapsed_s) if elapsed_s else 0.0,
            save_bytes=self._saves.num_bytes,
            save_places=tuple(self._saves.places.values()),
            has_anomaly_mode=2 * self._num_anomaly > self._num_steps,
            anomaly_calls=tuple(self._anomaly_calls.found),
            tables=tables_of(self._places.embeddings, seen, shares) if seen else (),
            recomputed_share=min(1.0, self._recomputation.seconds / elapsed_s)
            if elapsed_s
            else 0.0,
            recomputed_bytes=self._recomputation.bytes_in(self._num_steps),
            recompute_places=tuple(self._recomputation.places.values()),
            start_bytes=self._start_bytes,
            peak_bytes=_peak_bytes(device),
            capacity_bytes=_capacity_bytes(device),
        )
        write_json(self._folder / FACTS_FILE, facts)


def _device(params: Iterable[Tensor]) -> torch.device:
    """Return a GPU if one of the weights is there."""
    devices = [param.device for param in params]
    return next((one for one in devices if one.type == "cuda"), torch.device("cpu"))


def _used_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return psutil.Process().memory_info().rss


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _capacity_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return (available_memory_bytes() or 0) + psutil.Process().memory_info().rss


def _cpu() -> tuple[float, float]:
    """Return the CPU seconds of this process so far: its own, and those of the kernel for it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _dtype(params: list[Tensor]) -> str:
    kinds = {str(param.dtype).removeprefix("torch.") for param in params}
    return next(iter(kinds)) if len(kinds) == 1 else " and ".join(sorted(kinds)) or "float32"
