# SPDX-License-Identifier: Apache-2.0
"""Steps that change an existing VM: its record, its devices, its definition.

A running guest may release a device late. While the live XML contains the device, its vGPU stays created, recorded
and claimed.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from vgpuctl.domain.domain_edit import DomainEdit, count_root_ports, edit_domain, with_next_generation
from vgpuctl.domain.domain_xml import parse_domain, parse_hostdevs
from vgpuctl.domain.record import record_after, record_to_xml
from vgpuctl.errors import Busy, InUse, LibvirtFailed, Refused, VerifyFailed
from vgpuctl.model.numbers import count_text
from vgpuctl.model.port_values import DetachOutcome
from vgpuctl.model.vm import Claim, HostdevRef, Vm, VmRecord
from vgpuctl.operations.steps.claims import ReleaseClaim, TakeClaim
from vgpuctl.operations.steps.domain import require_domain
from vgpuctl.ports.step import Removal, Step
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

UNDO_SECONDS = 20.0
_INTERNAL_ERROR, _OPERATION_FAILED, _DEVICE_MISSING = 1, 9, 99


def _find_hostdev(xml: str | None, carrier: str) -> HostdevRef | None:
    return next((h for h in parse_hostdevs(xml) if h.carrier == carrier), None) if xml else None


class WriteRecord(Step):
    """Write a VM's record, or delete it when `record` is None, if it still equals `previous`. Undo restores `previous`.

    A stopped VM with reserve_while_running has no claim to keep other commands away: a concurrent change is detected
    here. `summary`: shown instead of the number of vGPUs. What is written has the generation after `previous`.
    """

    records_owner: ClassVar[bool] = True

    name: str
    uuid: str
    record: VmRecord | None
    previous: VmRecord | None
    summary: str = ""

    def describe(self) -> str:
        if self.summary:
            return self.summary
        if self.record is None:
            return f"forget {self.name}: it no longer has a vGPU of vgpuctl"
        count = len(self.record.vgpus)
        what = count_text(count, "vGPU") if count else "no vGPU"
        return f"record that {self.name} has {what}"

    def perform(self, host: Host) -> None:
        """Set or delete the metadata element.

        Raises:
            Busy: somebody else changed the record since it was read; nothing was changed.
        """
        if not self._is_recorded(host, self.previous):
            raise Busy(f"the record of {self.name} has just been changed", hint="run the command again", vm=self.name)
        self._write(host, self.written)

    @property
    def written(self) -> VmRecord | None:
        """The record as this step writes it: the `previous` of a later one."""
        return None if self.record is None else record_after(self.record, self.previous)

    def verify(self, host: Host) -> None:
        if not self._is_recorded(host, self.written):
            raise VerifyFailed(f"the record of {self.name} reads back differently", uuid=self.uuid)

    def undo(self, host: Host) -> None:
        """Restore the previous record if the domain still exists and still has the one that this step wrote."""
        if host.hypervisor.find_domain(self.uuid) is not None and self._is_recorded(host, self.written):
            self._write(host, self.previous)

    def _is_recorded(self, host: Host, record: VmRecord | None) -> bool:
        domain = require_domain(host, self.uuid, self.name)
        return parse_domain(domain.xml, domain.state, host.machine_id).record == record

    def _write(self, host: Host, record: VmRecord | None) -> None:
        host.hypervisor.set_record(self.uuid, None if record is None else record_to_xml(record))


class AttachDevice(Step):
    """Attach a host device to a VM: to its config, and to the guest if it runs."""

    name: str
    uuid: str
    carrier: str
    xml: str
    live: bool

    def describe(self) -> str:
        return f"attach {self.carrier} to VM {self.name}{', while it runs' if self.live else ''}"

    def perform(self, host: Host) -> None:
        """Attach it.

        Raises:
            Refused: the running VM has no root port free.
        """
        try:
            host.hypervisor.attach_device(self.uuid, self.xml, self.live)
        except LibvirtFailed as error:
            if self.live and error.facts.get("libvirt_code") == _INTERNAL_ERROR:
                require_free_ports(
                    self.name, require_domain(host, self.uuid, self.name).live_xml, 1, f"virsh shutdown {self.uuid}"
                )
            raise

    def verify(self, host: Host) -> None:
        """Check that the config has it, and the running domain too."""
        domain = require_domain(host, self.uuid, self.name)
        missing = _find_hostdev(domain.xml, self.carrier) is None
        if missing or (
            self.live and domain.live_xml is not None and _find_hostdev(domain.live_xml, self.carrier) is None
        ):
            place = "its definition" if missing else "the running VM"
            raise VerifyFailed(
                f"{self.carrier} was attached to {self.name} but is not in {place}", carrier=self.carrier
            )

    def undo(self, host: Host) -> None:
        if host.hypervisor.find_domain(self.uuid) is not None:
            DetachDevice(self.name, self.uuid, self.carrier, UNDO_SECONDS).perform(host)


class DetachDevice(Removal):
    """Detach a host device from a VM and wait until the guest has released it.

    libvirt finds it by its alias: in a definition by a user's (ua-...), in a running domain by any. A device without a
    user's alias, as in an adopted VM, is taken out of the definition by its source, after the guest has released it.
    """

    name: str
    uuid: str
    carrier: str
    deadline_seconds: float

    def describe(self) -> str:
        return f"detach {self.carrier} from VM {self.name}"

    def perform(self, host: Host) -> None:
        """Request the detach and wait until the device is gone. A device that is not attached is no error.

        Raises:
            Busy: the guest did not release it in time, or refuses; it stays created, recorded and claimed.
            Refused: the running device has no alias by which libvirt could find it.
        """
        domain = require_domain(host, self.uuid, self.name)
        config, live = _find_hostdev(domain.xml, self.carrier), _find_hostdev(domain.live_xml, self.carrier)
        user_alias = config.alias if config is not None and (config.alias or "").startswith("ua-") else None
        if live is not None:
            self._detach_live(host, live, config=user_alias is not None)
        elif user_alias is not None:
            self._request_detach(host, user_alias, live=False, config=True)
        if config is not None and user_alias is None:
            self._take_out_of_definition(host)

    def _detach_live(self, host: Host, live: HostdevRef, *, config: bool) -> None:
        """Ask the guest to release it and wait; `config`: take it out of the definition in the same call."""
        if live.alias is None:
            raise Refused(
                f"{self.carrier} has no alias in {self.name}, which is needed to detach it",
                hint=f"virsh shutdown {quote(self.name)}, then run the command again",
                carrier=self.carrier,
            )
        with host.hypervisor.watch_device_removal(self.uuid, live.alias) as removal:
            self._request_detach(host, live.alias, live=True, config=config)
            outcome = removal.wait(self.deadline_seconds) if self._is_attached(host) else DetachOutcome.REMOVED
        if self._is_attached(host):
            late = f"did not release {self.carrier} within {self.deadline_seconds:g} s"
            raise self._still_attached_error(
                f"refuses to release {self.carrier}" if outcome is DetachOutcome.REFUSED else late
            )

    def _take_out_of_definition(self, host: Host) -> None:
        """Define the VM again without the device, unless another program has just taken it out."""
        xml = host.hypervisor.definition(self.uuid)
        if _find_hostdev(xml, self.carrier) is not None:
            host.hypervisor.redefine(self.uuid, edit_domain(xml, DomainEdit(hostdev_changes=((self.carrier, None),))))

    def _is_attached(self, host: Host) -> bool:
        """Return whether the running domain has it. An event from libvirt is only a reason to check."""
        return _find_hostdev(require_domain(host, self.uuid, self.name).live_xml, self.carrier) is not None

    def _request_detach(self, host: Host, alias: str, *, live: bool, config: bool) -> None:
        """Request it once. A guest with an earlier request (the config lacks the device) may still process it."""
        try:
            host.hypervisor.detach_device(self.uuid, alias, live=live, config=config)
        except LibvirtFailed as error:
            code = error.facts.get("libvirt_code")
            if code == _OPERATION_FAILED and live:
                raise self._still_attached_error(f"refuses to release {self.carrier}") from error
            if code not in (_INTERNAL_ERROR, _DEVICE_MISSING):  # gone, or requested before: verify checks
                raise

    def _still_attached_error(self, reason: str) -> Busy:
        return Busy(
            f"the guest of {self.name} {reason}; it keeps the vGPU until then",
            hint=f"close the programs that use the GPU in the guest, or vgpuctl stop-vm {self.name}; then vgpuctl "
            f"detach-vgpu {self.name} "
            f"--vgpu {self.carrier} again, or vgpuctl reconcile-host",
            vm=self.name,
            carrier=self.carrier,
        )

    def verify(self, host: Host) -> None:
        """Check that neither the config nor the running domain has it."""
        domain = require_domain(host, self.uuid, self.name)
        if _find_hostdev(domain.xml, self.carrier) or _find_hostdev(domain.live_xml, self.carrier):
            raise VerifyFailed(
                f"{self.carrier} was detached from {self.name} but is still attached", carrier=self.carrier
            )


def require_free_ports(name: str, live_xml: str | None, needed: int, stop_command: str) -> None:
    """Refuse to hotplug into a running VM with too few free root ports. `stop_command`: a command that stops it.

    Raises:
        Refused: too few are free; reports the total and the free ports.
    """
    if live_xml is None:
        return
    ports = count_root_ports(live_xml)
    if ports.free < needed:
        raise Refused(
            f"{name} runs and has {ports.free} of {ports.total} PCI ports free; {needed} needed to plug in a vGPU",
            hint=f"stop it first: {stop_command}; create-vm --hotplug-slots reserves ports",
            vm=name,
            ports_free=ports.free,
            ports_total=ports.total,
        )


class RemoveForReplace(Step):
    """Remove a stopped VM's device that is replaced by another; undo creates it again. Both use the backend's steps."""

    remove: tuple[Step, ...]
    restore_steps: tuple[Step, ...]

    def describe(self) -> str:
        return "; ".join(s.describe() for s in self.remove)

    def perform(self, host: Host) -> None:
        for step in self.remove:
            step.perform(host)

    def verify(self, host: Host) -> None:
        for step in self.remove:
            step.verify(host)

    def undo(self, host: Host) -> None:
        """Create it again unless it still exists."""
        for step in self.restore_steps:
            try:
                step.verify(host)
            except (VerifyFailed, OSError):
                step.perform(host)
                step.verify(host)


class ReleaseReplacedClaim(Step):
    """Release the claim on a VM's previous device. Undo claims it again unless another VM has claimed it meanwhile."""

    claim: Claim

    def describe(self) -> str:
        return ReleaseClaim(self.claim.carrier, self.claim.vm_uuid).describe()

    def perform(self, host: Host) -> None:
        """Remove the claim; a missing one is no error."""
        ReleaseClaim(self.claim.carrier, self.claim.vm_uuid).perform(host)

    def verify(self, host: Host) -> None:
        """Nothing to read back: removing a file either worked or raised."""

    def undo(self, host: Host) -> None:
        TakeClaim(self.claim).perform(host)


class RedefineDomain(Step):
    """Change a stopped VM's definition, which includes its record, in one call. Undo restores the previous definition.

    Both texts hold the VM's secrets: they are never printed. What is written has the record's next generation.
    """

    name: str
    uuid: str
    xml: str
    previous_xml: str
    changes: tuple[str, ...]

    def describe(self) -> str:
        return f"change VM {self.name}: {', '.join(self.changes)}"

    def perform(self, host: Host) -> None:
        """Redefine the domain with validation.

        Raises:
            InUse: somebody else changed it since it was read; nothing was changed.
        """
        if host.hypervisor.definition(self.uuid) != self.previous_xml:
            raise InUse(f"{self.name} has just been changed by another program", hint="run the command again")
        host.hypervisor.redefine(self.uuid, with_next_generation(self.xml))

    def verify(self, host: Host) -> None:
        """Read it back: every parsed field of the VM must be as intended; libvirt gives a new card its MAC address."""
        expected, actual = self._parse_vm(host, with_next_generation(self.xml)), self._current_vm(host)
        if len(actual.nics) == len(expected.nics):
            nics = (nic.shown_like(planned) for nic, planned in zip(actual.nics, expected.nics, strict=True))
            actual = replace(actual, nics=tuple(nics))
        if actual != expected:
            raise VerifyFailed(
                f"libvirt did not keep the changed definition of {self.name}",
                hint=f"virsh dumpxml --inactive {self.name}",
                vm=self.name,
            )

    def undo(self, host: Host) -> None:
        """Define the previous one again if it was changed."""
        if host.hypervisor.find_domain(self.uuid) is None or host.hypervisor.definition(self.uuid) == self.previous_xml:
            return
        host.hypervisor.redefine(self.uuid, self.previous_xml)
        if self._current_vm(host) != self._parse_vm(host, self.previous_xml):
            raise VerifyFailed(f"the previous definition of {self.name} could not be restored", vm=self.name)

    def _current_vm(self, host: Host) -> Vm:
        return self._parse_vm(host, require_domain(host, self.uuid, self.name).xml)

    def _parse_vm(self, host: Host, xml: str) -> Vm:
        domain = require_domain(host, self.uuid, self.name)
        return parse_domain(xml, domain.state, host.machine_id)
