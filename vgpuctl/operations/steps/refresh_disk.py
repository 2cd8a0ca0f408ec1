# SPDX-License-Identifier: Apache-2.0
"""Steps that replace a stopped VM's system disk. While both disks exist, the record names both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.domain.domain_xml import parse_disk_sources, parse_domain
from vgpuctl.domain.record import record_after
from vgpuctl.errors import InUse, Refused, VerifyFailed
from vgpuctl.model.port_values import ImageFile
from vgpuctl.model.vm import ManagedDisk, VmRecord
from vgpuctl.operations.steps.domain import STOPPED_STATES, require_domain
from vgpuctl.operations.steps.storage import CreateVolume
from vgpuctl.operations.steps.volume_bin import removal_of
from vgpuctl.ports.step import LongStep, Removal, Step, StepReport

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def _refuse_disk_in_use(host: Host, name: str, uuid: str, disk: ManagedDisk) -> None:
    domain = host.hypervisor.find_domain(uuid)
    if domain is not None and disk.path in parse_disk_sources(domain.xml, domain.live_xml).files:
        raise InUse(
            f"{name} uses {disk.path}, which must be deleted",
            hint=f"vgpuctl stop-vm {name}, then vgpuctl reconcile-host",
            vm=name,
            disk=disk.path,
        )


class CreateSpareDisk(LongStep):
    """Create a VM's new disk. Undo keeps the disk if the switch to it could not be undone."""

    name: str
    uuid: str
    disk: ManagedDisk
    checked_files: tuple[ImageFile, ...] = ()

    def describe(self) -> str:
        return CreateVolume(self.disk).describe()

    def perform(self, host: Host) -> None:
        """Create it; raises what `CreateVolume` raises."""
        CreateVolume(self.disk, self.checked_files).perform(host)

    def perform_with_progress(self, host: Host, report: StepReport) -> None:
        """Create it and report how far a copy is; raises what `CreateVolume` raises."""
        CreateVolume(self.disk, self.checked_files).perform_with_progress(host, report)

    def verify(self, host: Host) -> None:
        """Read path, size and base back."""
        CreateVolume(self.disk).verify(host)

    def undo(self, host: Host) -> None:
        """Delete it.

        Raises:
            InUse: the VM refers to it.
        """
        _refuse_disk_in_use(host, self.name, self.uuid, self.disk)
        CreateVolume(self.disk).undo(host)


class SwitchDisk(Step):
    """Replace a disk in a stopped VM's definition, and its record, in one call.

    The definition is read only at the change: it holds secrets, and an earlier step has just changed its record.
    """

    name: str
    uuid: str
    old_path: str
    new_path: str
    old_record: VmRecord
    new_record: VmRecord

    def describe(self) -> str:
        return f"change VM {self.name}: disk: {self.old_path} -> {self.new_path}"

    def perform(self, host: Host) -> None:
        """Redefine the domain with validation.

        Raises:
            InUse: the VM runs, or somebody else changed it since it was read; nothing was changed.
        """
        domain = require_domain(host, self.uuid, self.name)
        record = parse_domain(domain.xml, domain.state, host.machine_id).record
        if (
            domain.state not in STOPPED_STATES
            or record != self.old_record
            or self.old_path not in parse_disk_sources(domain.xml).files
        ):
            raise InUse(
                f"{self.name} has just been started or changed by another program", hint="run the command again"
            )
        self._define(host, self.old_path, self.new_path, self.written)

    @property
    def written(self) -> VmRecord:
        """The record as this step writes it: the `previous` of a later one."""
        return record_after(self.new_record, self.old_record)

    def _define(self, host: Host, old_path: str, new_path: str, record: VmRecord) -> None:
        xml = edit_domain(
            host.hypervisor.definition(self.uuid), DomainEdit(disk_change=(old_path, new_path), record=record)
        )
        host.hypervisor.redefine(self.uuid, xml)

    def verify(self, host: Host) -> None:
        """Read it back and check that the disk exists: without claims, reconcile may have deleted it as a spare.

        A VM that was started meanwhile runs on the old disk.
        """
        self._verify_disk(host, self.written, used=self.new_path, unused=self.old_path)

    def _verify_disk(self, host: Host, record: VmRecord, *, used: str, unused: str) -> None:
        domain = require_domain(host, self.uuid, self.name)
        files = parse_disk_sources(domain.xml, domain.live_xml).files
        is_recorded = parse_domain(domain.xml, domain.state, host.machine_id).record == record
        if not is_recorded or used not in files or unused in files or host.storage.image(used) is None:
            raise VerifyFailed(
                f"the disk of {self.name} is not only {used}, as it was defined, or that does not exist",
                hint=f"virsh domblklist {self.name}; virsh domblklist --inactive {self.name}",
                vm=self.name,
                disks=list(files),
            )

    def undo(self, host: Host) -> None:
        """Define the old disk again if the definition was changed."""
        domain = host.hypervisor.find_domain(self.uuid)
        if domain is None or parse_domain(domain.xml, domain.state, host.machine_id).record != self.written:
            return
        self._define(host, self.new_path, self.old_path, self.old_record)
        self._verify_disk(host, self.old_record, used=self.old_path, unused=self.new_path)


class DeleteSpareDisk(Removal):
    """Delete a disk that a refresh created or left, or move it to the bin.

    Neither the definition nor the running VM may refer to it.

    `required_disks`: the VM's own disks. If one is missing, nothing is deleted.
    """

    name: str
    uuid: str
    disk: ManagedDisk
    required_disks: tuple[ManagedDisk, ...] = ()

    def describe(self) -> str:
        return removal_of(self.disk).describe()

    def perform(self, host: Host) -> None:
        """Delete it. A disk that is gone already is no error.

        Raises:
            InUse: the VM refers to it.
            Refused: the VM's own disk is missing.
            HostCannot: its pool is gone or cannot be started.
        """
        _refuse_disk_in_use(host, self.name, self.uuid, self.disk)
        for disk in self.required_disks:
            if host.storage.image(disk.path) is None:
                raise Refused(
                    f"{disk.path}, the disk of {self.name}, does not exist: {self.disk.path} may hold its last state",
                    hint=f"virsh domblklist --inactive {self.name}; ls -l {disk.path} {self.disk.path}",
                    vm=self.name,
                    disk=disk.path,
                )
        removal_of(self.disk).perform(host)

    def verify(self, host: Host) -> None:
        removal_of(self.disk).verify(host)
