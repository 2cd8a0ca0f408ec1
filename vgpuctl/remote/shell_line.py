# SPDX-License-Identifier: Apache-2.0
"""The only module that builds a command line for another host's shell and parses the process id that it prints.

sshd passes a command to the user's shell as text. So every word is quoted, and a fixed /bin/sh script gets the words
as its arguments. The script prints its process id first: that line ends the output of a noisy ~/.bashrc, and Ctrl-C
becomes a SIGINT to that process.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

ROOT = "root"
EXTRA_PATH = "/usr/local/bin:/usr/local/sbin:/opt/vgpuctl/bin"
"""Directories of vgpuctl besides the login's PATH; sudo's secure_path often lacks the first."""
OLDEST_PYTHON = (3, 11)
_PYTHON_CANDIDATES = "/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11"
"""Candidates for Python; the first is the distribution's, which has its libvirt module."""
_PID_MARKER = "vgpuctl-over-ssh"
_PID_LINE = re.compile(_PID_MARKER.encode() + rb" ([0-9]{1,10})\r?\n")
_PREAMBLE = f'PATH="$PATH:{EXTRA_PATH}"; export PATH; echo "{_PID_MARKER} $$"'
_SCRIPT = f'{_PREAMBLE}; exec vgpuctl "$@"'
_PYTHON_SCRIPT = (
    f"{_PREAMBLE}; for python in {_PYTHON_CANDIDATES}; do"
    f' "$python" -I -c "import sys; sys.exit(sys.version_info < {OLDEST_PYTHON})" 2>/dev/null'
    ' && exec "$python" -I -c "$1" "$2"; done;'
    ' echo "/usr/bin/python3 is $(/usr/bin/python3 -V 2>&1)" >&2; exit 127'
)
_LOADER = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"
"""The program comes through standard input: sudo logs command lines, and shells limit their length."""


def vgpuctl_line(arguments: Sequence[str], user: str) -> str:
    """Return the line that runs vgpuctl with these words as root."""
    return shlex.join([*_sudo_prefix(user), "/bin/sh", "-c", _SCRIPT, "sh", *arguments])


def python_line(program_bytes: int, user: str) -> str:
    """Return the line that runs the first `program_bytes` bytes of its standard input with Python as root."""
    return shlex.join([*_sudo_prefix(user), "/bin/sh", "-c", _PYTHON_SCRIPT, "sh", _LOADER, str(program_bytes)])


def stop_line(pid: int, user: str) -> str:
    """Return the line that sends SIGINT to the command that printed this process id."""
    return shlex.join([*_sudo_prefix(user), "/bin/sh", "-c", 'kill -INT "$1"', "sh", str(pid)])


def split_output(out: bytes) -> tuple[bytes, int, bytes] | None:
    """Return the output before the command began, its process id, and its own output; None if it has not begun."""
    match = _PID_LINE.search(out)
    return None if match is None else (out[: match.start()], int(match[1]), out[match.end() :])


def _sudo_prefix(user: str) -> list[str]:
    """Return the sudo prefix for a user who is not root; sudo must not ask for a password."""
    return [] if user == ROOT else ["sudo", "-n", "--"]
