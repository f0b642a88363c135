"""Defaults < YAML < what the call or the command line says, into one checked JobConfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import yaml

from stepladder.config.checks import BadValueError
from stepladder.config.options import JobConfig
from stepladder.config.schema import Option, build, group_names, options
from stepladder.config.values import UnfitValueError, from_python, from_yaml, nearest
from stepladder.config.yaml_file import entries, place, read_yaml
from stepladder.errors import UsageError

DEFAULT = "default"
CALL = "call"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value, and where it was said: `run.yaml:12`, `--batch.lr` or `call`."""

    value: object
    origin: str


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A checked config, and for each option that was said, where."""

    job: JobConfig
    origins: Mapping[str, str]

    def origin(self, key: str) -> str:
        """Say where the value of an option comes from."""
        return self.origins.get(key, DEFAULT)


def load_job(path: Path) -> JobConfig:
    """Read a YAML config over the defaults.

    Raises:
        UsageError: located by file and line.
    """
    return resolve(settings_of_file(path)).job


def resolve(*layers: Mapping[str, Setting], base: JobConfig | None = None) -> Resolved:
    """Put layers of settings over a base, later ones on top, and check the result.

    Raises:
        BadValueError: if a value is out of range; `where` says where it was given.
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
    """Check the options that a Python call gives by their dotted names.

    Raises:
        UsageError: for an unknown name (with the nearest) or a value of another type.
    """
    return {
        option.key: Setting(value=_checked(option, value, where=None), origin=CALL)
        for option, value in ((_find(key), value) for key, value in values.items())
    }


def settings_of_flags(values: Mapping[str, tuple[str, object]]) -> dict[str, Setting]:
    """Check the options that flags give: key to (flag as typed, value).

    Raises:
        UsageError: for a value that does not fit.
    """
    return {
        key: Setting(value=_checked(options()[key], value, where=flag), origin=flag)
        for key, (flag, value) in values.items()
    }


def settings_of_file(path: Path) -> dict[str, Setting]:
    """Read a YAML file's settings.

    Raises:
        UsageError: located by file and line.
    """
    top = read_yaml(path)
    found: dict[str, Setting] = {}
    if top is None:
        return found
    for name, key, value in entries(path, top):
        if name in group_names():
            for inner, inner_key, inner_value in _group(path, name, value):
                option = _find(f"{name}.{inner}", where=place(path, inner_key))
                found[option.key] = _read(path, option, inner_value)
        else:
            option = _find(name, where=place(path, key))
            if "." in name:
                group, _, rest = option.key.partition(".")
                raise UsageError(
                    f"{name}: groups are not joined with dots in YAML",
                    where=place(path, key),
                    fix=f"Write `{group}:`, and `{rest}:` indented below it.",
                )
            found[option.key] = _read(path, option, value)
    return found


def _group(path: Path, name: str, node: yaml.Node) -> list[tuple[str, yaml.Node, yaml.Node]]:
    """List the entries of a group; a group without a value has none."""
    if isinstance(node, yaml.MappingNode):
        return list(entries(path, node))
    if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
        return []
    names = [key.partition(".")[2] for key in options() if key.startswith(f"{name}.")]
    raise UsageError(
        f"{name}: this is a group, not a single value",
        where=place(path, node),
        fix=f"Below it, indented, may stand {', '.join(names)}.",
    )


def _read(path: Path, option: Option, node: yaml.Node) -> Setting:
    where = place(path, node)
    if not isinstance(node, yaml.ScalarNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a group"
        raise UsageError(f"{option.key}: {kind} is not {option.wanted}", where=where)
    try:
        return Setting(value=from_yaml(node, option.wanted), origin=where)
    except UnfitValueError as error:
        shown = node.value if node.style is None else f'"{node.value}"'
        raise UsageError(
            f"{option.key}: {shown or 'nothing'} is not {option.wanted}", where=where, fix=error.fix
        ) from None


def _checked(option: Option, value: object, *, where: str | None) -> object:
    try:
        return from_python(value, option.wanted)
    except UnfitValueError as error:
        what = f"{value} is not {option.wanted}"
        raise UsageError(
            what if where else f"{option.key}: {what}", where=where, fix=error.fix
        ) from None


def _refuse_password(job: JobConfig, origins: Mapping[str, str]) -> None:
    """Keep passwords out of the config: it is written beside the results and into the report."""
    if job.run.mlflow_uri and urlsplit(job.run.mlflow_uri).password:
        origin = origins.get("run.mlflow_uri", CALL)
        raise UsageError(
            "run.mlflow_uri: the address holds a password, which would reach the run folder",
            where=None if origin == CALL else origin,
            fix="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; MLflow reads them.",
        )


def _find(key: str, *, where: str | None = None) -> Option:
    """Find an option by its dotted name, or say which one was meant."""
    name = key.replace("-", "_")
    option = options().get(name)
    if option is None:
        raise UsageError(f"{name}: there is no such option", where=where, fix=_suggestion(name))
    return option


def _suggestion(name: str) -> str | None:
    if name == "task":
        return "A Task is given on the command line only: --task FILE.py:NAME."
    if name.startswith("recipe"):
        return "The recipe's groups stand at the top level, as in `batch:`."
    if name in group_names():
        return f"{name} is a group; its options are named as in {name}.…"
    group, _, leaf = name.rpartition(".")
    same_leaf = [key for key in options() if key.rpartition(".")[2] == leaf]
    if same_leaf:
        return f"Did you mean {' or '.join(same_leaf)}?"
    siblings = [key for key in options() if group and key.startswith(f"{group}.")]
    top = [key for key in options() if "." not in key]
    return nearest(name, siblings or [*top, *group_names()])
