"""Write a config as YAML, to save it with the results or to show where each value was set."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import yaml

from stepladder.config.options import JobConfig
from stepladder.config.resolve import Resolved
from stepladder.config.schema import options
from stepladder.records import to_json


def dump_job(job: JobConfig) -> str:
    """Return a job as YAML, in the order of the fields; loading it returns an equal job."""
    return "".join(f"{line}\n" for line, _ in _lines(job))


def show(resolved: Resolved) -> str:
    """Return a config as YAML, with the origin of each value as a comment."""
    lines = list(_lines(resolved.job))
    width = min(48, max(len(line) for line, _ in lines))
    text = []
    for line, key in lines:
        origin = resolved.origin(key).replace("\n", "\\n") if key else ""
        text.append(f"{line:<{width}}  # {origin}" if key else line)
    return "\n".join(text) + "\n"


def show_json(resolved: Resolved) -> dict[str, Any]:
    """Return each option's value and origin as plain JSON, by dotted key."""
    return {
        key: {"value": to_json(option.value(resolved.job)), "origin": resolved.origin(key)}
        for key, option in options().items()
    }


def _lines(job: JobConfig) -> list[tuple[str, str | None]]:
    """Return (line of YAML, key of its option or None for a group's name)."""
    lines: list[tuple[str, str | None]] = []
    group = ""
    for key, option in options().items():
        head, _, name = key.rpartition(".")
        if head and head != group:
            lines.append((f"{head}:", None))
        group = head
        indent = "  " if head else ""
        lines.append((f"{indent}{name or key}: {_scalar(option.value(job))}", key))
    return lines


def _scalar(value: object) -> str:
    """Return a value as one line of YAML."""
    return _written(value) if isinstance(value, tuple) else _scalar_once(value)


def _written(value: object) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, allow_unicode=True, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")


_scalar_once = lru_cache(maxsize=1024, typed=True)(_written)
"""Dumping a value takes 0.3 ms, and most of a job's hundred values are the defaults."""


class _Dumper(yaml.SafeDumper):
    """Dumps enums and paths as text, and the text "none" in quotes: unquoted, it means no value."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = '"' if value.lower() == "none" or not value.isprintable() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _path(dumper: yaml.SafeDumper, value: PurePath) -> yaml.ScalarNode:
    return _text(dumper, str(value))


def _enum(dumper: yaml.SafeDumper, value: StrEnum) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value.value)


_Dumper.add_representer(str, _text)
_Dumper.add_multi_representer(PurePath, _path)
_Dumper.add_multi_representer(StrEnum, _enum)
