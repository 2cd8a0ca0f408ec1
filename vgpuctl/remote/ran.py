# SPDX-License-Identifier: Apache-2.0
"""What is asked of a login at another host, and what comes of a command there, whoever made the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.remote.target import Target

MOST_NOISE_BYTES = 1 << 20
MOST_ANSWER_BYTES = 16 << 20
"""What is read of a command's stdout before vgpuctl begins there, and in all. A list of 1,000 VMs has 2 MiB."""
TOO_NOISY = f"it printed more than {MOST_NOISE_BYTES >> 20} MiB before vgpuctl began"
TOO_LONG = f"it printed more than {MOST_ANSWER_BYTES >> 20} MiB"
NOT_WAITED = "it was not waited for"


class Ran(Value):
    """What a command left. `status` is None when it was not heard how it ended: `gave_up` tells why.

    `noise` is what the shell there printed before vgpuctl began, and None when vgpuctl never did. `late`: its deadline
    passed before, and it was told to stop.
    """

    status: int | None
    out: str
    err: str
    noise: str | None
    late: bool = False
    gave_up: str | None = None


class Asked(Value):
    """What is to be run: the words after `vgpuctl`, and what its standard input is.

    With `program_bytes` it is no vgpuctl but a program of Python, the first so many bytes of the standard input.
    """

    words: tuple[str, ...]
    stdin: bytes = b""
    program_bytes: int | None = None


class Watch(Value):
    """How long to wait for a command, who is told what it says, and how often the user has stopped it so far.

    `until` is an instant of the monotonic clock. `told` gets each line of stderr, `sent` how many bytes of the standard
    input are on their way.
    """

    until: float
    told: Callable[[str], None]
    stops: Callable[[], int]
    sent: Callable[[int], None] | None = None


class Session(Protocol):
    """A login at another host."""

    user: str

    def run(self, asked: Asked, watch: Watch) -> Ran:
        """Run it there to its end, or until nobody waits for it any longer.

        When `until` passes, and for each stop, it is told to stop as Ctrl-C does.

        Raises:
            Unreachable: the connection broke before it was begun.
        """

    def close(self) -> None:
        """Log out."""


class Connect(Protocol):
    """Logs in at a host."""

    def __call__(self, target: Target, until: float) -> Session:
        """Return the login; `until` is an instant of the monotonic clock.

        Raises:
            Unreachable: the host does not answer.
            HostKeyRefused: it is not the host that it was, or nobody knows.
            HostCannot: it refuses the login, or speaks an SSH that is not spoken here; `check` tells which.
            InvalidInput: ssh_config cannot be understood.
        """
