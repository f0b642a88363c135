"""The links between GPUs, from samples of what `nvidia-smi topo -m` prints."""

from __future__ import annotations

import pytest

from stepladder.machine.gpu_links import links_of

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  NV#  = Connection traversing a bonded set of # NVLinks
"""
TWO_PAIRS = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV4\tSYS\tSYS\tPXB\t0-15\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tSYS\tSYS\tPXB\t0-15\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tNV12\tSYS\t16-31\t1\t\tN/A\n"
    "GPU3\tSYS\tSYS\tNV12\t X \tSYS\t16-31\t1\t\tN/A\n"
    "NIC0\tPXB\tPXB\tSYS\tSYS\t X\n" + LEGEND
)
ONE = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-7\t0\t\tN/A\n" + LEGEND
BRIDGE = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-15\nGPU1\tPHB\t X \t0-15\n" + LEGEND


@pytest.mark.parametrize(
    ("text", "links"),
    [
        (
            TWO_PAIRS,
            [
                "NV12 (NVLink): 2-3",
                "NV4 (NVLink): 0-1",
                "SYS (the link between NUMA nodes): 0-2, 0-3, 1-2, 1-3",
            ],
        ),
        (BRIDGE, ["PHB (a PCIe host bridge): 0-1"]),
        (ONE, []),
        ("No devices were found\n", []),
        ("", []),
    ],
)
def test_each_pair_of_gpus_is_listed_once_fastest_first(text: str, links: list[str]) -> None:
    assert links_of(text) == links
