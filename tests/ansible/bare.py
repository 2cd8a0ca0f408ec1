# SPDX-License-Identifier: Apache-2.0
"""A bare Debian host that Ansible reaches over SSH: this machine's files under a tmpfs overlay, and its own network.

One child process creates the namespaces. The first process in them reads a pipe from the test. When the pipe closes,
the kernel ends all processes in the namespaces, and everything that they installed or wrote disappears. This machine
does not change: its files are the read-only lower layer of the overlay. The tests write the files of /sys, the kernel
command line and cpuinfo; `stand_ins` simulates a reboot. /proc and /dev are real.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.ansible.debs import write_repository
from tests.ansible.plays import ANSIBLE, Ran, played
from tests.ansible.stand_ins import PACKAGES, PROGRAMS, PYTHON
from tests.namespaces import expect, unshare

SSHD = "/usr/sbin/sshd"
CPU = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu vmx\n"
MAKE = """\
set -e
place=$1
ip link set lo up
mount -t tmpfs tmpfs "$place/layer"
cd "$place/layer"
mkdir up work root
mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=work root
mount -t proc proc root/proc
mount --rbind /dev root/dev
mount -t tmpfs tmpfs root/run
mount -t tmpfs tmpfs root/tmp
mount -t tmpfs tmpfs root/root
mkdir root/run/sshd
echo made
read -r _
mount --bind root/fake/cmdline root/proc/cmdline
mount --bind root/fake/cpuinfo root/proc/cpuinfo
mount --bind root/fake/boot_id root/proc/sys/kernel/random/boot_id
chroot root SSHD -f /fake/sshd_config -E /fake/log
echo ready
exec cat
""".replace("SSHD", SSHD)
SETTINGS = """\
HostKey /fake/host_key
AuthorizedKeysFile /fake/authorized_keys
PidFile /run/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
UseDNS no
Subsystem sftp internal-sftp
SetEnv PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin VGPUCTL_HOST=sim:a100-40 XDG_STATE_HOME=/fake/state
"""


class Bare:
    """The host. `files` and `programs` map paths to contents, which are written before anything runs on the host.

    `sshd_settings`: more lines for sshd, after all others. `ansible`: the directory of Ansible's programs.
    """

    def __init__(
        self,
        place: Path,
        files: Mapping[str, str],
        programs: Mapping[str, str] = PROGRAMS,
        sshd_settings: str = "",
        ansible: Path = ANSIBLE,
    ) -> None:
        self.place = place
        self._ansible = ansible
        self._sshd_settings = SETTINGS + sshd_settings
        (place / "layer").mkdir()
        self._errors = (place / "stderr").open("w+")
        self._child = subprocess.Popen(
            [*unshare("--net", "--pid", "--fork"), "sh", "-c", MAKE, "sh", place],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip
        self._await("made")
        children = Path(f"/proc/{self._child.pid}/task/{self._child.pid}/children").read_text().split()
        self.root = Path(f"/proc/{children[0]}/root{place}/layer/root")
        self._net = f"/proc/{children[0]}/ns/net"
        try:
            self._fill(files, programs)
            assert self._child.stdin is not None
            self._child.stdin.write("on\n")
            self._child.stdin.flush()
            self._await("ready")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every process in the namespaces; the kernel removes the rest."""
        self._child.communicate(timeout=30)
        self._errors.close()

    def text(self, path: str) -> str:
        """Return the text of a file on the host."""
        return (self.root / path.lstrip("/")).read_text()

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file on the host."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def layer(self) -> dict[str, tuple[int, int]]:
        """Return the files that differ from this machine's: path -> (size, time of the last change)."""
        up = self.root.parent / "up"
        result = {}
        for directory, _, names in os.walk(up):
            for path in (Path(directory) / name for name in names):
                state = path.lstat()
                result[str(path.relative_to(up))] = (state.st_size, state.st_mtime_ns)
        del result["fake/log"]
        return result

    def playbook(self, path: Path, *arguments: str, **variables: object) -> Ran:
        """Run a playbook that reaches this host over SSH."""
        inventory = self.place / "inventory.json"
        inventory.write_text(json.dumps({"gpu_hosts": {"hosts": {"bare": self._login()}}}))
        return played(
            self.place,
            inventory,
            path,
            (*arguments, "--extra-vars", json.dumps(variables)),
            ("nsenter", f"--net={self._net}", "--"),
            ANSIBLE_PIPELINING="1",
            ANSIBLE_SSH_ARGS="-o ControlMaster=auto -o ControlPersist=20s",
            ANSIBLE_SSH_CONTROL_PATH_DIR=str(self.place / "cp"),
            ANSIBLE_REMOTE_TEMP="/root/.ansible/tmp",
            ansible=self._ansible,
        )

    def _login(self) -> dict[str, str]:
        ssh_options = f"-o UserKnownHostsFile={self.place}/known_hosts -o IdentitiesOnly=yes"
        return {
            "ansible_host": "127.0.0.1",
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.place / "key"),
            "ansible_ssh_common_args": ssh_options,
            "ansible_python_interpreter": "/usr/bin/python3",
        }

    def _fill(self, files: Mapping[str, str], programs: Mapping[str, str]) -> None:
        for name in ("key", "host_key"):
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.place / name)]
            subprocess.run(argv, check=True, timeout=60)
        public = (self.place / "host_key.pub").read_text()
        (self.place / "known_hosts").write_text(f"127.0.0.1 {public}")
        fake = {"host_key": (self.place / "host_key").read_text(), "sshd_config": self._sshd_settings, "cpuinfo": CPU,
                "authorized_keys": (self.place / "key.pub").read_text(), "boot_id": "boot-0\n",
                "cmdline": "root=/dev/vda quiet\n"}  # fmt: skip
        for name in ("packaging", "pkg_resources"):  # a stock Debian has neither
            shutil.rmtree(self.root / PYTHON.lstrip("/") / name, ignore_errors=True)
        for name, text in fake.items():
            self.write(f"/fake/{name}", text, 0o600)
        for name, text in programs.items():
            self.write(name, text, 0o755)
        for name, text in files.items():
            self.write(name, text)
        write_repository(self.root / "srv/repo", PACKAGES)
        (self.root / "etc/modprobe.d").mkdir(exist_ok=True)
        for old in (self.root / "etc/apt/sources.list.d").iterdir():
            old.unlink()
        self.write("/etc/pip.conf", "")
        self.write("/etc/apt/sources.list", "deb [trusted=yes] file:/srv/repo ./\n")

    def _await(self, word: str) -> None:
        expect(self._child, word, self._errors)
