"""What `doctor` says of the network and of shared memory."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest

from stepladder.machine import network
from stepladder.machine.network import network_facts, network_problems, shared_memory_facts

ENOUGH = {"total_bytes": 2**30, "free_bytes": 2**30}


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"):
        monkeypatch.delenv(name, raising=False)


def test_interfaces_are_named_without_their_addresses() -> None:
    facts = network_facts()
    addresses = {one.address for found in psutil.net_if_addrs().values() for one in found}
    assert not any(address in str(facts) for address in addresses if len(address) > 4)
    assert not any(words.startswith("lo ") for words in facts["interfaces"])


@pytest.mark.parametrize(
    ("addresses", "words"),
    [
        (["127.0.1.1"], "the loopback interface"),
        ([], "no address"),
        (["192.0.2.77"], "another host"),
    ],
)
def test_a_name_that_others_cannot_use_is_reported(
    addresses: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_host_addresses", lambda: addresses)
    assert network_facts()["host_name_leads_to"] == words


def test_an_address_of_this_machine_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [
        one.address
        for found in psutil.net_if_addrs().values()
        for one in found
        if one.family is socket.AF_INET and not one.address.startswith("127.")
    ]
    if not own:
        pytest.skip("this machine has no address but the loopback's")
    monkeypatch.setattr(network, "_host_addresses", lambda: own[:1])
    assert network_facts()["host_name_leads_to"] == "an interface of this machine"


@pytest.mark.parametrize(
    ("value", "is_wrong"),
    [("eth7", False), ("eth", False), ("=eth7", False), ("^docker", False), ("ib0", True)],
)
def test_a_choice_that_names_no_interface_is_a_warning(value: str, is_wrong: bool) -> None:
    facts = {"interfaces": ["eth7 (speed unknown)"], "NCCL_SOCKET_IFNAME": value}
    problems = network_problems(facts, ENOUGH, num_gpus=0)
    said = "NCCL_SOCKET_IFNAME is ib0, but this machine has the network interfaces eth7, lo. "
    assert problems == ([said + "Type: unset NCCL_SOCKET_IFNAME"] if is_wrong else [])


def test_little_shared_memory_is_a_warning_with_several_gpus(tmp_path: Path) -> None:
    facts, small = {"interfaces": []}, {"total_bytes": 64 * 2**20, "free_bytes": 0}
    assert network_problems(facts, small, num_gpus=1) == []
    (problem,) = network_problems(facts, small, num_gpus=2)
    assert "has 67 MB, which is too little for several GPUs" in problem
    assert shared_memory_facts(tmp_path / "none") == {}
    assert shared_memory_facts(tmp_path)["total_bytes"] > 0
