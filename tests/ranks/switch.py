"""Several hosts on one machine: network namespaces behind a switch that runs in user space.

    python -m tests.ranks.switch MTU NAME ...

Makes a namespace of each name, with the interfaces `wire0` (10.9.0.1, 10.9.0.2, ...), which leads
to the switch, and `decoy0` (10.8.0.1, ...), which leads nowhere. The switch delays each packet by
1 ms, and each link carries 100 Mbit/s; with a larger MTU than 1500 bytes, four hosts can fill their
links at once. Prints "ready". Everything is removed when stdin is closed.
Needs root and /dev/net/tun.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

WIRE, DECOY = "wire0", "decoy0"
_BYTES_PER_S = 100e6 / 8
_DELAY_S = 1e-3
_MOST_WAIT_S = 0.2  # a packet that would wait longer in the switch is dropped
_SET_INTERFACE, _TAP = 0x400454CA, 0x1002  # TUNSETIFF; IFF_TAP without packet information
_NETWORK_NAMESPACE = 0x40000000


def main(mtu: int, names: Sequence[str]) -> None:
    """Make the hosts, forward packets until stdin is closed, and remove the hosts."""
    try:
        taps, decoys = [], []
        for idx, name in enumerate(names):
            subprocess.run(["ip", "netns", "add", name], check=True)
            taps.append(_tap(name, WIRE))
            decoys.append(_tap(name, DECOY))
            _ip(name, "link", "set", "lo", "up")
            _ip(name, "link", "set", WIRE, "address", f"02:00:00:00:00:{idx + 1:02x}")
            for interface, network in ((WIRE, 9), (DECOY, 8)):
                _ip(name, "addr", "add", f"10.{network}.0.{idx + 1}/24", "dev", interface)
                _ip(name, "link", "set", interface, "mtu", str(mtu), "up")
        print("ready", flush=True)
        _forward(taps, decoys, mtu)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def _ip(name: str, *words: str) -> None:
    subprocess.run(["ip", "-n", name, *words], check=True)


def _tap(name: str, interface: str) -> int:
    """Return a file descriptor of a new interface in a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(Path("/var/run/netns", name), os.O_RDONLY)
    try:
        if libc.setns(there, _NETWORK_NAMESPACE):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {name}")
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, _SET_INTERFACE, struct.pack("16sH", interface.encode(), _TAP))
    finally:
        libc.setns(here, _NETWORK_NAMESPACE)
        os.close(here)
        os.close(there)
    return tap


def _forward(taps: Sequence[int], decoys: Sequence[int], mtu: int) -> None:
    """Forward packets by the last byte of their address; others than those of a host go to all."""
    poll = select.epoll()
    for fd in (*taps, *decoys, sys.stdin.fileno()):
        poll.register(fd, select.EPOLLIN)
    sent_s, received_s = [0.0] * len(taps), [0.0] * len(taps)  # until when a link is busy
    waiting: list[tuple[float, int, int, bytes]] = []
    numbers = itertools.count()
    while True:
        until_s = waiting[0][0] - time.monotonic() if waiting else None
        for fd, _ in poll.poll(None if until_s is None else max(0.0, until_s)):
            if fd == sys.stdin.fileno():
                return
            packet = os.read(fd, mtu + 64)
            if fd in decoys:
                continue
            source, goal = taps.index(fd), packet[5] - 1
            is_of_host = not packet[0] & 1 and 0 <= goal < len(taps)
            now, length_s = time.monotonic(), len(packet) / _BYTES_PER_S
            sent_s[source] = max(sent_s[source], now) + length_s
            for host in [goal] if is_of_host else set(range(len(taps))) - {source}:
                at_s = max(sent_s[source], received_s[host] + length_s)
                if at_s - now > _MOST_WAIT_S:
                    continue
                received_s[host] = at_s
                heapq.heappush(waiting, (at_s + _DELAY_S, next(numbers), host, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, host, packet = heapq.heappop(waiting)
            with suppress(BlockingIOError):
                os.write(taps[host], packet)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
