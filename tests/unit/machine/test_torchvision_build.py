"""A torchvision that does not fit torch is named, with the line to type."""

from __future__ import annotations

import pytest

from stepladder.machine import torchvision_build
from stepladder.machine.torchvision_build import torchvision_problem

CPU = " --index-url https://download.pytorch.org/whl/cpu"


@pytest.fixture(autouse=True)
def on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision_build.sys, "platform", "linux")
    monkeypatch.setattr(torchvision_build.platform, "machine", lambda: "x86_64")


@pytest.mark.parametrize(
    ("torch", "torchvision", "typed"),
    [
        ("2.13.0+cpu", "0.28.0", f"'torchvision==0.28.*'{CPU}"),
        ("2.13.0+cpu", "0.25.0+cpu", f"'torchvision==0.28.*'{CPU}"),
        ("2.10.0", "0.28.0", "'torchvision==0.25.*'"),
        ("2.10.0+cu128", "0.25.0+cu126", "'torchvision==0.25.*' --index-url https"),
        ("2.14.0", "1.0.0", "'torchvision==0.29.*'"),
        (
            "2.10.0+rocm6.4",
            "0.24.0",
            "'torchvision==0.25.*' --index-url https://download.pytorch.org/whl/rocm6.4",
        ),
    ],
)
def test_another_release_or_build_is_named(torch: str, torchvision: str, typed: str) -> None:
    said = torchvision_problem(torch, torchvision)
    assert said is not None
    assert f"torchvision {torchvision} does not fit torch {torch}" in said
    assert f"pip install --force-reinstall --no-deps {typed}" in said


@pytest.mark.parametrize(
    ("torch", "torchvision"),
    [
        ("2.13.0+cpu", "0.28.0+cpu"),
        ("2.10.0", "0.25.1"),
        ("2.10.0+cu128", "0.25.0+cu128"),
        ("2.14.0a0+git12ab", "0.29.0a0+git12ab"),
        ("2.10.0a0+b558c986e8.nv25.11", "0.25.0a0+ca221243"),  # of a vendor's container
        ("2.10.0+jetson", "0.25.0"),
        ("of our own", "0.1"),
        ("3.0.0", "1.0.0"),
    ],
)
def test_what_fits_or_is_not_known_is_quiet(torch: str, torchvision: str) -> None:
    assert torchvision_problem(torch, torchvision) is None


def test_the_build_of_pypi_is_that_of_the_cpu_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision_build.sys, "platform", "darwin")
    assert torchvision_problem("2.13.0+cpu", "0.28.0") is None
    assert torchvision_problem("2.13.0", "0.28.0", is_broken=True) is not None


def test_without_torchvision_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision_build, "_installed", lambda _: None)
    assert torchvision_problem() is None
