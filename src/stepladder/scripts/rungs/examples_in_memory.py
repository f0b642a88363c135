"""Read each example once, and keep it in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final

from stepladder.records.ladder import Exactness, Prediction
from stepladder.records.profile import Provenance
from stepladder.records.script import MadeLoader, ScriptFacts
from stepladder.scripts.contract import Edit, ScriptRung, Spot
from stepladder.scripts.settings import MAX_MEMORY_FRAC, Settings

_NO_WORKERS: Final = {
    "prefetch_factor": "None",
    "multiprocessing_context": "None",
    "timeout": "0",
    "persistent_workers": "False",
}
_MAX_READERS: Final = 16
_MIN_READING_S: Final = 1.0
KEEPER: Final = '''
class InMemory(torch.utils.data.Dataset):
    """Keeps each example after its first read; what is returned may be changed."""

    def __init__(self, examples):
        self.examples, self.kept = examples, {}

    def __getattr__(self, name):
        if name.startswith("__"):  # such as __getitems__, which would read again
            raise AttributeError(name)
        return getattr(self.__dict__["examples"], name)

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, idx):
        try:
            at = operator.index(idx)
        except TypeError:  # a slice, or several
            return self.examples[idx]
        if at not in self.kept:
            self.kept[at] = self.examples[idx]
        return copy.deepcopy(self.kept[at])
'''.strip()
_ROWS = '''
class RowsInMemory(InMemory):
    """DOCSTRING."""

    columns = None

    def __getitems__(self, indices):  # called by the loader
HERE
        return functools.partial(rows_of, self.columns, torch.as_tensor(indices))

    @staticmethod
    def collate(batch):
        return batch() if callable(batch) else torch.utils.data.default_collate(batch)


def rows_of(columns, rows):
    if isinstance(columns, dict):
        return {name: rows_of(one, rows) for name, one in columns.items()}
    if isinstance(columns, list):
        return [rows_of(one, rows) for one in columns]
    return columns[rows]
'''.strip()
_WHEN_READ: Final = """
        if self.columns is None and len(self.kept) < 0.9 * len(self):
            return [self[idx] for idx in indices]
        if self.columns is None:
            examples = [self[idx] for idx in range(len(self))]
            self.columns = torch.utils.data.default_collate(examples)
            self.kept.clear()
""".strip("\n")
_AT_ONCE: Final = """
        if self.columns is None:
            loader = torch.utils.data.DataLoader(
                self.examples,
                batch_size=64,
                num_workers=READERS,
                multiprocessing_context="fork",
                generator=torch.Generator(),
            )
            self.columns = joined([copy.deepcopy(batch) for batch in loader])
""".strip("\n")
_JOINED: Final = """
def joined(parts):
    if isinstance(parts[0], dict):
        return {name: joined([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], list):
        return [joined(ones) for ones in zip(*parts)]
    return torch.cat(list(parts))
""".strip()
ROWS: Final = _ROWS.replace(
    "DOCSTRING", "Takes batches as rows of whole columns, once most examples are kept"
).replace("HERE", _WHEN_READ)


def rows_at_once(readers: int) -> str:
    """Return the class that reads all examples in several processes."""
    about = "Reads all examples first, in processes; batches are rows of whole columns"
    here = _AT_ONCE.replace("READERS", str(readers))
    return f"{_ROWS.replace('DOCSTRING', about).replace('HERE', here)}\n\n\n{_JOINED}"


class ExamplesInMemory(ScriptRung):
    """Keep decoded examples, where reading one twice gives the same and draws no random numbers.

    Where torch's default function makes the batches, they are rows of whole columns, if there is
    memory for both; where reading takes long, as many processes as there are cores read all
    examples before the first batch, unless the dataset holds an open file. Other loaders that exist
    when training begins, such as that of validation, keep theirs too. Worker processes that end
    with each pass are left out: this process reads.

    Trades: memory for all examples; the first epoch is as slow as before, or slower without worker
    processes.
    """

    name: ClassVar[str] = "examples_in_memory"
    level: ClassVar[int] = 8
    costs_once: ClassVar[bool] = True
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
        why_not = _why_not_kept(facts, loader.place.key)
        if why_not is not None:
            return why_not
        num_bytes = _num_bytes(facts, loader.place.key)
        if num_bytes > _most_bytes(facts):
            return (
                f"all examples take {num_bytes / 1e9:.3g} GB, more than half of the free memory "
                f"({facts.memory_bytes / 1e9:.3g} GB)"
            )
        return None

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
        keys, rows = _keys(facts), []
        left = _most_bytes(facts) - sum(_num_bytes(facts, key) for key in keys)
        for key in keys:  # columns are made beside the examples
            num_bytes = _num_bytes(facts, key)
            if num_bytes <= left and all(one.has_rows for one in _of(facts, key)):
                rows.append(key)
                left -= num_bytes
        return replace(
            settings,
            examples_in_memory=True,
            memory_loaders=tuple(keys),
            row_loaders=tuple(rows),
            memory_readers=_readers(facts, rows),
        )

    def warm_up(self, facts: ScriptFacts) -> int:
        """Return the steps of an epoch, in which examples are read as before."""
        return facts.steps_per_epoch

    def edits(self, facts: ScriptFacts, settings: Settings) -> tuple[Edit, ...] | str:
        """Return a small class, put around the datasets."""
        edits: list[Edit] = []
        starts: dict[tuple[str, str], Edit] = {}
        for key in settings.memory_loaders:
            loader = next(iter(_of(facts, key)), None)
            if loader is None or loader.place is None or not loader.place.is_direct:
                return "a library makes the loader"
            has_rows = key in settings.row_loaders
            classes = {KEEPER: ("copy", "operator", "torch")} | (
                _of_rows(settings) if has_rows else {}
            )
            for text, imports in classes.items():
                starts[loader.place.file, text] = Edit(
                    rung=self.name,
                    spot=Spot.START,
                    place=loader.place,
                    text=text,
                    imports=imports,
                )
            around = "RowsInMemory" if has_rows else "InMemory"
            edits.append(Edit(rung=self.name, spot=Spot.AROUND, place=loader.place, text=around))
            arguments = {"collate_fn": "RowsInMemory.collate"} if has_rows else {}
            if loader.num_workers and not loader.keeps_workers:
                arguments["num_workers"] = "0"
                arguments |= {name: _NO_WORKERS[name] for name in loader.worker_options}
            edits += [
                Edit(rung=self.name, spot=Spot.ARGUMENT, place=loader.place, name=name, text=value)
                for name, value in arguments.items()
            ]
        return (*starts.values(), *edits)


def _of_rows(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return the text of the class for rows, with its imports."""
    if settings.memory_readers:
        return {rows_at_once(settings.memory_readers): ("copy", "functools", "torch")}
    return {ROWS: ("functools", "torch")}


def _readers(facts: ScriptFacts, keys: Sequence[str]) -> int:
    """Return how many processes read all examples of some loaders; 0: they are read in turn."""
    loaders = [one for key in keys for one in _of(facts, key)]
    seconds = sum((one.num_examples or 0) * (one.example_s or 0.0) for one in loaders)
    is_possible = all(
        one.can_be_read_apart
        and "multiprocessing_context" not in one.worker_options
        and not (one.num_workers and one.keeps_workers)  # these may start no processes
        for one in loaders
    )
    num = min(facts.num_cores, _MAX_READERS)
    return num if is_possible and num > 1 and seconds > _MIN_READING_S else 0


def _of(facts: ScriptFacts, key: str) -> list[MadeLoader]:
    """Return the loaders that a line makes."""
    return [one for one in facts.loaders if one.place is not None and one.place.key == key]


def _keys(facts: ScriptFacts) -> list[str]:
    """Return the lines of the training loader, and of further ones whose examples fit as well."""
    training = facts.training_loader
    if training is None or training.place is None:
        return []
    keys = [training.place.key]
    left = _most_bytes(facts) - _num_bytes(facts, training.place.key)
    for loader in facts.loaders:
        key = loader.place.key if loader.place is not None else None
        if key is None or key in keys or _why_not_kept(facts, key) is not None:
            continue
        num_bytes = _num_bytes(facts, key)
        is_direct = loader.place is not None and loader.place.is_direct
        if is_direct and num_bytes <= left:
            keys.append(key)
            left -= num_bytes
    return keys


def _most_bytes(facts: ScriptFacts) -> float:
    return MAX_MEMORY_FRAC * facts.memory_bytes


def _num_bytes(facts: ScriptFacts, key: str) -> float:
    """Return the memory that the examples of the loaders take that a line makes."""
    total = 0.0
    for one in _of(facts, key):
        copies = one.num_workers if one.num_workers and one.keeps_workers else 1
        total += (one.num_examples or 0) * (one.example_bytes or 0.0) * copies
    return total


def _why_not_kept(facts: ScriptFacts, key: str) -> str | None:
    """Return why the examples of the loaders that a line makes cannot be kept; None: they can."""
    for loader in _of(facts, key):
        if loader.is_stream:
            return "the dataset is a stream, whose examples have no index"
        if loader.why_not_kept is not None:
            return loader.why_not_kept
        if loader.num_examples is None or loader.example_bytes is None:
            return "the size of the examples is not known"
    return None
