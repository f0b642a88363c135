"""Read each example once, and keep it in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import MadeLoader, ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings

_MAX_MEMORY_FRAC = 0.5
KEEPER = '''
class InMemory(torch.utils.data.Dataset):
    """Keeps each example after its first read."""

    def __init__(self, examples):
        self.examples, self.kept = examples, {}

    def __getattr__(self, name):
        if name.startswith("__"):  # such as __getitems__, which would read again
            raise AttributeError(name)
        return getattr(self.__dict__["examples"], name)

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, idx):
        if idx not in self.kept:
            self.kept[idx] = self.examples[idx]
        return self.kept[idx]
'''.strip()


class ExamplesInMemory(ScriptRung):
    """Keep decoded examples, where reading one twice gives the same and draws no random numbers.

    Trades: memory for all examples; the first epoch is as slow as before.
    """

    name: ClassVar[str] = "examples_in_memory"
    level: ClassVar[int] = 8
    needs_climb: ClassVar[bool] = True
    exactness: ClassVar[Exactness] = Exactness.BITWISE
    remark: ClassVar[str] = "from the second epoch on"

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        loader = facts.training_loader
        if settings.examples_in_memory:
            return "already on"
        if loader is None or loader.place is None:
            return "training reads from no DataLoader that the script makes itself"
        return _why_not_kept(loader, facts.memory_bytes)

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict that reading is free after the first epoch, a bound."""
        wait = min(0.98, facts.shares.get("data_wait", 0.0))
        return Prediction(
            rung=self.name,
            gain=1 / (1 - wait),
            provenance=Provenance.MODELLED,
            inputs={"data_wait_share": wait},
            note="at most the wait for data, from the second epoch on",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:
        """Return the settings with it."""
        loader = facts.training_loader
        place = loader.place.key if loader is not None and loader.place is not None else None
        return replace(settings, examples_in_memory=True, loader=place)

    def warm_up(self, facts: ScriptFacts) -> int:
        """Return the steps of an epoch, in which examples are read as before."""
        loader = facts.training_loader
        num = loader.num_examples if loader is not None else None
        return -(-num // facts.batch_size) if num and facts.batch_size else 0

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:  # noqa: ARG002
        """Return a small class, put around the dataset."""
        loader = facts.training_loader
        if loader is None or loader.place is None or not loader.place.is_direct:
            return "a library makes the loader"
        return (
            Edit(rung=self.name, spot=Spot.START, text=KEEPER, imports=("torch",)),
            Edit(rung=self.name, spot=Spot.AROUND, place=loader.place, text="InMemory"),
        )


def _why_not_kept(loader: MadeLoader, memory_bytes: int) -> str | None:
    """Return why the examples of a loader cannot be kept in memory; None: they can."""
    if loader.is_stream:
        return "the dataset is a stream, whose examples have no index"
    if loader.num_workers and not loader.keeps_workers:
        return "the loader's processes end with each pass (persistent_workers=False)"
    if loader.why_not_kept is not None:
        return loader.why_not_kept
    if loader.num_examples is None or loader.example_bytes is None:
        return "the size of the examples is not known"
    num_bytes = loader.num_examples * loader.example_bytes * max(1, loader.num_workers)
    if num_bytes > _MAX_MEMORY_FRAC * memory_bytes:
        return (
            f"all examples take {num_bytes / 1e9:.3g} GB, more than half of the free memory "
            f"({memory_bytes / 1e9:.3g} GB)"
        )
    return None
