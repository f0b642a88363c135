"""`import stepladder` and `--help` are fast and import no torch; nothing needs torchvision."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stepladder
from stepladder.cli.commands import COMMANDS

ROOT = Path(stepladder.__file__).parent
HEAVY = {
    "torch",
    "timm",
    "torchvision",
    "numpy",
    "pyarrow",
    "PIL",
    "onnx",
    "mlflow",
    "tensorboard",
    "jinja2",
}
MODULES = sorted(
    ".".join(("stepladder", *path.relative_to(ROOT).with_suffix("").parts))
    for path in ROOT.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)


def imported_after(code: str) -> set[str]:
    """Run code in a fresh Python and return the names of the imported modules."""
    code += "\nimport sys; sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stderr.split())


def called(*words: str) -> str:
    return (
        f"from stepladder.cli.main import main\ntry: main({list(words)})\nexcept SystemExit: pass"
    )


def test_import_brings_in_nothing_heavy() -> None:
    loaded = imported_after("import stepladder; stepladder.Recipe(); stepladder.train")
    assert not loaded & (HEAVY | {"tyro"})


def test_help_brings_in_nothing_heavy() -> None:
    loaded = imported_after(called("--help"))
    assert not loaded & (HEAVY | {"tyro", "rich", "yaml"})


def test_help_of_a_command_brings_in_nothing_heavy() -> None:
    """That of `train` in a fresh Python, those of the others in forks of it."""
    code = (
        "import os, sys\n"
        "from stepladder.cli.commands import COMMANDS\n"
        "from stepladder.cli.main import main\n"
        "def ask(command):\n"
        "    try:\n"
        "        code = main([command, '--help'])\n"
        "    except SystemExit as end:\n"
        "        code = end.code\n"
        f"    found = {HEAVY} & set(sys.modules)\n"
        "    assert not code and not found, (command, code, found)\n"
        "ask('train')\n"
        "for command in COMMANDS:\n"
        "    if os.fork() == 0:\n"
        "        sys.exit(ask(command.name))\n"
        "    os.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    names = [command.name for command in COMMANDS]
    assert [name for name in names if f"stepladder {name}" not in done.stdout] == []


def test_showing_the_config_brings_in_no_torch() -> None:
    assert "torch" not in imported_after(called("train", "--show-config"))


def test_public_names_are_what_they_say() -> None:
    """Also after importing every package: none replaces a function of its name."""
    code = (
        "import importlib, inspect, pkgutil\n"
        "import stepladder\n"
        "from stepladder.cli.commands import COMMANDS\n"
        "for found in pkgutil.iter_modules(stepladder.__path__, 'stepladder.'):\n"
        "    importlib.import_module(found.name)\n"
        "for command in COMMANDS:\n"
        "    if command.home is not None:\n"
        "        function = getattr(stepladder, command.function)\n"
        "        assert inspect.isfunction(function), command\n"
        "        assert function.__module__ == command.home, command\n"
        "for name in stepladder.__all__:\n"
        "    getattr(stepladder, name)\n"
        "from stepladder import train\n"
        "assert inspect.isfunction(train)\n"
        "assert set(stepladder.__all__) == set(dir(stepladder))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.thorough
def test_every_module_imports_where_optional_packages_are_broken() -> None:
    blocked = ("torchvision", "pynvml", "mlflow", "tensorboard", "onnx")
    code = (
        "import sys, importlib, warnings\n"
        "warnings.simplefilter('error')\n"
        f"for name in {blocked}: sys.modules[name] = None\n"
        f"for name in {MODULES}: importlib.import_module(name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        stepladder.trian  # noqa: B018
