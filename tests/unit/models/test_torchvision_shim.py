from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from stepladder.errors import ResourceError
from stepladder.models.torchvision_shim import import_timm

PROGRAM = """
import sys, types
import torch
from stepladder.models.torchvision_shim import import_timm

sys.modules["timm"] = types.ModuleType("timm")  # a plain import works
assert import_timm() is sys.modules.pop("timm")
assert not hasattr(torch.ops.torchvision, "nms")

timm = import_timm()
assert import_timm() is timm
model = timm.create_model("test_efficientnet", num_classes=0).eval()
assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 256)
"""


@pytest.mark.thorough
def test_timm_works_with_any_torchvision_and_operators_are_declared_only_where_it_must() -> None:
    fits = ["-W", "ignore:torchvision"]  # it may be reported not to fit
    command = [sys.executable, "-W", "error", *fits, "-c", PROGRAM]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


FIRST_IMPORT = """
import os, sys, warnings
from importlib import metadata
from stepladder.models import torchvision_shim

metadata.version = {"torch": "2.13.0+cpu", "torchvision": sys.argv[1]}.__getitem__
torchvision_shim._import = lambda: None
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    torchvision_shim.import_timm()
    torchvision_shim.import_timm()
assert "torchvision" not in sys.modules
assert "STEPLADDER_TORCHVISION_WARNED" in os.environ or not seen  # not again in its ranks
print(*(warning.message for warning in seen), sep="\\n")
"""


@pytest.mark.thorough
@pytest.mark.parametrize(("torchvision", "typed"), [("0.25.0+cpu", "==0.28.*"), ("0.28.0+cpu", "")])
def test_the_first_import_warns_once_of_a_torchvision_that_does_not_fit(
    torchvision: str, typed: str
) -> None:
    """From the versions alone: torchvision is not imported for it."""
    command = [sys.executable, "-c", FIRST_IMPORT, torchvision]
    given = {name: value for name, value in os.environ.items() if "TORCHVISION" not in name}
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=given).stdout
    assert out.count("does not fit torch 2.13.0+cpu") == bool(typed)
    assert typed in out


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_collected_as_before(is_enabled: bool) -> None:
    try:
        (gc.enable if is_enabled else gc.disable)()
        import_timm()
        assert gc.isenabled() == is_enabled
    finally:
        gc.enable()


def test_a_timm_that_cannot_be_imported_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ResourceError, match="pip install"):
        import_timm()
