"""Compare how many faults two test suites detect, with the same mutants in two checkouts.

    python -m bench.mutants OLD_CHECKOUT NEW_CHECKOUT --log FILE [--count 40] [--area NAME ...]
        [--seed 29] [--workers 1] [--of old]
        [--killed-in LOG]

A mutant is one small change in one place: an inverted comparison, a constant plus one, swapped
arithmetic, a removed `not`, a removed statement, a changed default. Places are drawn from the files
of each area in the old checkout, alternating between kinds, if the same statement is in a function
of the same name in the new checkout. In each checkout, the tests of that area run that enter the
function (directly or through a fixture) or start a process, until the first failure. All tests run
if the place is outside of functions, or in a function whose result is cached.

A server that has imported torch and pytest forks for each mutant; an import hook provides the
changed module to the child and to processes that its tests start. Each result is a line in --log;
with the same file, an interrupted benchmark resumes.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("mutant_server.py")
MIN_TIMEOUT_S = 60.0
TIMES_BASELINE = 4.0
MAX_FAILING = 3
"""Tests that fail on the unchanged code of a checkout and are not used for its mutants."""


@dataclass(frozen=True)
class Area:
    """Files to mutate, below `src/stepladder`, and tests to run, below `tests`."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


AREAS: dict[str, dict[str, Area]] = {
    "verdict": {
        "old": Area(
            ("ladder/verdict.py", "stats/speed.py"),
            (
                "unit/ladder/test_verdict.py",
                "unit/stats/test_speed.py",
                "unit/ladder/test_trial.py",
            ),
        ),
        "new": Area(
            ("ladder/verdict.py", "stats/speed.py"),
            (
                "unit/ladder/test_verdict.py",
                "unit/stats/test_speed.py",
                "unit/ladder/test_trial.py",
            ),
        ),
    },
    "order": {
        "old": Area(
            ("data/order.py", "data/bijection.py", "data/windows.py", "data/order_choice.py"),
            ("unit/data/test_order.py", "unit/data/test_windows.py", "unit/data/test_loader.py"),
        ),
        "new": Area(
            ("data/order/*.py",),
            ("unit/data/order/*.py", "unit/data/reading/test_loader.py"),
        ),
    },
    "reader": {
        "old": Area(
            (
                "data/reader.py",
                "data/buffers.py",
                "data/threads.py",
                "data/ordered.py",
                "data/examples.py",
                "data/memory.py",
            ),
            (
                "unit/data/test_reader.py",
                "unit/data/test_reader_stats.py",
                "unit/data/test_loader.py",
                "unit/data/test_datasets.py",
            ),
        ),
        "new": Area(("data/reading/*.py",), ("unit/data/reading/*.py",)),
    },
    "checkpoint": {
        "old": Area(
            ("train/checkpoint.py", "train/checkpoint_files.py", "train/checkpoint_folders.py"),
            (
                "unit/train/test_checkpoint.py",
                "unit/train/test_checkpoint_*.py",
                "unit/train/test_mirror.py",
                "unit/train/test_run.py",
            ),
        ),
        "new": Area(
            ("training/checkpoint/*.py",),
            ("unit/training/checkpoint/*.py", "unit/training/test_run.py"),
        ),
    },
    "watcher": {
        "old": Area(
            (
                "watch/watcher.py",
                "watch/backwards.py",
                "watch/clearing.py",
                "watch/losses.py",
                "watch/modules.py",
                "watch/optimizers.py",
                "watch/running.py",
                "watch/detectors.py",
                "watch/seen.py",
            ),
            ("unit/watch/*.py",),
        ),
        "new": Area(("watching/*.py", "watching/*/*.py"), ("unit/watching/**/*.py",)),
    },
}

_TURNED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
KINDS = ("comparison", "constant", "arithmetic", "not", "statement", "default")


@dataclass(frozen=True)
class Key:
    """The place of a mutant, as it can be found in both checkouts.

    Attributes:
        kind: one of KINDS.
        function: name of the innermost function, or empty.
        text: the statement, or the header of a compound one.
        nth_text: index among equal statements of that function.
        nth: index among places of this kind in the statement.
        choice: index among the possible changes.
    """

    kind: str
    function: str
    text: str
    nth_text: int
    nth: int
    choice: int


class Mutator:
    """All places of one file at which a mutant can be made; parsed again for each mutant."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.changes: dict[Key, Any] = {}
        self.cached: set[str] = set()
        self._num_texts: dict[tuple[str, str], int] = defaultdict(int)
        self._visit(self.tree.body, "")

    def mutated(self, key: Key) -> str:
        """Make a mutant, and return the source of its module."""
        self.changes[key]()
        return ast.unparse(ast.fix_missing_locations(self.tree))

    def _visit(self, body: list[ast.stmt], function: str) -> None:
        for idx, statement in enumerate(body):
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._defaults(statement)
                if any("cache" in ast.unparse(name) for name in statement.decorator_list):
                    self.cached.add(statement.name)
                self._visit(statement.body, statement.name)
            elif isinstance(statement, ast.ClassDef):
                self._visit(statement.body, function)
            elif not isinstance(statement, (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert)):
                self._statement(body, idx, function)

    def _statement(self, body: list[ast.stmt], idx: int, function: str) -> None:
        statement = body[idx]
        heads, blocks = _parts(statement)
        field = f" {ast.unparse(statement.target)}" if isinstance(statement, ast.AnnAssign) else ""
        text = f"{type(statement).__name__}{field}: {'; '.join(map(ast.unparse, heads))}"
        if "TYPE_CHECKING" in text or "__all__" in text:
            return
        self._num_texts[function, text] += 1
        place = function, text, self._num_texts[function, text]
        num: dict[str, int] = defaultdict(int)

        def add(kind: str, changes: list[Any]) -> None:
            num[kind] += 1
            for choice, change in enumerate(changes):
                self.changes[Key(kind, *place, num[kind], choice)] = change

        is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        if (is_call or isinstance(statement, (ast.Assign, ast.AugAssign))) and function:
            add("statement", [lambda: body.__setitem__(idx, ast.Pass())])
        for head in heads:
            for parent, field, at, node in _expressions(head):
                _changes_of(node, parent, field, at, add)
        for block in blocks:
            self._visit(block, function)

    def _defaults(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = function.args
        names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
        pairs = [
            *zip(names[len(names) - len(arguments.defaults) :], arguments.defaults, strict=True),
            *zip(
                (argument.arg for argument in arguments.kwonlyargs),
                arguments.kw_defaults,
                strict=True,
            ),
        ]
        for name, node in pairs:
            if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
                key = Key("default", function.name, f"{name}={node.value!r}", 1, 1, 0)
                self.changes[key] = lambda node=node: _raise_constant(node)


def _parts(statement: ast.stmt) -> tuple[list[ast.expr], list[list[ast.stmt]]]:
    """Return a statement's own expressions, and the blocks nested in it."""
    blocks = [
        block
        for name in ("body", "orelse", "finalbody")
        if (block := getattr(statement, name, None)) and isinstance(block, list)
    ]
    blocks += [handler.body for handler in getattr(statement, "handlers", ())]
    blocks += [case.body for case in getattr(statement, "cases", ())]
    if isinstance(statement, ast.AnnAssign):
        return ([statement.value] if statement.value else []), blocks
    heads = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.expr)]
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        heads = [item.context_expr for item in statement.items]
    return heads, blocks


def _expressions(head: ast.expr) -> Iterator[tuple[ast.AST, str, int | None, ast.expr]]:
    """Walk an expression: (parent, field, index in a list, node), without parts of f-strings."""
    holder = ast.Expression(body=head)
    stack: list[tuple[ast.AST, str, int | None, ast.AST]] = [(holder, "body", None, head)]
    while stack:
        parent, field, at, node = stack.pop()
        if isinstance(node, ast.JoinedStr):
            continue
        if isinstance(node, ast.expr):
            yield parent, field, at, node
        for name, value in reversed(list(ast.iter_fields(node))):
            items = value if isinstance(value, list) else [value]
            for idx, item in reversed(list(enumerate(items))):
                if isinstance(item, ast.AST):
                    stack.append((node, name, idx if isinstance(value, list) else None, item))


def _changes_of(node: ast.expr, parent: ast.AST, field: str, at: int | None, add: Any) -> None:
    if isinstance(node, ast.Compare):
        for idx, operator in enumerate(node.ops):
            turned = _TURNED.get(type(operator), ())
            add(
                "comparison",
                [lambda i=idx, o=other: node.ops.__setitem__(i, o()) for other in turned],
            )
    elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED:
        if not any(
            isinstance(side, (ast.Constant, ast.JoinedStr)) and not _is_number(side)
            for side in (node.left, node.right)
        ):
            add("arithmetic", [lambda: setattr(node, "op", _SWAPPED[type(node.op)]())])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        if not isinstance(parent, ast.Expression):
            add("not", [lambda: _replace(parent, field, at, node.operand)])
        else:
            add("not", [lambda: _negate(node)])
    elif _is_number(node):
        add("constant", [lambda: _raise_constant(node)])


def _is_number(node: ast.expr | None) -> bool:
    is_constant = isinstance(node, ast.Constant)
    return is_constant and type(getattr(node, "value", None)) in (int, float)


def _raise_constant(node: Any) -> None:
    node.value = not node.value if isinstance(node.value, bool) else node.value + 1


def _negate(node: ast.UnaryOp) -> None:
    """Turn `not x` into `x`, where the node itself must stay."""
    node.operand = ast.UnaryOp(op=ast.Not(), operand=node.operand)


def _replace(parent: ast.AST, field: str, at: int | None, node: ast.expr) -> None:
    if at is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[at] = node


def files_of(root: Path, patterns: tuple[str, ...], below: str) -> list[Path]:
    """Return the files that match some patterns, in order."""
    files = [path for pattern in patterns for path in sorted((root / below).glob(pattern))]
    return list(dict.fromkeys(files))


def draw(
    old: Path, new: Path, area: str, count: int, seed: int
) -> tuple[list[tuple[Key, Path, Path]], float]:
    """Draw mutants of an area, alternating between kinds.

    Returns:
        (mutants: key, old file, new file; share of the old places that are in the new files).
    """
    places: dict[str, dict[Key, list[Path]]] = {}
    for name, root in (("old", old), ("new", new)):
        places[name] = defaultdict(list)
        for path in files_of(root, AREAS[area][name].files, "src/stepladder"):
            for key in Mutator(path.read_text()).changes:
                places[name][key].append(path)
    single = [key for key, paths in places["old"].items() if len(paths) == 1]
    random.Random(f"{seed} {area}").shuffle(single)  # before the new checkout is read
    shared = [key for key in single if len(places["new"].get(key, ())) == 1]
    by_kind = {kind: [key for key in shared if key.kind == kind] for kind in KINDS}
    chosen: list[Key] = []
    while len(chosen) < count and any(by_kind.values()):
        for keys in by_kind.values():
            if keys and len(chosen) < count:
                chosen.append(keys.pop())
    mutants = [(key, places["old"][key][0], places["new"][key][0]) for key in chosen]
    return mutants, len(shared) / max(1, len(single))


class Log:
    """Results, one per line; these are not run again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.known = {
            (line["area"], line["of"], line["key"]): line for line in map(json.loads, lines)
        }

    def add(self, line: dict[str, Any]) -> None:
        """Append a result."""
        self.known[line["area"], line["of"], line["key"]] = line
        with self._path.open("a") as out:
            out.write(json.dumps(line) + "\n")


class Server:
    """A process of a checkout that runs tests on mutants, one child for each."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        (folder / "sitecustomize.py").write_text(
            f"import importlib.util as u\n"
            f"s = u.spec_from_file_location('mutant_server', {str(SERVER)!r})\n"
            f"m = u.module_from_spec(s)\ns.loader.exec_module(m)\nm.install_from_environment()\n"
        )
        environment = os.environ | {
            "PYTHONPATH": f"{root / 'src'}:{folder}",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SERVER)],
            cwd=root,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def run(
        self,
        module: str,
        file: Path,
        source: str,
        tests: list[Path],
        *,
        timeout_s: float,
        selected: list[str] | None,
    ) -> dict[str, Any]:
        """Run tests on a module with a changed source.

        Args:
            tests: files.
            selected: ids of their tests to run, in order; None: all, recording the functions that
                each calls.

        Returns:
            `code` and `failed` of pytest, `seconds`, and `calls`.
        """
        if selected is not None:
            names = {test.partition("::")[0] for test in selected}
            tests = [path for path in tests if path.relative_to(self.root).as_posix() in names]
            if not tests:
                return {"code": 0, "seconds": 0.0, "failed": "", "calls": None}
        order = {"module": module, "file": str(file), "source": source, "timeout_s": timeout_s}
        order |= {"tests": [str(path) for path in tests], "selected": selected}
        order |= {"below": str(self.root / "src")}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def module_of(root: Path, file: Path) -> str:
    """Return the module name of a file."""
    parts = list(file.relative_to(root / "src").with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--count", type=int, default=40, help="number of mutants of each area")
    parser.add_argument("--area", nargs="+", choices=AREAS, default=list(AREAS))
    parser.add_argument("--seed", type=int, default=29)
    parser.add_argument("--workers", type=int, default=1, help="2: run both checkouts in parallel")
    parser.add_argument("--of", choices=("old", "new"), help="run the suite of one checkout only")
    parser.add_argument(
        "--killed-in",
        type=Path,
        help="with --of new: run only the mutants that the old suite killed in this log; the "
        "rest count as survivors, so the new suite's number is a lower bound",
    )
    options = parser.parse_args()
    roots = {"old": options.old.resolve(), "new": options.new.resolve()}
    log = Log(options.log)
    if options.killed_in is not None:
        log.known |= Log(options.killed_in).known
        for (area, of, name), line in list(log.known.items()):
            if of == "old" and name and line["code"] == 0:
                log.known.setdefault((area, "new", name), line)
    drawn = {
        area: draw(roots["old"], roots["new"], area, options.count, options.seed)
        for area in options.area
    }

    def run(of: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            server = Server(roots[of], Path(name))
            for area, (mutants, _) in drawn.items():
                _run_area(server, of, area, mutants, log)
            server.close()

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(run, [options.of] if options.of else roots))
    return 0 if options.of else _print(drawn, log)


def _run_area(
    server: Server, of: str, area: str, mutants: list[tuple[Key, Path, Path]], log: Log
) -> None:
    tests = [
        path
        for path in files_of(server.root, AREAS[area][of].tests, "tests")
        if path.name.startswith("test_")
    ]
    timeout_s = 1800.0
    calls: dict[str, list[str]] = {}
    unchanged = files_of(server.root, AREAS[area][of].files, "src/stepladder")[-1]
    jobs: list[tuple[str, Path, Key | None]] = [("", unchanged, None)]
    jobs += [(repr(key), old if of == "old" else new, key) for key, old, new in mutants]
    for name, file, key in jobs:
        line = log.known.get((area, of, name))
        if line is None:
            source = file.read_text()
            changed, selected = source, None
            if key is not None:
                mutator = Mutator(source)
                is_everywhere = not key.function or key.function in mutator.cached
                selected = _selected(calls, "" if is_everywhere else f"{file}:{key.function}")
                changed = mutator.mutated(key)
            module = module_of(server.root, file)
            line = {"area": area, "of": of, "key": name, "module": module}
            answer = server.run(
                module, file, changed, tests, timeout_s=timeout_s, selected=selected
            )
            line |= answer
            log.add(line)
            print(
                f"{area} {of} {module}: code {line['code']} in {line['seconds']:.0f} s "
                f"{line['failed'][:80]} <- {name[4:120]}",
                flush=True,
            )
        if key is None:
            failing = line["failed"].splitlines()
            if len(failing) > MAX_FAILING or line["calls"] is None:
                raise SystemExit(
                    f"{area}: the tests of {of} fail on unchanged code: {line['failed']}"
                )
            timeout_s = max(MIN_TIMEOUT_S, TIMES_BASELINE * line["seconds"])
            calls = {test: names for test, names in line["calls"].items() if test not in failing}


def _selected(calls: dict[str, list[str]], place: str) -> list[str]:
    """Return the tests that enter a function (empty: all), with those that start processes last."""
    chosen = [
        test for test, names in calls.items() if not place or place in names or "process" in names
    ]
    return sorted(chosen, key=lambda test: "process" in calls[test] and place not in calls[test])


def _print(
    drawn: dict[str, tuple[list[tuple[Key, Path, Path]], float]],
    log: Log,
) -> int:
    """Print the mutants that each suite kills; return 1 if the new suite kills fewer."""
    totals: dict[str, int] = defaultdict(int)
    for area, (mutants, share) in drawn.items():
        killed: dict[str, set[str]] = {"old": set(), "new": set()}
        for of, names in killed.items():
            names |= {
                repr(key) for key, _, _ in mutants if log.known[area, of, repr(key)]["code"] != 0
            }
            totals[of] += len(names)
        totals["all"] += len(mutants)
        print(
            f"{area}: killed by old {len(killed['old'])}, by new {len(killed['new'])} "
            f"of {len(mutants)}; {100 * share:.0f} % of the old places are in the new files"
        )
        for name in sorted(killed["old"] - killed["new"]):
            print(f"    survives in new: {name}")
        for name in sorted(killed["new"] - killed["old"]):
            print(f"    survived in old: {name}")
    print(f"all: killed by old {totals['old']}, by new {totals['new']} of {totals['all']}")
    return 1 if totals["new"] < totals["old"] else 0


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"{time.monotonic() - started:.0f} s")
    sys.exit(code)
