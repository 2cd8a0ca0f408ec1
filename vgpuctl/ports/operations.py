# SPDX-License-Identifier: Apache-2.0
"""The port to operations: which work is done on this host now, in this process or in another."""

from __future__ import annotations

from typing import Protocol

from vgpuctl.model.vm import Operation


class Operations(Protocol):
    """The operation that uses this `Host`, and the others on the same host.

    An operation is one command or one API request. Its claims and notes name it. It is alive while it holds the lock on
    its own file, so one process can carry out several, and each ends with its own work.
    """

    def current(self) -> Operation:
        """Return the operation that uses this `Host`. Its file is written before its first claim or note."""

    def living(self, ids: frozenset[str | None]) -> frozenset[str | None]:
        """Return those of these operations that are alive, the current one included once it has written something.

        None, as version 0.1 left it, is no living operation. In a captured tree all are returned, None too: whether
        they live cannot be known there.

        Raises:
            OSError: the operations cannot be listed, for example without root; never treat that as "none is alive".
        """

    def end(self) -> None:
        """End the current operation; what it left on the host is for `reconcile`. The next claim begins another one."""

    def remove_ended(self) -> None:
        """Remove the files of dead operations, also of those that a claim still names: a missing file means the same.

        Raises:
            OSError: they cannot be listed.
        """
