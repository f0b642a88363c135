"""Command lines that name a script, followed by its own arguments."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def split(argv: Sequence[str], with_value: Collection[str]) -> tuple[list[str], list[str]]:
    """Split a command line into our arguments and the script's, which follow its name or a `--`.

    Args:
        argv: after the command.
        with_value: our flags that take a value.
    """
    idx = 0
    while idx < len(argv):
        word = argv[idx]
        is_named = word in ("-m", "--module") or word.startswith("--module=")
        idx += 2 if word in with_value else 1
        if is_named or not word.startswith("-"):
            rest = list(argv[idx:])
            return list(argv[:idx]), rest[1:] if rest[:1] == ["--"] else rest
    return list(argv), []
