"""Two configs of one run: what changed between its attempts, and whether it may."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from stepladder.config.yaml_file import entries, read_yaml
from stepladder.errors import UsageError

ABSENT: Final = "absent"
# What may change when a run is resumed: nothing of it changes what a step computes.
_FREE_GROUPS: Final = ("run.", "loader.", "prepare.", "ladder.")
_FREE_KEYS: Final = frozenset(
    {
        "data.store",  # a moved store has the same fingerprint, which is compared by itself
        "data.table_version",  # likewise
        "data.where",
        "data.verify_pages",
        "data.cache_dir",
        "data.max_cache_bytes",
        "device.threads",
        "schedule.max_epochs",
        "schedule.max_steps",
        "schedule.max_time_s",
        "schedule.horizon_epochs",
    }
)


def compare_configs(old_file: Path, new_text: str) -> list[str]:
    """List what changed since a config was written, as `schedule.max_epochs: 60 -> 90`.

    Returns:
        The changes that a resumed run may have; a key that one version lacks is among them.

    Raises:
        UsageError: if another key changed, or the horizon of the cosine with the epochs.
    """
    old = _flatten(old_file, read_yaml(old_file))
    new = _flatten(old_file, yaml.compose(new_text, Loader=yaml.SafeLoader))
    changes = {
        key: f"{key}: {old.get(key, ABSENT)} -> {new.get(key, ABSENT)}"
        for key in dict.fromkeys([*old, *new])
        if not _is_same(old.get(key), new.get(key))
    }
    refused = [
        change for key, change in changes.items() if key in old and key in new and not _is_free(key)
    ]
    if refused:
        more = [f"and {len(refused) - 5} more"] if len(refused) > 5 else []
        raise UsageError(
            "this folder holds a run of another config",
            where=str(old_file),
            why="\n  ".join(refused[:5] + more),
            fix="Add --overwrite to train again from the start, or choose another --run.dir.",
        )
    if _horizon(old) != _horizon(new):
        raise UsageError(
            "the learning rate's cosine would bend in the middle of the run",
            where=str(old_file),
            why=f"It falls over {_horizon(old)}, and would over {_horizon(new)}.",
            fix=f"{_keep_horizon(old)}, or choose another --run.dir.",
        )
    return list(changes.values())


def _is_free(key: str) -> bool:
    return key in _FREE_KEYS or key.startswith(_FREE_GROUPS)


def _flatten(file: Path, node: yaml.Node | None, prefix: str = "") -> dict[str, str]:
    """List the values of a document by dotted key, as they are written."""
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        is_scalar = isinstance(node, yaml.ScalarNode)
        return {prefix: str(node.value) if is_scalar else yaml.serialize(node).strip()}
    values: dict[str, str] = {}
    for name, _, value in entries(file, node):
        values |= _flatten(file, value, f"{prefix}.{name}" if prefix else name)
    return values


def _is_same(old: str | None, new: str | None) -> bool:
    if old == new or old is None or new is None:
        return old == new
    try:
        return float(old) == float(new)
    except ValueError:
        return False


def _horizon(values: dict[str, str]) -> str | None:
    """Say over what the learning rate falls, or None where it does not."""
    if values.get("schedule.kind") != "cosine":
        return None
    horizon = values.get("schedule.horizon_epochs", "null")
    if horizon != "null":
        return f"{horizon} epochs"
    steps = values.get("schedule.max_steps", "null")
    epochs = f"{values.get('schedule.max_epochs')} epochs"
    return epochs if steps == "null" else f"{steps} steps, {epochs} at most"


def _keep_horizon(values: dict[str, str]) -> str:
    """Say what to type so that the learning rate goes on falling as it did."""
    horizon = _horizon(values)
    if horizon and horizon.endswith("epochs"):
        return f"Add --schedule.horizon-epochs {horizon.removesuffix(' epochs')}"
    return "Leave schedule.max_steps and schedule.max_epochs as they were"
