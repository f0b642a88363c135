"""Why workers talk by ZeroMQ: what a peer that ends or is stopped does to the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from stepladder.parallel.asynchronous.link import ServerLink
from tests.ranks.together import environment, free_port, wait_for

pytestmark = pytest.mark.distributed

GLOO = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
rank = int(sys.argv[1])
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}
dist.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=4))
value = torch.zeros(1)
if rank == 0:
    dist.recv(value)
    os.kill(int(value), signal.SIGSTOP)
    began_s = time.monotonic()
    try:
        dist.send(torch.ones(4_000_000), 1)
    except RuntimeError:
        print("blocked" if time.monotonic() - began_s > 3 else "refused", flush=True)
else:
    value[0] = float(os.getpid())
    dist.send(value, 0)
    time.sleep(60)
"""
PEER = """
import sys, time
import torch
from stepladder.parallel.asynchronous.link import WorkerLink
link = WorkerLink(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
while True:
    link.send("done", {}, torch.ones(2))
    link.receive()
"""


def start(stack: ExitStack, code: str, *words: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def test_a_process_group_waits_for_a_peer_that_is_stopped() -> None:
    """The server could do nothing for the others meanwhile."""
    port = free_port()
    with ExitStack() as stack:
        server, _ = (start(stack, GLOO, rank, port) for rank in range(2))
        assert server.stdout is not None
        assert server.stdout.readline() == "blocked\n"


def test_a_link_outlives_peers_that_end_or_are_stopped(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'server'}"
    link = ServerLink(address)
    with ExitStack() as stack:
        stack.callback(link.close)
        peers = {worker: start(stack, PEER, address, worker, 0) for worker in (1, 2)}

        def hears(worker: int, life: int = 0) -> bool:
            found = link.receive(0.1)
            if found is None:
                return False
            message, its_life = found
            assert message.tensors[0].tolist() == [1, 1]
            link.send(message.worker, "work", {}, torch.ones(1), life=its_life)
            return (message.worker, its_life) == (worker, life)

        for worker in peers:
            wait_for(lambda worker=worker: hears(worker))
        peers[2].kill()
        peers[2].wait()
        for _ in range(5):
            wait_for(lambda: hears(1))
        start(stack, PEER, address, 2, 1)
        wait_for(lambda: hears(2, 1))
        os.kill(peers[1].pid, signal.SIGSTOP)
        stack.callback(os.kill, peers[1].pid, signal.SIGCONT)
        began_s = time.monotonic()
        for _ in range(4):
            link.send(1, "work", {}, torch.ones(4_000_000))  # 16 MB: more than a socket holds
        took_s = time.monotonic() - began_s
        silent_s = 3.0
        wait_for(lambda: hears(2, 1) and time.monotonic() - link.heard_s[1] > silent_s)
        assert took_s < silent_s  # it did not wait for the peer, which shows no sign of life
