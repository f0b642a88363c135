"""`stepladder completion`.

This does not use tyro's completion: tyro 1.0.17 does not complete file names of positional
arguments, and starts Python on every TAB.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from tyro.conf import Positional

from stepladder.cli.commands import COMMANDS, Command
from stepladder.cli.parse import Output, Unprefixed, parse, write
from stepladder.cli.unknown import flag_names


class Shell(StrEnum):
    """A shell with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Print a completion script for commands, flags and file names.

    Examples:
      stepladder completion bash > ~/.local/share/bash-completion/completions/stepladder
      stepladder completion zsh > ~/.zfunc/_stepladder
      stepladder completion fish > ~/.config/fish/completions/stepladder.fish
    """

    shell: Positional[Shell]
    """The shell to print the script for."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    shell = parse(Flags, argv, command="completion").shell
    write(_WRITERS[shell](flags_of_commands()))
    return 0


def flags_of_commands() -> dict[str, list[str]]:
    """Return the long flags of each command."""
    return {
        command.name: sorted({"--help", *(f for f in _flags(command) if f.startswith("--"))})
        for command in COMMANDS
    }


def _flags(command: Command) -> Iterator[str]:
    module = importlib.import_module(command.module)
    for flags in (module.Flags, *getattr(module, "OTHER_FLAGS", ())):
        yield from flag_names(flags)


def _bash(flags: Mapping[str, list[str]]) -> str:
    cases = [f'    {name}) words="{" ".join(words)}" ;;' for name, words in flags.items()]
    return "\n".join(
        [
            "_stepladder() {",
            '  local word="${COMP_WORDS[COMP_CWORD]}" words=""',
            '  case "${COMP_WORDS[1]}" in',
            *cases,
            "  esac",
            f'  [ "$COMP_CWORD" -eq 1 ] && words="{" ".join(flags)}"',
            '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
            '  [ "$COMP_CWORD" -gt 1 ] && [ "${word#-}" = "$word" ] && '
            'COMPREPLY=($(compgen -f -- "$word"))',
            "}",
            "complete -o filenames -F _stepladder stepladder",
        ]
    )


def _zsh(flags: Mapping[str, list[str]]) -> str:
    cases = [f"    {name}) compadd -- {' '.join(words)} ;;" for name, words in flags.items()]
    return "\n".join(
        [
            "#compdef stepladder",
            "_stepladder() {",
            f"  if (( CURRENT == 2 )); then compadd -- {' '.join(flags)}; return; fi",
            '  if [[ "$words[CURRENT]" != -* ]]; then _files; return; fi',
            '  case "$words[2]" in',
            *cases,
            "  esac",
            "}",
            'if [ "$funcstack[1]" = "_stepladder" ]; then _stepladder "$@"',
            "else compdef _stepladder stepladder; fi",
        ]
    )


def _fish(flags: Mapping[str, list[str]]) -> str:
    lines = []
    for command in COMMANDS:
        summary = command.summary.replace("'", r"\'")
        listed = f"-f -n __fish_use_subcommand -a {command.name} -d '{summary}'"
        lines.append(f"complete -c stepladder {listed}")
    for name, words in flags.items():
        seen = f"'__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c stepladder -n {seen} -l {word[2:]}" for word in words]
    return "\n".join(lines)


_WRITERS: Mapping[Shell, Callable[[Mapping[str, list[str]]], str]] = {
    Shell.BASH: _bash,
    Shell.ZSH: _zsh,
    Shell.FISH: _fish,
}
