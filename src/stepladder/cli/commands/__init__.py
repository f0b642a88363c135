"""COMMANDS: every command, in the order of `stepladder --help`.

A command is an entry here and a module with its name in this folder, with `Flags` and `run`. The
dispatch, `--help`, the completion, docs/commands.md and the Python function `stepladder.NAME` are
derived from the entry. `import stepladder` imports this file, so it must not import slow modules.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command.

    Attributes:
        name: what is typed after `stepladder`.
        group: its heading in docs/commands.md.
        summary: one-line description.
        api: the file in `stepladder.api` with its Python function; None if it has none.
    """

    name: str
    group: str
    summary: str
    api: str | None = None

    @property
    def function(self) -> str:
        """The name of its Python function and of its module, such as fit_recipe for fit-recipe."""
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
    Command("init", _DATA, "Write a job.yaml, or an example project: config, Task, tests, CI."),
    Command(
        "prepare",
        _DATA,
        "Create a store from pictures in folders, a CSV, Parquet or other formats.",
        "runs",
    ),
    Command(
        "publish", _DATA, "Publish a store as a Delta table, without copying its files.", "runs"
    ),
    Command(
        "features",
        _DATA,
        "Precompute the features of a frozen trunk, locally or on Spark.",
        "cached_features",
    ),
    Command("check", _TRAIN, "Check a job for mistakes before training it.", "checks"),
    Command(
        "train",
        _TRAIN,
        "Train a model, or resume an interrupted training; then write a report.",
        "runs",
    ),
    Command(
        "climb",
        _TRAIN,
        "Try speed-ups one by one, keep those that help, and train with them.",
        "ladder",
    ),
    Command(
        "fit-recipe",
        _TRAIN,
        "Grow the model until it overfits, try remedies one by one, and train.",
        "ladder",
    ),
    Command(
        "advise",
        _TRAIN,
        "Print the next step that would make a job faster, and its predicted gain.",
        "ladder",
    ),
    Command(
        "population",
        _TRAIN,
        "Train many models at once, move their settings meanwhile, and choose the best.",
        "population",
    ),
    Command(
        "scaling",
        _TRAIN,
        "Measure efficiency on 1, 2, 4, … devices, and where the rest is lost.",
        "scaling",
    ),
    Command(
        "bench-collectives",
        _TRAIN,
        "Time every way of adding up gradients between devices, with predictions.",
        "collectives",
    ),
    Command(
        "plan",
        _TRAIN,
        "Predict a training on other machines: time, price, and what limits it.",
        "plan",
    ),
    Command(
        "watch",
        _TRAIN,
        "Run an unmodified training script; report what is slow or wrong in it.",
        "watch",
    ),
    Command("run", _TRAIN, "Run an unmodified script with the speed-ups that a climb kept."),
    Command("ledger", _RESULTS, "Compare predicted and measured gains over all climbs.", "ladder"),
    Command(
        "diagnose",
        _RESULTS,
        "Diagnose a run: under- or overfitting, what to improve, use of the machine.",
        "diagnosis",
    ),
    Command(
        "audit",
        _RESULTS,
        "Read training logs of any tool, and report what their numbers support.",
        "logs",
    ),
    Command(
        "compare", _RESULTS, "Compare training runs: a table, and their curves on one page.", "logs"
    ),
    Command("report", _RESULTS, "Write a run's report again.", "runs"),
    Command("predict", _MODELS, "Classify pictures with a trained model.", "runs"),
    Command("export", _MODELS, "Export a trained model to ONNX or torch.export format.", "runs"),
    Command("verify", _CARE, "Check a store or a run for damaged files.", "damage"),
    Command("doctor", _CARE, "Print this machine's hardware and software, to paste into an issue."),
    Command(
        "clean",
        _CARE,
        "List files left behind by interrupted work and caches; remove them with --yes.",
    ),
    Command("completion", _CARE, "Print a completion script for bash, zsh or fish."),
)
