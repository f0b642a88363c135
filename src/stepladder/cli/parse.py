"""A command's dataclass to flags and help, by tyro."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import tyro
from tyro.conf import FlagCreatePairsOff
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from stepladder.config.checks import BadValueError
from stepladder.config.load import settings_of_file
from stepladder.config.options import JobConfig
from stepladder.config.resolve import Setting, settings_of_flags
from stepladder.config.schema import build, options
from stepladder.errors import UsageError
from stepladder.records import to_json

if TYPE_CHECKING:
    from stepladder.training.output.display import Display

T = TypeVar("T")
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]B)", re.ASCII | re.IGNORECASE)
_TRUTHS = frozenset({"true", "false", "yes", "no", "on", "off"})
Switch = Annotated[bool, FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
"""A flag that is given or not; it has no `--no-` form."""
Unprefixed = tyro.conf.arg(name="")
"""For a group whose options stand at the top level of the flags."""
RUN = tyro.conf.arg(metavar="RUN")
CONFIG_FLAG = tyro.conf.arg(name="config", metavar="CONFIG.yaml")


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is printed."""

    json: Switch = False
    """Print JSON, for programs."""
    quiet: Switch = False
    """Print warnings and errors only."""
    debug: Switch = False
    """Print the full trace of an error."""

    def display(self) -> Display:
        """Return where progress goes."""
        from stepladder.training.output.display import make_display

        return make_display(json=self.json, quiet=self.quiet)

    def print_result(self, value: object, text: str) -> None:
        """Print what was asked for, whatever --quiet says."""
        write(json.dumps(to_json(value), indent=2) if self.json else text)

    def print_done(self, facts: Mapping[str, object], text: str) -> None:
        """Print what was done: a line of JSON, or text unless --quiet."""
        if self.json:
            write(json.dumps(to_json(facts)))
        elif not self.quiet:
            write(text)


def parse(flags: type[T], argv: Sequence[str], *, command: str, default: T | None = None) -> T:
    """Read a command's flags; prints help or a usage error and exits where that is called for.

    Args:
        argv: the words after the command.
        flags: the dataclass of the command; its docstring is the description in the help.
        command: its name.
        default: the values where a flag is not given; none: what the dataclass says.

    Raises:
        UsageError: if a flag without a value is given one.
        SystemExit: 0 after --help, 2 after a usage error that tyro has printed.
        BadValueError: if a value is out of range; names the flag.
    """
    _check_switches(flags, argv, command)
    try:
        return tyro.cli(
            flags,
            prog=f"stepladder {command}",
            description=inspect.getdoc(flags),
            args=list(argv),
            default=tyro.MISSING_NONPROP if default is None else default,
            config=(tyro.conf.EnumChoicesFromValues,),
            registry=_REGISTRY,
        )
    except BadValueError as error:
        key = error.key
        for found, flag in given_flags(argv, prefix=f"{command}.").items():
            if found == key:
                error.where, error.what = flag, error.what.removeprefix(f"{key}: ")
        raise


def one_file(flag: Path | None, word: Path | None) -> Path | None:
    """Return the file of options that --config or a word of its own names.

    Raises:
        UsageError: if both do.
    """
    if flag is not None and word is not None:
        what = f"--config names {flag}, another file of options"
        raise UsageError(what, where=str(word), fix="Give one of the two.")
    return flag or word


def _check_switches(flags: type[T], argv: Sequence[str], command: str) -> None:
    """Refuse `--stopping.early false` and `--fresh=yes`, where the value would pass for a file."""
    listed = (*fields(flags), *fields(Output))  # type: ignore[arg-type]
    own = {field.name for field in listed if field.default is False}
    for word, follower in zip_longest(argv, argv[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        if not flag.startswith("--"):
            continue
        key = next(iter(given_flags([flag], prefix=f"{command}.")), None)
        is_option = key is not None and isinstance(options()[key].default, bool)
        takes_none = is_option or flag[2:].replace("-", "_") in own
        if not takes_none or not (equals or follower.lower() in _TRUTHS):
            continue
        group, dot, name = flag[2:].rpartition(".")
        name = name.removeprefix("no-").removeprefix("no_")
        other = f"--{group}{dot}no-{name}" if is_option else "leave it out"
        raise UsageError(
            f"{value if equals else follower}: this flag takes no value",
            where=flag,
            fix=f"Write --{group}{dot}{name}, or {other}.",
        )


def given_flags(argv: Sequence[str], *, prefix: str = "") -> dict[str, str]:
    """Find the options of the config that are named on a command line, key to flag as typed.

    Args:
        argv: the words after the command.
        prefix: the group whose options may stand without its name, such as `prepare.`.
    """
    found: dict[str, str] = {}
    for word in argv:
        if not word.startswith("--"):
            continue
        flag = word.partition("=")[0]
        name = flag[2:].replace("-", "_")
        head, dot, last = name.rpartition(".")
        positive = head + dot + last.removeprefix("no_")  # --stopping.no-early
        for key in (f"{prefix}{name}", f"{prefix}{positive}", name, positive):
            if key in options():
                found[key] = flag
                break
    return found


def flag_settings(job: JobConfig, given: dict[str, str]) -> dict[str, Setting]:
    """Take the options that flags gave out of the job that tyro made."""
    return settings_of_flags(
        {key: (flag, options()[key].value(job)) for key, flag in given.items()}
    )


def job_before_flags(argv: Sequence[str]) -> JobConfig:
    """Read the config file that a command line names, so that its values are the flags' defaults.

    Only a file that stands first or after --config is found here; one between flags is found by
    the full parse.
    """
    file = config_file(argv)
    if file is None:
        return JobConfig()
    settings = settings_of_file(file)
    try:
        return build({key: setting.value for key, setting in settings.items()}, JobConfig())
    except BadValueError:
        return JobConfig()  # a flag may replace it; else `resolve` says where it stands


def config_file(argv: Sequence[str]) -> Path | None:
    """Find the config file of a command line without knowing its flags."""
    for idx, word in enumerate(argv):
        if word == "--config" and idx + 1 < len(argv):
            return Path(argv[idx + 1])
        if word.startswith("--config="):
            return Path(word.partition("=")[2])
    return Path(argv[0]) if argv and is_config(argv[0]) else None


def is_config(word: str) -> bool:
    """Return True if a word names a YAML file."""
    return not word.startswith("-") and Path(word).suffix.lower() in (".yaml", ".yml")


def write(text: str) -> None:
    """Print a result."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _none_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[None] | None:
    """Take `none` in any case where tyro takes only `None`."""
    if info.type is not type(None):
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="none",
        instance_from_str=_none_of,
        is_instance=lambda value: value is None,
        str_from_instance=lambda _: ["none"],
    )


@_REGISTRY.primitive_rule
def _whole_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Take whole numbers, and say in words what is none; sizes may have a unit."""
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=_whole_of,
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def _whole_of(words: list[str]) -> int:
    try:
        return int(words[0])
    except ValueError:
        size = _SIZE.fullmatch(words[0].strip())
        if size is None:
            raise ValueError(
                f"{words[0]!r} is no whole number, such as 64, nor a size, such as 20GB"
            ) from None
        return round(float(size[1]) * _UNITS[size[2].upper()])


def _none_of(words: list[str]) -> None:
    if words[0].lower() != "none":
        raise ValueError(f"{words[0]} is not none")
