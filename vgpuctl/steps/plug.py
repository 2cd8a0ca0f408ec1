# SPDX-License-Identifier: Apache-2.0
"""Changing a VM that exists as steps: its record, its devices, its definition.

A running guest lets a device go when it likes. Until the live XML lacks it, the vGPU stays made, recorded and claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from vgpuctl.domain.metadata import promise_to_xml
from vgpuctl.domain.parse import hostdevs_of, parse
from vgpuctl.errors import Busy, InUse, LibvirtFailed, Refused, VerifyFailed
from vgpuctl.model.records import DomainRecord, Removed
from vgpuctl.model.step import Step
from vgpuctl.model.vm import Claim, HostdevRef, Promise, Vm
from vgpuctl.model.wish import DesignHostdev
from vgpuctl.steps.claims import HoldClaim, ReleaseClaim
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World

UNDO_SECONDS = 20.0
_INTERNAL_ERROR, _OPERATION_FAILED, _DEVICE_MISSING = 1, 9, 99


def _read(world: World, uuid: str, name: str) -> DomainRecord:
    record = world.hypervisor.find_domain(uuid)
    if record is None:
        raise VerifyFailed(f"the VM {name} is not there any more", hint="virsh list --all", uuid=uuid)
    return record


def _device(xml: str | None, carrier: str) -> HostdevRef | None:
    return next((h for h in hostdevs_of(xml) if h.carrier == carrier), None) if xml else None


class WriteRecord(Value):
    """Write a VM's record, or with None take it away, unless it is not `was`, which undo puts back.

    A VM that is off and lends its places has no claim that keeps others from it: who comes second sees it here.
    `what`: told instead of the vGPUs.
    """

    tells_owner: ClassVar[bool] = True

    name: str
    uuid: str
    promise: Promise | None
    was: Promise | None
    what: str = ""

    def describe(self) -> str:
        """Say what the record names afterwards."""
        if self.what:
            return self.what
        if self.promise is None:
            return f"forget {self.name}: it has no vGPU of vgpuctl any more"
        count = len(self.promise.vgpus)
        what = f"{count} vGPU{'' if count == 1 else 's'}" if count else "no vGPU any more"
        return f"record that {self.name} has {what}"

    def perform(self, world: World) -> None:
        """Set or delete the metadata element.

        Raises:
            Busy: somebody else changed the record since it was read; nothing was changed.
        """
        if not self._reads(world, self.was):
            raise Busy(f"the record of {self.name} was changed just now", hint="run the command again", vm=self.name)
        self._write(world, self.promise)

    def verify(self, world: World) -> None:
        """Read the record back."""
        if not self._reads(world, self.promise):
            raise VerifyFailed(f"the record of {self.name} reads back differently", uuid=self.uuid)

    def undo(self, world: World) -> None:
        """Put the former record back, where the domain still is there and says what was written."""
        if world.hypervisor.find_domain(self.uuid) is not None and self._reads(world, self.promise):
            self._write(world, self.was)

    def _reads(self, world: World, promise: Promise | None) -> bool:
        record = _read(world, self.uuid, self.name)
        return parse(record.xml, record.state, world.machine_id).promise == promise

    def _write(self, world: World, promise: Promise | None) -> None:
        world.hypervisor.set_promise(self.uuid, None if promise is None else promise_to_xml(promise))


class AttachDevice(Value):
    """Give a host device to a VM: to its config, and to the guest when it runs."""

    name: str
    uuid: str
    carrier: str
    xml: str
    live: bool

    def describe(self) -> str:
        """Say what is attached, and whether at once."""
        return f"attach {self.carrier} to VM {self.name}{', while it runs' if self.live else ''}"

    def perform(self, world: World) -> None:
        """Attach it.

        Raises:
            Refused: the running VM has no root port free.
        """
        try:
            world.hypervisor.attach_device(self.uuid, self.xml, self.live)
        except LibvirtFailed as error:
            if self.live and error.facts.get("libvirt_code") == _INTERNAL_ERROR:
                refuse_full(self.name, _read(world, self.uuid, self.name).live_xml, 1, f"virsh shutdown {self.uuid}")
            raise

    def verify(self, world: World) -> None:
        """See it in the config, and in the running domain."""
        record = _read(world, self.uuid, self.name)
        missing = _device(record.xml, self.carrier) is None
        if missing or (self.live and record.live_xml is not None and _device(record.live_xml, self.carrier) is None):
            where = "its definition" if missing else "the running VM"
            raise VerifyFailed(
                f"{self.carrier} was attached to {self.name} but is not in {where}", carrier=self.carrier
            )

    def undo(self, world: World) -> None:
        """Take it away again."""
        if world.hypervisor.find_domain(self.uuid) is not None:
            DetachDevice(self.name, self.uuid, self.carrier, UNDO_SECONDS).perform(world)


class DetachDevice(Value):
    """Take a host device from a VM, and wait until the guest has let it go."""

    name: str
    uuid: str
    carrier: str
    deadline_seconds: float

    def describe(self) -> str:
        """Say what is taken."""
        return f"detach {self.carrier} from VM {self.name}"

    def perform(self, world: World) -> None:
        """Ask for it and wait until it is gone; one that is not there is no error.

        Raises:
            Busy: the guest has not let it go in time, or refuses; it stays made, recorded and claimed.
            Refused: the device has no alias of its own by which libvirt could find it.
        """
        record = _read(world, self.uuid, self.name)
        config, live = _device(record.xml, self.carrier), _device(record.live_xml, self.carrier)
        found = config or live
        if found is None:
            return
        if found.alias is None or (config is not None and not found.alias.startswith("ua-")):
            raise Refused(
                f"{self.carrier} has no alias of its own in {self.name}, by which it could be detached",
                hint=f"virsh edit {self.name}: <alias name='ua-...'/> in its <hostdev>; or virsh detach-device",
                carrier=self.carrier,
            )
        if live is None:
            self._ask(world, found.alias, live=False, config=True)
            return
        with world.hypervisor.removal(self.uuid, found.alias) as removal:
            self._ask(world, found.alias, live=True, config=config is not None)
            answer = removal.wait(self.deadline_seconds) if self._has(world) else Removed.GONE
        if self._has(world):
            late = f"did not let {self.carrier} go within {self.deadline_seconds:g} s"
            raise self._kept(f"refuses to let {self.carrier} go" if answer is Removed.REFUSED else late)

    def _has(self, world: World) -> bool:
        """Say whether the running domain has it: what libvirt tells is only a reason to look."""
        return _device(_read(world, self.uuid, self.name).live_xml, self.carrier) is not None

    def _ask(self, world: World, alias: str, *, live: bool, config: bool) -> None:
        """Ask once; a guest that was asked before (the config lacks it) may still be about to answer."""
        try:
            world.hypervisor.detach_device(self.uuid, alias, live=live, config=config)
        except LibvirtFailed as error:
            code = error.facts.get("libvirt_code")
            if code == _OPERATION_FAILED and live:
                raise self._kept(f"refuses to let {self.carrier} go") from error
            if code not in (_INTERNAL_ERROR, _DEVICE_MISSING):  # it is gone, or was asked for before: verify looks
                raise

    def _kept(self, what: str) -> Busy:
        return Busy(
            f"the guest of {self.name} {what}; the vGPU stays its own until then",
            hint=f"close what uses the GPU there, or vgpuctl stop-vm {self.name}; then vgpuctl detach {self.name} "
            f"--vgpu {self.carrier} again, or vgpuctl reconcile",
            vm=self.name,
            carrier=self.carrier,
        )

    def verify(self, world: World) -> None:
        """See that neither the config nor the running domain has it."""
        record = _read(world, self.uuid, self.name)
        if _device(record.xml, self.carrier) or _device(record.live_xml, self.carrier):
            raise VerifyFailed(f"{self.carrier} was detached from {self.name} but is still there", carrier=self.carrier)

    def undo(self, world: World) -> None:
        """Nothing: a removal is finished by reconcile, not taken back."""


def refuse_full(name: str, live_xml: str | None, wanted: int, stop: str) -> None:
    """Refuse to plug devices into a running VM that has too few root ports free. `stop` is a command that stops it.

    Raises:
        Refused: with how many there are and how many are free.
    """
    if live_xml is None:
        return
    from vgpuctl.domain.edit import ports  # with lxml, which libvirt's hook does without

    seen = ports(live_xml)
    if seen.free < wanted:
        raise Refused(
            f"{name} runs and has {seen.free} of {seen.total} PCI ports free; {wanted} needed to plug in a vGPU",
            hint=f"stop it first: {stop}; ports for later: create-vm --hotplug-slots",
            vm=name,
            ports_free=seen.free,
            ports_total=seen.total,
        )


class TakeOut(Value):
    """Remove the device of a stopped VM that gets another one; undo makes it again. Both are the backend's steps."""

    remove: tuple[Step, ...]
    make: tuple[Step, ...]

    def describe(self) -> str:
        """Say what goes."""
        return "; ".join(s.describe() for s in self.remove)

    def perform(self, world: World) -> None:
        """Remove it."""
        for step in self.remove:
            step.perform(world)

    def verify(self, world: World) -> None:
        """See that it is gone."""
        for step in self.remove:
            step.verify(world)

    def undo(self, world: World) -> None:
        """Make it again, unless it still is there."""
        for step in self.make:
            try:
                step.verify(world)
            except (VerifyFailed, OSError):
                step.perform(world)
                step.verify(world)


class DropClaim(Value):
    """Give up the claim on what a VM had before; undo claims it again, unless it was taken meanwhile."""

    claim: Claim

    def describe(self) -> str:
        """Say what is released."""
        return ReleaseClaim(self.claim.carrier, self.claim.vm_uuid).describe()

    def perform(self, world: World) -> None:
        """Remove the claim; a missing one is no error."""
        ReleaseClaim(self.claim.carrier, self.claim.vm_uuid).perform(world)

    def verify(self, world: World) -> None:
        """Nothing to read back: removing a file either worked or raised."""

    def undo(self, world: World) -> None:
        """Claim it again."""
        HoldClaim(self.claim).perform(world)


class Redefine(Value):
    """Change a stopped VM's definition, its record with it, in one call; undo puts the former one back.

    Both texts hold the VM's secrets: they are never printed.
    """

    name: str
    uuid: str
    xml: str
    was: str
    what: tuple[str, ...]

    def describe(self) -> str:
        """Say what changes."""
        return f"change VM {self.name}: {', '.join(self.what)}"

    def perform(self, world: World) -> None:
        """Define it over the existing one, validated.

        Raises:
            InUse: somebody else changed it since it was read; nothing was changed.
        """
        if world.hypervisor.definition(self.uuid) != self.was:
            raise InUse(f"{self.name} was changed by somebody else just now", hint="run the command again")
        world.hypervisor.redefine(self.uuid, self.xml)

    def verify(self, world: World) -> None:
        """Read it back: everything that is known of a VM must read as it was meant."""
        meant, seen = self._parsed(world, self.xml), self._seen(world)
        if seen != meant:
            raise VerifyFailed(
                f"libvirt did not keep the changed definition of {self.name}",
                hint=f"virsh dumpxml --inactive {self.name}",
                vm=self.name,
            )

    def undo(self, world: World) -> None:
        """Define the former one, unless it still is."""
        if world.hypervisor.find_domain(self.uuid) is None or world.hypervisor.definition(self.uuid) == self.was:
            return
        world.hypervisor.redefine(self.uuid, self.was)
        if self._seen(world) != self._parsed(world, self.was):
            raise VerifyFailed(f"the former definition of {self.name} could not be put back", vm=self.name)

    def _seen(self, world: World) -> Vm:
        return self._parsed(world, _read(world, self.uuid, self.name).xml)

    def _parsed(self, world: World, xml: str) -> Vm:
        record = _read(world, self.uuid, self.name)
        return parse(xml, record.state, world.machine_id)


class SwitchOver(Value):
    """Give a VM that is off what its record says of an exchange: the device, and the record after it, in one call."""

    name: str
    uuid: str
    carrier: str
    device: DesignHostdev
    promise: Promise
    was: Promise

    def describe(self) -> str:
        """Say what it has then."""
        return f"change VM {self.name}: {self.carrier} -> {self.device.carrier}"

    def perform(self, world: World) -> None:
        """Define it over the existing one; one that has it already is no error.

        Raises:
            Busy: somebody else changed the record since it was read; nothing was changed.
        """
        from vgpuctl.domain.edit import Edit, edited  # with lxml, which libvirt's hook does without

        now = self._promise(world)
        if now == self.promise:
            return
        if now != self.was:
            raise Busy(f"the record of {self.name} was changed just now", hint="run the command again", vm=self.name)
        edit = Edit(exchange=((self.carrier, self.device),), promise=self.promise)
        world.hypervisor.redefine(self.uuid, edited(world.hypervisor.definition(self.uuid), edit))

    def verify(self, world: World) -> None:
        """Read record and device back."""
        record = _read(world, self.uuid, self.name)
        if self._promise(world) != self.promise or _device(record.xml, self.device.carrier) is None:
            raise VerifyFailed(f"libvirt did not keep the changed definition of {self.name}", vm=self.name)

    def undo(self, world: World) -> None:
        """Nothing: an exchange that was decided is finished, not taken back."""

    def _promise(self, world: World) -> Promise | None:
        record = _read(world, self.uuid, self.name)
        return parse(record.xml, record.state, world.machine_id).promise
