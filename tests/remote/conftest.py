# SPDX-License-Identifier: Apache-2.0
"""The hosts of these tests, created once: ten as a site has them, and others that each have one fault."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.remote.network import Host, Network
from vgpuctl.cli import schemas

GOOD = tuple(f"gpu-{number:02}" for number in range(1, 7))
DEAD, CHANGED, OLDER, SLOW = "gpu-07", "gpu-08", "gpu-09", "gpu-10"
NOISY, SHA1, BARE, BROKEN, HIDDEN, SUDOER, UNKNOWN, MUTE, PORTED, LIAR, ENDLESS = (
    "noisy", "sha1", "bare", "broken", "hidden", "sudoer", "unknown", "mute", "ported", "liar",
    "endless",
)  # fmt: skip
DIALLED = "dialled"
DIAL_ONLY = """#!/bin/sh
[ "$*" = "agent dial" ] || { echo "only the agent can be reached" >&2; exit 1; }
exec "${0%/*}/../../python/bin/python" -m vgpuctl agent dial --socket "$HOME/agent.sock"
"""
MEMBER, ALONE, RESTRICTED = "member", "alone", "restricted"
"""Hosts with an agent that another user than root may use: by commands, too; without an agent; by nothing else."""
DIALS = """#!/bin/sh
[ "$1 $2" = "agent dial" ] && shift 2 && set -- agent dial --socket "$HOME/agent.sock" "$@"
exec "${0%/*}/../../python/bin/python" -m vgpuctl "$@"
"""
NO_SUDO = '#!/bin/sh\necho "sudo: a password is required" >&2\nexit 1\n'
FRESH, EMPTY, HALTED = "fresh", "empty", "halted"
"""Hosts without vgpuctl."""
TARDY = "tardy"
TARDY_PROGRAM = """\
import sys
from tests.bench import slow_driver
slow_driver.DRIVER_SECONDS = 1
sys.exit(slow_driver.main())
"""
NO_COMMAND = '#!/bin/sh\necho "sh: 1: exec: vgpuctl: not found" >&2\nexit 127\n'
OLD_VGPUCTL = """#!/bin/sh
[ "$1" = --version ] && echo "vgpuctl 0.0.9" && exit
echo '{"schema": "vgpuctl/1", "kind": "vgpuctl", "ok": false, "changed": false, "warnings": [], "error": {"code":
"usage", "message": "no such command '"'$2'"'", "hint": null, "facts": {}, "exit_status": 2, "undone": [], "left": []}}'
exit 2
"""
LIAR_VGPUCTL = """#!/bin/sh
document() { echo '{"schema": "vgpuctl/1", "kind": "'"$1"'", "changed": false, "warnings": [], '"$2"'}'; }
error='"ok": false, "error": {"code": "failed", "message": "m", "hint": null, "facts": {}, "exit_status": 1}'
case "$*" in
    *list-vms*) document list-vms '"ok": true, "data": null' ;;
    *list-gpus*) document list-gpus "$error" ;;
    *list-images*) document list-images '"ok": true, "data": []'; exit 255 ;;
    *delete-vm*) document delete-vm '"ok": true, "data": {}'; exit 255 ;;
    *list-profiles*) exec yes ;;
    *) yes 'VM vdi-001: deleted' | head -n 200000 >&2; document list-vgpus "$error"; exit 1 ;;
esac
"""
SUDO = """#!/bin/sh
[ "$1" = -n ] && [ "$2" = -- ] && shift 2 || exit 9
[ -e "$HOME/may" ] || { echo "sudo: a password is required" >&2; exit 1; }
exec "$@"
"""


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    """All hosts. known_hosts has the key of each host, except that UNKNOWN has none and CHANGED has a wrong one."""
    hosts = [
        *(Host(name) for name in GOOD),
        Host(DEAD, on=False),
        Host(CHANGED),
        Host(OLDER, commands={"vgpuctl": OLD_VGPUCTL}),
        Host(SLOW, commands={"vgpuctl": "#!/bin/sh\nexec sleep 600\n"}),
        Host(NOISY, bashrc='echo "Welcome to noisy"\necho "have a nice day" >&2\n'),
        Host(SHA1, key_kind="rsa", settings=("HostKeyAlgorithms ssh-rsa",)),
        Host(BARE, commands={"vgpuctl": NO_COMMAND}),
        Host(BROKEN, commands={"vgpuctl": "#!/bin/sh\necho '[1, 2]'\necho trouble >&2\n"}),
        Host(HIDDEN, settings=("AllowUsers root@10.77.0.1",)),
        Host(SUDOER, commands={"sudo": SUDO}),
        Host(UNKNOWN),
        Host(PORTED, settings=("Port 2222",)),
        Host(LIAR, commands={"vgpuctl": LIAR_VGPUCTL}),
        Host(ENDLESS, bashrc="exec yes\n"),
        Host(TARDY, program=TARDY_PROGRAM),
        Host(DIALLED, commands={"vgpuctl": DIAL_ONLY}),
        Host(MEMBER, commands={"vgpuctl": DIALS, "sudo": SUDO}, bashrc='echo "Welcome"\n'),
        Host(ALONE, commands={"vgpuctl": DIALS, "sudo": NO_SUDO}),
        Host(
            RESTRICTED,
            commands={"vgpuctl": DIALS, "sudo": NO_SUDO},
            key_options='command="vgpuctl agent dial",restrict',
        ),
        *(Host(name, fresh=True) for name in (FRESH, EMPTY, HALTED)),
        Host(
            MUTE,
            server=f"{sys.executable} -c 'import socket; socket.create_server((\"\", 22)).accept()[0].recv(1 << 20)'",
        ),
    ]
    with tempfile.TemporaryDirectory(prefix="vgpuctl-remote-") as directory:
        path = Path(directory)
        path.chmod(0o755)  # a user who is not root logs in too, and only root can read pytest's own directories
        running = Network(path, hosts)
        try:
            _write_known_hosts(running)
            yield running
        finally:
            running.close()


def _write_known_hosts(network: Network) -> None:
    known_hosts = network.home / ".ssh" / "known_hosts"
    lines = network.know(*(name for name in network.hosts if name not in (CHANGED, UNKNOWN)))
    wrong_key = network.know(GOOD[0]).split()
    known_hosts.write_text(f"{lines}{network.hosts[CHANGED].address} {wrong_key[1]} {wrong_key[2]}\n")


@pytest.fixture
def ssh(network: Network) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a command on hosts. It takes their names in one string, separated by spaces."""

    def run(names: str, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        options = [f"--host=ssh://{network.hosts[name].address}" for name in names.split()]
        result = network.vgpuctl(*options, *words, **more)
        if "--json" in words:
            _validate(result.stdout)
        return result

    return run


def _validate(text: str) -> None:
    document = json.loads(text)
    jsonschema.validate(document, schemas.document_schema(document["kind"]))


@pytest.fixture
def named(network: Network) -> Iterator[None]:
    """The client's ~/.ssh/config has the names of the ten hosts."""
    hosts = [f"Host {name}\n HostName {network.hosts[name].address}\n" for name in [*GOOD, DEAD, CHANGED, OLDER, SLOW]]
    path = network.home / ".ssh" / "config"
    path.write_text("".join([*hosts, "Host gpu-*\n User root\n"]))
    yield
    path.write_text("")
