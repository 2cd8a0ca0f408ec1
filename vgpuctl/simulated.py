# SPDX-License-Identifier: Apache-2.0
"""Joins a simulated host with this machine's processes, claims and lock into one World.

A simulated host brings its own kernel, libvirt and storage; claims, the lock, processes and time are this
machine's, below the simulated host's own /run, so that several vgpuctl processes meet as on a real host.
The command line and libvirt's hook open it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from vgpuctl import sim
from vgpuctl.host.atomic import unfinished_below
from vgpuctl.host.claims import ClaimStore
from vgpuctl.host.clock import HostClock
from vgpuctl.host.host_file import HostFileOnDisk
from vgpuctl.host.processes import HostProcesses
from vgpuctl.host.system import HostSystem
from vgpuctl.model.records import Holder
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.model.world import World

if TYPE_CHECKING:
    from vgpuctl.model.seams import Processes

PREFIX = "sim:"


def simulated_world(scenario: str) -> World:
    """Return the simulated host of a built-in scenario's name, or of a scenario file.

    Raises:
        NotFound: there is no such scenario.
        InvalidInput: its file is wrong, or was changed since the host was first used.
    """
    host = sim.open_world(scenario)
    processes = SimProcesses(HostProcesses(), host)
    claims = SimClaims(processes, host)
    host.lock_held = lambda: claims.held
    return World(
        name=f"{PREFIX}{scenario}",
        sysfs=host.sysfs,
        nvml=host.nvml,
        hypervisor=host.hypervisor,
        storage=host.storage,
        processes=processes,
        claims=claims,
        clock=HostClock(),
        machine_id=host.machine_id,
        new_uuid=lambda: str(uuid4()),
        audit=host.audit,
        system=HostSystem(host.run_dir.parent, services=False),
        host_file=HostFileOnDisk(host.host_file, lock_held=lambda: claims.held),
        vendor=host.vendor,
        kernel_log=host.kernel_log,
        unfinished=unfinished_below(host.run_dir.parent, host.run_dir, host.host_file, processes),
    )


class SimProcesses:
    """This machine's processes and the simulated ones; who holds a device node, the simulated host says."""

    def __init__(self, real: Processes, host: sim.SimWorld) -> None:
        self._real = real
        self._host = host

    def this(self) -> ProcessId:
        """Return the calling process."""
        return self._real.this()

    def command(self) -> str:
        """Return the calling command line, without secrets."""
        return self._real.command()

    def alive(self, process: ProcessId) -> bool:
        """Say whether exactly this process still lives, here or on the simulated host."""
        return self._real.alive(process) or self._host.alive(process)

    def holders(self, nodes: tuple[str, ...]) -> tuple[Holder, ...]:
        """Return which simulated processes have any of these device nodes open."""
        return self._host.holders(nodes)


class SimClaims(ClaimStore):
    """The claims below the simulated host's /run, and the writes that wait in its kernel."""

    def __init__(self, processes: SimProcesses, host: sim.SimWorld) -> None:
        super().__init__(host.run_dir, processes, processes.command())
        self._host = host

    def stuck(self) -> tuple[StuckWrite, ...]:
        """Return the writes that still wait, recorded or simulated."""
        return (*super().stuck(), *self._host.stuck())
