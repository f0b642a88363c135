"""`stepladder scaling`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.api.scaling import scale_job
from stepladder.cli.job_flags import LadderFlags, print_config, read_job
from stepladder.config.recipe import DeviceConfig
from stepladder.errors import UsageError

_LIST = re.compile(r"\d+(,\d+)+")
_LAYOUT = re.compile(r"(\d+)x(\d+)")


@dataclass(frozen=True, kw_only=True)
class Flags(LadderFlags):
    """Measure efficiency on 1, 2, 4, … devices, and what the rest of it is lost to.

    Each part is measured by real steps with one thing removed: the exchange of gradients, reading,
    the other devices. The page and the numbers are in the run folder: scaling.html, scaling.json.

    Examples:
      stepladder scaling demo.yaml --devices 4            1, 2 and 4 devices of this machine
      stepladder scaling demo.yaml --devices 1,3          one and three
      stepladder scaling demo.yaml --devices 4 --layouts 8x1,2x4
                                                          and predict several machines
    """

    devices: int = DeviceConfig.count
    """Largest number of devices; 1, 2, 4, … up to it are measured. Or a list, such as 1,2,4. More
    than this machine has are predicted."""
    layouts: str = ""
    """Machines x devices to predict, such as 8x1,1x4; the network is --ladder.network-gbit-s."""


def run(argv: list[str]) -> int:
    """Run the command."""
    words, counts = _counts_in(argv)
    flags, resolved = read_job(Flags, words, command="scaling")
    layouts = _layouts_of(flags.layouts)
    if flags.show_config:
        return print_config(resolved, flags.output)
    from stepladder.training.output.display import Display
    from stepladder.training.output.make_display import make_display

    quiet = flags.output.quiet or flags.output.json
    with make_display(quiet=quiet) as display:
        assert isinstance(display, Display)
        found, text = scale_job(
            resolved.job, task=flags.task, counts=counts, layouts=layouts, display=display
        )
    flags.output.print_result(found, text)
    return 0


def _counts_in(argv: Sequence[str]) -> tuple[list[str], tuple[int, ...] | None]:
    """Return the arguments with the largest number of `--devices 1,2,4`, and the list.

    Raises:
        UsageError: if a number is 0.
    """
    words, counts = list(argv), None
    for idx, word in enumerate(words):
        flag, equals, value = word.partition("=")
        at = idx if equals else idx + 1
        if flag != "--devices" or at >= len(words):
            continue
        value = value if equals else words[at]
        if _LIST.fullmatch(value):
            counts = tuple(sorted({int(number) for number in value.split(",")}))
            if counts[0] < 1:
                raise UsageError(
                    f"{value}: a number of devices is 1 or more",
                    where="--devices",
                    fix="Write the numbers with commas, such as 1,2,4.",
                )
            words[at] = f"{flag}={counts[-1]}" if equals else str(counts[-1])
    return words, counts


def _layouts_of(text: str) -> tuple[tuple[int, int], ...]:
    """Return machines and devices of `8x1,1x4`.

    Raises:
        UsageError: if it is written in another way.
    """
    found = []
    for part in text.split(",") if text else ():
        match = _LAYOUT.fullmatch(part.strip())
        if match is None or not (int(match[1]) and int(match[2])):
            raise UsageError(
                f"{part!r} is not machines x devices",
                where="--layouts",
                fix="Write 8x1 for 8 machines with 1 device each; several with commas: 8x1,1x4.",
            )
        found.append((int(match[1]), int(match[2])))
    return tuple(found)
