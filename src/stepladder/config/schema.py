"""All options in one flat table, by dotted key, read from the dataclasses.

The groups of the Recipe are at the top level: `batch.lr` is the field `lr` of
`JobConfig.recipe.batch`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from stepladder.config.options import JobConfig
from stepladder.config.values import Wanted, wanted_of
from stepladder.records import to_json

_FLATTENED = "recipe"
ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "data": "data.store",
        "model": "model.name",
        "epochs": "schedule.max_epochs",
        "batch_size": "batch.global_batch_size",
        "lr": "batch.lr",
        "devices": "device.count",
        "launch": "run.launch",
        "all_reduce": "device.all_reduce",
        "buckets": "device.buckets",
    }
)
"""Short names of options, as flags and in calls."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One field of the config.

    Attributes:
        key: dotted name, as in YAML and Python.
        path: attribute names from a JobConfig to the field.
        wanted: its valid types.
        default: its value if it is not set.
        group: the dataclass that defines it.
    """

    key: str
    path: tuple[str, ...]
    wanted: Wanted
    default: object
    group: type

    @property
    def flag(self) -> str:
        """The name of the command-line flag."""
        return "--" + self.key.replace("_", "-")

    def value(self, job: JobConfig) -> Any:
        """Return the value of the option in a job."""
        return functools.reduce(getattr, self.path, job)


@functools.cache
def options() -> Mapping[str, Option]:
    """Return all options by key, in the order of a written file."""
    return MappingProxyType({option.key: option for option in _walk(JobConfig, ())})


def values_of(job: JobConfig) -> dict[str, Any]:
    """Return each option's value as plain JSON, by dotted key."""
    return {key: to_json(option.value(job)) for key, option in options().items()}


def group_names() -> tuple[str, ...]:
    """Return the names of the groups at the top level of a file."""
    return tuple(dict.fromkeys(key.partition(".")[0] for key in options() if "." in key))


def build(values: Mapping[str, object], base: JobConfig) -> JobConfig:
    """Return a job with some options replaced; each group is validated once.

    Raises:
        BadValueError: if a value is out of range.
    """
    changes: dict[tuple[str, ...], dict[str, object]] = {}
    for key, value in values.items():
        *group, name = options()[key].path
        changes.setdefault(tuple(group), {})[name] = value
    result = _rebuilt(base, (), changes)
    assert isinstance(result, JobConfig)
    return result


def field_docs(group: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass, by field name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(group))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            constant = below.value if isinstance(below, ast.Expr) else None
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                docs[field.target.id] = inspect.cleandoc(constant.value)
    return docs


def _walk(group: type, path: tuple[str, ...]) -> Iterator[Option]:
    hints = typing.get_type_hints(group)
    for field in dataclasses.fields(group):
        inner = (*path, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _walk(typing.cast(type, hints[field.name]), inner)
            continue
        yield Option(
            key=".".join(name for name in inner if name != _FLATTENED),
            path=inner,
            wanted=wanted_of(hints[field.name]),
            default=field.default,
            group=group,
        )


def _rebuilt(
    value: Any, path: tuple[str, ...], changes: Mapping[tuple[str, ...], Mapping[str, object]]
) -> Any:
    """Replace the changed fields of a group and of the groups below it."""
    replaced = dict(changes.get(path, {}))
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            below = _rebuilt(inner, (*path, field.name), changes)
            if below is not inner:
                replaced[field.name] = below
    return dataclasses.replace(value, **replaced) if replaced else value
