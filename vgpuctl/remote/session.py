# SPDX-License-Identifier: Apache-2.0
"""The protocol of a login at another host and the result of a command there, independent of the SSH library."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.remote.target import Target

MAX_NOISE_BYTES = 1 << 20
MAX_REPLY_BYTES = 16 << 20
"""The limits of a command's stdout: before vgpuctl begins there, and in total. A list of 1,000 VMs has 2 MiB."""
TOO_NOISY = f"it printed more than {MAX_NOISE_BYTES >> 20} MiB before vgpuctl began"
TOO_LONG = f"it printed more than {MAX_REPLY_BYTES >> 20} MiB"
ABANDONED = "it was not waited for"


class RemoteOutput(Value):
    """The output of a remote command. `status` is None if its end is unknown: `abandon_reason` says why.

    `noise` is what the remote shell printed before vgpuctl began, None if vgpuctl never began. `is_late`: its deadline
    passed, and it got a stop.
    """

    status: int | None
    out: str
    err: str
    noise: str | None
    is_late: bool = False
    abandon_reason: str | None = None


class RemoteCommand(Value):
    """What to run: the arguments of `vgpuctl`, and its standard input.

    With `program_bytes` it is a Python program instead: the first `program_bytes` bytes of the standard input.
    """

    arguments: tuple[str, ...]
    stdin: bytes = b""
    program_bytes: int | None = None


class Watch(Value):
    """How long to wait for a command, where its output goes, and how often the user has stopped it so far.

    `until` is a time of the monotonic clock. `report_line` gets each line of stderr, `report_sent` the number of bytes
    of the standard input that were sent.
    """

    until: float
    report_line: Callable[[str], None]
    count_stops: Callable[[], int]
    report_sent: Callable[[int], None] | None = None


class Session(Protocol):
    """A login at another host."""

    user: str

    def run(self, command: RemoteCommand, watch: Watch) -> RemoteOutput:
        """Run it there to its end, or until the caller stops waiting.

        When `until` passes, and at each stop of the user, it gets SIGINT, as from Ctrl-C.

        Raises:
            Unreachable: the connection broke before it began.
        """

    def close(self) -> None:
        """Log out."""


class Connect(Protocol):
    """Logs in at a host."""

    def __call__(self, target: Target, until: float) -> Session:
        """Return the login; `until` is a time of the monotonic clock.

        Raises:
            Unreachable: the host does not answer.
            HostKeyRefused: its host key changed or is unknown.
            HostCannot: it refuses the login, or has no SSH algorithm in common; `check` says which.
            InvalidInput: ssh_config cannot be parsed.
        """
