# SPDX-License-Identifier: Apache-2.0
"""A root in which a script for guests runs: a chroot with the programs of this machine and files of its own.

It has no systemd that runs, so a program in place of systemctl logs its arguments, and `run_unit` does what systemd
would do. tests/lab runs the same script under a real systemd.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from tests.namespaces import unshare

STAND_INS = {name: (Path(__file__).parent / name).read_text() for name in ("nvidia-smi", "nvidia-cuda-mps-control")}
SYSTEMCTL = '#!/bin/sh\necho "$*" >>/run/systemctl\n'
DIRECTORIES = ("dev", "etc", "proc", "run", "tmp", "usr/bin", "usr/local/sbin", "var/log", "machine")
ENTER = 'mount --rbind / "$1/machine"; mount -t proc proc "$1/proc"; exec /usr/sbin/chroot "$@"'
UNIT = "etc/systemd/system/vgpuctl-mps.service"
_LISTS = ("ExecStartPre", "ExecStart", "ExecStartPost", "ExecStop", "ExecStopPost")


class GuestRoot:
    """The root directory of a guest that does not run."""

    def __init__(self, path: Path) -> None:
        """Make it; programs of this machine are links to /machine, where / is mounted while something runs."""
        self.path = path
        for name in DIRECTORIES:
            (path / name).mkdir(parents=True)
        (path / "tmp").chmod(0o1777)
        for name in ("bin", "sbin", "lib", "lib64"):
            (path / name).symlink_to(f"/machine/{name}")
        (path / "usr/lib").symlink_to("/machine/usr/lib")
        for program in os.listdir("/usr/bin"):
            (path / "usr/bin" / program).symlink_to(f"/machine/usr/bin/{program}")
        for name in ("passwd", "group"):
            (path / "etc" / name).write_text("root:x:0:0::/root:/bin/sh\n" if name == "passwd" else "root:x:0:\n")
        for name, text in {**STAND_INS, "systemctl": SYSTEMCTL}.items():
            self.put_program(name, text)

    def put_program(self, name: str, text: str) -> None:
        """Put a program in /usr/bin, in place of this machine's."""
        program = self.path / "usr/bin" / name
        program.unlink(missing_ok=True)
        program.write_text(text)
        program.chmod(0o755)

    def run(self, *words: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program in it."""
        env = {"PATH": "/usr/local/sbin:/usr/bin", "LC_ALL": "C.UTF-8", **environment}
        argv = [*unshare(), "sh", "-ec", ENTER, "sh", str(self.path), *words]
        result = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert not check or result.returncode == 0, (words, result.stdout, result.stderr)
        return result

    def run_script(self, text: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run what cloud-init makes of a boothook: the text without its first line, as a program."""
        header, _, script = text.partition("\n")
        assert header == "#cloud-boothook"
        (self.path / "run/boothook").write_text(script)
        (self.path / "run/boothook").chmod(0o700)
        return self.run("/run/boothook", check=check)

    def unit(self) -> dict[str, list[str]]:
        """Return the lines of the unit for MPS by key."""
        lines: dict[str, list[str]] = {}
        for line in (self.path / UNIT).read_text().splitlines():
            key, equals, value = line.partition("=")
            if equals:
                lines.setdefault(key, []).append(value)
        return lines

    def run_unit(self, *lists: str) -> None:
        """Do what systemd does when the unit starts or stops: its directories, and the commands of some lists."""
        unit = self.unit()
        environment = dict(pair.split("=", 1) for line in unit["Environment"] for pair in line.split())
        for name in unit["LogsDirectory"]:
            (self.path / "var/log" / name).mkdir(exist_ok=True)
        for key in lists:
            assert key in _LISTS
            for command in unit[key]:
                self.run(*shlex.split(command), **environment)

    @property
    def log(self) -> list[str]:
        """What NVIDIA's programs were told, in this order."""
        log = self.path / "run/mps/log"
        return log.read_text().splitlines() if log.exists() else []
