"""Functions that run inside a checkout: `python probes.py NAME ARGUMENTS.json RESULT.json`.

Only public names are imported at the top of a function. Where an internal name is needed, its
location after 6d44165 comes first and its location in 6d44165 second.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import pkgutil
import runpy
import sys
import time
from pathlib import Path
from typing import Any


def internal(name: str, *places: str) -> Any:
    """Return an internal name from the first of several modules that has it."""
    for place in places[:-1]:
        with contextlib.suppress(ImportError):
            return getattr(importlib.import_module(place), name)
    return getattr(importlib.import_module(places[-1]), name)


def run_commands(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Run commands one after another in this process; return exit code and output of each."""
    results = []
    for words in arguments["runs"]:
        out, err = io.StringIO(), io.StringIO()
        sys.argv = ["stepladder", *words]
        code: object = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                runpy.run_module("stepladder", run_name="__main__", alter_sys=True)
            except SystemExit as ended:
                code = ended.code or 0
        results.append({"code": code, "out": out.getvalue(), "err": err.getvalue()[-500:]})
    return results


def imports(arguments: dict[str, Any]) -> dict[str, str]:
    """Import dotted names of modules or their members; return the error of each that fails."""
    failed = {}
    for name in arguments["names"]:
        try:
            pkgutil.resolve_name(name)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def judge(arguments: dict[str, Any]) -> dict[str, Any]:
    """Judge each evidence, and bound the speed of block times."""
    from stepladder.config.choices import ClimbAim
    from stepladder.config.options import LadderConfig
    from stepladder.records.ladder import Aim, Exactness, Interval

    module = "stepladder.ladder.verdict"
    judge_, evidence_ = internal("judge", module), internal("Evidence", module)
    combined, interval_ = (
        internal(name, "stepladder.stats.speed")
        for name in ("combined_speedup", "speedup_interval")
    )

    def bounds(value: dict[str, float] | None) -> Interval | None:
        return None if value is None else Interval(**value)

    verdicts = []
    for given in arguments["evidences"]:
        values = dict(given["evidence"])
        values |= {name: bounds(values.get(name)) for name in ("speed", "accuracy", "loss")}
        values |= {"aim": Aim(values["aim"]), "exactness": Exactness(values["exactness"])}
        options = dict(given["options"])
        if "aim" in options:
            options["aim"] = ClimbAim(options["aim"])
        verdict = judge_(evidence_(**values), LadderConfig(**options))
        verdicts.append([str(verdict.decision), verdict.reason])
    speeds: list[list[float] | str] = []
    for times in arguments["times"]:
        try:
            if times["kind"] == "blocks":
                found = interval_(*times["blocks"], confidence=times["confidence"])
            else:
                found = combined(
                    times["blocks"],
                    times["seeds"],
                    confidence=times["confidence"],
                    min_blocks=2,
                )
            speeds.append([found.estimate, found.low, found.high])
        except ValueError as error:
            speeds.append(str(error))
    return {"verdicts": verdicts, "speeds": speeds}


def rungs(_: dict[str, Any]) -> dict[str, list[str]]:
    """Return the aim and exactness of each rung and remedy."""
    found = {}
    for table in ("RUNGS", "REMEDIES"):
        for rung in internal(table, "stepladder.rungs.order"):
            found[rung.name] = [str(rung.aim), str(rung.exactness)]
    return found


def _weights(run: Path) -> dict[str, str]:
    """Return the sha256 of each tensor of each weights file in a run folder."""
    from safetensors import safe_open

    found = {}
    for path in sorted((run / "checkpoints").rglob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name)
                digest = hashlib.sha256(tensor.contiguous().flatten().view(_bytes()).numpy())
                text = f"{tensor.dtype} {tuple(tensor.shape)} {digest.hexdigest()}"
                found[f"{path.relative_to(run / 'checkpoints')}:{name}"] = text
    return found


def _bytes() -> Any:
    import torch

    return torch.uint8


def weights(arguments: dict[str, Any]) -> dict[str, str]:
    """Return the tensors in a run folder."""
    return _weights(Path(arguments["run"]))


def trainings(arguments: dict[str, Any]) -> dict[str, Any]:
    """Train once with each list of settings; return the tensors and metrics of each."""
    import stepladder

    results: dict[str, Any] = {}
    for name, settings in arguments["jobs"].items():
        folder = Path(arguments["folder"]) / name
        try:
            run = stepladder.train(store=arguments["store"], dir=folder, **settings)
        except stepladder.StepladderError as error:
            results[name] = {"error": str(error)}
            continue
        numbers = {
            key: value
            for key, value in run.summary.items()
            if key.startswith(("val_", "test_", "best_")) or key in ("epochs", "steps", "status")
        }
        results[name] = {"tensors": _weights(folder), "summary": numbers}
    return results


def programs(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """List the programs of a corpus and write them to a folder."""
    sys.path.insert(0, arguments["root"])
    corpus = importlib.import_module("bench.faults.corpus")
    return [
        {
            "name": f"{program.name}/{program.half}",
            "kind": str(program.kind),
            "path": str(program.path),
            "task": program.task,
            "args": list(program.args),
        }
        for name in ("development", "sound")
        for program in corpus.programs(name, Path(arguments["folder"]))
    ]


def timing(arguments: dict[str, Any]) -> float:
    """Time one of several kinds of work in seconds, without imports and setup."""
    return {
        "tiny steps": _time_tiny_steps,
        "reader pixels": _time_reader,
        "reader jpeg": _time_reader,
        "prepare": _time_prepare,
    }[arguments["kind"]](arguments)


def _time_tiny_steps(arguments: dict[str, Any]) -> float:
    import torch
    from torch import Tensor, nn
    from torch.utils.data import TensorDataset

    import stepladder

    class Line(stepladder.Task):
        def build_model(self, recipe: stepladder.Recipe) -> nn.Module:
            return nn.Linear(4, 1)

        def data(self, split: Any) -> TensorDataset:
            generator = torch.Generator().manual_seed(len(str(split)))
            x = torch.rand(4096, 4, generator=generator)
            return TensorDataset(x, x.sum(1, keepdim=True))

        def loss(self, model: nn.Module, batch: stepladder.Batch) -> Tensor:
            errors: Tensor = model(batch.inputs) - batch.targets
            return errors.square().squeeze(1)

    run = stepladder.train(
        task=Line(),
        dir=arguments["out"],
        overwrite=True,
        train="all",
        **{
            "schedule.max_epochs": arguments["epochs"],
            "stopping.early": False,
            "stopping.validate_every_epochs": arguments["epochs"],
            "run.checks": "off",
            "run.checkpoint_every_s": 1e6,
            "device.threads": 1,
        },
    )
    steps = ("data_wait", "to_device", "augment", "forward", "backward", "optimizer", "logging")
    phases = run.summary["phases_s"]
    return float(sum(phases[name] for name in (*steps, "unexplained")) / run.summary["steps"])


def _time_reader(arguments: dict[str, Any]) -> float:
    from stepladder.config.choices import Split
    from stepladder.data import Loader, Store

    loader = Loader(Store.open(arguments["store"]).split(Split.TRAIN), batch_size=32)
    best = float("inf")
    for epoch in range(arguments["epochs"] + 1):
        loader.set_epoch(epoch)
        started = time.perf_counter()
        for _ in loader:
            pass
        if epoch:  # the first one opens the files
            best = min(best, time.perf_counter() - started)
    return best


def _time_prepare(arguments: dict[str, Any]) -> float:
    import stepladder

    started = time.perf_counter()
    stepladder.prepare(arguments["source"], arguments["out"], size=64)
    return time.perf_counter() - started


def main() -> None:
    name, given, made = sys.argv[1:]
    result = globals()[name](json.loads(Path(given).read_text()))
    Path(made).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
