# SPDX-License-Identifier: Apache-2.0
"""A simulated host for the hook's tests: its kernel and libvirt, with this machine's claims, lock and processes."""

from __future__ import annotations

from uuid import uuid4

from vgpuctl import sim
from vgpuctl.host.claims import ClaimStore
from vgpuctl.host.clock import HostClock
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.records import Holder
from vgpuctl.model.world import World


class SimProcesses(HostProcesses):
    """This machine's processes; who holds a device node, the simulated host says."""

    def __init__(self, host: sim.SimWorld) -> None:
        super().__init__()
        self._host = host

    def holders(self, nodes: tuple[str, ...]) -> tuple[Holder, ...]:
        """Return which simulated processes have any of these device nodes open."""
        return self._host.holders(nodes)


def simulated_world(scenario: str) -> World:
    """Return the simulated host of that scenario's name or file."""
    host = sim.open_world(scenario)
    processes = SimProcesses(host)
    claims = ClaimStore(host.run_dir, processes, processes.command())
    host.lock_held = lambda: claims.held
    return World(
        name=f"sim:{scenario}",
        sysfs=host.sysfs,
        nvml=host.nvml,
        hypervisor=host.hypervisor,
        storage=host.storage,
        processes=processes,
        claims=claims,
        clock=HostClock(),
        machine_id=host.machine_id,
        new_uuid=lambda: str(uuid4()),
    )
