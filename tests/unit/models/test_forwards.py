"""A replaced forward computes the same, without visible side effects."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stepladder.errors import ResourceError, UsageError
from stepladder.models.forwards import (
    CompiledForward,
    FrozenForward,
    as_built,
    compile_forward,
    set_forward,
)
from stepladder.models.freezing import freeze


def trunk() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    made = nn.Sequential(*layers)
    made[1].running_mean.normal_()
    made[1].running_var.uniform_(0.5, 2)
    freeze(made)
    return made


def folded() -> nn.Sequential:
    made = trunk()
    set_forward(made, FrozenForward(made, is_folded=True))
    return made


def pictures(n: int = 2) -> Tensor:
    return torch.randn(n, 3, 6, 6, generator=torch.Generator().manual_seed(n))


def num_norm_calls(module: nn.Module, x: Tensor) -> int:
    calls: list[int] = []
    with module[1].register_forward_hook(lambda *_: calls.append(1)):
        module(x)
    return len(calls)


def test_a_folded_trunk_calls_no_batchnorm_after_the_first_pass() -> None:
    module, plain = folded(), trunk()
    torch.testing.assert_close(module(pictures()), plain(pictures()))
    assert num_norm_calls(module, pictures(3)) == 0
    assert num_norm_calls(plain, pictures(3)) == 1
    assert list(module.state_dict()) == list(plain.state_dict())
    assert str(module) == str(plain)


def test_changed_weights_are_folded_again() -> None:
    module, plain = folded(), trunk()
    module(pictures())
    for made in (module, plain):
        made.load_state_dict({key: value + 1 for key, value in made.state_dict().items()})
    torch.testing.assert_close(module(pictures()), plain(pictures()))


def test_training_mode_computes_as_built() -> None:
    module, plain = folded(), trunk()
    for made in (module, plain):
        made(pictures())
        made.train()
    assert torch.equal(module(pictures()), plain(pictures()))
    assert torch.equal(module[1].running_mean, plain[1].running_mean)


def test_a_copy_has_weights_of_its_own() -> None:
    module = folded()
    module(pictures())
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(pictures()), module(pictures()))
        with torch.no_grad():
            other[0].weight.zero_()
        assert not torch.allclose(other(pictures()), module(pictures()))


def test_features_from_inference_mode_may_train_a_head() -> None:
    module, head = folded(), nn.Linear(64, 2)
    with torch.inference_mode():
        features = module(pictures() + 1)  # input: an inference tensor
    assert not features.is_inference()
    head(features).sum().backward()
    assert head.weight.grad is not None


def test_within_as_built_every_module_has_its_own_forward() -> None:
    model = nn.Sequential(folded(), nn.Linear(64, 2))
    model(pictures())
    with as_built(model):
        assert num_norm_calls(model[0], pictures()) == 1
    assert num_norm_calls(model[0], pictures()) == 0


def test_none_gives_the_own_forward_back() -> None:
    module = folded()
    set_forward(module, None)
    assert "forward" not in vars(module)
    assert num_norm_calls(module, pictures()) == 1


def test_a_forward_that_someone_else_replaced_is_left_alone() -> None:
    module = trunk()
    vars(module)["forward"] = lambda x: x
    with pytest.raises(UsageError, match="has replaced the method forward"):
        set_forward(module, FrozenForward(module, is_folded=True))
    set_forward(module, None)
    assert module(pictures()).shape == pictures().shape


@pytest.fixture
def compiler_cache(
    vector_instructions: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Compile in the test's own folder."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    return tmp_path / "inductor"


@pytest.mark.thorough
@pytest.mark.slow
def test_one_piece_of_code_serves_all_batch_sizes_with_and_without_gradients(
    compiler_cache: Path,
) -> None:
    from torch._dynamo.utils import counters

    module, plain = trunk(), trunk()
    set_forward(module, FrozenForward(module, is_folded=True, is_compiled=True))
    counters.clear()
    for n in (20, 32, 3, 1):
        torch.testing.assert_close(module(pictures(n)), plain(pictures(n)))
        with torch.inference_mode():
            torch.testing.assert_close(module(pictures(n)), plain(pictures(n)))
    assert counters["stats"]["unique_graphs"] == 1
    assert any(compiler_cache.iterdir())


@pytest.mark.thorough
@pytest.mark.slow
def test_a_compiled_module_learns_as_the_plain_one(compiler_cache: Path) -> None:
    module, plain = (trunk().requires_grad_(True).train() for _ in range(2))
    set_forward(module, CompiledForward(module))
    for n in (4, 3):
        for made in (module, plain):
            made(pictures(n)).square().sum().backward()
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module[1].running_var, plain[1].running_var)
    assert int(module[1].num_batches_tracked) == 2


def test_a_compiler_that_fails_is_named_with_a_way_out(
    compiler_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(graph: object, inputs: object) -> None:
        raise OSError("the disk is full")

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda forward: real(forward, backend=fail))
    forward = compile_forward(lambda x: x + 1)
    with pytest.raises(ResourceError, match=r"OSError: the disk is full") as caught:
        forward(pictures())
    assert "device.compile" in str(caught.value)
