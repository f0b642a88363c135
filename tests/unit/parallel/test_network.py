"""The network of several hosts: what is chosen, what is left to the user, and what is printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from stepladder.machine.network import Adapter, Interface, adapters, interfaces_up, source_address
from stepladder.parallel.handshake import network_line
from stepladder.parallel.network import Network, chosen_network, use_network
from stepladder.parallel.place import Place
from stepladder.parallel.world import World

LOOPBACK = Interface(name="lo", addresses=("127.0.0.1",), is_loopback=True)
BRIDGE = Interface(name="docker0", addresses=("172.17.0.1",), gbit_s=100.0, is_virtual=True)
FAST = Interface(name="eth1", addresses=("10.1.0.5",), gbit_s=25.0)
SLOW = Interface(name="eth0", addresses=("192.168.0.5",), gbit_s=1.0)
UP = (BRIDGE, FAST, SLOW, LOOPBACK)


def place(*, local_size: int = 1) -> Place:
    return Place(rank=1, size=2, local_rank=0, local_size=local_size, address="host-a", port=29400)


def chosen(
    environ: Mapping[str, str] | None = None,
    *,
    address: str | None = None,
    ports: list[Adapter] | None = None,
) -> Network:
    route: Callable[[str, int], str | None] = lambda _host, _port: address  # noqa: E731
    return chosen_network(place(), environ or {}, interfaces=UP, ports=ports or [], route=route)


def test_the_interface_that_leads_to_rank_0_is_chosen_even_if_another_is_faster() -> None:
    found = chosen(address="192.168.0.5")
    assert found.variables == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}
    assert found.interface == "eth0 (1 Gbit/s)"


def test_on_the_host_of_rank_0_the_way_to_another_host_counts() -> None:
    """Its own name may lead to its loopback."""
    routes = {"host-a": "127.0.1.1", "192.168.0.9": "192.168.0.5"}
    found = chosen_network(
        place(),
        {},
        interfaces=UP,
        ports=[],
        peer="192.168.0.9",
        route=lambda host, _port: routes[host],
    )
    assert found.variables["GLOO_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize("address", [None, "127.0.0.1"])
def test_if_the_route_is_unknown_the_fastest_real_interface_is_chosen(address: str | None) -> None:
    assert chosen(address=address).variables["GLOO_SOCKET_IFNAME"] == "eth1"


def test_what_the_user_has_set_is_kept_and_used_for_both() -> None:
    assert chosen({"GLOO_SOCKET_IFNAME": "eth1"}, address="192.168.0.5").variables == {
        "NCCL_SOCKET_IFNAME": "=eth1"
    }
    assert chosen({"NCCL_SOCKET_IFNAME": "=eth1"}, address="192.168.0.5").variables == {
        "GLOO_SOCKET_IFNAME": "eth1"
    }
    both = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "^docker"}
    assert chosen(both, address="10.1.0.5").variables == {}


def test_an_interface_that_the_user_names_but_is_not_there_is_printed_as_it_is() -> None:
    found = chosen({"GLOO_SOCKET_IFNAME": "ib0"}, address="192.168.0.5")
    assert found.interface == "ib0"
    assert found.variables == {}


def test_processes_of_one_machine_use_its_loopback() -> None:
    """The name of a host may lead to an address that another host has."""
    found = chosen_network(place(local_size=2), {}, interfaces=UP, ports=[])
    assert found.variables == {"GLOO_SOCKET_IFNAME": "lo"}
    assert found.interface is None
    kept = chosen_network(
        place(local_size=2), {"GLOO_SOCKET_IFNAME": "eth0"}, interfaces=UP, ports=[]
    )
    assert kept.variables == {}


def test_a_process_that_joins_others_later_chooses_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was set for one machine is not a choice of the user."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    use_network(place(local_size=2), peer=None, is_cuda=False)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    several = use_network(place(), peer=None, is_cuda=False)
    assert several.variables.get("GLOO_SOCKET_IFNAME") != "lo"
    assert several.interface is None or not several.interface.startswith("lo ")


def adapter(folder: Path, name: str, *, state: str, rate: str, kind: str = "InfiniBand") -> None:
    port = folder / name / "ports" / "1"
    port.mkdir(parents=True)
    for file, words in (("state", state), ("rate", rate), ("link_layer", kind)):
        (port / file).write_text(words + "\n")


def test_the_fastest_connected_adapters_are_chosen(tmp_path: Path) -> None:
    """Files as in /sys/class/infiniband."""
    adapter(tmp_path, "mlx5_0", state="4: ACTIVE", rate="400 Gb/sec (4X NDR)")
    adapter(tmp_path, "mlx5_1", state="4: ACTIVE", rate="400 Gb/sec (4X NDR)")
    adapter(tmp_path, "mlx5_2", state="1: DOWN", rate="400 Gb/sec (4X NDR)")
    adapter(tmp_path, "mlx5_bond_0", state="4: ACTIVE", rate="25 Gb/sec (1X EDR)", kind="Ethernet")
    ports = adapters(tmp_path)
    assert [str(one) for one in ports][2:] == [
        "mlx5_2:1 (InfiniBand, 400 Gbit/s, not active)",
        "mlx5_bond_0:1 (Ethernet, 25 Gbit/s)",
    ]
    found = chosen(address="10.1.0.5", ports=ports)
    assert found.variables["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"
    assert found.adapters == "mlx5_0:1 (InfiniBand, 400 Gbit/s), mlx5_1:1 (InfiniBand, 400 Gbit/s)"
    own = chosen({"NCCL_IB_HCA": "mlx5_bond_0"}, address="10.1.0.5", ports=ports)
    assert "NCCL_IB_HCA" not in own.variables
    assert own.adapters == "mlx5_bond_0"
    assert adapters(tmp_path / "none") == []


def test_the_route_is_that_of_the_kernel() -> None:
    assert source_address("127.0.0.1", 29400) == "127.0.0.1"
    assert source_address("no such host", 29400) is None
    loopback = next(one for one in interfaces_up() if one.is_loopback)
    assert "127.0.0.1" in loopback.addresses


class Gathered(World):
    """A rank whose gathering returns what is given."""

    found: tuple[Any, ...] = ()

    def gather(self, value: Any) -> list[Any]:
        """Return what all ranks would have sent."""
        return [value, *self.found]


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ([("b", True, "eth0 (1 Gbit/s)")], "2 hosts, connected by eth0 (1 Gbit/s)"),
        (
            [("b", True, "ib0 (speed unknown)"), ("b", False, "ib0 (speed unknown)")],
            "2 hosts, connected by eth0 (1 Gbit/s) on a; ib0 (speed unknown) on b",
        ),
        ([("a", False, None)], None),
    ],
)
def test_the_line_names_the_interfaces_of_all_hosts(
    others: list[Any], line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "a")
    world = Gathered(size=1 + len(others), network=chosen(address="192.168.0.5"))
    object.__setattr__(world, "found", tuple(others))
    assert network_line(world) == line
