"""What programs on this machine (L1) need to log in to L2 as to any other host, and vgpuctl that does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.ansible.plays import PROGRAMS
from tests.lab.machine import Lab
from tests.lab.remote import CRYPTO
from tests.lab.vgpuctl_in import IGB, leftovers

CONNECT_SECONDS = 60
VM_LIFE = ("vm-started", "vm-stopped", "vm-crashed", "vm-undefined")
# A key of ada that reaches the agent alone. useradd gives no password, which sshd takes for a locked account.
ONE_KEY = r"""
usermod -p '*' ada && install -d -o ada -g ada -m 700 /home/ada /home/ada/.ssh
(printf 'command="vgpuctl agent dial",restrict '; cat /root/.ssh/authorized_keys) > /home/ada/.ssh/authorized_keys
"""


def make_home(lab: Lab, home: Path) -> None:
    """Fill a home directory with the lab's key, a known_hosts for L2's forwarded sshd port, and an ssh config."""
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700)
    shutil.copy(lab.built.image / "id_ed25519", ssh)
    know(lab, home)
    lines = [
        *(f"IdentityFile {ssh / 'id_ed25519'}", "IdentitiesOnly yes", "IdentityAgent none"),
        *(f"UserKnownHostsFile {ssh / 'known_hosts'}", "GlobalKnownHostsFile /dev/null", "StrictHostKeyChecking yes"),
        *(f"ConnectTimeout {CONNECT_SECONDS}", *(option.replace("=", " ") for option in CRYPTO)),
    ]
    (ssh / "config").write_text("\n".join(["Host *", *lines, ""]))


def know(lab: Lab, home: Path) -> None:
    """Write the host key of L2's sshd to known_hosts in a home directory."""
    key = (lab.built.image / "known_hosts").read_text().partition(" ")[2]
    (home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{lab.emulator.port} {key}")


def write_inventory(lab: Lab, place: Path) -> Path:
    """Write an inventory with L2 as the only host, in the group that the playbooks use; return its path."""
    connection = {"ansible_host": "127.0.0.1", "ansible_port": lab.emulator.port, "ansible_user": "root"}
    path = place / "inventory.json"
    hosts = {"vgpulab": {**connection, "ansible_python_interpreter": "/usr/bin/python3"}}
    path.write_text(json.dumps({"gpu_hosts": {"hosts": hosts}}))
    return path


@contextmanager
def ansible_logins(lab: Lab, home: Path) -> Iterator[dict[str, str]]:
    """Yield Ansible's settings for logins with a home's ssh files: one connection for many tasks, and pipelining.

    The connection ends with the block, because the next state that L2 loads does not have it. Its socket is in the
    lab's work directory, because the path of a socket must be short.
    """
    with tempfile.TemporaryDirectory(dir=lab.work) as sockets:
        try:
            yield {
                "ANSIBLE_SSH_ARGS": f"-F {home / '.ssh/config'} -o ControlMaster=auto -o ControlPersist=60s",
                "ANSIBLE_SSH_CONTROL_PATH_DIR": sockets,
                "ANSIBLE_PIPELINING": "1",
                "ANSIBLE_TIMEOUT": str(CONNECT_SECONDS),
                "ANSIBLE_REMOTE_TEMP": "/root/.ansible/tmp",
            }
        finally:
            for socket in Path(sockets).iterdir():
                words = ["ssh", "-F", "none", "-o", f"ControlPath={socket}", "-O", "exit", "127.0.0.1"]
                subprocess.run(words, capture_output=True, timeout=30, check=False)


@contextmanager
def started_outside(lab: Lab, home: Path, *words: str, user: str = "root") -> Iterator[subprocess.Popen[str]]:
    """Start this checkout's vgpuctl on L1 for L2, where `user` logs in; its output is JSON. It ends with the block."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("VGPUCTL_", "SSH_"))}
    target = f"ssh://{user}@127.0.0.1:{lab.emulator.port}"
    argv = [str(PROGRAMS / "vgpuctl"), "--host", target, "--json", "--yes", *words]
    environment["HOME"] = str(home)
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def from_outside(lab: Lab, home: Path, *words: str, user: str = "root") -> tuple[int, dict[str, Any]]:
    """Run a command on L1 for L2; return its exit status and its JSON document."""
    with started_outside(lab, home, *words, user=user) as process:
        output, _ = process.communicate()
    return process.returncode, json.loads(output)


def create_watch_delete(lab: Lab, home: Path, name: str) -> None:
    """Let the member ada of L2 create, watch and delete a VM from L1, with a key that reaches the agent alone."""
    lab.run(ONE_KEY)
    make_home(lab, home)
    before = leftovers(lab)
    with started_outside(lab, home, "events", "--follow", "--since", "0", user="ada") as watch:
        assert watch.stdout is not None
        shown = vm_life(map(json.loads, watch.stdout), name)
        status, made = from_outside(lab, home, "create-vm", name, "--profile", "A100-4C", user="ada")
        assert status == 0, made
        assert (made["data"]["account"], made["data"]["state"]) == ("ada", "running")
        assert next(shown) == "vm-started"
        status, refused = from_outside(lab, home, "cordon", IGB, user="ada")
        assert (status, refused["error"]["code"]) == (3, "not-allowed"), refused
        status, removed = from_outside(lab, home, "delete-vm", name, user="ada")
        assert (status, removed["changed"]) == (0, True), removed
        assert [next(shown), next(shown)] == ["vm-stopped", "vm-undefined"]
        watch.send_signal(signal.SIGINT)
        assert watch.wait() == 128 + signal.SIGINT
    assert leftovers(lab) == before


def vm_life(events: Iterable[dict[str, Any]], name: str) -> Iterator[str]:
    """Yield the types of the events that are steps of the life of a VM."""
    return (event["type"] for event in events if event["vm"] == name and event["type"] in VM_LIFE)
