"""A float64 model computes in float32, and the script around it still has float64."""

from __future__ import annotations

import copy
import json
import pickle
import textwrap
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from stepladder.cli.main import main
from stepladder.errors import UsageError
from stepladder.records.ladder import Decision
from stepladder.records.script import MadeOptimizer, Place, ScriptFacts
from stepladder.scripts.contract import ScriptRung
from stepladder.scripts.inside import precision
from stepladder.scripts.options import ScriptOptions
from stepladder.scripts.rungs.mixed_precision import MixedPrecision
from stepladder.scripts.rungs.single_precision import CASTS
from stepladder.scripts.seeds import Version, compare_over_seeds
from stepladder.scripts.settings import Settings

RUNG = "single_precision"
SCRIPT = textwrap.dedent(
    '''
    """Trains."""
    import torch
    from torch import nn

    torch.set_default_dtype(torch.float64)


    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.Tanh())
            self.head = nn.Linear(32, 1)

        def forward(self, batch, *, scales):
            inner = self.body(batch["x"] * scales[0])
            return {"y": self.head(inner), "inner": (inner, inner.dtype)}


    def main():
        torch.manual_seed(0)
        net = Model()
        optimizer = torch.optim.Adagrad(net.parameters(), lr=0.05)
        for step in range(40):
            x = torch.randn(16, 4)
            found = net({"x": x, "ids": torch.arange(16)}, scales=[torch.full((1, 4), 0.5)])
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(found["y"], x.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            print("loss", loss.item())
        print("loss of", loss.dtype, "output of", found["y"].dtype, found["inner"][0].dtype)
        print("computed in", found["inner"][1], "with", net.head.weight.dtype)


    main()
    '''
).lstrip()


def losses(printed: str) -> list[float]:
    lines = [line.split() for line in printed.splitlines()]
    return [float(words[1]) for words in lines if words[0] == "loss" and words[1] != "of"]


@pytest.mark.thorough
@pytest.mark.slow
def test_losses_are_close(climber: Callable[[str], Any], rung: ScriptRung) -> None:
    found = climber(SCRIPT).both_ways(rung)
    assert found.facts.dtype == "float64"  # although the weights are gone at the end
    assert (
        "    net = Model()\n"
        "    # stepladder, single_precision\n"
        "    net.float()\n"
        "    net.register_forward_pre_hook(inputs_as_float32, with_kwargs=True)\n"
        "    net.register_forward_hook(outputs_as_float64)\n"
        "    optimizer ="
    ) in found.patched
    assert "import copy\n\n\n# stepladder, single_precision\ndef cast_floats(" in found.patched
    expected = losses(found.original)
    assert "computed in torch.float64 with torch.float64" in found.original
    assert expected[-1] < expected[0] / 2
    for printed in (found.outside, found.diff):
        assert "loss of torch.float64 output of torch.float64 torch.float64" in printed
        assert "computed in torch.float32 with torch.float32" in printed
        assert losses(printed) == pytest.approx(expected, rel=1e-3)
        assert losses(printed) != expected


names: dict[str, Any] = {"torch": torch, "copy": copy}
exec(CASTS, names)  # what the diff has
CAST = pytest.mark.parametrize(
    "cast", [precision.cast_floats, names["cast_floats"]], ids=["outside", "diff"]
)


class Pair(NamedTuple):
    one: Any
    two: Any


@CAST
def test_tensors_are_cast_wherever_they_are(cast: Callable[..., Any]) -> None:
    double, whole = torch.ones(2, dtype=torch.float64), torch.arange(2)
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(2, 3, 1).double(), [3, 2], True)
    given: Any = OrderedDict(a=[double, whole], b=Pair(double, None), c={"d": (double,)}, e=packed)
    found = cast(given, torch.float64, torch.float32)
    assert type(found) is OrderedDict
    assert found["a"][0].dtype is torch.float32
    assert found["a"][1] is whole
    assert type(found["b"]) is Pair
    assert found["b"].one.dtype is torch.float32
    assert found["c"]["d"][0].dtype is torch.float32
    assert found["e"].data.dtype is torch.float32
    assert given["a"][0].dtype is torch.float64
    assert given["c"]["d"][0].dtype is torch.float64


@CAST
def test_what_has_no_such_tensor_stays_the_same_object(cast: Callable[..., Any]) -> None:
    cache: dict[str, Any] = {}
    given = (cache, [torch.arange(2), "text"], None)
    found = cast(given, torch.float64, torch.float32)
    assert found is given
    assert found[0] is cache


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which torch.compile reads
@pytest.mark.parametrize("how", ["plain", "wrapped", "compiled"])
def test_weights_stay_the_ones_that_an_optimizer_would_get(how: str) -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    model: Any = torch.compile(net, backend="eager") if how == "wrapped" else net
    if how == "compiled":
        net.compile(backend="eager")
    params = list(model.parameters())
    precision.compute_in_single(model)
    assert all(one is two for one, two in zip(model.parameters(), params, strict=True))
    optimizer = torch.optim.SGD(params, lr=0.1)
    before = [param.detach().clone() for param in params]
    inputs = torch.randn(8, 4, dtype=torch.float64)
    output: Tensor = model(inputs)
    assert output.dtype is torch.float64
    loss = nn.functional.mse_loss(output, torch.randn(8, 3, dtype=torch.float64))
    torch.autograd.backward(loss)
    optimizer.step()
    assert {param.dtype for param in net.parameters()} == {torch.float32}
    assert not any(torch.equal(one, two) for one, two in zip(params, before, strict=True))


def test_gradients_reach_the_inputs() -> None:
    net = nn.Linear(4, 1).double()
    precision.compute_in_single(net)
    inputs = torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(net(inputs).sum(), inputs, create_graph=True)
    assert torch.equal(found, net.weight.double().expand(8, 4))


def test_a_model_can_be_saved_and_copied() -> None:
    net = nn.Linear(4, 3).double()
    precision.compute_in_single(net)
    inputs = torch.randn(8, 4, dtype=torch.float64)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other(inputs), net(inputs))


OPTIMIZER = MadeOptimizer(kind="SGD", model="net")
DOUBLE = ScriptFacts(optimizers=(OPTIMIZER,), dtype="float64", has_bfloat16=True)


@pytest.mark.parametrize(
    ("facts", "settings", "said"),
    [
        (ScriptFacts(optimizers=(OPTIMIZER,)), Settings(), "the weights are float32"),
        (ScriptFacts(dtype="float64"), Settings(), "no variable"),
        (DOUBLE, Settings(autocast=True), "autocast"),
        (DOUBLE, Settings(once_per_input=True), "second forward"),
        (DOUBLE, Settings(single_precision=True), "already on"),
    ],
)
def test_where_it_does_not_fit_it_says_so(
    facts: ScriptFacts, settings: Settings, said: str, rung: ScriptRung
) -> None:
    assert said in (rung.why_not(facts, settings) or "")


def test_mixed_precision_is_not_added(rung: ScriptRung) -> None:
    mixed = MixedPrecision()
    assert rung.why_not(DOUBLE, Settings()) is None
    assert mixed.why_not(DOUBLE, Settings()) == "the weights are float64"
    assert "single_precision" in (mixed.why_not(DOUBLE, rung.apply(DOUBLE, Settings())) or "")


def test_each_file_with_an_optimizer_gets_the_functions(rung: ScriptRung) -> None:
    places = [
        Place(file=name, line=3, column=0, end_line=3, end_column=9, is_direct=True)
        for name in ("/x/train.py", "/x/other.py", "/x/other.py")
    ]
    made = tuple(MadeOptimizer(kind="SGD", model="net", place=place) for place in places)
    edits = rung.edits(ScriptFacts(optimizers=made, dtype="float64"), Settings())
    assert not isinstance(edits, str)
    starts = [edit.place.file for edit in edits if edit.spot == "start" and edit.place]
    assert starts == ["/x/train.py", "/x/other.py"]


OWN_TENSORS = textwrap.dedent(
    """
    import torch
    from torch import nn

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)


    class Model(nn.Module):
        num = 0

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(512, 512)

        def forward(self, x):
            self.num += 1
            if self.num > FIRST:
                x = x + torch.zeros(512, dtype=torch.float64)
            return self.layer(x)


    net = Model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(200):
        x = torch.randn(256, 512)
        loss = nn.functional.mse_loss(net(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """
).lstrip()


@pytest.mark.thorough
def test_a_model_that_makes_float64_tensors_later_on_is_dropped(
    climber: Callable[[str], Any],
) -> None:
    found = compare_over_seeds(
        climber(OWN_TENSORS.replace("FIRST", "10")).work,
        Version(settings=Settings()),
        Version(settings=Settings(single_precision=True)),
        options=ScriptOptions(num_seeds=3),
        steps=30,
        say=lambda _: None,
    )
    assert found.decision is Decision.DROPPED
    assert found.reason.startswith("with it, the script failed: RuntimeError")


@pytest.mark.thorough
def test_a_model_that_makes_float64_tensors_fails_in_words(climber: Callable[[str], Any]) -> None:
    script = climber(OWN_TENSORS.replace("FIRST", "0"))
    with pytest.raises(UsageError, match="the script failed: RuntimeError"):
        script.printed(Settings(single_precision=True))


@pytest.mark.thorough
def test_a_climb_drops_it_and_ends_well(climber: Callable[[str], Any], tmp_path: Path) -> None:
    climber(OWN_TENSORS.replace("FIRST", "0"))
    assert main(["climb", "train.py", "--only", "single_precision"]) == 0
    lines = (tmp_path / "climb-train" / "trials.jsonl").read_text().splitlines()
    verdict = json.loads(lines[-1])["trial"]["verdict"]
    assert verdict["decision"] == "dropped"
    assert "with it, the script failed: RuntimeError" in verdict["reason"]
