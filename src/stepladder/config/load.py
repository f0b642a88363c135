"""Read the settings of a YAML file, each with its file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from stepladder.config.options import JobConfig
from stepladder.config.resolve import Setting, find_option, resolve
from stepladder.config.schema import Option, group_names, options
from stepladder.config.values import UnfitValueError, from_yaml
from stepladder.config.yaml_file import entries, place, read_yaml
from stepladder.errors import UsageError

LISTED: Final = ("population.genes",)
"""Options with text that can also be written as a group: one name with its value per line."""


def load_job(path: Path) -> JobConfig:
    """Read a YAML config; options that it does not set keep their defaults.

    Raises:
        UsageError: if the file is not valid; names the file and line.
    """
    return resolve(settings_of_file(path)).job


def settings_of_file(path: Path) -> dict[str, Setting]:
    """Return the settings of a YAML file.

    Raises:
        UsageError: if the file is not valid; names the file and line.
    """
    top = read_yaml(path)
    found: dict[str, Setting] = {}
    if top is None:
        return found
    for name, key, value in entries(path, top):
        if name in group_names():
            for inner, inner_key, inner_value in _group(path, name, value):
                option = find_option(f"{name}.{inner}", where=place(path, inner_key))
                found[option.key] = _read(path, option, inner_value)
        else:
            option = find_option(name, where=place(path, key))
            if "." in name:
                group, _, rest = option.key.partition(".")
                raise UsageError(
                    f"{name}: dotted names are not supported in YAML",
                    where=place(path, key),
                    fix=f"Write `{group}:`, and `{rest}:` indented below it.",
                )
            found[option.key] = _read(path, option, value)
    return found


def _group(path: Path, name: str, node: yaml.Node) -> list[tuple[str, yaml.Node, yaml.Node]]:
    """Return the entries of a group; empty if the group has no value."""
    if isinstance(node, yaml.MappingNode):
        return list(entries(path, node))
    if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
        return []
    names = [key.partition(".")[2] for key in options() if key.startswith(f"{name}.")]
    raise UsageError(
        f"{name} is a group of options, and cannot have a value itself",
        where=place(path, node),
        fix=f"Indent its options below it: {', '.join(names)}.",
    )


def _listed(path: Path, option: Option, node: yaml.MappingNode) -> str:
    """Return the lines of a group as one text, `name value, name value`.

    Raises:
        UsageError: if a line has no single value.
    """
    found = []
    for name, key, value in entries(path, node):
        if not isinstance(value, yaml.ScalarNode):
            raise UsageError(
                f"{name} of {option.key} has no single value",
                where=place(path, key),
                fix=f"Write one value after the colon, such as `{name}: 0..1`.",
            )
        found.append(f"{name} {value.value}".strip())
    return ", ".join(found)


def _read(path: Path, option: Option, node: yaml.Node) -> Setting:
    where = place(path, node)
    if isinstance(node, yaml.MappingNode) and option.key in LISTED:
        return Setting(value=_listed(path, option, node), origin=where)
    if not isinstance(node, yaml.ScalarNode):
        kind = "a list" if isinstance(node, yaml.SequenceNode) else "a group"
        raise UsageError(
            f"the value of {option.key} is {kind}; it must be {option.wanted}",
            where=where,
            fix="Write one value after the colon.",
        )
    try:
        return Setting(value=from_yaml(node, option.wanted), origin=where)
    except UnfitValueError as error:
        shown = node.value if node.style is None else f'"{node.value}"'
        raise UsageError(
            f"{option.key}: {shown or 'nothing'} is not {option.wanted}", where=where, fix=error.fix
        ) from None
