# SPDX-License-Identifier: Apache-2.0
"""The output of a command, and what a changing command gets from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.outcome import BatchProgress, Confirm
    from vgpuctl.ports.host import Host


class CommandOutput(Value):
    """What is printed: `data` for programs and, rendered as a page, for people. `raw` is printed as it is.

    `status` is the exit status of a command that worked but reports a problem: its result is printed all the same.
    """

    data: object
    changed: bool = False
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    raw: str | None = None
    status: int = 0


class ChangeContext(Value):
    """What a changing command gets from the command line besides its own arguments."""

    host: Host
    progress: BatchProgress
    confirm: Confirm
    wait_seconds: float
