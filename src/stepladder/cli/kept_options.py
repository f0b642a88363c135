"""Add the user's options to the `stepladder prepare` commands in a message."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence, Set
from typing import Final

from stepladder.cli.parse import config_file, given_flags, is_config
from stepladder.config.schema import options

_WORD: Final = r"""(?:'[^']*'|"[^"]*"|[^\s'"])+"""
_COMMAND: Final = re.compile(rf"(?<=: |& )stepladder prepare (?!-)({_WORD})")
"""A command to type, after a colon or `&&`, up to its source; prose has neither before it."""
_ADD: Final = re.compile(rf"\badd (--{_WORD}(?: {_WORD})*?) to the command\b")
"""Options to add to the command that the user typed."""
_AGAIN: Final = re.compile(
    rf"\bthen prepare ({_WORD}) with the same options and ((?:{_WORD} )*?--overwrite)(?!\S)"
)
"""A copy of the source to prepare, and options to add to the command that the user typed."""
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
        typed = _without(argv, {word for word in added if _key(word)})
        is_twice = {_key(word) for word in typed} & {_key(word) for word in added} - {None}
        command = shlex.join(["stepladder", "prepare", *typed, *added])
        return match[0] if is_twice else f"type: {command}"

    def again(match: re.Match[str]) -> str:
        added = shlex.split(match[2])
        replaced = {_key(word) for word in added} - {None} | {"prepare.source"}
        flags = {word for word in argv if _key(word.partition("=")[0]) in replaced}
        kept = shlex.join(_without(argv, flags, keeps_source=False))
        words = filter(None, ("then type: stepladder prepare", match[1], kept, match[2]))
        return " ".join(words)

    return _AGAIN.sub(again, _ADD.sub(whole, text))


def _without(argv: Sequence[str], flags: Set[str], *, keeps_source: bool = True) -> list[str]:
    """Return what the user typed without some flags and their values.

    Args:
        argv: what the user typed after `prepare`.
        flags: the words to leave out.
        keeps_source: whether to keep a source that is typed without a flag.
    """
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        key = _key(word)
        takes_one = key == _CONFIG or (
            key is not None and not isinstance(options()[key].default, bool)
        )
        one = [word, *([next(words, "")] if takes_one and "=" not in word else [])]
        is_source = key is None and not word.startswith("-") and not is_config(word)
        if word not in flags and (keeps_source or not is_source):
            kept += one
    return kept


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
