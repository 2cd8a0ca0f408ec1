# SPDX-License-Identifier: Apache-2.0
"""Steps of a VM's move to another host, on either side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from vgpuctl.domain.domain_xml import parse_domain, parse_hostdevs
from vgpuctl.errors import VerifyFailed
from vgpuctl.model.migration import MigrationProgress, MigrationRequest
from vgpuctl.model.numbers import format_bytes
from vgpuctl.model.vm import ManagedDisk, RecordState, VmState
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.domain import STOPPED_STATES, UndefineDomain, require_domain
from vgpuctl.operations.steps.storage import CreateVolume
from vgpuctl.ports.step import LongStep, Removal, Step, StepReport, ignore_progress

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class DefineArriving(Step):
    """Define a VM that comes from another host, with its record in state `moving`. libvirt replaces it at the end."""

    records_owner: ClassVar[bool] = True

    name: str
    uuid: str
    source: str
    xml: str

    def describe(self) -> str:
        return f"define VM {self.name}, which comes from {self.source}"

    def perform(self, host: Host) -> None:
        """Define it, validated against libvirt's schema."""
        host.hypervisor.define(self.xml)

    def verify(self, host: Host) -> None:
        """Check that libvirt kept the devices and the record."""
        domain = require_domain(host, self.uuid, self.name)
        wanted = {h.carrier for h in parse_hostdevs(self.xml)}
        lost = wanted - {h.carrier for h in parse_hostdevs(domain.xml)}
        record = parse_domain(domain.xml, domain.state, host.machine_id).record
        if lost or record is None or record.state is not RecordState.MOVING:
            raise VerifyFailed(
                f"libvirt did not keep the definition of {self.name}: {', '.join(sorted(lost)) or 'no record'}",
                hint="this libvirt may be older than that of the other host",
                lost=sorted(lost),
            )

    def undo(self, host: Host) -> None:
        """Undefine it if it is off and still on its way here."""
        domain = host.hypervisor.find_domain(self.uuid)
        if domain is None or domain.state not in STOPPED_STATES:
            return
        record = parse_domain(domain.xml, domain.state, host.machine_id).record
        if record is not None and record.state is RecordState.MOVING:
            undefine = UndefineDomain(self.name, self.uuid)
            undefine.perform(host)
            undefine.verify(host)


class CopySeed(Step):
    """Create a VM's seed with the content that it has on the other host."""

    disk: ManagedDisk
    data: bytes

    def describe(self) -> str:
        return f"copy seed {self.disk.path}"

    def perform(self, host: Host) -> None:
        """Create it; raises Exists if the name is taken."""
        host.storage.create_private_volume(self.disk.pool, self.disk.volume, self.data)

    def verify(self, host: Host) -> None:
        """Check that it is at its path."""
        volume = host.storage.volume(self.disk.pool, self.disk.volume)
        if volume is None or volume.path != self.disk.path:
            raise VerifyFailed(f"the seed {self.disk.path} reads back as {volume.path if volume else 'nothing'}")

    def undo(self, host: Host) -> None:
        """Delete it if it is still at its path."""
        CreateVolume(self.disk).undo(host)


class SendDisk(LongStep):
    """Send the content of a disk of a VM that is off to the other host, which has an empty one of the same name."""

    disk: ManagedDisk
    target: str
    target_uri: str

    def describe(self) -> str:
        return f"send disk {self.disk.path} to {self.target}"

    def perform(self, host: Host) -> None:
        """Send it without reporting progress; raises what `perform_with_progress` raises."""
        self.perform_with_progress(host, ignore_progress)

    def perform_with_progress(self, host: Host, report: StepReport) -> None:
        """Send it. When `report` raises, the other host's disk holds part of it, and is removed with its VM."""
        host.storage.send_volume(self.disk.pool, self.disk.volume, self.target_uri, report)

    def verify(self, host: Host) -> None:
        """Nothing here: the other host's libvirt has confirmed the last byte."""

    def undo(self, host: Host) -> None:
        """Nothing: the other host removes what it was sent."""


class SendVm(LongStep):
    """Send a running VM's memory, devices and copied disks to the other host, where it stays paused.

    `pace` gets the progress and returns a new limit for the time that the VM stands still, or raises to end it.
    """

    name: str
    uuid: str
    target: str
    request: MigrationRequest
    pace: Callable[[MigrationProgress], int | None]

    def describe(self) -> str:
        copied = f" and {', '.join(self.request.copied_disks)}" if self.request.copied_disks else ""
        return f"send memory{copied} of VM {self.name} to {self.target}"

    def perform(self, host: Host) -> None:
        """Send it without reporting progress; raises what `perform_with_progress` raises."""
        self.perform_with_progress(host, ignore_progress)

    def perform_with_progress(self, host: Host, report: StepReport) -> None:
        """Send it. When `report` raises, the move is ended, and the VM runs on here."""

        def follow(progress: MigrationProgress) -> int | None:
            report(percent_done(progress), describe_progress(progress))
            return self.pace(progress)

        host.hypervisor.migrate(self.uuid, self.request, follow)

    def verify(self, host: Host) -> None:
        """Check that it does not run here any more."""
        domain = require_domain(host, self.uuid, self.name)
        if domain.state not in STOPPED_STATES:
            raise VerifyFailed(f"VM {self.name} was sent to {self.target}, and is {domain.state} here")

    def undo(self, host: Host) -> None:
        """Nothing: whether it can be undone is for who looks at both hosts."""


def percent_done(progress: MigrationProgress) -> float:
    """Return how much of memory and disks was sent; the guest may write faster than that."""
    total = (progress.memory_total_bytes or 0) + (progress.disk_total_bytes or 0)
    remaining = (progress.memory_remaining_bytes or 0) + (progress.disk_remaining_bytes or 0)
    return 0.0 if not total else max(0.0, min(100.0, 100.0 * (total - remaining) / total))


def describe_progress(progress: MigrationProgress) -> str:
    """Return what is left, how fast the guest writes, and how long that takes at this speed, as far as QEMU says it."""
    parts = []
    left = (progress.memory_remaining_bytes or 0) + (progress.disk_remaining_bytes or 0)
    if progress.memory_remaining_bytes is not None:
        parts.append(f"{format_bytes(left)} left")
    if progress.device_bytes:
        parts.append(f"{format_bytes(progress.device_bytes)} of devices sent")
    dirty, speed = progress.dirty_bytes_per_second, progress.bandwidth_bytes_per_second
    if dirty:
        parts.append(f"the guest writes {format_bytes(dirty)}/s")
    gain = (speed or 0) - (dirty or 0)
    if speed and gain > 0:
        parts.append(f"about {max(1, round(left / gain))} s")
    elif speed:
        parts.append("no end at this speed")
    return ", ".join(parts)


class ResumeVm(Step):
    """Have a paused VM run."""

    name: str
    uuid: str

    def describe(self) -> str:
        return f"let VM {self.name} run"

    def perform(self, host: Host) -> None:
        """Resume it; one that runs is no error."""
        host.hypervisor.resume(self.uuid)

    def verify(self, host: Host) -> None:
        """Check that it is not paused."""
        domain = require_domain(host, self.uuid, self.name)
        if domain.state is VmState.PAUSED:
            raise VerifyFailed(f"VM {self.name} was resumed and is still paused", hint=f"virsh resume {self.name}")

    def undo(self, host: Host) -> None:
        """Nothing: it runs, and its user works."""


class StopPausedDomain(Removal):
    """Force off a VM that waits, paused, for a move that does not happen or that is done; never one that runs.

    `write`: what is recorded before, so that whoever finds it off knows why.
    """

    precedes_off: ClassVar[bool] = True

    name: str
    uuid: str
    write: WriteRecord | None = None

    def describe(self) -> str:
        return f"force off VM {self.name} here, where it is paused for its move"

    def perform(self, host: Host) -> None:
        """Force it off.

        Raises:
            Busy: its record was changed meanwhile. VerifyFailed: it runs.
        """
        if self.write is not None:
            self.write.perform(host)
            self.write.verify(host)
        domain = host.hypervisor.find_domain(self.uuid)
        if domain is None or domain.state in STOPPED_STATES:
            return
        if domain.state is not VmState.PAUSED:
            raise VerifyFailed(f"VM {self.name} is {domain.state}: it is not forced off", uuid=self.uuid)
        host.hypervisor.destroy(self.uuid)

    def verify(self, host: Host) -> None:
        """Check that it is off."""
        domain = host.hypervisor.find_domain(self.uuid)
        if domain is not None and domain.state not in STOPPED_STATES:
            raise VerifyFailed(f"VM {self.name} was forced off but is {domain.state}", uuid=self.uuid)
