# SPDX-License-Identifier: Apache-2.0
"""A simulated host for the hook's tests: its kernel and libvirt, with this machine's claims, lock and processes."""

from __future__ import annotations

from uuid import uuid4

from vgpuctl import sim
from vgpuctl.host.claims import ClaimStore
from vgpuctl.host.clock import HostClock
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.world import World


def simulated_world(scenario: str) -> World:
    """Return the simulated host of that scenario's name or file."""
    host = sim.open_world(scenario)
    processes = HostProcesses()
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
