"""What TraceML, slowai and `stepladder watch` say of the same slow scripts.

    python -m bench.watch.beside --log FILE --tools DIR [--only ID ...]

DIR is a folder that traceml-ai and slowai were installed into (`pip install --target DIR`). The
scripts are the slow halves of the third and fourth held-out sets. Both tools ask for something in
the script, which is added from outside: slowai for a function `main`, TraceML for its `init()` and
a `trace_step` around each step. What they say is searched for the words that the author of the
script accepts, as for our own advice.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import Any

from bench.log import Log
from bench.rows import write_rows
from bench.watch.reported import ARCHIVES

SETS = ("3", "4")
TOOLS = ("stepladder", "TraceML", "slowai")
_LIMIT_S = 300.0
_MAIN = """import runpy


def main():
    runpy.run_path("train.py", run_name="__main__")
"""
_STEPS = """import runpy
import sys
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from traceml_ai.api import init, trace_step

init()
model, opened = torch.nn.Linear(1, 1), []


def ended(*_):
    if opened:
        opened.pop().__exit__(None, None, None)
    opened.append(trace_step(model))
    opened[-1].__enter__()


register_optimizer_step_post_hook(ended)
sys.argv = ["train.py"]
runpy.run_path("train.py", run_name="__main__")
"""
_TRACEML = "from traceml_ai.launcher.cli import main; main()"


def scripts() -> Iterator[tuple[dict[str, Any], bytes]]:
    """Return the entry and the faulty half of each slow pair."""
    for number in SETS:
        packed = (ARCHIVES / f"held_out_{number}.tar.xz").read_bytes()
        with tarfile.open(fileobj=BytesIO(lzma.decompress(packed))) as tar:
            files = {name.removeprefix("./"): name for name in tar.getnames()}
            index = json.load(_file(tar, files["index.json"]))
            for entry in index:
                if entry["kind"] == "slow":
                    name = next(
                        name
                        for name in files
                        if name.startswith(entry["id"][:2]) and name.endswith("/faulty.py")
                    )
                    label = f"{number}: {name.partition('/')[0]}"
                    yield entry | {"name": label}, _file(tar, files[name]).read()


def _file(tar: tarfile.TarFile, name: str) -> Any:
    found = tar.extractfile(name)
    assert found is not None
    return found


def said(tool: str, tools: Path, folder: Path) -> str:
    """Run a script under a tool, and return what it advises."""
    if tool == "stepladder":
        _run(["-m", "stepladder", "watch", "--quiet", "--out", "seen", "train.py"], folder)
        file = folder / "seen" / "watch.json"
        step = (json.loads(file.read_text()).get("next") or {}) if file.exists() else {}
        return str(step.get("text", ""))
    if tool == "TraceML":
        (folder / "stepped.py").write_text(_STEPS)
        _run(["-c", _TRACEML, "run", "stepped.py"], folder, tools)
        file = next(folder.glob("logs/*/final_summary.json"), None)
        found = json.loads(file.read_text())["primary_diagnosis"] if file is not None else {}
        return " ".join(str(found.get(key) or "") for key in ("status", "summary", "action"))
    (folder / "wrapped.py").write_text(_MAIN)
    text = _run(["-m", "slowai.cli", "diagnose", "wrapped.py"], folder, tools)
    regime = re.search(r"wrapped\.py: (.*)", text)
    fixes = re.findall(r"^ +\d\. (.*)", text, flags=re.MULTILINE)
    return "; ".join([*(regime.groups() if regime else ()), *fixes])


def _run(words: list[str], folder: Path, tools: Path | None = None) -> str:
    paths = [str(tools)] if tools is not None else []
    paths += [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout + done.stderr


def main() -> None:
    """Run what has no record yet, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], help="names, such as 4_31")
    args = parser.parse_args()
    log, entries = Log(args.log), []
    for entry, code in scripts():
        if args.only and not any(entry["name"].startswith(one) for one in args.only):
            continue
        entries.append(entry)
        for tool in TOOLS:
            if log.find(name=entry["name"], tool=tool) is not None:
                continue
            folder = Path(tempfile.mkdtemp())
            (folder / "train.py").write_bytes(code)
            began = time.monotonic()
            text = said(tool, args.tools, folder)
            seconds = round(time.monotonic() - began, 1)
            shutil.rmtree(folder, ignore_errors=True)
            log.add({"name": entry["name"], "tool": tool, "said": text, "seconds": seconds})
            print(entry["name"], tool, seconds, shorten(text, 100), flush=True)
    rows, right = [], dict.fromkeys(TOOLS, 0)
    for entry in entries:
        row = {"script": entry["name"], "what is slow": entry["fault_in_words"]}
        for tool in TOOLS:
            found = log.find(name=entry["name"], tool=tool)
            text = found["said"] if found else ""
            is_right = any(word.lower() in text.lower() for word in entry["accept"])
            right[tool] += is_right
            row[tool] = f"{'**right** ' if is_right else ''}{shorten(text, 220) or 'nothing'}"
        rows.append(row)
    counts = ", ".join(f"{tool} {num}" for tool, num in right.items())
    note = (
        "What three tools say of the same slow scripts, on a CPU. Right: it has one of the words "
        f"that the author of the script accepts. Of {len(rows)}: {counts}. TraceML shows shares of "
        "time and slowai a regime with general remedies; neither is made to name a line, and both "
        "are made for GPUs first. The scripts were written for a bench of ours, by an author who "
        "had seen none of the three."
    )
    write_rows("beside", rows, note=note, rounds=log.records, place=log.environment)


if __name__ == "__main__":
    main()
