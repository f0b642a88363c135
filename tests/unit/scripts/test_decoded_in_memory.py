"""Splitting `__getitem__`: what is read is kept, and random numbers are drawn as before."""

from __future__ import annotations

import copy
import functools
import linecache
import operator
import random
import re
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import libcst as cst
import numpy
import pytest
import torch

from stepladder.scripts.contract import ScriptRung
from stepladder.scripts.inside.decoded import first_part_of, kept_in_memory, read_all
from stepladder.scripts.rungs.decoded_in_memory import ALL, KEEPER
from stepladder.scripts.settings import Settings
from stepladder.scripts.split import num_statements, split
from stepladder.watching.script.own_code import OwnCode

RUNG = "decoded_in_memory"
SCRIPT = textwrap.dedent(
    '''
    import random

    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset, Subset

    random.seed(0)
    torch.manual_seed(0)


    class Pictures(Dataset):
        """Pictures that are mirrored at random."""

        def __init__(self, train):
            self.train = train

        def __len__(self):
            return 40

        def __getitem__(self, i):
            """Return a picture."""
            # read it
            with open("reads.txt", "a") as file:
                file.write(".")
            label = i % 2
            picture = np.random.default_rng(i).standard_normal((3, 8)).astype("float32")
            for _ in range(200):  # a slow file
                picture = np.sort(picture, axis=1)
            x = torch.from_numpy(picture)
            if self.train and random.random() < 0.5:
                x[0] = 0
                x = torch.flip(x, dims=[1])
            return x, label


    data = Subset(Pictures(train=True), range(32))
    held_out = DataLoader(Pictures(train=False), batch_size=8)
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=WORKERS)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(24, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in loader:
            opt.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            print(f"{loss.item():.9f}")
        for x, y in held_out:
            print(f"{net(x).sum().item():.6f}")
    '''
).lstrip()


def test_the_losses_are_the_same(climber: Callable[[str], Any], rung: ScriptRung) -> None:
    text = SCRIPT.replace("WORKERS", "0") + 'print("reads", len(open("reads.txt").read()))\n'
    ways = climber(text).both_ways(rung)
    loader = ways.facts.training_loader
    assert loader is not None
    part = loader.first_part
    assert part is not None
    assert part.num_statements == 5  # up to the tensor
    assert part.num_examples == 80
    assert 0.1 < part.share <= 1
    assert ways.patched.count("def __getitem__") == 1
    assert "        label, x = self._read_once(i)\n" in ways.patched
    *plain, all_reads = ways.original.splitlines()
    assert ways.outside.splitlines() == ways.diff.splitlines() == [*plain, "reads 72"]
    assert int(all_reads.split()[1]) > 3 * 72


def test_the_losses_are_the_same_if_a_call_is_split(
    climber: Callable[[str], Any], rung: ScriptRung
) -> None:
    start, rest = SCRIPT.replace("WORKERS", "0").split("            label = i % 2\n".lstrip(" "))
    tail = rest.partition("\n\n\ndata = ")[2]
    body = """return self.turned(self.read(i)), i % 2

    def read(self, i):
        return torch.arange(24.0).view(3, 8).add(i).sort().values

    def turned(self, x):
        return x.flip(1) if self.train and random.random() < 0.5 else x
"""
    ways = climber(f"{start}{body}\n\ndata = {tail}").both_ways(rung)
    assert ways.facts.training_loader.first_part.num_statements == 1.5
    assert "        decoded = self.read(i)\n" in ways.patched
    assert ways.outside == ways.diff == ways.original


def test_processes_that_share_nothing_are_left_alone(
    climber_on_disk: Callable[[str], Any], rung: ScriptRung
) -> None:
    text = SCRIPT.replace("WORKERS", '2, multiprocessing_context="forkserver"')
    start, training = text.split("data = Subset")
    text = (
        f'{start}if __name__ == "__main__":\n{textwrap.indent("data = Subset" + training, " " * 4)}'
    )
    facts = climber_on_disk(text).facts()
    assert rung.why_not(facts, Settings()) == "its worker processes are not forked"


def test_worker_processes_share_what_was_read_before(
    climber_on_disk: Callable[[str], Any], rung: ScriptRung
) -> None:
    ways = climber_on_disk(SCRIPT.replace("WORKERS", "2")).both_ways(rung)
    assert "DataLoader(read_all(data), batch_size=8" in ways.patched
    assert ways.outside == ways.diff == ways.original


@pytest.fixture
def climber_on_disk(
    climber: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Any]]:
    """A climber outside of /dev/shm, which has the semaphores of worker processes."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.chdir(folder)
        yield lambda text: type(climber(text))(Path(folder), text)
        monkeypatch.undo()


def test_whole_examples_are_kept_where_nothing_is_drawn(
    climber: Callable[[str], Any], rung: ScriptRung
) -> None:
    script = SCRIPT.replace("WORKERS", "0").replace("random.random() < 0.5", "i % 3")
    facts = climber(script).facts()
    assert rung.why_not(facts, Settings()) == "reading an example draws no random numbers"
    assert facts.training_loader.why_not_kept is None
    keeping = Settings(examples_in_memory=True)
    assert rung.why_not(facts, keeping) == "whole examples are kept in memory"


def parts(text: str, num: float) -> str | None:
    node = cst.parse_module(textwrap.dedent(text).strip()).body[0]
    assert isinstance(node, cst.FunctionDef)
    both = split(node, num)
    return None if both is None else cst.Module(both).code.strip()


def test_what_follows_gets_the_names_that_it_uses() -> None:
    text = """
        def __getitem__(self, at):
            path, (label, _) = self.files[at]
            with open(path) as file:
                text = file.read()
            if random.random() < 0.5:
                text = text.lower()
            return text, label
    """
    assert (
        parts(text, 2)
        == textwrap.dedent(
            """
        @kept_in_memory
        def _read_once(self, at):
            path, (label, _) = self.files[at]
            with open(path) as file:
                text = file.read()
            return label, text

        def __getitem__(self, at):
            label, text = self._read_once(at)
            if random.random() < 0.5:
                text = text.lower()
            return text, label
        """
        ).strip()
    )


def test_what_a_call_gets_is_read_before() -> None:
    text = """
        def __getitem__(self, at):
            path, label = self.files[at]
            # a picture
            x = self.transform(Image.open(path).convert("RGB"), 3)  # at random
            return x, label
    """
    assert (
        parts(text, 1.5)
        == textwrap.dedent(
            """
        @kept_in_memory
        def _read_once(self, at):
            path, label = self.files[at]
            # a picture
            decoded = Image.open(path).convert("RGB")
            return label, decoded

        def __getitem__(self, at):
            label, decoded = self._read_once(at)
            x = self.transform(decoded, 3)  # at random
            return x, label
        """
        ).strip()
    )


@pytest.mark.parametrize(
    ("line", "decoded"),
    [
        ("return self.transform(load(at)), at", "load(at)"),
        ("x = f(load(decoded), 3)", "load(decoded)"),
        ("x = f(at)", None),
        ("x = f(self.rows[at])", None),
        ("x = f(*load(at))", None),
        ("x = f(image=load(at))", None),
        ("x = made()(load(at))", None),
        ("x = f(load(at)).g()", None),
        ("x = 1 + f(load(at))", None),
        ("x, y = at, f(load(at))", None),
        ("f(load(at))", None),
    ],
)
def test_only_what_a_call_gets_first_is_read_before(line: str, decoded: str | None) -> None:
    found = parts(f"def __getitem__(self, at):\n    {line}\n", 0.5)
    assert (found is not None) == (decoded is not None)
    if found is not None:
        assert re.search(rf"    decoded(_0)? = {re.escape(decoded or '')}\n", found)


NOT_MOVED = {
    "an item that is deleted": "x = self.rows[at]\n    del self.rows[at]",
    "an item of what the dataset holds": "x = self.rows\n    x[at] = 0",
    "a name of one branch": "if at:\n        x = self.rows[at]",
    "a name of a loop": "for x in self.rows[at]:\n        pass",
    "a name of some patterns": "match self.rows[at]:\n        case (x, _):\n            pass",
    "a name within a comprehension": "y = [(x := row) for row in self.rows]",
    "all names": "x = self.rows[at]\n    y = locals()",
    "the dataset": "self = x = self.rows[at]",
    "a return": "if at > 3:\n        return 0\n    x = 1",
    "an attribute of the dataset": "self.last = x = self.rows[at]",
    "a counter": "x = self.rows[at]\n    self.reads += 1",
    "an item of the dataset": "x = self.kept[at] = self.rows[at]",
    "a global variable": "global x\n    x = self.rows[at]",
    "nothing that is used": "y = self.rows[at]",
    "nothing": "print(at)",
}


@pytest.mark.parametrize("first", NOT_MOVED.values(), ids=NOT_MOVED.keys())
def test_statements_that_only_work_in_their_place_are_not_moved(first: str) -> None:
    text = f"def __getitem__(self, at):\n    {first}\n    return x + random.random()\n"
    node = cst.parse_module(text).body[0]
    assert isinstance(node, cst.FunctionDef)
    assert split(node, num_statements(node) - 1) is None


def of_the_diff() -> tuple[Any, Any]:
    modules = (copy, functools, numpy, operator, random, torch)
    scope: dict[str, Any] = {module.__name__: module for module in modules}
    exec(KEEPER, scope)
    exec(ALL, scope)
    return scope["kept_in_memory"], scope["read_all"]


@pytest.fixture(params=[of_the_diff, lambda: (kept_in_memory, read_all)], ids=["diff", "outside"])
def rows(request: pytest.FixtureRequest) -> Any:
    """Return a dataset whose reads are kept, and that notes those that it makes."""
    keep, of_all = request.param()

    class Rows:
        low = 0

        def __init__(self) -> None:
            self.reads: list[Any] = []

        @keep
        def _read_once(self, idx: Any) -> Any:
            self.reads.append(idx)
            return torch.full((2,), float(self.low)), [idx]

        def __len__(self) -> int:
            return 3

        def read_all(self, dataset: Any) -> Any:
            return of_all(dataset)

    return Rows()


def test_what_is_kept_may_be_changed_by_its_user(rows: Any) -> None:
    x, names = rows._read_once(1)
    x += 1
    names.append(2)
    assert torch.equal(rows._read_once(torch.tensor(1))[0], torch.zeros(2))
    assert rows._read_once(1)[1] == [1]
    assert rows.reads == [1]


def test_all_examples_that_a_subset_has_are_read(rows: Any) -> None:
    inner = torch.utils.data.Subset(rows, [0, 2])
    subset = torch.utils.data.Subset(inner, [1])
    assert rows.read_all(subset) is subset
    assert rows.reads == [2]
    assert rows.read_all(rows) is rows
    assert sorted(rows.reads) == [0, 1, 2]


def test_several_examples_at_once_are_not_kept(rows: Any) -> None:
    for idx in (slice(0, 2), [1, 2], torch.tensor([1, 2])):
        assert rows._read_once(idx)[1][0] is idx
    assert len(rows.reads) == 3


def test_a_changed_attribute_is_seen(rows: Any) -> None:
    rows.low = 1
    assert rows._read_once(1)[0].tolist() == [1, 1]
    rows.low = 2
    assert rows._read_once(1)[0].tolist() == [2, 2]
    del rows.low
    assert rows._read_once(1)[0].tolist() == [0, 0]
    assert rows.reads == [1, 1, 1]


@pytest.mark.parametrize("keep", [of_the_diff()[0], kept_in_memory], ids=["diff", "outside"])
@pytest.mark.parametrize("draw", [random.random, numpy.random.rand, lambda: torch.rand(1)])
def test_what_draws_is_not_kept(keep: Any, draw: Callable[[], object]) -> None:
    class Rows:
        @keep
        def _read_once(self, idx: int) -> float:
            return random.random() if idx != 1 else float(bool(draw() or True)) * next(numbers)

    numbers = iter([1.0, 2.0])
    rows = Rows()
    assert [rows._read_once(1), rows._read_once(1)] == [1.0, 2.0]


def test_a_wrapper_without_indices_is_read_as_a_whole(rows: Any) -> None:
    class Repeat:
        dataset = rows

        def __len__(self) -> int:
            return 30

    rows.read_all(Repeat())
    assert sorted(rows.reads) == [0, 1, 2]


def test_a_copy_of_a_dataset_has_a_memory_of_its_own(rows: Any) -> None:
    rows._read_once(1)
    other = copy.copy(rows)
    other.low = 5
    assert other._read_once(1)[0].tolist() == [5, 5]
    assert rows._read_once(1)[0].tolist() == [0, 0]
    assert copy.copy(other)._read_once(1)[0].tolist() == [5, 5]


def part_of(text: str, folder: Path, names: Sequence[str] = ("Data()",)) -> Any:
    file = folder / "data.py"
    file.write_text(textwrap.dedent(text))
    linecache.checkcache()
    scope: dict[str, Any] = {"__name__": "data"}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    datasets = [eval(name, scope) for name in names]
    before = torch.get_rng_state()
    held = [list(vars(data)) for data in datasets]
    found = first_part_of(datasets[0], datasets, OwnCode(folder), 1e9)
    assert torch.equal(torch.get_rng_state(), before)
    assert held == [list(vars(data)) for data in datasets]
    assert not hasattr(scope["Data"], "_read_once")
    return found


HEAD = """
import torch
class Data:
    def __len__(self):
        return 4
    def __getitem__(self, at):
"""


def test_a_part_ends_before_random_numbers_are_drawn(tmp_path: Path) -> None:
    found = part_of(
        f"""{HEAD}
        x = torch.full((100,), float(at))
        y = x + torch.randn(100)
        z = y * 2
        return z, at
        """,
        tmp_path,
    )
    assert found.num_statements == 1
    assert found.num_bytes == pytest.approx(400, rel=1)


def test_a_part_ends_within_a_statement(tmp_path: Path) -> None:
    text = f"""{HEAD}
        return self.noisy(torch.full((100,), float(at)).sort().values), at
    def noisy(self, x):
        return x + torch.rand(1)
    """
    assert part_of(text, tmp_path).num_statements == 0.5


def test_annotations_need_not_exist(tmp_path: Path) -> None:
    text = f"from __future__ import annotations\n{HEAD.replace('at):', 'at: Missing) -> Missing:')}"
    body = "        x = torch.zeros(4)\n        return x + torch.rand(1)\n"
    assert part_of(text + body, tmp_path).num_statements == 1


def test_names_that_only_a_class_knows(tmp_path: Path) -> None:
    text = '''
import torch
class Data:
    def __init__(self):
        self.__rows = torch.zeros(4)
    def __len__(self):
        return 4
    def __getitem__(self, at):
        x = self.__rows + at
        y = len("""
text""")
        return x + torch.rand(1), y
'''
    assert part_of(text, tmp_path).num_statements == 2


@pytest.mark.parametrize(
    "made", ["numpy.random.default_rng(0)", "numpy.random.RandomState(0)", "random.Random(0)"]
)
def test_generators_of_a_dataset_are_seen(made: str, tmp_path: Path) -> None:
    text = f"""
import random, numpy, torch
class Data:
    def __init__(self):
        self.rng = {made}
    def __len__(self):
        return 4
    def __getitem__(self, at):
        x = torch.full((8,), float(at))
        if self.rng.random() < 0.01:
            x = x + 1
        return x, at
"""
    text = text.replace("rng.random()", "rng.rand()") if "State" in made else text
    assert part_of(text, tmp_path).num_statements == 1


NO_PART = {
    "a file that stays open": "x = open(__file__)\n        return torch.rand(1), x",
    "a draw in the first statement": "x = torch.rand(2)\n        return x",
    "an object": "x = object()\n        return torch.rand(1), id(x)",
    "an attribute": "x = self.open(at)\n        return self.case + torch.rand(1), x",
    "a list of the dataset": "x = self.seen.append(at)\n        return torch.rand(1), x",
    "a list of the module": "x = SEEN.append(at)\n        return torch.rand(1), x",
    "a list that a function changes": "x = see(at)\n        return torch.rand(1), x",
    "an alias": "row = self.rows\n        x = row.add_(at)\n        return x + torch.rand(1)",
    "what is read": "x = self.rows[at]\n        x += torch.rand(1).round()\n        return x",
    "a global counter": "x = count()\n        return torch.rand(1), x",
    "a set": "self.names ^= {1, 2}\n        x = len(self.names)\n        return torch.rand(1), x",
    "an iterator": "x = next(self.cycle)\n        return x + torch.rand(1)",
    "a counter": "x = torch.zeros(2)\n        self.num += 1\n        return x + torch.rand(1)",
}
"""Statements of `__getitem__`, by what they change."""
HELD = """
import itertools
SEEN = []
COUNT = 0
def count():
    global COUNT
    COUNT += 1
    return 1
def see(at):
    return SEEN.append(at)
class Holds:
    def __init__(self):
        self.case, self.seen, self.rows, self.num = None, [], torch.zeros(4, 2), 0
        self.names, self.cycle = {1}, itertools.cycle(100 * [1] + [2])
    def open(self, at):
        self.case = torch.full((2,), float(at))
        return at
"""


@pytest.mark.parametrize("body", NO_PART.values(), ids=NO_PART.keys())
def test_there_is_no_part(body: str, tmp_path: Path) -> None:
    head = HEAD.replace("class Data:", f"{HELD}class Data(Holds):")
    found = part_of(f"{head}        {body}\n", tmp_path)
    assert found == "no first part of its __getitem__ reads the same each time"


def test_a_part_must_fit_all_datasets_of_the_class(tmp_path: Path) -> None:
    text = """
import torch
class Data:
    def __init__(self, low=0):
        self.low = low
    def __len__(self):
        return 4
    def __getitem__(self, at):
        x = torch.full((8,), float(at))
        x = x + torch.rand(8) if self.low else x + 1
        return x + torch.rand(1)
"""
    assert part_of(text, tmp_path).num_statements == 2
    assert part_of(text, tmp_path, ["Data()", "Data(1)"]).num_statements == 1


def test_memory_of_what_a_view_is_of_counts(tmp_path: Path) -> None:
    text = f"{HEAD}        x = torch.zeros(10**8)[at]\n        return x + torch.rand(1)\n"
    found = part_of(text, tmp_path)
    assert found == "what it reads takes more than half of the free memory"


def test_what_takes_too_much_memory_is_not_kept(tmp_path: Path) -> None:
    text = f"{HEAD}        x = torch.zeros(10**8)\n        return x[:1] + torch.rand(1)\n"
    found = part_of(text, tmp_path)
    assert found == "what it reads takes more than half of the free memory"


def test_a_transform_with_a_generator_of_its_file_is_seen(tmp_path: Path) -> None:
    text = """
import random, torch
RNG = random.Random(0)
class Drop:
    def __call__(self, x):
        return x * 0 if RNG.random() < 0.01 else x
def dropping(rng):
    return lambda x: x * 0 if rng.random() < 0.01 else x
class Data:
    def __init__(self, kind):
        self.drop = kind
    def __len__(self):
        return 4
    def __getitem__(self, at):
        x = torch.full((8,), float(at))
        x = self.drop(x)
        return x + torch.rand(1)
"""
    for kind in ("Drop()", "dropping(random.Random(0))"):
        assert part_of(text, tmp_path, [f"Data({kind})"]).num_statements == 1


HANDED = {
    "a path": "pathlib.Path('a.jpg')",
    "not a number": "float('nan')",
    "no numbers": "torch.tensor([float('nan')])",
    "a sample": "Sample(torch.zeros(2), at)",
    "a row": "pandas.Series({'path': 'a', 'label': at})",
}


@pytest.mark.parametrize("value", HANDED.values(), ids=HANDED.keys())
def test_values_of_usual_kinds_may_be_kept(value: str, tmp_path: Path) -> None:
    text = f"""
import dataclasses, pathlib, pandas, torch
Sample = dataclasses.make_dataclass("Sample", ["x", "y"])
class Data:
    def __len__(self):
        return 4
    def __getitem__(self, at):
        x = {value}
        return torch.rand(1), x
"""
    assert part_of(text, tmp_path).num_statements == 1


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("line", ["pictures.low = epoch", "loader.dataset.dataset.enlarge()"])
def test_a_dataset_that_changes_later_is_not_kept(
    climber: Callable[[str], Any], rung: ScriptRung, line: str, draws: bool
) -> None:
    method = "    def enlarge(self):\n        self.low += 1\n\n    def __len__(self):"
    text = SCRIPT.replace("WORKERS", "0").replace("    def __len__(self):", method)
    text = text.replace("self.train = train", "self.train, self.low = train, 0")
    text = text.replace("x[0] = 0", "x[0] = self.low")
    with_name = "pictures = Pictures(train=True)\ndata = Subset(pictures,"
    text = text.replace("data = Subset(Pictures(train=True),", with_name)
    text = text.replace("    for x, y in loader:\n", f"    {line}\n    for x, y in loader:\n")
    if not draws:
        text = text.replace("random.random() < 0.5", "i % 3")
    loader = climber(text).facts().training_loader
    at = 1 + text.splitlines().index(f"    {line}")
    expected = f"train.py:{at} changes the dataset"
    assert loader is not None
    assert loader.why_not_kept == loader.why_no_part == expected
    assert loader.first_part is None


RARE = """
        if i == 5:
            x = x + torch.rand(8)
        if self.train"""


def test_rare_draws_are_not_kept(climber: Callable[[str], Any], rung: ScriptRung) -> None:
    text = SCRIPT.replace("WORKERS", "0").replace("range(32)", "range(16)")
    ways = climber(text.replace("\n        if self.train", RARE)).both_ways(rung)
    part = ways.facts.training_loader.first_part
    assert part.num_statements == 6  # number 5 was not among those that were tried
    assert ways.outside == ways.diff == ways.original


@pytest.mark.parametrize("asks", ["torch.utils.data.get_worker_info()", "which()"])
def test_a_dataset_that_asks_for_its_worker_is_not_kept(
    climber: Callable[[str], Any], asks: str
) -> None:
    which = "def which():\n    return torch.utils.data.get_worker_info()\n\n\nclass Pictures"
    text = SCRIPT.replace("WORKERS", "0").replace("class Pictures", which)
    text = text.replace("label = i % 2", f"label = i % 2 + ({asks} is not None)")
    loader = climber(text).facts().training_loader
    assert loader is not None
    expected = "the dataset asks which worker process it is in"
    assert loader.why_not_kept == loader.why_no_part == expected


OPENS = """
        if self.file is None:
            self.file = open(__file__)
        label = i % 2"""


def test_files_that_reading_opens_are_not_shared(
    climber_on_disk: Callable[[str], Any], rung: ScriptRung
) -> None:
    text = SCRIPT.replace("WORKERS", "2").replace("\n        label = i % 2", OPENS)
    text = text.replace("self.train = train", "self.train, self.file = train, None")
    facts = climber_on_disk(text).facts()
    expected = "reading opens files, which worker processes would share"
    assert rung.why_not(facts, Settings()) == expected
