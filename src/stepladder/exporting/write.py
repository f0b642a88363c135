"""Export a trained model to a file that runs without this package."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, assert_never

import torch
from torch import Tensor

from stepladder import __version__
from stepladder.config.choices import ExportFormat
from stepladder.errors import MissingExtraError, ResourceError, UsageError
from stepladder.exporting.trained import Trained, load_trained
from stepladder.machine.activity import doing
from stepladder.records import Json, to_json, write_json
from stepladder.task.contract import Task

INPUT = "pictures"
OUTPUT = "logits"
NAMES = {ExportFormat.ONNX: "model.onnx", ExportFormat.TORCH: "model.pt2"}

TOLERANCE = 1e-3
"""Maximum difference from the original logits, as a fraction of the largest (at least 1)."""

_MAX_ONE_FILE_BYTES = 1_500_000_000  # the limit of protobuf is 2 GiB


def export_run(
    run: Path, format: ExportFormat, out: Path | None = None, *, task: Task | None = None
) -> Path:
    """Export a run's best model, with a JSON file that describes its inputs and outputs.

    The model takes uint8 images (n, 3, size, size), RGB, any n, and returns logits (n, C); it
    includes normalization. It runs on the CPU in fp32, wherever it was trained: `torch` needs only
    torch (`torch.export.load(path).module()(pictures)`), `onnx` any ONNX runtime. The file is
    loaded and compared with the original model on random images; a file that differs is removed.

    Args:
        run: folder of the run.
        format: onnx or torch.
        out: the output file; None: model.onnx or model.pt2 in the run's folder.
        task: for a run of the user's own Task.

    Returns:
        The file.

    Raises:
        MissingExtraError: if ONNX is requested and not installed.
        UsageError: if the model cannot be traced.
        ResourceError: if the file cannot be written, or its outputs differ.
    """
    if format is ExportFormat.ONNX and not _has("onnx", "onnxscript"):
        raise MissingExtraError("ONNX export", "onnx")
    with doing("loading it"):
        trained = load_trained(run, task=task)
    path = out or run / NAMES[format]
    facts = describe_model(trained)
    with doing("tracing it"):
        program = trace(trained)
    write = {ExportFormat.ONNX: _write_onnx, ExportFormat.TORCH: _write_torch}[format]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".export-", dir=path.parent) as work:
            made = Path(work, path.name)
            with doing(f"writing {path.name}"):
                write(program, made, facts)
            with doing(f"comparing {path.name} with the model"):
                facts["largest_difference"] = _verify(trained, _open_exported(made, format))
            for file in sorted(Path(work).iterdir(), reverse=True):  # a .data file before its model
                file.replace(path.parent / file.name)
        write_json(path.with_suffix(".json"), facts)
    except OSError as error:
        raise ResourceError(
            f"the exported model cannot be written to this file ({error.strerror})",
            where=str(path),
            fix="Choose a writable file: --out FILE",
        ) from error
    return path


def describe_model(trained: Trained) -> dict[str, Json]:
    """Return the description of inputs and outputs."""
    size = trained.size
    return {
        "input": {"name": INPUT, "dtype": "uint8", "shape": ["n", 3, size, size], "colour": "RGB"},
        "output": {"name": OUTPUT, "dtype": "float32", "shape": ["n", len(trained.classes)]},
        "size": size,
        "fit": trained.fit.value,
        **({} if trained.white is None else {"max_sample_value": trained.white}),
        "classes": list(trained.classes),
        "stepladder": __version__,
    }


def trace(trained: Trained) -> torch.export.ExportedProgram:
    """Trace the model for any batch size, without paths of source files.

    Raises:
        UsageError: if the model cannot be traced.
    """
    example = torch.zeros(2, 3, trained.size, trained.size, dtype=torch.uint8)
    batch = {0: torch.export.Dim("n", min=1)}
    try:
        with _quiet():
            program = torch.export.export(trained.model, (example,), dynamic_shapes=(batch,))
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise UsageError(
            f"torch.export cannot export this model ({type(error).__name__}: {first})",
            why="It cannot export an if or a loop in forward() that depends on values of tensors.",
            fix="Write these with torch.where or torch.cond.",
        ) from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def _write_torch(program: torch.export.ExportedProgram, path: Path, facts: dict[str, Json]) -> None:
    extra = {"model.json": json.dumps(to_json(facts))}
    file = io.BytesIO()  # torch's own file writer reports a full disk as a bare RuntimeError
    with _quiet():
        torch.export.save(program, file, extra_files=extra)
    path.write_bytes(file.getbuffer())


def _write_onnx(program: torch.export.ExportedProgram, path: Path, facts: dict[str, Json]) -> None:
    size_bytes = sum(value.nbytes for value in program.state_dict.values())
    with _quiet():
        made = torch.onnx.export(
            program, (), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False
        )
        assert made is not None
        model = made.model
        model.metadata_props.update({key: json.dumps(to_json(item)) for key, item in facts.items()})
        for node in model.graph:
            node.metadata_props.clear()
        made.save(path, external_data=size_bytes > _MAX_ONE_FILE_BYTES)


def _open_exported(path: Path, format: ExportFormat) -> Callable[[Tensor], Tensor] | None:
    """Load an exported model as a user would; None if it cannot be run here."""
    match format:
        case ExportFormat.TORCH:
            with _quiet():
                module: Any = torch.export.load(path).module()
            return lambda pictures: module(pictures)
        case ExportFormat.ONNX:
            if not _has("onnxruntime"):
                return None
            import onnxruntime

            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            return lambda x: torch.from_numpy(session.run(None, {INPUT: x.numpy()})[0])
        case _:
            assert_never(format)


def _verify(trained: Trained, exported: Callable[[Tensor], Tensor] | None) -> float | None:
    """Compare an exported model with the original on random images; None if it cannot run."""
    if exported is None:
        warnings.warn(
            "the exported model was written, but not compared with the original, because "
            "onnxruntime is not installed: pip install onnxruntime",
            stacklevel=3,
        )
        return None
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for n in (1, 3):
        shape = (n, 3, trained.size, trained.size)
        pictures = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        with torch.inference_mode():
            wanted, found = trained.model(pictures), exported(pictures)
        difference = (wanted - found).abs().max() / wanted.abs().max().clamp_min(1.0)
        largest = max(largest, difference.item())
    if not largest <= TOLERANCE:
        raise ResourceError(
            "the model was not exported, because its outputs would differ from those of the "
            f"original by {largest:.2g} times the largest output (limit: {TOLERANCE:g})",
            fix="Export it in the other format (--format onnx or --format torch), and please "
            "report the name of the model as a bug.",
        )
    return largest


def _has(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) for package in packages)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide deprecation warnings and progress of the exporters; the result is verified."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
