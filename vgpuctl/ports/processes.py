# SPDX-License-Identifier: Apache-2.0
"""The ports to the processes of the host and to its clock."""

from __future__ import annotations

from typing import Protocol

from vgpuctl.model.port_values import DeviceUser


class Processes(Protocol):
    """The host's processes."""

    def find_holders(self, nodes: tuple[str, ...]) -> tuple[DeviceUser, ...]:
        """Return the processes that have any of these device nodes (/dev/vfio/7, /dev/dri/card1) open.

        Raises:
            PermissionError: not every process could be inspected; never treat that as "nobody".
        """


class Clock(Protocol):
    """Time."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps."""

    def sleep(self, seconds: float) -> None:
        """Wait a short time between two checks of a condition."""
