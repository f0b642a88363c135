"""Connections and machines: by name, in words, and what is refused."""

from __future__ import annotations

import pytest

from stepladder.config.choices import Precision
from stepladder.errors import UsageError
from stepladder.planning.hardware.connections import (
    CONNECTIONS,
    connection_named,
    fitted_connection,
)
from stepladder.planning.hardware.gpus import GPUS, OLDER_GPUS, gpu_named
from stepladder.planning.hardware.machines import MACHINES, machine_named
from stepladder.planning.hardware.ranges import Case
from stepladder.planning.hardware.speed import Rates, roofline_gain, speed_of
from stepladder.records.collectives import Collectives, Fit, Link


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("25Gbit", 3.125e9), ("100 Gbps", 12.5e9), ("800Mbit/s", 1e8), ("3GByte/s", 3e9)],
)
def test_a_speed_has_a_unit(text: str, bytes_per_s: float) -> None:
    assert connection_named(text).bytes_per_s == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("text", ["25G", "25GB", "25Gb/s", "25"])
def test_a_unit_that_may_mean_bits_or_bytes_is_asked_for(text: str) -> None:
    with pytest.raises(UsageError, match="may mean bits or bytes") as error:
        connection_named(text)
    assert "--network 25Gbit" in (error.value.fix or "")


@pytest.mark.parametrize("text", ["0Gbit", "-5Gbit", "900000Gbit"])
def test_an_impossible_network_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not possible"):
        connection_named(text)


def test_an_unknown_connection_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="neither a known connection") as error:
        connection_named("token ring")
    assert "100gb-ib" in (error.value.fix or "")


def test_a_data_sheet_has_a_band_and_a_fit_has_none() -> None:
    network = connection_named("100gbe")
    best, likely, worst = (network.link(case).beta_s for case in Case)
    assert best < likely < worst
    link = Link.plain(alpha_s=1e-4, beta_s=1e-9)
    fit = Fit(num_ranks=2, num_local=1, link=link, native_sizes=(1,), native_s=(1.0,))
    found = Collectives(
        backend="gloo", hosts=("a", "b"), fit=fit, times=(), choice=(), machine="two hosts"
    )
    measured = fitted_connection(found)
    assert {measured.link(case) for case in Case} == {link}
    assert "2 ranks on 2 hosts" in measured.source
    with pytest.raises(UsageError, match="8 Gbit/s, above the line rate of 1 Gbit/s"):
        fitted_connection(found, line_bytes_per_s=1.25e8)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda one: one.name)
def test_a_cloud_machine_is_whole(machine: object) -> None:
    found = machine_named(machine.name)  # type: ignore[attr-defined]
    assert found == machine
    assert found.gpu is not None
    assert found.gpu.memory_bytes
    assert found.source
    assert (found.inside is None) == (found.devices == 1)


def test_a_machine_is_described_in_words() -> None:
    found = machine_named("4xA100:nvlink3@100Gbit")
    assert (found.devices, found.gpu, found.cards) == (4, gpu_named(GPUS, "A100"), 1)
    assert found.inside is not None
    assert found.inside.name == "nvlink3"
    assert found.network.bytes_per_s == pytest.approx(12.5e9)
    assert machine_named("this@10Gbit").gpu is None
    assert "assumed" in machine_named("2xT4").network.name
    for text, said in (("4xB9000", "no known device"), ("0xT4", "has no device")):
        with pytest.raises(UsageError, match=said):
            machine_named(text)


@pytest.mark.parametrize("connection", CONNECTIONS, ids=lambda one: one.name)
def test_a_connection_has_a_source(connection: object) -> None:
    assert connection.source  # type: ignore[attr-defined]


def test_the_same_device_is_as_fast_and_another_by_its_data_sheet() -> None:
    rates = Rates(name="NVIDIA Tesla V100-SXM2-16GB", mfu=0.6)
    same, other = (gpu_named((*GPUS, *OLDER_GPUS), name) for name in ("V100", "P100"))
    assert speed_of(rates, None, Precision.FP32).likely == 1  # type: ignore[union-attr]
    assert speed_of(rates, same, Precision.FP32).likely == 1  # type: ignore[union-attr]
    found = speed_of(rates, other, Precision.FP32)
    assert found is not None
    assert found.best == pytest.approx(10.6 / 15.7)
    assert found.worst < found.likely < found.best
    assert speed_of(None, other, Precision.FP32) is None
    assert other is not None
    assert roofline_gain(Rates(name="cpu"), other, Precision.FP32) is None
