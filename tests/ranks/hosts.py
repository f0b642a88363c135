"""Run commands on several hosts that are network namespaces of this machine; see `switch.py`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.ranks.together import ROOT, ended, environment


def why_not() -> str | None:
    """Return why this machine cannot pretend to be several hosts, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [word for word in ("ip", "unshare") if shutil.which(word) is None]
    if missing:
        return f"{missing[0]} is not installed"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun does not exist"
    probe = f"probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    if done.returncode:
        return "network namespaces are not allowed here"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return None


@dataclass
class Hosts:
    """Hosts `host-0`, `host-1`, ... whose addresses are 10.9.0.1, 10.9.0.2, ..."""

    names: Sequence[str]
    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return f"10.9.0.{host + 1}"

    def start(
        self, host: int, words: Sequence[str], *, hides: Path | None = None, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host; it prints into `host-N.txt`.

        Args:
            hides: a folder that is empty on this host.
        """
        names = self.folder / f"hosts-{host}"
        names.write_text(self._names(host))
        hidden = f"mount -t tmpfs none {hides} && " if hides is not None else ""
        enter = ("ip", "netns", "exec", self.names[host], "unshare", "--uts", "--mount")
        shell = f'hostname host-{host} && mount --bind {names} /etc/hosts && {hidden}exec "$@"'
        with self.out(host).open("a") as out:
            process = subprocess.Popen(
                [*enter, "sh", "-c", shell, "sh", *words],
                cwd=ROOT,
                env=environment(**variables),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def _names(self, own: int) -> str:
        """Return /etc/hosts of a host; its own name leads to its loopback, as on Debian."""
        others = [idx for idx in range(len(self.names)) if idx != own]
        lines = ["127.0.0.1 localhost", f"127.0.1.1 host-{own}"]
        lines += [f"{self.address(idx)} host-{idx}" for idx in others]
        return "\n".join([*lines, ""])

    def out(self, host: int) -> Path:
        """Return the file of what a host has printed."""
        return self.folder / f"host-{host}.txt"

    def printed(self) -> str:
        """Return what all hosts have printed."""
        outs = [self.out(host) for host in range(len(self.names))]
        return "\n".join(f"{out.name}:\n{out.read_text()}" for out in outs if out.exists())


@contextmanager
def opened_hosts(num: int, folder: Path, *, mtu: int = 1500) -> Iterator[Hosts]:
    """Make hosts for a block, and end all that runs on them.

    Args:
        mtu: longest packet in bytes.
    """
    names = [f"host-{os.getpid()}-{idx}" for idx in range(num)]
    switch = subprocess.Popen(
        [sys.executable, "-m", "tests.ranks.switch", str(mtu), *names],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert switch.stdin is not None
    assert switch.stdout is not None
    try:
        assert switch.stdout.readline() == b"ready\n"
        hosts = Hosts(names, folder)
        try:
            yield hosts
        finally:
            with ended(hosts.started):
                pass
    finally:
        switch.stdin.close()
        switch.stdout.close()
        switch.wait()
