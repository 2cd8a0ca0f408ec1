"""Programs of this machine that log in at L2 by themselves, as at any host: ssh's files, and Ansible's inventory."""

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
    """Fills a home with the lab's key, a known_hosts that has L2's sshd at its port here, and ssh's settings."""
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
    """Makes the key of L2's sshd the one that a home knows."""
    key = (lab.built.image / "known_hosts").read_text().partition(" ")[2]
    (home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{lab.emulator.port} {key}")


def write_inventory(lab: Lab, place: Path) -> Path:
    """An inventory of L2 alone, in the group that the playbooks are for."""
    there = {"ansible_host": "127.0.0.1", "ansible_port": lab.emulator.port, "ansible_user": "root"}
    path = place / "inventory.json"
    hosts = {"vgpulab": {**there, "ansible_python_interpreter": "/usr/bin/python3"}}
    path.write_text(json.dumps({"gpu_hosts": {"hosts": hosts}}))
    return path


@contextmanager
def ansible_logins(lab: Lab, home: Path) -> Iterator[dict[str, str]]:
    """Ansible's settings for logins with a home's ssh files: one connection for many tasks, and pipelining.

    The connection ends with the block, since L2's next state knows nothing of it. Its socket is beside the lab's own:
    the path of a socket must be short.
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
