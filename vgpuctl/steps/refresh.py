# SPDX-License-Identifier: Apache-2.0
"""Exchanging a stopped VM's system disk as steps: the record names both disks while there are two of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.domain.parse import parse
from vgpuctl.domain.sources import sources_of
from vgpuctl.errors import InUse, Refused, VerifyFailed
from vgpuctl.model.records import DomainRecord, Glance
from vgpuctl.model.vm import MadeDisk, Promise
from vgpuctl.steps.domain import OFF
from vgpuctl.steps.storage import MakeVolume, RemoveVolume
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def _read(world: World, uuid: str, name: str) -> DomainRecord:
    record = world.hypervisor.find_domain(uuid)
    if record is None:
        raise VerifyFailed(f"the VM {name} is not there any more", hint="virsh list --all", uuid=uuid)
    return record


def _refuse_used(world: World, name: str, uuid: str, disk: MadeDisk) -> None:
    record = world.hypervisor.find_domain(uuid)
    if record is not None and disk.path in sources_of(record.xml, record.live_xml).files:
        raise InUse(
            f"{name} uses {disk.path}, which is to be deleted",
            hint=f"vgpuctl stop-vm {name}, then vgpuctl reconcile",
            vm=name,
            disk=disk.path,
        )


class MakeSpare(Value):
    """Make the disk that a VM is to get; undo leaves it where the switch to it could not be taken back."""

    name: str
    uuid: str
    disk: MadeDisk
    checked: tuple[Glance, ...] = ()

    def describe(self) -> str:
        """Say what is made."""
        return MakeVolume(self.disk).describe()

    def perform(self, world: World) -> None:
        """Make it; raises as `MakeVolume` does."""
        MakeVolume(self.disk, self.checked).perform(world)

    def verify(self, world: World) -> None:
        """Read path, size and base back."""
        MakeVolume(self.disk).verify(world)

    def undo(self, world: World) -> None:
        """Delete it.

        Raises:
            InUse: the VM refers to it.
        """
        _refuse_used(world, self.name, self.uuid, self.disk)
        MakeVolume(self.disk).undo(world)


class SwitchDisk(Value):
    """Exchange a disk of a stopped VM's definition for another one, its record with it, in one call.

    The definition is read when it is changed, because it holds secrets and the record in it changed just before.
    """

    name: str
    uuid: str
    old: str
    new: str
    before: Promise
    after: Promise

    def describe(self) -> str:
        """Say what changes."""
        return f"change VM {self.name}: disk: {self.old} -> {self.new}"

    def perform(self, world: World) -> None:
        """Define it over the existing one, validated.

        Raises:
            InUse: the VM runs, or somebody else changed it since it was read; nothing was changed.
        """
        record = _read(world, self.uuid, self.name)
        promise = parse(record.xml, record.state, world.machine_id).promise
        if record.state not in OFF or promise != self.before or self.old not in sources_of(record.xml).files:
            raise InUse(f"{self.name} was started or changed by somebody else just now", hint="run the command again")
        self._define(world, self.old, self.new, self.after)

    def _define(self, world: World, there: str, instead: str, promise: Promise) -> None:
        from vgpuctl.domain.edit import Edit, edited

        xml = edited(world.hypervisor.definition(self.uuid), Edit(disk=(there, instead), promise=promise))
        world.hypervisor.redefine(self.uuid, xml)

    def verify(self, world: World) -> None:
        """Read it back, and see that the disk is there: of a VM without claims, reconcile may have met it as a spare.

        A VM that was started meanwhile runs on the former disk.
        """
        self._see(world, self.after, there=self.new, gone=self.old)

    def _see(self, world: World, promise: Promise, *, there: str, gone: str) -> None:
        record = _read(world, self.uuid, self.name)
        files = sources_of(record.xml, record.live_xml).files
        same = parse(record.xml, record.state, world.machine_id).promise == promise
        if not same or there not in files or gone in files or world.storage.image(there) is None:
            raise VerifyFailed(
                f"the disk of {self.name} is not {there} alone, as it was defined, or that is not there",
                hint=f"virsh domblklist {self.name}; virsh domblklist --inactive {self.name}",
                vm=self.name,
                disks=list(files),
            )

    def undo(self, world: World) -> None:
        """Define the former disk again, unless it still is."""
        record = world.hypervisor.find_domain(self.uuid)
        if record is None or parse(record.xml, record.state, world.machine_id).promise != self.after:
            return
        self._define(world, self.new, self.old, self.before)
        self._see(world, self.before, there=self.old, gone=self.new)


class DropSpare(Value):
    """Delete a disk that a refresh made or left, once the VM refers to it neither in its definition nor as it runs.

    `needed`: the VM's own disks; while one is missing nothing is deleted.
    """

    name: str
    uuid: str
    disk: MadeDisk
    needed: tuple[MadeDisk, ...] = ()

    def describe(self) -> str:
        """Say what goes."""
        return RemoveVolume(self.disk).describe()

    def perform(self, world: World) -> None:
        """Delete it; one that is gone already is no error.

        Raises:
            InUse: the VM refers to it after all.
            Refused: the VM's own disk is not there.
            HostCannot: its pool is gone or cannot be started.
        """
        _refuse_used(world, self.name, self.uuid, self.disk)
        for disk in self.needed:
            if world.storage.image(disk.path) is None:
                raise Refused(
                    f"{disk.path}, the disk of {self.name}, is not there: {self.disk.path} may hold its last state",
                    hint=f"virsh domblklist --inactive {self.name}; ls -l {disk.path} {self.disk.path}",
                    vm=self.name,
                    disk=disk.path,
                )
        RemoveVolume(self.disk).perform(world)

    def verify(self, world: World) -> None:
        """See that it is gone."""
        RemoveVolume(self.disk).verify(world)

    def undo(self, world: World) -> None:
        """Nothing: what is deleted is gone."""
