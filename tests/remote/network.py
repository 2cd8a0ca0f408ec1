# SPDX-License-Identifier: Apache-2.0
"""Hosts in network namespaces on one bridge, each with a real sshd, and a client on the same bridge that logs in.

One child process creates the mount, network and process namespaces. The first process in them reads a pipe from the
tests. The pipe closes when the tests end or are killed. That process then ends, and the kernel kills all others in the
namespaces and removes the namespaces, links and mounts. The tests create nothing on this machine itself.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.namespaces import expect, unshare
from vgpuctl import __version__

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "10.77.0"
PROGRAM = "import sys\nfrom vgpuctl.cli.entry import main\nsys.exit(main())"
USER = "gpuadmin"
SSHD = "/usr/sbin/sshd"
PACKAGE_VERSION = f"{__version__}-1"
CHILD = """\
mount -t tmpfs tmpfs /run && mkdir /run/sshd "$1" "$2" && mount --bind "$3" "$1" && mount --bind "$4" "$2" &&
echo ready && exec cat
"""
"""Bind-mounts this checkout and its Python where every user can read them. The originals may be below /root."""


@dataclass
class Host:
    """A host to create. `commands` maps names to scripts, which come first in PATH; `settings` are sshd_config lines.

    `fresh`: it has no vgpuctl, not even this checkout's modules. It has its own /opt, /usr/local/bin and /usr/bin, and
    stand-ins for apt-get and dpkg-query: its package brings this checkout's vgpuctl.
    """

    name: str
    address: str = ""
    scenario: str = "a100-40"
    commands: Mapping[str, str] = field(default_factory=dict)
    program: str = PROGRAM
    """The Python code of its vgpuctl."""
    bashrc: str = ""
    settings: Sequence[str] = ()
    key_kind: str = "ed25519"
    on: bool = True
    fresh: bool = False
    server: str = ""
    """The command that runs instead of sshd."""
    key_options: str = ""
    """What authorized_keys has before the client's key."""


class Network:
    """The hosts, each with a directory below `place`. A host has vgpuctl unless it is `fresh` or overrides it."""

    def __init__(self, place: Path, hosts: Sequence[Host]) -> None:
        self.place = place
        self.hosts = {host.name: host for host in hosts}
        self.home = place / "home"
        self._checkout, self._python = place / "checkout", place / "python"
        for number, host in enumerate(hosts, 1):
            host.address = f"{PREFIX}.{number}"
        argv = unshare("--net", "--pid", "--fork", "--mount-proc")
        with tempfile.TemporaryFile("w+") as errors:
            self._child = subprocess.Popen(
                [*argv, "sh", "-c", CHILD, "sh", self._checkout, self._python, ROOT, sys.prefix],
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
        """End every process in the namespaces; the kernel removes the rest."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(timeout=30)
        assert self._child.stdout is not None
        self._child.stdout.close()

    def inside(self, *words: str) -> list[str]:
        """Return the argv that runs a command on the client."""
        process = f"/proc/{self._first}"
        return ["nsenter", f"--net={process}/ns/net", f"--mount={process}/ns/mnt", f"--pid={process}/ns/pid",
                f"--root={process}/root", "--", *words]  # fmt: skip

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of the client's user."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("VGPUCTL_", "SSH_", "XDG_"))}
        return {**inherited, "HOME": str(self.home), "PYTHONPATH": str(ROOT), "COLUMNS": "200", **more}

    def argv(self, *words: str) -> list[str]:
        """Return the argv of this checkout's vgpuctl on the client."""
        return ["nsenter", f"--net=/proc/{self._first}/ns/net", "--", sys.executable, "-c", PROGRAM, *words]

    def vgpuctl(
        self, *words: str, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run this checkout's vgpuctl on the client."""
        return subprocess.run(
            self.argv(*words), input=stdin, env=self.environment(**(env or {})), capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip

    def run(self, *words: str, on: str | None = None) -> str:
        """Run a command on the host `on` or, by default, on the client, and return its output."""
        words = ("ip", "netns", "exec", on, *words) if on else words
        result = subprocess.run(self.inside(*words), capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0, f"{words}: {result.stderr}"
        return result.stdout

    def state(self, name: str) -> Path:
        """Return the directory of a host's files."""
        return self.place / name

    def know(self, *names: str, into: Path | None = None) -> str:
        """Return the known_hosts lines of these hosts, by default of all, and write them to `into` if it is given."""
        result = ""
        for name in names or self.hosts:
            kind, key, *_ = (self.state(name) / "host_key.pub").read_text().split()
            result += f"{self.hosts[name].address} {kind} {key}\n"
        if into is not None:
            into.write_text(result)
        return result

    def _make(self) -> None:
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        _keygen(self.home / ".ssh" / "id_ed25519", "ed25519")
        commands = ["ip link set lo up", "ip link add hub type bridge", "ip link set hub up",
                 f"ip addr add {PREFIX}.254/24 dev hub"]  # fmt: skip
        for number, host in enumerate(self.hosts.values(), 1):
            self._prepare(host)
            commands += _link(number, host) if host.on else []
        subprocess.run(self.inside("sh", "-e", "-c", "\n".join(commands)), check=True, timeout=60)
        for host in self.hosts.values():
            if host.on:
                self._start(host)
        self.know(into=self.home / ".ssh" / "known_hosts")

    def _prepare(self, host: Host) -> None:
        directory = self.state(host.name)
        (directory / "bin").mkdir(parents=True)
        for name in ("home", "opt", "local", "layer"):
            (directory / name).mkdir()
        _keygen(directory / "host_key", host.key_kind)
        key = (self.home / ".ssh" / "id_ed25519.pub").read_text()
        (directory / "authorized_keys").write_text(f"{host.key_options} {key}".lstrip())
        (directory / "home" / ".bashrc").write_text(host.bashrc)
        python = f"exec {shlex.quote(f'{self._python}/bin/python')} -c {shlex.quote(host.program)}"
        vgpuctl = f'#!/bin/sh\n{python} "$@"\n'
        default_commands = {} if host.fresh else {"vgpuctl": vgpuctl}
        if host.fresh:
            (directory / "vgpuctl").write_text(vgpuctl.replace("exec", f"PYTHONPATH={self._checkout} exec", 1))
            (directory / "vgpuctl").chmod(0o755)
            default_commands = {
                "apt-get": f"#!/bin/sh\ncp {directory}/vgpuctl /usr/bin/vgpuctl\n",
                "dpkg-query": f'#!/bin/sh\n[ -e /usr/bin/vgpuctl ] && echo "installed {PACKAGE_VERSION}"\n',
            }
        for name, text in {**default_commands, **host.commands}.items():
            if text:
                (directory / "bin" / name).write_text(text)
                (directory / "bin" / name).chmod(0o755)
        users = f"root:*:0:0::{directory}/home:/bin/bash\nsshd:*:105:65534::/run/sshd:/usr/sbin/nologin\n"
        (directory / "passwd").write_text(f"{users}{USER}:*:4242:4242::{directory}/home:/bin/bash\n")
        (directory / "shadow").write_text(f"root:*:20000::::::\nsshd:*:20000::::::\n{USER}:*:20000::::::\n")
        path = f"{directory}/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = f"PATH={path} VGPUCTL_HOST=sim:{host.scenario} XDG_STATE_HOME={directory}/state"
        environment += "" if host.fresh else f" PYTHONPATH={self._checkout}"
        (directory / "sshd_config").write_text(
            "\n".join(
                [
                    *host.settings,
                    f"HostKey {directory}/host_key",
                    f"AuthorizedKeysFile {directory}/authorized_keys",
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
        directory = self.state(host.name)
        sshd = f"{SSHD} -D -f {directory}/sshd_config -E {directory}/log"
        script = (
            f"mount --bind {directory}/passwd /etc/passwd && mount --bind {directory}/shadow /etc/shadow && "
            f"{_mount_own_directories(directory) if host.fresh else ''}exec {host.server or sshd}"
        )
        argv = self.inside("ip", "netns", "exec", host.name, "sh", "-c", script)
        null = subprocess.DEVNULL
        with (directory / "stderr").open("w") as errors:
            child = subprocess.Popen(argv, stdin=null, stdout=null, stderr=errors)
        deadline = time.monotonic() + 60
        while not host.server and "Server listening" not in _text(directory / "log"):
            failed = child.poll() is not None or time.monotonic() > deadline
            assert not failed, f"sshd of {host.name}: {_text(directory / 'log')}{_text(directory / 'stderr')}"
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


def _mount_own_directories(directory: Path) -> str:
    layer = f"{directory}/layer"
    return (
        f"mount --bind {directory}/opt /opt && mount --bind {directory}/local /usr/local/bin && "
        f"mount -t tmpfs tmpfs {layer} && mkdir {layer}/upper {layer}/work && "
        f"mount -t overlay -o lowerdir=/usr/bin,upperdir={layer}/upper,workdir={layer}/work overlay /usr/bin && "
    )


def _keygen(path: Path, kind: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path)], check=True, timeout=60)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
