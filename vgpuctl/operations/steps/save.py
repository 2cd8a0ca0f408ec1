# SPDX-License-Identifier: Apache-2.0
"""The step that saves a VM's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.errors import LibvirtFailed, Refused, VerifyFailed
from vgpuctl.model.migration import MigrationProgress
from vgpuctl.operations.steps.domain import STOPPED_STATES, require_domain
from vgpuctl.operations.steps.migration import percent_done
from vgpuctl.ports.step import LongStep

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class SaveDomain(LongStep):
    """Write a running VM's memory and devices to libvirt's own file; the VM is off then."""

    name: str
    uuid: str

    def describe(self) -> str:
        return f"save memory and devices of VM {self.name}, which is then off"

    def perform(self, host: Host) -> None:
        """Save it without reporting progress; raises what `perform_with_progress` raises."""
        self.perform_with_progress(host, lambda _: None)

    def perform_with_progress(self, host: Host, report: Callable[[float], None]) -> None:
        """Save it. When `report` raises, the VM runs on. One that another program saved meanwhile is no error."""

        def follow(progress: MigrationProgress) -> None:
            report(percent_done(progress))

        try:
            host.hypervisor.save(self.uuid, follow)
        except LibvirtFailed:
            if not self._is_saved(host):
                raise

    def verify(self, host: Host) -> None:
        if not self._is_saved(host):
            state = require_domain(host, self.uuid, self.name).state
            raise VerifyFailed(
                f"VM {self.name} was saved, but is {state} and libvirt has no saved memory of it",
                hint=f"cat /var/log/libvirt/qemu/{self.name}.log",
                state=str(state),
            )

    def undo(self, host: Host) -> None:
        """Check that the VM runs on, as one does whose save failed. A saved one is not started.

        Raises:
            Refused: it is off, with its memory saved.
        """
        domain = host.hypervisor.find_domain(self.uuid)
        if domain is not None and domain.state in STOPPED_STATES:
            raise Refused(f"VM {self.name} is off; vgpuctl start-vm {self.name} goes on from its saved memory")

    def _is_saved(self, host: Host) -> bool:
        domain = require_domain(host, self.uuid, self.name)
        return domain.state in STOPPED_STATES and host.hypervisor.leftovers(self.uuid).managed_save
