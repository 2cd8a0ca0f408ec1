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
OLDEST_PYTHON = (3, 11)
_PYTHONS = "/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11"
"""Where a Python is looked for; the first is the distribution's, which has its libvirt module."""
_MARK = "vgpuctl-over-ssh"
_SAID = re.compile(_MARK.encode() + rb" ([0-9]{1,10})\r?\n")
_BEGIN = f'PATH="$PATH:{PLACES}"; export PATH; echo "{_MARK} $$"'
_SCRIPT = f'{_BEGIN}; exec vgpuctl "$@"'
_PYTHON_SCRIPT = (
    f"{_BEGIN}; for python in {_PYTHONS}; do"
    f' "$python" -I -c "import sys; sys.exit(sys.version_info < {OLDEST_PYTHON})" 2>/dev/null'
    ' && exec "$python" -I -c "$1" "$2"; done;'
    ' echo "/usr/bin/python3 is $(/usr/bin/python3 -V 2>&1)" >&2; exit 127'
)
_LOAD = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"
"""The program comes by standard input: sudo writes command lines to its log, and shells have a longest one."""


def line(words: Sequence[str], user: str) -> str:
    """Return the line that runs vgpuctl with these words as root."""
    return shlex.join([*_become(user), "/bin/sh", "-c", _SCRIPT, "sh", *words])


def python_line(program_bytes: int, user: str) -> str:
    """Return the line by which root's Python runs a program, the first so many bytes of its standard input."""
    return shlex.join([*_become(user), "/bin/sh", "-c", _PYTHON_SCRIPT, "sh", _LOAD, str(program_bytes)])


def stop_line(pid: int, user: str) -> str:
    """Return the line that sends SIGINT to the command that said this process id."""
    return shlex.join([*_become(user), "/bin/sh", "-c", 'kill -INT "$1"', "sh", str(pid)])


def split(out: bytes) -> tuple[bytes, int, bytes] | None:
    """Return what was printed before the command began, its process id, and what it printed; None before that."""
    found = _SAID.search(out)
    return None if found is None else (out[: found.start()], int(found[1]), out[found.end() :])


def _become(user: str) -> list[str]:
    """A user who is not root becomes root by sudo, which must not ask for a password."""
    return [] if user == ROOT else ["sudo", "-n", "--"]
