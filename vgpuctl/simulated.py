# SPDX-License-Identifier: Apache-2.0
"""Join a simulated host with this machine's processes, claims and lock into one Host.

A simulated host brings its own kernel, libvirt and storage. Claims, the lock, processes and time are this machine's;
they are below the simulated host's own /run, so that several vgpuctl processes see each other as on a real host.
The command line and libvirt's hook open a simulated host here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from vgpuctl import sim
from vgpuctl.host.atomic_files import open_unfinished_files
from vgpuctl.host.claim_store import ClaimStore
from vgpuctl.host.clock import HostClock
from vgpuctl.host.host_file import HostFileOnDisk
from vgpuctl.host.processes import HostProcesses
from vgpuctl.host.system_files import HostSystem
from vgpuctl.model.port_values import DeviceUser
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.ports.host import Host

if TYPE_CHECKING:
    from vgpuctl.ports.processes import Processes

PREFIX = "sim:"


def open_simulated_host(scenario: str) -> Host:
    """Return the simulated host of a built-in scenario, by its name, or of a scenario file.

    Raises:
        NotFound: there is no such scenario.
        InvalidInput: its file is invalid, or was changed since the host was first used.
    """
    sim_host = sim.open_host(scenario)
    processes = SimProcesses(HostProcesses(), sim_host)
    claims = SimClaims(processes, sim_host)
    sim_host.lock_held = lambda: claims.is_locked
    return Host(
        name=f"{PREFIX}{scenario}",
        sysfs=sim_host.sysfs,
        nvml=sim_host.nvml,
        hypervisor=sim_host.hypervisor,
        storage=sim_host.storage,
        processes=processes,
        claims=claims,
        clock=HostClock(),
        machine_id=sim_host.machine_id,
        new_uuid=lambda: str(uuid4()),
        audit_log=sim_host.audit,
        system=HostSystem(sim_host.run_dir.parent, allow_systemctl=False),
        host_file=HostFileOnDisk(sim_host.host_file, lock_held=lambda: claims.is_locked),
        vendor_commands=sim_host.vendor,
        system_log=sim_host.kernel_log,
        unfinished_files=open_unfinished_files(
            sim_host.run_dir.parent, sim_host.run_dir, sim_host.host_file, processes
        ),
    )


class SimProcesses:
    """This machine's processes and the simulated ones; only simulated processes hold device nodes."""

    def __init__(self, real: Processes, host: sim.SimHost) -> None:
        self._real = real
        self._host = host

    def current_process(self) -> ProcessId:
        """Return the calling process."""
        return self._real.current_process()

    def command_line(self) -> str:
        """Return the calling command line, without secrets."""
        return self._real.command_line()

    def is_alive(self, process: ProcessId) -> bool:
        """Return whether exactly this process is still alive, here or on the simulated host."""
        return self._real.is_alive(process) or self._host.is_alive(process)

    def find_holders(self, nodes: tuple[str, ...]) -> tuple[DeviceUser, ...]:
        """Return the simulated processes that have any of these device nodes open."""
        return self._host.find_holders(nodes)


class SimClaims(ClaimStore):
    """The claims below the simulated host's /run, and the writes that are stuck in its kernel."""

    def __init__(self, processes: SimProcesses, host: sim.SimHost) -> None:
        super().__init__(host.run_dir, processes, processes.command_line())
        self._host = host

    def stuck_writes(self) -> tuple[StuckWrite, ...]:
        """Return the writes that are still stuck, recorded or simulated."""
        return (*super().stuck_writes(), *self._host.stuck_writes())
