# SPDX-License-Identifier: Apache-2.0
"""Hosts with a real sshd each, in network namespaces on one bridge, and a place among them from which to log in.

Everything lives in mount and process namespaces of one child, whose first process reads our pipe. When the pipe
closes, because the tests are over or were killed, that process ends, the kernel kills all others with it, and the
namespaces, links and mounts are gone with the last of them. On this machine itself nothing is made.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.namespaces import expect, unshare

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "10.77.0"
PROGRAM = "import sys\nfrom vgpuctl.cli.entry import main\nsys.exit(main())"
USER = "gpuadmin"
SSHD = "/usr/sbin/sshd"
CHILD = """\
mount -t tmpfs tmpfs /run && mkdir /run/sshd "$1" "$2" && mount --bind "$3" "$1" && mount --bind "$4" "$2" &&
echo ready && exec cat
"""
"""Mounts this checkout and its Python where every user of a host may read them: theirs may be below /root."""


@dataclass
class Host:
    """A host to make. `commands` are scripts by name, first in its PATH; `settings` are lines of sshd's.

    `fresh`: it has no vgpuctl, not even this checkout's modules, and /opt and /usr/local/bin of its own. `opt_options`:
    its /opt is a file system of its own, mounted so.
    """

    name: str
    address: str = ""
    scenario: str = "a100-40"
    commands: Mapping[str, str] = field(default_factory=dict)
    program: str = PROGRAM
    """What its vgpuctl is, in Python."""
    bashrc: str = ""
    settings: Sequence[str] = ()
    key_kind: str = "ed25519"
    on: bool = True
    fresh: bool = False
    opt_options: str = ""
    server: str = ""
    """What runs in sshd's place."""


class Network:
    """The hosts, below a directory of their own. `commands` of every host have vgpuctl unless it says otherwise."""

    def __init__(self, place: Path, hosts: Sequence[Host]) -> None:
        self.place = place
        self.hosts = {host.name: host for host in hosts}
        self.home = place / "home"
        self._checkout, self._python = place / "checkout", place / "python"
        for number, host in enumerate(hosts, 1):
            host.address = f"{PREFIX}.{number}"
        words = unshare("--net", "--pid", "--fork", "--mount-proc")
        with tempfile.TemporaryFile("w+") as errors:
            self._child = subprocess.Popen(
                [*words, "sh", "-c", CHILD, "sh", self._checkout, self._python, ROOT, sys.prefix],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
            expect(self._child, "ready", errors)
        children = Path(f"/proc/{self._child.pid}/task/{self._child.pid}/children").read_text().split()
        self._first = int(children[0])
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every process in there; the kernel takes the rest away."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=30)
        assert self._child.stdout is not None
        self._child.stdout.close()

    def inside(self, *words: str) -> list[str]:
        """Return the words that run a command among the hosts."""
        first = f"/proc/{self._first}"
        return ["nsenter", f"--net={first}/ns/net", f"--mount={first}/ns/mnt", f"--pid={first}/ns/pid",
                f"--root={first}/root", "--", *words]  # fmt: skip

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of the user who logs in."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("VGPUCTL_", "SSH_", "XDG_"))}
        return {**kept, "HOME": str(self.home), "PYTHONPATH": str(ROOT), "COLUMNS": "200", **more}

    def argv(self, *words: str) -> list[str]:
        """Return the command that runs this checkout's vgpuctl among the hosts."""
        return ["nsenter", f"--net=/proc/{self._first}/ns/net", "--", sys.executable, "-c", PROGRAM, *words]

    def vgpuctl(
        self, *words: str, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run this checkout's vgpuctl among the hosts."""
        return subprocess.run(
            self.argv(*words), input=stdin, env=self.environment(**(env or {})), capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip

    def run(self, *words: str, on: str | None = None) -> str:
        """Run a command in a host's namespaces, or among the hosts, and return what it printed."""
        words = ("ip", "netns", "exec", on, *words) if on else words
        done = subprocess.run(self.inside(*words), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def state(self, name: str) -> Path:
        """Return a host's own directory."""
        return self.place / name

    def know(self, *names: str, into: Path | None = None) -> str:
        """Return the lines of known_hosts for these hosts, written there when a file is given."""
        found = ""
        for name in names or self.hosts:
            kind, key, *_ = (self.state(name) / "host_key.pub").read_text().split()
            found += f"{self.hosts[name].address} {kind} {key}\n"
        if into is not None:
            into.write_text(found)
        return found

    def _make(self) -> None:
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        _keygen(self.home / ".ssh" / "id_ed25519", "ed25519")
        lines = ["ip link set lo up", "ip link add hub type bridge", "ip link set hub up",
                 f"ip addr add {PREFIX}.254/24 dev hub"]  # fmt: skip
        for number, host in enumerate(self.hosts.values(), 1):
            self._prepare(host)
            lines += _link(number, host) if host.on else []
        subprocess.run(self.inside("sh", "-e", "-c", "\n".join(lines)), check=True, timeout=60)
        for host in self.hosts.values():
            if host.on:
                self._start(host)
        self.know(into=self.home / ".ssh" / "known_hosts")

    def _prepare(self, host: Host) -> None:
        place = self.state(host.name)
        (place / "bin").mkdir(parents=True)
        for name in ("home", "opt", "local"):
            (place / name).mkdir()
        _keygen(place / "host_key", host.key_kind)
        shutil.copy(self.home / ".ssh" / "id_ed25519.pub", place / "authorized_keys")
        (place / "home" / ".bashrc").write_text(host.bashrc)
        python = f"exec {shlex.quote(f'{self._python}/bin/python')} -c {shlex.quote(host.program)}"
        own = {} if host.fresh else {"vgpuctl": f'#!/bin/sh\n{python} "$@"\n'}
        for name, text in {**own, **host.commands}.items():
            if text:
                (place / "bin" / name).write_text(text)
                (place / "bin" / name).chmod(0o755)
        users = f"root:*:0:0::{place}/home:/bin/bash\nsshd:*:105:65534::/run/sshd:/usr/sbin/nologin\n"
        (place / "passwd").write_text(f"{users}{USER}:*:4242:4242::{place}/home:/bin/bash\n")
        (place / "shadow").write_text(f"root:*:20000::::::\nsshd:*:20000::::::\n{USER}:*:20000::::::\n")
        path = f"{place}/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = f"PATH={path} VGPUCTL_HOST=sim:{host.scenario} XDG_STATE_HOME={place}/state"
        environment += "" if host.fresh else f" PYTHONPATH={self._checkout}"
        (place / "sshd_config").write_text(
            "\n".join(
                [
                    *host.settings,
                    f"HostKey {place}/host_key",
                    f"AuthorizedKeysFile {place}/authorized_keys",
                    f"SetEnv {environment}",
                    "PidFile none",
                    "StrictModes no",
                    "UsePAM no",
                    "PasswordAuthentication no",
                    "UseDNS no",
                    "KbdInteractiveAuthentication no",
                    "PermitRootLogin yes",
                    "MaxStartups 200",
                    "LogLevel VERBOSE",
                    "",
                ]
            )
        )

    def _start(self, host: Host) -> None:
        place = self.state(host.name)
        sshd = f"{SSHD} -D -f {place}/sshd_config -E {place}/log"
        script = (
            f"mount --bind {place}/passwd /etc/passwd && mount --bind {place}/shadow /etc/shadow && "
            f"{_own_directories(host, place) if host.fresh else ''}exec {host.server or sshd}"
        )
        words = self.inside("ip", "netns", "exec", host.name, "sh", "-c", script)
        null = subprocess.DEVNULL
        with (place / "stderr").open("w") as errors:
            child = subprocess.Popen(words, stdin=null, stdout=null, stderr=errors)
        until = time.monotonic() + 60
        while not host.server and "Server listening" not in _text(place / "log"):
            late = child.poll() is not None or time.monotonic() > until
            assert not late, f"sshd of {host.name}: {_text(place / 'log')}{_text(place / 'stderr')}"
            time.sleep(0.02)


def _link(number: int, host: Host) -> list[str]:
    return [
        f"ip netns add {host.name}",
        f"ip link add v{number} type veth peer name eth0 netns {host.name}",
        f"ip link set v{number} master hub up",
        f"ip -n {host.name} link set lo up",
        f"ip -n {host.name} addr add {host.address}/24 dev eth0",
        f"ip -n {host.name} link set eth0 up",
    ]


def _own_directories(host: Host, place: Path) -> str:
    own = f"mount -t tmpfs -o {host.opt_options} tmpfs {place}/opt && " if host.opt_options else ""
    return f"{own}mount --bind {place}/opt /opt && mount --bind {place}/local /usr/local/bin && "


def _keygen(path: Path, kind: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path)], check=True, timeout=60)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
