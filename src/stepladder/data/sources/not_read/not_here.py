"""Files whose content is elsewhere, with what to type: links, and pointers such as of Git LFS."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stepladder.data.sources.labels.labels_elsewhere import typed
from stepladder.data.sources.walk import OF_ANNEX, OF_DVC, OUTSIDE, Skipped

_FETCHES: Final = {OF_ANNEX: "git annex get .", OF_DVC: "dvc pull"}


def remedy(skipped: Skipped, root: Path) -> str | None:
    """Return what to type if no pictures can be read, by what was skipped; None if unknown."""
    if OUTSIDE in skipped.counts:
        return f"To follow these links: stepladder prepare {typed(root)} --follow-symlinks"
    found = next((_FETCHES[reason] for reason in _FETCHES if reason in skipped.counts), None)
    if found is not None:
        return fetch(root, found)
    return skipped.conversion(str(root))


def advice(skipped: Skipped, root: Path) -> str | None:
    """Return what to type for the files that were skipped beside pictures; None if unknown."""
    if OUTSIDE in skipped.counts:
        return "To follow these links, add --follow-symlinks --overwrite to the command"
    for reason, command in _FETCHES.items():
        if reason in skipped.counts:
            return f"To download their content: (cd {typed(root)} && {command})"
    return skipped.conversion(str(root), is_beside_pictures=True)


def fetch(root: Path, command: str) -> str:
    """Return what to type to download the content of files in a folder, and to read them."""
    place = typed(root)
    return f"Download their content: (cd {place} && {command}) && stepladder prepare {place}"


def pull_lfs(source: Path) -> str:
    """Return how to download the files to which pointers of Git LFS refer."""
    folder = (source if source.is_dir() else source.parent).expanduser()
    above = folder.absolute()
    if any((place / ".git").exists() for place in (above, *above.parents)):
        return (
            f"Download the files themselves: git lfs install && git -C "
            f"{typed(folder)} lfs pull && stepladder prepare {typed(source)}"
        )
    return (
        "Clone the repository that these files are from, as this folder is in no repository and a "
        "ZIP of one has pointers only; in the clone, type: git lfs install && git lfs pull"
    )
