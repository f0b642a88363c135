"""Measure the structure of a checkout: files, lines, import cycles, paths of a batch and a recipe.

    python bench/structure.py PATH [--json]

Definitions
- Files and lines: of `*.py`, all lines counted, in src, tests and bench; files under 100 lines in
  src.
- Circles: strongly connected components of two or more modules of src/stepladder. An edge is an
  import outside of functions, including those under `if TYPE_CHECKING`: `from a import b` is an
  edge to `a.b` if that is a module, else to `a`. Imports of the root package are not counted.
- Batch: one epoch of training with validation on a store of 48 generated pictures, batches of 16.
  From the first call of `Reader.epoch` to the first return of a method named `metrics`, in all
  threads: `entered` counts the files under stepladder/ in which a Python function was called,
  `passed` those in which it received, returned or yielded a Batch.
- Recipe: a climb of the head only on the same store, which takes minutes. From the last call of a
  rung's `why_not` to the first Verdict that a function in ladder/verdict.py returns: `entered` as
  above, `passed` where a function received a Recipe, directly or within an argument (attributes,
  two levels deep).

Needs an environment in which the checkout's stepladder can be imported.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from bench.held_fast.pictures import write_trunk

SMALL_LINES = 100
MAX_LOOKS = 40
"""Calls of one function whose arguments are searched, to cover all kinds of arguments."""
TRAINING: dict[str, Any] = {
    "train": "all",
    "model.name": "test_efficientnet",
    "model.weights": "none",
    "batch.global_batch_size": 16,
    "schedule.max_epochs": 1,
    "run.checks": "off",
}
CLIMBING: dict[str, Any] = {
    **TRAINING,
    "train": "head",
    "schedule.max_epochs": 2,
    "ladder.num_seeds": 2,
    "ladder.block_s": 0.02,
}
Graph = dict[str, set[str]]


def sizes(root: Path) -> dict[str, int]:
    """Count files and lines."""
    found = {}
    for name in ("src", "tests", "bench"):
        counts = [len(file.read_text("utf-8").splitlines()) for file in (root / name).rglob("*.py")]
        found |= {f"files in {name}": len(counts), f"lines in {name}": sum(counts)}
        if name == "src":
            found["files under 100 lines"] = sum(count < SMALL_LINES for count in counts)
    return found


def module_level(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are not inside a function."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from module_level(child)


def imports(package: Path) -> Graph:
    """Return the modules that each module of a package imports."""
    files = {}
    for file in package.rglob("*.py"):
        parts = file.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    graph: Graph = {}
    for name, file in files.items():
        found = set()
        for node in module_level(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {one if one in files else node.module for one in inner}
        graph[name] = found & set(files) - {name, package.name}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Return the strongly connected components of two or more modules."""
    reached = {name: _reach(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return [list(group) for group in sorted(groups)]


def _reach(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen


class Enough(BaseException):
    """Raised at the second moment, as the rest of the work is not needed."""


class Passage:
    """Follow calls between two moments, and record the files that they are in.

    Args:
        package: folder of stepladder.
        begins, ends: predicates on a call's frame, and on a return's frame and value.
        carries: returns True if a value is, or holds, what is followed.
    """

    def __init__(
        self,
        package: Path,
        *,
        begins: Callable[[FrameType], bool],
        ends: Callable[[FrameType, object], bool],
        carries: Callable[[object], bool],
    ) -> None:
        self._package = f"{package}{os.sep}"
        self._begins, self._ends, self._carries = begins, ends, carries
        self.is_begun = self.is_over = False
        self._num_looks: Counter[CodeType] = Counter()
        self.entered: set[str] = set()
        self.passed: set[str] = set()

    def restart(self) -> None:
        self.entered, self.passed = set(), set()
        self._num_looks.clear()

    def __call__(self, frame: FrameType, event: str, value: object) -> None:
        path = frame.f_code.co_filename
        if self.is_over or event not in ("call", "return") or not path.startswith(self._package):
            return
        if event == "call" and self._begins(frame):
            self.is_begun = True
        if not self.is_begun:
            return
        file = path.removeprefix(self._package)
        if event == "call":
            self.entered.add(file)
            values = [frame.f_locals[name] for name in _arguments(frame)]
        else:
            values = [value]
        self._num_looks[frame.f_code] += 1
        if file not in self.passed and self._num_looks[frame.f_code] <= MAX_LOOKS:
            self.passed |= {file} if any(self._carries(one) for one in values) else set()
        if event == "return" and self._ends(frame, value):
            self.is_over = True
            if threading.current_thread() is threading.main_thread():
                raise Enough

    def follow(self, work: Callable[[], object]) -> dict[str, list[str]]:
        """Run work and return the files.

        Raises:
            RuntimeError: if the work ended before the second moment.
        """
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            work()
        except Enough:
            pass
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        if not self.is_over:
            raise RuntimeError("the work ended before the second moment")
        return {"entered": sorted(self.entered), "passed": sorted(self.passed)}


def _arguments(frame: FrameType) -> Iterable[str]:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount
    return [name for name in code.co_varnames[:count] if name in frame.f_locals]


def is_batch(value: object) -> bool:
    return type(value).__name__ == "Batch"


def holds_recipe(value: object, depth: int = 2) -> bool:
    """Return True if a value is a Recipe or has one in its attributes, `depth` levels deep."""
    if type(value).__name__ == "Recipe":
        return True
    if depth == 0 or not type(value).__module__.startswith("stepladder"):
        return False
    inner = getattr(value, "__dict__", {}).values()
    return any(holds_recipe(one, depth - 1) for one in list(inner))


def make_pictures(folder: Path) -> Path:
    """Write 48 small pictures of two classes, as class folders of train and val."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    for split, count in (("train", 16), ("val", 8)):
        for label, base in (("dark", 60), ("light", 190)):
            place = folder / split / label
            place.mkdir(parents=True)
            for idx in range(count):
                pixels = np.clip(draw.normal(base, 30, (48, 48, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{idx}.jpg")
    return folder


def measure_passages(package: Path) -> dict[str, dict[str, list[str]]]:
    """Train and climb on a small store; return the files on the paths of a batch and a recipe."""
    import stepladder

    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = folder / "store"
        stepladder.prepare(make_pictures(folder / "pictures"), store, size=32)
        batch = Passage(
            package,
            begins=lambda frame: frame.f_code.co_qualname == "Reader.epoch",
            ends=lambda frame, value: frame.f_code.co_name == "metrics" and value is not None,
            carries=is_batch,
        )
        run = folder / "run"
        found["batch"] = batch.follow(
            lambda: stepladder.train(store=store, dir=run, seed=0, **TRAINING)
        )

        weights = str(write_trunk(folder, CLIMBING["model.name"]))
        climbing = {**CLIMBING, "model.weights": weights}

        def tries(frame: FrameType) -> bool:
            """Return True at a rung's `why_not`, and forget the path of an earlier rung."""
            is_rung = frame.f_code.co_name == "why_not" and "/rungs/" in frame.f_code.co_filename
            if is_rung:
                recipe.restart()
            return is_rung

        recipe = Passage(
            package,
            begins=tries,
            ends=lambda frame, value: (
                frame.f_code.co_filename.endswith("ladder/verdict.py")
                and type(value).__name__ == "Verdict"
            ),
            carries=holds_recipe,
        )
        found["recipe"] = recipe.follow(
            lambda: stepladder.climb(store=store, dir=folder / "climb", seed=0, **climbing)
        )
    return found


def passages(root: Path) -> dict[str, dict[str, list[str]]]:
    """Measure in a process that imports the checkout's stepladder."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "found.json"
        words = [sys.executable, __file__, str(root), "--passages", str(out)]
        paths = os.pathsep.join(filter(None, [str(root / "src"), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            words, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr.decode()[-3000:])
        return dict(json.loads(out.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="root folder of a checkout")
    parser.add_argument("--json", action="store_true", help="with the names of all files")
    parser.add_argument("--passages", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    root = options.path.resolve()
    package = root / "src" / "stepladder"
    if options.passages:
        options.passages.write_text(json.dumps(measure_passages(package)))
        return
    found: dict[str, Any] = {**sizes(root), "circles": circles(imports(package))}
    for what, files in passages(root).items():
        found |= {f"files {how} by a {what}": names for how, names in files.items()}
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        print(f"{name}: {len(value) if isinstance(value, list) else f'{value:,}'}")
    for circle in found["circles"]:
        print(f"  circle: {', '.join(circle)}")


if __name__ == "__main__":
    main()
