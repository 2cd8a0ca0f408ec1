# SPDX-License-Identifier: Apache-2.0
"""Interfaces for logging in to another host and running a command there; no SSH library is imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from vgpuctl.remote.target import Target
from vgpuctl.value import Value

MAX_NOISE_BYTES = 1 << 20
"""Limit of stdout before vgpuctl's own output: what the remote shell prints at a login."""
MAX_REPLY_BYTES = 16 << 20
"""Limit of stdout in total. A list of 1,000 VMs takes 2 MiB."""
TOO_NOISY = f"it printed more than {MAX_NOISE_BYTES >> 20} MiB before vgpuctl started"
TOO_LONG = f"it printed more than {MAX_REPLY_BYTES >> 20} MiB"
ABANDONED = "it was not waited for"


class RemoteOutput(Value):
    """The output of a remote command. `status` is None if it is not known how it ended: `abandon_reason` says why.

    `noise` is what the remote shell printed before vgpuctl began, None if vgpuctl never began. `is_late`: its deadline
    passed, and it was sent SIGINT.
    """

    status: int | None
    out: str
    err: str
    noise: str | None
    is_late: bool = False
    abandon_reason: str | None = None


class RemoteCommand(Value):
    """What to run: `vgpuctl` with these arguments and this standard input.

    With `program_bytes` Python runs instead: its program is the first `program_bytes` bytes of the standard input.
    """

    arguments: tuple[str, ...]
    stdin: bytes = b""
    program_bytes: int | None = None


class RunControl(Value):
    """How long to wait for a command, where its output goes, and how often the user has stopped it so far.

    `deadline` is a time of the monotonic clock. `report_line` gets each line of stderr, `report_sent` the number of
    bytes of the standard input that were sent.
    """

    deadline: float
    report_line: Callable[[str], None]
    interrupt_count: Callable[[], int]
    report_sent: Callable[[int], None] | None = None


class Session(Protocol):
    """A login at another host."""

    def run(self, command: RemoteCommand, control: RunControl) -> RemoteOutput:
        """Run the command there and return when it has ended.

        It is sent SIGINT at the deadline, and whenever `interrupt_count` has grown. If it does not end after that, the
        output is returned without a status.

        Raises:
            Unreachable: the connection broke before it began.
        """

    def close(self) -> None:
        """Log out."""


Connect = Callable[[Target, float], Session]
"""A function that logs in to a host and returns the login. Its deadline is a time of the monotonic clock.

Raises:
    Unreachable: the host does not answer.
    HostKeyRefused: its host key changed or is unknown.
    HostCannot: it refuses the login, or has no SSH algorithm in common; the fact `check` says which.
    InvalidInput: ssh_config cannot be parsed.
"""
