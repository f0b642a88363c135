"""Make flags and help from the dataclass of a command, with tyro."""

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

from stepladder.cli.outer_launchers import refuse_outer_launchers
from stepladder.cli.unknown import refuse_unknown
from stepladder.config.checks import BadValueError
from stepladder.config.choices import Auto
from stepladder.config.load import settings_of_file
from stepladder.config.options import JobConfig
from stepladder.config.resolve import Setting, settings_of_flags
from stepladder.config.schema import build, options
from stepladder.errors import UsageError
from stepladder.machine.activity import printed
from stepladder.records import to_json

if TYPE_CHECKING:
    from stepladder.training.output.display import Display

T = TypeVar("T")
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]B)", re.ASCII | re.IGNORECASE)
_TRUTHS = {
    **dict.fromkeys(("true", "yes", "on"), "True"),
    **dict.fromkeys(("false", "no", "off"), "False"),
}
_AUTO_VALUES = {**_TRUTHS, Auto.AUTO.value: Auto.AUTO.value}
Switch = Annotated[bool, FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
"""A boolean flag without a `--no-` form."""
Unprefixed = tyro.conf.arg(name="")
"""Marks a group whose options are flags without a prefix."""
RUN = tyro.conf.arg(metavar="RUN")
CONFIG_FLAG = tyro.conf.arg(name="config", metavar="CONFIG.yaml")


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is printed."""

    json: Switch = False
    """Print JSON."""
    quiet: Switch = False
    """Print only warnings and errors."""
    debug: Switch = False
    """Print the full traceback of an error."""

    def display(self) -> Display:
        """Return the display for progress."""
        from stepladder.training.output.make_display import make_display

        return make_display(json=self.json, quiet=self.quiet)

    def print_result(self, value: object, text: str) -> None:
        """Print the result of a command, also with --quiet."""
        write(json.dumps(to_json(value), indent=2) if self.json else text)

    def print_done(self, facts: Mapping[str, object], text: str) -> None:
        """Print what was done, as a line of JSON, or as text unless --quiet is set."""
        if self.json:
            write(json.dumps(to_json(facts)))
        elif not self.quiet:
            write(text)


def parse(flags: type[T], argv: Sequence[str], *, command: str, default: T | None = None) -> T:
    """Parse the flags of a command; prints help or a usage error and exits if necessary.

    Args:
        argv: the arguments after the command.
        flags: the dataclass of the command; its docstring is the description in the help.
        command: the name of the command.
        default: the values of flags that are not given; None: the defaults of the dataclass.

    Raises:
        UsageError: if a boolean flag is given a value, or a flag does not exist.
        SystemExit: 0 after --help, 2 after a usage error that tyro has printed.
        BadValueError: if a value is out of range; has the flag.
    """
    argv = _with_values(argv, command)
    refuse_unknown(flags, argv, command=command)
    refuse_outer_launchers(argv, command=command)
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
    """Return the file of options given by --config or as an argument.

    Raises:
        UsageError: if both are given.
    """
    if flag is not None and word is not None:
        what = f"there are two files of options: this one, and {flag}, which --config names"
        raise UsageError(what, where=str(word), fix="Pass only one of the two files.")
    return flag or word


def _with_values(argv: Sequence[str], command: str) -> list[str]:
    """Return words in which each switch that may be auto has a value."""
    words: list[str] = []
    left = list(argv)
    while left:
        word = left.pop(0)
        key = next(iter(given_flags([word], prefix=f"{command}.")), None)
        if key is None or not {bool, Auto} <= {*options()[key].wanted.kinds}:
            words.append(word)
            continue
        flag, equals, value = word.partition("=")
        group, dot, name = flag[2:].rpartition(".")
        plain = name.removeprefix("no-").removeprefix("no_")
        if plain == name and not equals and left and left[0].lower() in _AUTO_VALUES:
            value = left.pop(0)
        known = "False" if plain != name else _AUTO_VALUES.get(value.lower() or "true", value)
        words.append(f"--{group}{dot}{plain}={known}")
    return words


def _check_switches(flags: type[T], argv: Sequence[str], command: str) -> None:
    """Reject `--stopping.early false` and `--fresh=yes`; the value would be parsed as a file."""
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
    """Return the config options on a command line, from key to flag as typed.

    Args:
        argv: the arguments after the command.
        prefix: the group whose options may be given without its name, such as `prepare.`.
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
    """Return the settings of the given flags, with the values of the job that tyro parsed."""
    return settings_of_flags(
        {key: (flag, options()[key].value(job)) for key, flag in given.items()}
    )


def job_before_flags(argv: Sequence[str]) -> JobConfig:
    """Read the config file of a command line, so that its values are the defaults of the flags.

    This only finds a file that is the first argument or follows --config; the full parse finds one
    between flags.
    """
    file = config_file(argv)
    if file is None:
        return JobConfig()
    settings = settings_of_file(file)
    try:
        return build({key: setting.value for key, setting in settings.items()}, JobConfig())
    except BadValueError:
        return JobConfig()  # a flag may override it; else `resolve` raises with its line


def config_file(argv: Sequence[str]) -> Path | None:
    """Return the config file of a command line, without parsing its flags."""
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
    printed()
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _none_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[None] | None:
    """Accept `none` in any case; tyro accepts only `None`."""
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
    """Parse whole numbers, with a readable error; sizes may have a unit."""
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
                f"{words[0]!r} is not a whole number, such as 64, or a size, such as 20GB"
            ) from None
        return round(float(size[1]) * _UNITS[size[2].upper()])


def _none_of(words: list[str]) -> None:
    if words[0].lower() != "none":
        raise ValueError(f"{words[0]} is not none")
