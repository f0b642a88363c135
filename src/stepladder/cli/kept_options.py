"""Add the user's options to the `stepladder prepare` commands in a message."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from stepladder.cli.parse import config_file, given_flags
from stepladder.config.schema import options

_WORD: Final = r"""(?:'[^']*'|"[^"]*"|[^\s'"])+"""
_COMMAND: Final = re.compile(rf"(?<=: |& )stepladder prepare (?!-)({_WORD})")
"""A command to type, after a colon or `&&`, up to its source; prose has neither before it."""
_ADD: Final = re.compile(rf"\badd (--{_WORD}(?: {_WORD})*?) to the command\b")
"""Options to add to the command that the user typed."""
_OF_SOURCE: Final = frozenset(
    {"source", "source_format", "path_column", "image_column", "label_column", "split_column"}
    | {"columns", "path_format", "split_folders", "classes_from", "label_pattern"}
    | {"pixel_height", "pixel_width", "delta_version"}
)
"""How a source is read: a command in a message reads it, or another one, in another way."""
_CONFIG: Final = "config"


def with_kept_options(text: str, argv: Sequence[str]) -> str:
    """Return a message whose commands have the options that the user gave.

    Options that say how a source is read are left out, and those that a command has already.

    Args:
        text: the message.
        argv: what the user typed after `prepare`.
    """
    given = _given(argv)

    def add(match: re.Match[str]) -> str:
        source = match[1].rstrip(".,;:)") if match[1].strip(".,;:)") else match[1]
        end = match[1][len(source) :]
        known = [] if end else _flags(match.string[match.end() :])
        kept = [words for key, words in given.items() if key not in known]
        head = match[0].removesuffix(match[1]) + source
        return " ".join((head, *map(shlex.join, kept))) + end

    return _COMMAND.sub(add, text)


def with_whole_commands(text: str, argv: Sequence[str]) -> str:
    """Return a message in which options to add are written with the whole command.

    If the user gave one of them already, the message is unchanged.

    Args:
        text: the message, such as `add --val-frac 0.2 --overwrite to the command`.
        argv: what the user typed after `prepare`.
    """

    def whole(match: re.Match[str]) -> str:
        added = shlex.split(match[1])
        typed = [word for word in argv if word not in added or _key(word) is None]
        is_twice = {_key(word) for word in typed} & {_key(word) for word in added} - {None}
        command = shlex.join(["stepladder", "prepare", *typed, *added])
        return match[0] if is_twice else f"type: {command}"

    return _ADD.sub(whole, text)


def _given(argv: Sequence[str]) -> dict[str, list[str]]:
    """Return the words of each option to keep, by its key."""
    given: dict[str, list[str]] = {}
    file = config_file(argv)
    if file is not None:
        given[_CONFIG] = ["--config", str(file)]
    for word, follower in zip(argv, [*argv[1:], ""], strict=True):
        key = _key(word)
        if key is None or key == _CONFIG or key.removeprefix("prepare.") in _OF_SOURCE:
            continue
        takes_none = "=" in word or isinstance(options()[key].default, bool)
        given[key] = [word] if takes_none else [word, follower]
    return given


def _flags(rest: str) -> set[str]:
    """Return the options of a command, given what follows its source in the message."""
    found: set[str] = set()
    for word in re.findall(rf"\n|{_WORD}", rest):
        if word in {"\n", "&&", "||", "|", ";"}:
            break
        key = _key(word.rstrip(".,;"))
        found |= {key} if key else set()
        if word[-1] in ".;" and not word.startswith("-"):
            break
    return found


def _key(word: str) -> str | None:
    if re.match("--config(=|$)", word):
        return _CONFIG
    return next(iter(given_flags([word], prefix="prepare.")), None)
