"""Laws for COMMANDS: each command has help, examples that parse, a row in docs, and a function."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
import shlex
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import stepladder
from stepladder.cli import reference
from stepladder.cli.commands import COMMANDS, Command
from stepladder.cli.main import main
from stepladder.cli.parse import parse
from stepladder.cli.script_words import split
from stepladder.config.schema import field_docs

COMMANDS_AT = "stepladder.cli.commands"
ROOT = Path(__file__).parents[2]
each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)


def ended(*words: str) -> object:
    try:
        return main(words)
    except SystemExit as end:  # raised by tyro after help or a usage error
        return end.code


def examples(command: Command) -> Iterator[list[str]]:
    """Yield the words of each example, without comment and redirection."""
    _, _, block = flags_of(command).__doc__.partition("Examples:\n")
    for line in inspect.cleandoc(block).splitlines():
        if line.startswith("stepladder "):
            name, *words = shlex.split(re.split(r"  +| > ", line)[0])[1:]
            assert name == command.name
            yield words


def flags_of(command: Command) -> type:
    flags: type = importlib.import_module(command.module).Flags
    return flags


@each_command
def test_its_help_has_a_description_and_examples(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(command.name, "--help") == 0
    out = capsys.readouterr().out
    assert f"usage: stepladder {command.name}" in out
    assert f"Examples:\n  stepladder {command.name}" in out


@each_command
def test_its_examples_parse(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run.yaml", "demo.yaml", "job.yaml"):
        Path(name).touch()
    listed = list(examples(command))
    assert listed
    for words in listed:
        if hasattr(flags_of(command), "show_config"):
            shown = [word for word in words if word != "--show-config"]
            assert ended(command.name, *shown, "--show-config") == 0, words
        else:
            with_value = getattr(importlib.import_module(command.module), "WITH_VALUE", None)
            ours = words if with_value is None else split(words, with_value)[0]
            assert parse(flags_of(command), ours, command=command.name), words


@each_command
def test_an_unknown_flag_ends_with_2(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended(command.name, "--no-such-flag") == 2
    assert not list(tmp_path.iterdir())


@each_command
def test_every_flag_says_what_it_does(command: Command) -> None:
    docs: dict[str, str] = {}
    for kind in flags_of(command).__mro__[:-1]:
        docs = field_docs(kind) | docs
    groups = {"output", "recipe", "run", "ladder", "population", "prepare"}
    for field in dataclasses.fields(flags_of(command)):
        if field.default_factory is dataclasses.MISSING:
            assert docs[field.name].endswith("."), field.name
        else:
            assert field.name in groups


@each_command
def test_its_summary_fits_a_line_of_help(command: Command) -> None:
    assert command.summary.endswith(".")
    assert len(f"  {command.name:<12}{command.summary}") <= 100


def test_names_are_unique_and_every_module_with_flags_is_listed() -> None:
    listed = [command.module for command in COMMANDS]
    assert len(set(listed)) == len(listed)
    package = ROOT / "src" / "stepladder"
    files = [file for file in (package / "cli").rglob("*.py") if file.stem != "__init__"]
    modules = [
        ".".join(("stepladder", *file.relative_to(package).with_suffix("").parts)) for file in files
    ]
    assert {name for name in modules if hasattr(importlib.import_module(name), "Flags")} == {
        *listed
    }


def test_the_worked_example_of_the_page_is_a_command(
    build_store: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (ROOT / "docs" / "adding-a-command.md").read_text(encoding="utf-8")
    function, module = (part.partition("```")[0] for part in text.split("```python\n")[1:3])
    for name, code in (("stepladder.api.counts", function), (f"{COMMANDS_AT}.count", module)):
        (file := tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        spec = spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        monkeypatch.setitem(sys.modules, name, loaded := module_from_spec(spec))
        spec.loader.exec_module(loaded)
    (line,) = re.findall(r"^    Command\((.*)\),$", text, re.MULTILINE)
    command = Command(*ast.literal_eval(f"({line.replace('_DATA', '0')})"))
    test_its_summary_fits_a_line_of_help(command)
    build_store(tmp_path / "store", num_rows={"train": 7, "val": 3})
    run = importlib.import_module(command.module).run
    assert run([str(tmp_path / "store")]) == 0
    assert capsys.readouterr().out == f"train{7:>11}\nval{3:>13}\n"
    assert run([str(tmp_path / "store"), "--total", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"total": 10}


def test_the_page_of_commands_is_up_to_date() -> None:
    written = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    again = "python -m stepladder.cli.reference > docs/commands.md"
    assert written == reference.page(), again
    for command in COMMANDS:
        assert written.count(f"\n| [`{command.name}`](#{command.name}) |") == 1


def test_type_checkers_see_each_public_name_where_it_is() -> None:
    tree = ast.parse(Path(stepladder.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {
        name: getattr(stepladder, name).__module__
        for name in stepladder.__all__
        if name != "__version__"
    }
