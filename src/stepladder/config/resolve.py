"""Merge defaults, YAML and the arguments of a call or command line into a validated JobConfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit

from stepladder.config.checks import BadValueError
from stepladder.config.options import JobConfig
from stepladder.config.schema import ALIASES, Option, build, group_names, options
from stepladder.config.values import UnfitValueError, from_python, nearest
from stepladder.errors import UsageError

DEFAULT = "default"
CALL = "call"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value, and where it was set: `run.yaml:12`, `--batch.lr` or `call`."""

    value: object
    origin: str


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A validated config, and where each option was set."""

    job: JobConfig
    origins: Mapping[str, str]

    def origin(self, key: str) -> str:
        """Return where the value of an option was set."""
        return self.origins.get(key, DEFAULT)


def resolve(*layers: Mapping[str, Setting], base: JobConfig | None = None) -> Resolved:
    """Merge layers of settings into a base, later ones first, and validate the result.

    Raises:
        BadValueError: if a value is out of range; `where` is where it was set.
    """
    settings: dict[str, Setting] = {}
    for layer in layers:
        settings |= layer
    start = base or JobConfig()
    origins = {
        key: CALL for key, option in options().items() if option.value(start) != option.default
    }
    origins |= {key: setting.origin for key, setting in settings.items()}
    try:
        job = build({key: setting.value for key, setting in settings.items()}, start)
    except BadValueError as error:
        origin = origins.get(error.key, DEFAULT)
        if origin not in (DEFAULT, CALL):
            error.where = origin
        if origin.startswith("--"):
            error.what = error.what.removeprefix(f"{error.key}: ")
        raise
    _refuse_password(job, origins)
    return Resolved(job=job, origins=MappingProxyType(origins))


def settings_of_call(values: Mapping[str, object]) -> dict[str, Setting]:
    """Check the options of a Python call, given by their dotted or short names.

    Raises:
        UsageError: for an unknown name (suggests the closest one), a value of the wrong type, or an
            option that is given by both names.
    """
    found: dict[str, Setting] = {}
    for name, value in values.items():
        option = find_option(ALIASES.get(name, name))
        if option.key in found:
            raise UsageError(f"{option.key}: this option is set twice", fix="Set it only once.")
        found[option.key] = Setting(value=_checked(option, value, where=None), origin=CALL)
    return found


def settings_of_flags(values: Mapping[str, tuple[str, object]]) -> dict[str, Setting]:
    """Check the options of flags, given as key to (flag as typed, value).

    Raises:
        UsageError: for a value of the wrong type.
    """
    return {
        key: Setting(value=_checked(options()[key], value, where=flag), origin=flag)
        for key, (flag, value) in values.items()
    }


def _checked(option: Option, value: object, *, where: str | None) -> object:
    try:
        return from_python(value, option.wanted)
    except UnfitValueError as error:
        what = f"{value} is not {option.wanted}"
        raise UsageError(
            what if where else f"{option.key}: {what}", where=where, fix=error.fix
        ) from None


def _refuse_password(job: JobConfig, origins: Mapping[str, str]) -> None:
    """Reject passwords: the config is written to the run folder and into the report."""
    if job.run.mlflow_uri and urlsplit(job.run.mlflow_uri).password:
        origin = origins.get("run.mlflow_uri", CALL)
        raise UsageError(
            "run.mlflow_uri: the address contains a password, which would be saved with the run",
            where=None if origin == CALL else origin,
            fix="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead.",
        )


def find_option(key: str, *, where: str | None = None) -> Option:
    """Find an option by its dotted name.

    Raises:
        UsageError: if it does not exist; suggests the closest one.
    """
    name = key.replace("-", "_")
    option = options().get(name)
    if option is None:
        raise UsageError(f"{name}: there is no such option", where=where, fix=_suggestion(name))
    return option


def _suggestion(name: str) -> str | None:
    if name == "task":
        return "A Task can only be set on the command line: --task FILE.py:NAME."
    if name.startswith("recipe"):
        return "Put the groups of the recipe at the top level, such as `batch:`."
    if name in ALIASES and name not in group_names():
        return f"Did you mean {ALIASES[name]}?"
    if name in group_names():
        return f"{name} is a group; name one of its options, {name}.…"
    group, _, leaf = name.rpartition(".")
    same_leaf = [key for key in options() if key.rpartition(".")[2] == leaf]
    if same_leaf:
        return f"Did you mean {' or '.join(same_leaf)}?"
    siblings = [key for key in options() if group and key.startswith(f"{group}.")]
    top = [key for key in options() if "." not in key]
    return nearest(name, siblings or [*top, *group_names()])
