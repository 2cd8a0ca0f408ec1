"""ssh files and an Ansible inventory, so that programs on this machine (L1) can log in to L2 as to any other host."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab.machine import Lab
from tests.lab.remote import CRYPTO

CONNECT_SECONDS = 60


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
