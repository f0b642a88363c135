"""COMMANDS: every command, in the order of `stepladder --help`.

A command is a line here and a module of its name in this folder, with `Flags` and `run`. The
dispatch, `--help`, the completion, docs/commands.md and the Python function `stepladder.NAME` come
from the line. `import stepladder` imports this file, so it imports nothing that takes time.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command.

    Attributes:
        name: what is typed after `stepladder`.
        group: its heading in docs/commands.md.
        summary: what it does, in a line.
        api: the file in `stepladder.api` with its Python function; None if it has none.
    """

    name: str
    group: str
    summary: str
    api: str | None = None

    @property
    def function(self) -> str:
        """The name of its Python function and of its module here: fit-recipe's is fit_recipe."""
        return self.name.replace("-", "_")

    @property
    def module(self) -> str:
        """The module with its `Flags` and `run`."""
        return f"stepladder.cli.commands.{self.function}"

    @property
    def home(self) -> str | None:
        """The module with its Python function."""
        return None if self.api is None else f"stepladder.api.{self.api}"


_DATA = "Projects and data"
_TRAIN = "Training"
_RESULTS = "Results"
_MODELS = "Trained models"
_CARE = "Maintenance"

COMMANDS = (
    Command("init", _DATA, "Write a small project of your own: config, Task, tests, CI."),
    Command("prepare", _DATA, "Make a store of a folder or a CSV of pictures.", "runs"),
    Command("publish", _DATA, "Make a store readable as a Delta table too.", "runs"),
    Command(
        "features",
        _DATA,
        "Compute the features of a frozen trunk now, here or by Spark.",
        "cached_features",
    ),
    Command("check", _TRAIN, "Look whether a job is sound, before its first step.", "checks"),
    Command(
        "train",
        _TRAIN,
        "Train a classifier, or resume where it stopped; then write the report.",
        "runs",
    ),
    Command(
        "climb", _TRAIN, "Try each speed-up in order, keep what pays, and train with it.", "ladder"
    ),
    Command(
        "fit-recipe",
        _TRAIN,
        "Grow the model until it overfits, then try remedies one by one, and train.",
        "ladder",
    ),
    Command(
        "advise",
        _TRAIN,
        "Name the one next thing that makes a job faster, with its predicted gain.",
        "ladder",
    ),
    Command(
        "watch",
        _TRAIN,
        "Run a training script of your own; say what is slow or wrong with it.",
        "watch",
    ),
    Command("ledger", _RESULTS, "Show predicted beside measured, over all climbs.", "ladder"),
    Command(
        "diagnose",
        _RESULTS,
        "Say how well a run fits, what would make it better, what its machine did.",
        "diagnosis",
    ),
    Command(
        "audit",
        _RESULTS,
        "Read a log that anybody wrote, and say what its numbers support.",
        "logs",
    ),
    Command(
        "compare", _RESULTS, "Compare trainings: a table, and their curves on one page.", "logs"
    ),
    Command("report", _RESULTS, "Write a run's report again.", "runs"),
    Command("predict", _MODELS, "Classify pictures by a trained run.", "runs"),
    Command("export", _MODELS, "Write a model that runs without this package.", "runs"),
    Command("verify", _CARE, "Look for damage in a store or a run.", "damage"),
    Command("doctor", _CARE, "Describe this machine and its software, to paste into an issue."),
    Command("clean", _CARE, "List, and remove with --yes, what interrupted work left behind."),
    Command("completion", _CARE, "Print a completion script for bash, zsh or fish."),
)
