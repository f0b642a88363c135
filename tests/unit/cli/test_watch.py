from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepladder.cli.main import main
from stepladder.cli.script_words import split
from stepladder.reporting.html import script

TRAIN = """
import sys
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 20)
y = (x[:, 0] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
                      nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
plan = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
for epoch in range(8):
    model.train()
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 50.0)
        optimizer.step()
    plan.step()
    model.eval()
    with torch.no_grad():
        print(epoch, loss.item().hex(), model(x).argmax(1).eq(y).sum().item())
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
            "plan": plan.state_dict(), "epoch": epoch}, "weights.pt")
print(torch.rand(3).tolist(), sys.argv, __name__)
sys.exit(3)
"""

Run = Callable[..., tuple[int, dict[str, Any]]]

WITH_VALUE = ("--out", "--steps", "--module", "-m")


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Return a function that watches a script in this process; global state is restored."""
    before = sys.modules["__main__"], list(sys.argv), list(sys.path)
    monkeypatch.chdir(tmp_path)

    def run(code: str, *flags: str, args: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
        script = tmp_path / "script.py"
        script.write_text(code, encoding="utf-8")
        exit_code = main(["watch", "--out", "seen", *flags, "script.py", "--", *args])
        found: dict[str, Any] = json.loads((tmp_path / "seen" / "watch.json").read_text())
        return exit_code, found

    yield run
    sys.modules["__main__"], sys.argv[:], sys.path[:] = before


def python(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, text=True, capture_output=True, timeout=240
    )


def test_words_after_the_script_are_the_scripts_own() -> None:
    assert split(["--steps", "5", "train.py", "--", "--json"], WITH_VALUE) == (
        ["--steps", "5", "train.py"],
        ["--json"],
    )
    assert split(["train.py", "--out", "x"], WITH_VALUE) == (["train.py"], ["--out", "x"])
    assert split(["--probe", "-m", "a.b", "--lr", "1"], WITH_VALUE) == (
        ["--probe", "-m", "a.b"],
        ["--lr", "1"],
    )
    assert split(["--help"], WITH_VALUE) == (["--help"], [])


def test_results_are_identical_to_the_bit_and_the_exit_code_is_kept(
    left: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    watched = python("-m", "stepladder", "watch", "train.py", "--", "a", "--b", folder=tmp_path)
    assert int((left / ALONE / "exit_code").read_text()) == watched.returncode == 3, watched.stderr
    assert (left / ALONE / "said").read_text() == watched.stdout
    assert (left / ALONE / "weights.pt").read_bytes() == (tmp_path / "weights.pt").read_bytes()
    report = json.loads((tmp_path / "watch-train" / "watch.json").read_text())
    assert report["num_steps"] == 128
    assert report["exit_code"] == 3
    assert report["watcher_error"] is None
    assert not [f for f in report["findings"] if f["outcome"] in ("failed", "warned")]
    assert "watch.html" in watched.stderr
    page = (tmp_path / "watch-train" / "watch.html").read_text()
    assert page.count("<script") == page.count(f"<script>{script().text}</script>") == 1


@pytest.mark.parametrize(
    ("ending", "exit_code"),
    [("", 0), ("sys.exit()", 0), ("sys.exit(7)", 7), ("sys.exit('bad')", 1), ("1 / 0", 1)],
)
def test_the_exit_code_is_the_scripts(watch: Run, ending: str, exit_code: int) -> None:
    code, report = watch(f"import sys\n{ending}")
    assert code == exit_code
    assert report["exit_code"] == exit_code
    assert report["is_complete"]


def test_a_crash_shows_the_scripts_own_frames(
    watch: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = watch("import torch\ndef f():\n    torch.ones(2).sum().backward()\nf()\n")
    errors = capsys.readouterr().err
    assert code == 1
    assert "RuntimeError" in errors
    assert 'script.py", line 3, in f' in errors
    assert "stepladder/watch" not in errors.partition("stepladder watch:")[0]
    assert "RuntimeError" in report["ending"]


def test_the_script_sees_what_python_would_give_it(
    watch: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("X = 5\n", encoding="utf-8")
    watch(
        "import sys, beside\nprint(sys.argv, __name__, __file__, sys.path[0], beside.X)\n"
        "import __main__\nprint(__main__.__dict__ is globals())\n",
        args=("-x", "1"),
    )
    out = capsys.readouterr().out.splitlines()
    assert out == [f"['script.py', '-x', '1'] __main__ {tmp_path}/script.py {tmp_path} 5", "True"]


def test_steps_end_the_script_with_its_own_clean_up(
    watch: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = (
        "import torch\np = torch.nn.Parameter(torch.ones(2))\no = torch.optim.SGD([p], 0.1)\n"
        "try:\n    while True:\n        o.zero_grad()\n        p.sum().backward()\n"
        "        o.step()\nexcept Exception:\n    print('swallowed')\nfinally:\n    print('end')\n"
    )
    code, report = watch(loop, "--steps", "25")
    assert code == 0
    assert report["num_steps"] == 25
    assert capsys.readouterr().out == "end\n"
    assert "requested number of steps" in report["ending"]


def test_a_script_without_torch_imports_none(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import sys\nprint('torch' in sys.modules)\n", encoding="utf-8")
    done = python("-m", "stepladder", "watch", "a.py", folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout == "False\n"
    assert "did not import torch" in done.stderr


def test_a_module_runs_as_python_m_would(
    watch: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "job.py").write_text(
        "import sys\nprint(__name__, __package__, sys.argv[1:])\n", encoding="utf-8"
    )
    assert main(["watch", "--out", "seen", "-m", "package.job", "--", "x"]) == 0
    assert capsys.readouterr().out == "__main__ package ['x']\n"


def test_a_missing_script_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "no_such.py"]) == 2
    assert "no_such.py: the script does not exist" in capsys.readouterr().err
    assert main(["watch"]) == 2
    assert main(["watch", "--steps", "0", __file__]) == 2
    assert main(["watch", "no_such_launcher", "-u", "train.py", "--lr", "1"]) == 2
    assert "Start with the script: stepladder watch train.py" in capsys.readouterr().err


STEPS = """
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
import torch

def train(num=8):
    p = torch.nn.Parameter(torch.ones(2))
    o = torch.optim.SGD([p], 0.1)
    for _ in range(num):
        o.zero_grad()
        p.sum().backward()
        o.step()

"""


# Imports once, then forks a process for each folder: one script alone, while only torch is
# imported, and a watch that ends by itself.
NURSERY = """
import os, runpy, sys
import torch
import sympy, torch._dynamo  # what the first optimizer imports

def run(folder, act):
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        sys.exit(act())
    status = os.waitpid(pid, 0)[1]
    with open(folder + "/exit_code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(status)))

def alone():
    sys.stdout = open("said", "w")
    sys.argv = ["train.py", "a", "--b"]
    runpy.run_path("train.py", run_name="__main__")

run(sys.argv[1], alone)

import stepladder.checks.order, stepladder.cli.commands.watch, stepladder.watching.script.session
import stepladder.api.watch, stepladder.reporting.pages.watch_page
from stepladder.cli.main import main
from stepladder.reporting.html import script

for folder in sys.argv[2:]:
    run(folder, lambda: main(["watch", "a.py"]))
"""
ALONE = "alone"
SIGTERM = "SIGTERM"
ENDINGS = {
    "stderr closed": ("train()\nsys.stderr.close()", 0),
    "stdout closed": ("train()\nsys.stdout.close()\nsys.stderr = None", 0),
    "os._exit": ("train()\nos._exit(3)", 3),
    "exec": (
        "train()\nos.execv(sys.executable, [sys.executable, '-c', 'raise SystemExit(5)'])",
        5,
    ),
    SIGTERM: ("train()\nos.kill(os.getpid(), signal.SIGTERM)\ntrain(10**9)", -signal.SIGTERM),
    "a thread": ("threading.Thread(target=train).start()", 0),
    "a pool": ("pool = ThreadPoolExecutor(1)\npool.submit(train)", 0),
}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each way to exit, with the watched script, and one of a script alone."""
    root = tmp_path_factory.mktemp("endings")
    (root / ALONE).mkdir()
    (root / ALONE / "train.py").write_text(TRAIN, encoding="utf-8")
    for name, (code, _) in ENDINGS.items():
        (root / name).mkdir()
        (root / name / "a.py").write_text(STEPS + code, encoding="utf-8")
    assert python("-c", NURSERY, ALONE, *ENDINGS, folder=root).returncode == 0
    return root


@pytest.mark.parametrize("ending", ENDINGS)
def test_however_a_script_leaves_its_code_and_a_report_are_kept(left: Path, ending: str) -> None:
    folder = left / ending
    assert int((folder / "exit_code").read_text()) == ENDINGS[ending][1]
    report = json.loads((folder / "watch-a" / "watch.json").read_text())
    assert report["is_complete"]
    assert report["num_steps"] == 8
    assert (folder / "watch-a" / "watch.html").exists()


def test_sigterm_is_the_ending_in_the_report_and_on_a_page_made_again(left: Path) -> None:
    report = json.loads((left / SIGTERM / "watch-a" / "watch.json").read_text())
    assert "signal 15" in report["ending"]
    page = left / SIGTERM / "watch-a" / "watch.html"
    page.unlink()
    assert main(["report", str(page.parent)]) == 0
    assert "signal 15" in page.read_text(encoding="utf-8")


def test_a_forked_child_leaves_no_report_of_its_own(watch: Run, tmp_path: Path) -> None:
    code, report = watch(
        "import os, sys, torch\np = torch.nn.Parameter(torch.ones(2))\no = torch.optim.SGD([p], "
        "0.1)\nfor _ in range(5):\n    o.zero_grad(); p.sum().backward(); o.step()\nchild = "
        "os.fork()\nif child == 0:\n    o.zero_grad(); p.sum().backward(); o.step()\n    "
        "os._exit(9)\nprint(os.waitpid(child, 0)[1] >> 8)\n"
    )
    assert code == 0
    assert report["num_steps"] == 5
    assert sorted(path.name for path in (tmp_path / "seen").iterdir()) == [
        "watch.html",
        "watch.json",
    ]


def test_json_goes_to_stderr_and_stdout_stays_the_scripts(
    watch: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    watch("print('mine')", "--json")
    shown = capsys.readouterr()
    assert shown.out == "mine\n"
    assert json.loads(shown.err)["exit_code"] == 0


def test_the_help_says_where_json_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["watch", "--help"])
    assert "to stderr; stdout is the script's" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('ran')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian.py", "Did you mean train.py?"),
        ("quite_another", "Pass the path of a Python file."),
        ("gone/train.py", "The folder gone does not exist either."),
        (".", ".: this is a folder, not a script\n  Pass a script in it: train.py."),
        ("--out train.py train.py", "train.py: the report needs a folder, but this is a file"),
        ("--out train.py/a/b train.py", "train.py: the report needs a folder, but this is a file"),
        ("--out /proc/x train.py", "/proc/x: the folder cannot be created"),
        ("--out /proc train.py", "/proc: the folder cannot be created or is not writable"),
        ("--out /proc/x train.py", "Choose another folder: --out FOLDER."),
    ],
)
def test_a_wrong_path_is_reported(
    folder: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", *words.split()]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert not shown.out
    assert [path.name for path in folder.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "README.md",
            "# Mine\n\nIt learns quickly.\n",
            "README.md:3: the script is not a valid Python file",
        ),
        (
            "run.sh",
            "#!/bin/sh\npython train.py\n",
            "run.sh:2: the script is not a valid Python file",
        ),
        (
            "bad.py",
            "x = 1\nif x\n    y = 2\n",
            "bad.py:2: the script is not a valid Python file: expected ':'",
        ),
        ("weights.pt", "PK\0\1", "weights.pt: the script is not a valid Python file"),
    ],
)
def test_what_is_not_python_is_refused_before_anything_is_made(
    folder: Path, name: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).write_text(text)
    before = sorted(folder.iterdir())
    assert main(["watch", name]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(said)
    assert ("Fix the syntax error" if name == "bad.py" else "`stepladder watch train.py`") in shown
    assert sorted(folder.iterdir()) == before


def test_a_module_that_is_not_python_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "half_written").mkdir()
    (folder / "half_written" / "__init__.py").write_text("(\n")
    (folder / "unclosed.py").write_text("x = 1\n(\n")
    for module, line in (("half_written.job", "__init__.py:1"), ("unclosed", "unclosed.py:2")):
        assert main(["watch", "-m", module]) == 2
        shown = capsys.readouterr().err
        assert f"{line}: the script is not a valid Python file: '(' was never closed" in shown
        assert "Fix the syntax error" in shown
    assert not list(folder.glob("watch-*"))


def test_a_syntax_error_while_a_script_runs_is_the_scripts_own(watch: Run) -> None:
    code, report = watch("exec('(')")
    assert code == 1
    assert report["ending"] == "it raised SyntaxError"


@pytest.mark.usefixtures("watch")
def test_a_report_replaces_reports_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = folder / "own"
    own.mkdir()
    for name, text in (("watch.json", '{"paths": []}'), ("watch.html", "<title>Mine</title>")):
        (own / name).write_text(text)
        assert main(["watch", "--out", "own", "train.py"]) == 2
        assert f"own/{name}: the file already exists" in capsys.readouterr().err
        assert (own / name).read_text() == text
        (own / name).unlink()
    for _ in range(2):
        assert main(["watch", "train.py"]) == 0


@pytest.mark.parametrize(
    ("code", "first"),
    [
        (
            "import torch\nraise ValueError('3 columns\\nof 4')",
            "the script crashed at script.py:2: ValueError: 3 columns",
        ),
        (
            "import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)",
            "the script crashed at script.py:2: RuntimeError: mat1 and mat2 shapes cannot be",
        ),
        ("import json\njson.loads('{')", "the script crashed at script.py:2: JSONDecodeError: "),
        ("import no_such_module", "the script crashed at script.py:1: ModuleNotFoundError: "),
        (
            "import sys\ndef main():\n    sys.exit('no data in photos')\nmain()",
            "the script crashed at script.py:3: SystemExit: no data in photos",
        ),
        ("assert 1 > 2", "the script crashed at script.py:1: AssertionError"),
        ("exec('(')", "the script crashed at script.py:1: SyntaxError: '(' was never closed"),
        ("raise SystemExit(3)", "the script did not run to completion: it exited with code 3"),
    ],
)
def test_a_crash_is_the_first_line(
    watch: Run, capsys: pytest.CaptureFixture[str], code: str, first: str
) -> None:
    exit_code, report = watch(code)
    assert exit_code == report["exit_code"] != 0
    lines = capsys.readouterr().err.splitlines()
    own = next(idx for idx, line in enumerate(lines) if line.startswith("stepladder watch: "))
    assert lines[own].startswith(f"stepladder watch: {first}")
    assert lines[own + 1].startswith("  0 steps in ")
    assert ", until then: 0 errors" in lines[own + 1]


def test_a_crash_after_some_steps_heads_the_page(watch: Run, tmp_path: Path) -> None:
    watch(TRAIN.replace("sys.exit(3)", "raise KeyError('best')"))
    page = (tmp_path / "seen" / "watch.html").read_text()
    assert "<h1>The script crashed</h1>" in page
    assert "KeyError: &#39;best&#39;" in page or "KeyError: 'best'" in page
    assert "No alarms" not in page


def test_a_crash_in_a_watched_block_is_the_first_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import stepladder

    with pytest.raises(ZeroDivisionError), stepladder.watch(folder / "out"):
        1 / 0  # noqa: B018
    assert capsys.readouterr().err.startswith(
        "stepladder watch: the script crashed at test_watch.py:"
    )
