"""Keep what `__getitem__` reads before it draws random numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import MadeLoader, ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import Settings
from stepladder.scripts.split import KEPT, READ

_MIN_SHARE: Final = 0.1
_READ_ALL: Final = "read_all"
KEEPER: Final = f'''
def {KEPT}(read):
    """Keeps what a method reads, until an attribute changes; each call returns a copy."""

    @functools.wraps(read)
    def wrapper(self, idx):
        try:
            at = operator.index(idx)
        except TypeError:  # a slice, or several
            return read(self, idx)
        now = [(name, value) for name, value in vars(self).items() if name != "_kept"]
        ids = id(self), *((name, id(value)) for name, value in now)
        seen, _, kept = vars(self).get("_kept", (None, None, None))
        if seen != ids:
            kept = {{}}
            vars(self)["_kept"] = ids, now, kept
        if at not in kept:
            before, found = random_states(), read(self, idx)
            if random_states() != before:
                return found
            kept[at] = found
        return copy.deepcopy(kept[at])

    return wrapper


def random_states():
    """Returns what changes when a random number is drawn."""
    _, keys, *others = numpy.random.get_state()
    of_torch = torch.get_rng_state().numpy().tobytes()
    return random.getstate(), keys.tobytes(), others, of_torch
'''.strip()
ALL: Final = f'''
def {_READ_ALL}(dataset):
    """Reads all examples now, so that worker processes share them."""
    inner, indices = dataset, range(len(dataset))
    while not hasattr(inner, "{READ}"):
        own = getattr(inner, "indices", None)  # of a Subset
        inner = inner.dataset
        indices = [own[idx] for idx in indices] if own is not None else range(len(inner))
    for idx in indices:
        inner.{READ}(idx)
    return dataset
'''.strip()


class DecodedInMemory(ScriptRung):
    """Keep what a dataset reads and decodes, where a random augmentation follows.

    The `__getitem__` of the script's own dataset is split before the first statement that draws
    random numbers. What comes before runs once for each example. For worker processes, all examples
    are read before training begins.

    Trades: memory for what is kept; the first epoch, or the start, is as slow as before.
    """

    name: ClassVar[str] = "decoded_in_memory"
    level: ClassVar[int] = 8
    costs_once: ClassVar[bool] = True
    needs_climb: ClassVar[bool] = True
    exactness: ClassVar[Exactness] = Exactness.BITWISE
    remark: ClassVar[str] = "from the second epoch on"

    def why_not(self, facts: ScriptFacts, settings: Settings) -> str | None:
        """Return why it cannot be applied."""
        loader = facts.training_loader
        if settings.decoded_method is not None:
            return "already on"
        if settings.examples_in_memory:
            return "whole examples are kept in memory"
        if loader is None or loader.place is None:
            return "training reads from no DataLoader that the script makes itself"
        return _why_not_split(loader)

    def predict(self, facts: ScriptFacts, settings: Settings) -> Prediction:  # noqa: ARG002
        """Predict that the first part takes no time after the first epoch, a bound."""
        loader = facts.training_loader
        part = loader.first_part.share if loader is not None and loader.first_part else 0.0
        wait = min(0.98, facts.shares.get("data_wait", 0.0))
        return Prediction(
            rung=self.name,
            gain=1 / (1 - wait * part),
            provenance=Provenance.MODELLED,
            inputs={"data_wait_share": wait, "first_part_share": part},
            note="at most the part of the wait for data that is read once, from the second epoch",
        )

    def apply(self, facts: ScriptFacts, settings: Settings) -> Settings:
        """Return the settings with it."""
        loader = facts.training_loader
        if loader is None or loader.place is None or loader.first_part is None:
            return settings
        return replace(
            settings,
            decoded_method=loader.first_part.place.key,
            decoded_statements=loader.first_part.num_statements,
            decoded_first=loader.num_workers > 0,
            loader=loader.place.key,
        )

    def warm_up(self, facts: ScriptFacts) -> int:
        """Return the steps of an epoch, in which examples are read; 0 with worker processes."""
        loader = facts.training_loader
        return 0 if loader is not None and loader.num_workers else facts.steps_per_epoch

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:
        """Return a small decorator, and the method in two."""
        loader = facts.training_loader
        if loader is None or loader.place is None or loader.first_part is None:
            return "no loader is known"
        method = loader.first_part.place
        edits = [
            Edit(
                rung=self.name,
                spot=Spot.START,
                place=method,
                text=KEEPER,
                imports=("copy", "functools", "numpy", "operator", "random", "torch"),
            ),
            Edit(
                rung=self.name,
                spot=Spot.SPLIT,
                place=method,
                text=str(settings.decoded_statements),
            ),
        ]
        if settings.decoded_first:
            if not loader.place.is_direct:
                return "a library makes the loader"
            edits += [
                Edit(rung=self.name, spot=Spot.START, place=loader.place, text=ALL),
                Edit(rung=self.name, spot=Spot.AROUND, place=loader.place, text=_READ_ALL),
            ]
        return tuple(edits)


def _why_not_split(loader: MadeLoader) -> str | None:
    part = loader.first_part
    if part is None:
        return loader.why_no_part or "reading an example draws no random numbers"
    if part.share < _MIN_SHARE:
        return f"only {100 * part.share:.0f} % of reading comes before random numbers are drawn"
    return None
