# SPDX-License-Identifier: Apache-2.0
"""The kernel log of a simulated host: what its drivers wrote there since the boot, as far as anybody asks."""

from __future__ import annotations

from vgpuctl.sim import scheduler
from vgpuctl.sim.core import Core
from vgpuctl.sim.turns import in_turn


@in_turn
class SimKernelLog:
    """The log since the last boot."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def lines(self, *containing: str) -> tuple[str, ...]:
        """Return the lines that contain one of these texts."""
        return tuple(line for line in scheduler.kernel_log(self._core.look()) if any(t in line for t in containing))

    def service_lines(self, service: str) -> tuple[str, ...]:
        """Return what a service wrote: nothing, for here all goes well with them."""
        return ()
