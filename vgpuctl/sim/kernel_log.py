# SPDX-License-Identifier: Apache-2.0
"""The kernel log of a simulated host: the drivers' messages since the boot, as far as vgpuctl reads them."""

from __future__ import annotations

from vgpuctl.sim import vgpu_scheduler
from vgpuctl.sim.call_lock import serialize_calls
from vgpuctl.sim.core import Core


@serialize_calls
class SimKernelLog:
    """The log since the last boot."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def kernel_lines(self, *containing: str) -> tuple[str, ...]:
        """Return the lines that contain one of these texts."""
        return tuple(
            line
            for line in vgpu_scheduler.kernel_log_lines(self._core.read_state())
            if any(t in line for t in containing)
        )

    def service_lines(self, service: str) -> tuple[str, ...]:
        """Return what a service logged: nothing, because simulated services have no problems."""
        return ()
