"""`stepladder prepare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import tyro
from tyro.conf import Positional

from stepladder.api.runs import prepare
from stepladder.cli.job_flags import print_config
from stepladder.cli.kept_options import with_kept_options, with_whole_commands
from stepladder.cli.parse import (
    CONFIG_FLAG,
    Output,
    Switch,
    Unprefixed,
    flag_settings,
    given_flags,
    is_config,
    job_before_flags,
    one_file,
    parse,
)
from stepladder.config.choices import Split
from stepladder.config.load import settings_of_file
from stepladder.config.options import JobConfig, PrepareConfig
from stepladder.config.resolve import Resolved, resolve, settings_of_flags
from stepladder.data.remote.places import shown
from stepladder.errors import StepladderError

if TYPE_CHECKING:
    from stepladder.data.prepare.prepare import PrepareResult

_SHORT: Final = {
    "--from": "--source",
    "--into": "--out",
    "--output": "--out",
    "--output-dir": "--out",
    "--val": "--val-frac",
}


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Create a store from pictures in folders, a CSV, Parquet, Hugging Face, tars or a Delta table.

    Examples:
      stepladder prepare photos --out store              photos/CLASS/*.jpg
      stepladder prepare labels.csv --label-column kind  columns path and kind
      stepladder prepare photos --val 0.2                --val is short for --val-frac
      stepladder prepare photos --group-by folder        keep each folder in one split
      stepladder prepare run.yaml --size 96              options of a file; flags override it
      stepladder prepare --from 'shards/*.tar'           WebDataset; --from is short for --source
      stepladder prepare --from table --delta-version 3  an earlier version of a Delta table
      stepladder prepare --from shop.photos --source-format table --engine spark
                                                         a table of the Spark catalog
    """

    place: Annotated[Positional[Path | None], tyro.conf.arg(metavar="[SOURCE|CONFIG.yaml]")] = None
    """Folder of class folders or of train/val/test folders; CSV; files or folder of Parquet or
    WebDataset tars; Delta table; or a YAML file of options."""
    config_flag: Annotated[Path | None, CONFIG_FLAG] = None
    """YAML file of options; flags override it."""
    show_config: Switch = False
    """Print the value of each option and where it was set, and exit."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)
    prepare: Annotated[PrepareConfig, Unprefixed] = field(default_factory=PrepareConfig)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags, resolved = read(argv)
    if flags.show_config:
        return print_config(resolved, flags.output)
    display = flags.output.display()
    words = with_full_names(argv)
    display.complete = lambda said: with_whole_commands(with_kept_options(said, words), words)
    try:
        result = prepare(config=resolved.job.prepare, display=display)
    except StepladderError as error:
        error.why = error.why and with_kept_options(error.why, words)
        error.fix = error.fix and with_kept_options(error.fix, words)
        raise
    except KeyboardInterrupt:
        display.warning(
            "the store is not complete; type the same command to resume where it stopped"
        )
        raise
    flags.output.print_done({"event": "prepared", **vars(result)}, _result(result))
    return 0


def read(argv: list[str]) -> tuple[Flags, Resolved]:
    """Return the flags and the resolved config."""
    argv = with_full_names(argv)
    default = Flags(prepare=job_before_flags(argv).prepare)
    flags = parse(Flags, argv, command="prepare", default=default)
    file, place = flags.config_flag, flags.place
    if place is not None and is_config(str(place)):
        file, place = one_file(file, place), None
    given = given_flags(argv, prefix="prepare.")
    from_flags = flag_settings(JobConfig(prepare=flags.prepare), given)
    if place is not None:
        from_flags |= settings_of_flags({"prepare.source": ("SOURCE", place)})
    return flags, resolve(settings_of_file(file) if file else {}, from_flags)


def with_full_names(argv: Sequence[str]) -> list[str]:
    """Return the words of a command line with the names of options in the help."""
    words = [word.partition("=") for word in argv]
    return [
        _SHORT.get(flag.replace("_", "-"), flag) + equals + value for flag, equals, value in words
    ]


def _result(result: PrepareResult) -> str:
    manifest, wall_s = result.manifest, max(result.wall_s, 1e-9)
    counts = ", ".join(f"{manifest.num_rows(split):,} {split}" for split in Split)
    num_pictures = sum(manifest.num_rows(split) for split in Split)
    version = manifest.options.get("delta_version")
    lines = [f"store: {shown(result.folder)} ({len(manifest.classes)} classes; {counts})"]
    if result.is_up_to_date:
        lines.append("the store is up to date; nothing was written")
    else:
        pace = f"{(num_pictures - result.num_kept) / wall_s:,.0f}/s"
        lines.append(f"{num_pictures:,} pictures in {wall_s:.1f} s, {pace}")
        if result.num_kept:
            lines[-1] += f"; {result.num_kept:,} were kept from an interrupted run"
    if version is not None:
        lines.append(f"version {version} of the Delta table")
    if result.num_bad:
        were = "picture was" if result.num_bad == 1 else "pictures were"
        lines.append(f"{result.num_bad:,} unreadable {were} skipped (see quarantine.csv)")
    return "\n".join(lines)
