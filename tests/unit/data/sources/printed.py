"""Commands that messages print, run as they are typed."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures


def commands_in(fix: str | None) -> list[str]:
    """Return the commands of a remedy: the end of each of its lines."""
    return [line.partition(": ")[2] for line in str(fix).splitlines()]


def typed_listing(command: str) -> Listing:
    """Run a command before `stepladder prepare` in a shell, and list what that reads."""
    edit, _, last = command.rpartition("stepladder prepare ")
    subprocess.run(["bash", "-c", edit.removesuffix(" && ") or ":"], check=True)
    source, *flags = shlex.split(last)
    options = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(flags[::2], flags[1::2], strict=True)
    }
    return list_pictures(PrepareConfig(source=Path(source), **options))
