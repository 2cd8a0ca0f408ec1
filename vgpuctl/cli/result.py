# SPDX-License-Identifier: Apache-2.0
"""What a command hands to the printer, and what a changing one gets from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Confirm, ManyProgress
    from vgpuctl.model.world import World


class Result(Value):
    """What is printed: `data` for programs and, through `text`, for people. `raw` is printed as it is.

    `status` is the exit status of a command that worked and has bad news: the result is printed all the same.
    """

    data: object
    changed: bool = False
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    raw: str | None = None
    status: int = 0


class Work(Value):
    """What a changing command gets from the command line beside its own arguments."""

    world: World
    progress: ManyProgress
    confirm: Confirm
    wait_seconds: float
