# SPDX-License-Identifier: Apache-2.0
"""The domain's life as steps: define, record, start, stop, undefine."""

from __future__ import annotations

from typing import ClassVar

from vgpuctl.errors import Busy, InUse, LibvirtFailed, VerifyFailed, VgpuctlError
from vgpuctl.model.records import DomainRecord
from vgpuctl.model.sizes import mib_text
from vgpuctl.model.vm import Promise, VmState
from vgpuctl.model.wish import DomainDesign
from vgpuctl.model.world import World
from vgpuctl.value import Value

OFF = (VmState.STOPPED,)
"""A crashed domain is not off: with on_crash=preserve libvirt keeps its QEMU, which holds the devices."""
RUNS = (VmState.RUNNING, VmState.PAUSED)


def _read(world: World, uuid: str, name: str) -> DomainRecord:
    record = world.hypervisor.find_domain(uuid)
    if record is None:
        raise VerifyFailed(f"the VM {name} is not there any more", hint="virsh list --all", uuid=uuid)
    return record


def not_off(world: World, uuid: str) -> str | None:
    """Say which VM is not off and how it is; None when it is off or not there. Unreadable counts as running."""
    try:
        record = world.hypervisor.find_domain(uuid)
    except VgpuctlError as error:
        return f"whether VM {uuid} runs cannot be read: {error.message}"
    return None if record is None or record.state in OFF else f"VM {record.name} is {record.state}"


def lacking(world: World, record: DomainRecord) -> tuple[str, ...]:
    """Return what a VM's record names and the VM, which is not off, does not have: devices, and files of its disks."""
    from vgpuctl.domain.parse import hostdevs_of, parse

    promise = parse(record.xml, record.state, world.machine_id).promise
    if promise is None:
        return ()
    live = {h.carrier for h in hostdevs_of(record.live_xml or "<domain/>")}
    devices = tuple(v.carrier for v in promise.vgpus if v.carrier not in live)
    return (*devices, *(d.path for d in promise.disks if world.storage.image(d.path) is None))


class DefineDomain(Value):
    """Define the domain that refers to everything else, with its record in state `making`."""

    tells_owner: ClassVar[bool] = True

    design: DomainDesign
    xml: str

    def describe(self) -> str:
        """Say what is defined."""
        d = self.design
        return (
            f"define VM {d.name} ({d.vcpus} vCPU, {mib_text(d.memory_mib)}, {d.firmware.upper()}, network {d.network})"
        )

    def perform(self, world: World) -> None:
        """Define it, validated against libvirt's schema."""
        world.hypervisor.define(self.xml)

    def verify(self, world: World) -> None:
        """Compare what libvirt re-reads with what was meant: an older libvirt drops what it does not know."""
        from vgpuctl.domain.compare import missing

        lost = missing(self.design, _read(world, self.design.uuid, self.design.name).xml)
        if lost:
            raise VerifyFailed(
                f"libvirt did not keep the definition of {self.design.name}: {'; '.join(lost)}",
                hint="this libvirt may be too old for the template, or the template leaves something out",
                lost=list(lost),
            )

    def undo(self, world: World) -> None:
        """Undefine it, if it still is the domain with our record."""
        from vgpuctl.domain.parse import parse

        record = world.hypervisor.find_domain(self.design.uuid)
        if record is not None and parse(record.xml, record.state, world.machine_id).promise is not None:
            undefine = UndefineDomain(self.design.name, self.design.uuid)
            undefine.perform(world)
            undefine.verify(world)


class KeepDefinition(Value):
    """Give a running VM that was undefined a definition again: what is written into it then outlasts its stop."""

    name: str
    uuid: str

    def describe(self) -> str:
        """Say what is defined again."""
        return f"define VM {self.name} again: it runs without a definition"

    def perform(self, world: World) -> None:
        """Define it as it runs."""
        world.hypervisor.define(_read(world, self.uuid, self.name).xml)

    def verify(self, world: World) -> None:
        """See that it is kept now."""
        if not _read(world, self.uuid, self.name).persistent:
            raise VerifyFailed(f"the VM {self.name} was defined again and still is not kept", uuid=self.uuid)

    def undo(self, world: World) -> None:
        """Nothing: a removal is finished by reconcile, not taken back."""


class SetRecord(Value):
    """Write the VM's record into its metadata, with `was` only over that; undo puts it back.

    A VM that lends its places has no claim while it is off: who makes it and who removes it meet here alone.
    """

    name: str
    uuid: str
    promise: Promise
    was: Promise | None = None

    def describe(self) -> str:
        """Say which state the record takes."""
        return f"record {self.name} as {self.promise.state}"

    def perform(self, world: World) -> None:
        """Set the metadata element.

        Raises:
            Busy: somebody else changed the record since it was read; nothing was changed.
        """
        from vgpuctl.domain.metadata import promise_to_xml

        if self.was is not None and not self._reads(world, self.was):
            raise Busy(f"the record of {self.name} was changed just now", hint="run the command again", vm=self.name)
        world.hypervisor.set_promise(self.uuid, promise_to_xml(self.promise))

    def verify(self, world: World) -> None:
        """Read the record back."""
        if not self._reads(world, self.promise):
            raise VerifyFailed(f"the record of {self.name} reads back differently", uuid=self.uuid)

    def _reads(self, world: World, promise: Promise) -> bool:
        from vgpuctl.domain.parse import parse

        record = _read(world, self.uuid, self.name)
        return parse(record.xml, record.state, world.machine_id).promise == promise

    def undo(self, world: World) -> None:
        """Put the former record back, where the domain still is there and says what was written."""
        from vgpuctl.domain.metadata import promise_to_xml

        if self.was is None or world.hypervisor.find_domain(self.uuid) is None or not self._reads(world, self.promise):
            return
        try:
            world.hypervisor.set_promise(self.uuid, promise_to_xml(self.was))
        except LibvirtFailed:
            if world.hypervisor.find_domain(self.uuid) is not None:
                raise


class StartDomain(Value):
    """Start the VM."""

    name: str
    uuid: str

    def describe(self) -> str:
        """Say what is started."""
        return f"start VM {self.name}"

    def perform(self, world: World) -> str | None:
        """Start it; one that runs after all, with all that it should have, is what was asked for.

        Raises:
            InUse: another program started it without something that its record names.
        """
        try:
            world.hypervisor.start(self.uuid)
        except LibvirtFailed as error:
            record = _read(world, self.uuid, self.name)
            if record.state not in RUNS:
                raise
            lacks = lacking(world, record)
            if lacks:
                raise InUse(
                    f"another program started VM {self.name}, which runs without {', '.join(lacks)}",
                    hint=f"vgpuctl stop-vm {self.name}, then vgpuctl start-vm {self.name}",
                    vm=self.name,
                    lacks=list(lacks),
                ) from error
            return f"VM {self.name} was started by another program"
        return None

    def verify(self, world: World) -> None:
        """See it run."""
        state = _read(world, self.uuid, self.name).state
        if state in OFF:
            raise VerifyFailed(
                f"the VM {self.name} was started but is {state}",
                hint=f"see /var/log/libvirt/qemu/{self.name}.log",
                state=state,
            )

    def undo(self, world: World) -> None:
        """Pull the plug: it runs for a moment only, without a system that could lose anything."""
        if world.hypervisor.find_domain(self.uuid) is not None:
            stop = StopDomain(self.name, self.uuid, force=True, deadline_seconds=0)
            stop.perform(world)
            stop.verify(world)


class StopDomain(Value):
    """Stop the VM: ask the guest and wait, or pull the plug."""

    name: str
    uuid: str
    force: bool
    deadline_seconds: float

    def describe(self) -> str:
        """Say how it is stopped."""
        how = "pull the plug of" if self.force else "shut down"
        return f"{how} VM {self.name}"

    def perform(self, world: World) -> None:
        """Stop it; one that is off already is no error."""
        if self.force:
            world.hypervisor.destroy(self.uuid)
            return
        if _read(world, self.uuid, self.name).state in OFF:
            return
        world.hypervisor.shutdown(self.uuid)
        if not world.hypervisor.wait_stopped(self.uuid, self.deadline_seconds):
            raise Busy(
                f"{self.name} did not shut down within {self.deadline_seconds:g} s",
                hint=(
                    "the guest ignores the power button, or is slow and goes off later: "
                    f"vgpuctl start-vm {self.name} then starts it again; "
                    f"vgpuctl stop-vm {self.name} --force pulls the plug"
                ),
                vm=self.name,
            )

    def verify(self, world: World) -> None:
        """See it off."""
        state = _read(world, self.uuid, self.name).state
        if state not in OFF:
            raise VerifyFailed(f"the VM {self.name} was stopped but is {state}", state=state)

    def undo(self, world: World) -> None:
        """Nothing: a stopped VM is not started behind its user's back."""


class UndefineDomain(Value):
    """Remove the domain's definition with its NVRAM, TPM, managed save and snapshot metadata."""

    name: str
    uuid: str
    leftovers: tuple[str, ...] = ()

    def describe(self) -> str:
        """Say what goes with it."""
        extra = f" with {', '.join(self.leftovers)}" if self.leftovers else ""
        return f"undefine VM {self.name}{extra}"

    def perform(self, world: World) -> None:
        """Undefine it; one that is gone already is no error."""
        if world.hypervisor.find_domain(self.uuid) is not None:
            world.hypervisor.undefine(self.uuid)

    def verify(self, world: World) -> None:
        """See that it is gone."""
        if world.hypervisor.find_domain(self.uuid) is not None:
            raise VerifyFailed(f"the VM {self.name} was undefined but is still there", uuid=self.uuid)

    def undo(self, world: World) -> None:
        """Nothing: a removal is finished by reconcile, not taken back."""
