# SPDX-License-Identifier: Apache-2.0
"""The one place that makes a command line for another host's shell, and reads what it says about itself.

sshd hands a command to the user's shell as text. So every word is quoted, and what is fixed is a script of /bin/sh
that gets the words as its arguments. It says its process id first: that line ends what a noisy ~/.bashrc prints, and
Ctrl-C is sent to that process.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

ROOT = "root"
PLACES = "/usr/local/bin:/usr/local/sbin:/opt/vgpuctl/bin"
"""Where vgpuctl is besides the PATH of a login; sudo's secure_path often lacks the first."""
_MARK = "vgpuctl-over-ssh"
_SAID = re.compile(_MARK.encode() + rb" ([0-9]+)\r?\n")
_SCRIPT = f'PATH="$PATH:{PLACES}"; export PATH; echo "{_MARK} $$"; exec vgpuctl "$@"'


def line(words: Sequence[str], user: str) -> str:
    """Return the line that runs vgpuctl with these words as root."""
    return shlex.join([*_become(user), "/bin/sh", "-c", _SCRIPT, "sh", *words])


def stop_line(pid: int, user: str) -> str:
    """Return the line that sends SIGINT to the vgpuctl that said this process id."""
    return shlex.join([*_become(user), "/bin/sh", "-c", 'kill -INT "$1"', "sh", str(pid)])


def split(out: bytes) -> tuple[bytes, int, bytes] | None:
    """Return what was printed before vgpuctl began, its process id, and what it printed; None before it began."""
    found = _SAID.search(out)
    return None if found is None else (out[: found.start()], int(found[1]), out[found.end() :])


def _become(user: str) -> list[str]:
    """A user who is not root becomes root by sudo, which must not ask for a password."""
    return [] if user == ROOT else ["sudo", "-n", "--"]
