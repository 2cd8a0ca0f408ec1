# SPDX-License-Identifier: Apache-2.0
"""Steps for a domain's lifecycle: define, record, start, stop, undefine."""

from __future__ import annotations

from typing import ClassVar

from vgpuctl.domain.compare import find_differences
from vgpuctl.domain.domain_xml import parse_domain, parse_hostdevs
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import Busy, Interrupted, InUse, LibvirtFailed, Refused, VerifyFailed, VgpuctlError
from vgpuctl.model.numbers import format_mib
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.model.request import DomainDesign
from vgpuctl.model.vm import VmRecord, VmState
from vgpuctl.ports.host import Host
from vgpuctl.ports.step import Removal, Step
from vgpuctl.value import replace

STOPPED_STATES = (VmState.STOPPED,)
"""A crashed domain is not stopped: with on_crash=preserve libvirt keeps its QEMU, which holds the devices."""
RUNNING_STATES = (VmState.RUNNING, VmState.PAUSED)
REACTION_SECONDS = 10.0
"""How long a guest gets to go off after a signal that came during the request to shut down."""


def require_domain(host: Host, uuid: str, name: str) -> DomainInfo:
    """Return a domain.

    Raises:
        VerifyFailed: it is gone.
    """
    domain = host.hypervisor.find_domain(uuid)
    if domain is None:
        raise VerifyFailed(f"the VM {name} no longer exists", hint="virsh list --all", uuid=uuid)
    return domain


def explain_not_stopped(host: Host, uuid: str) -> str | None:
    """Return which VM is not off, and its state; None if it is off or missing. Unreadable counts as running."""
    try:
        domain = host.hypervisor.find_domain(uuid)
    except VgpuctlError as error:
        return f"cannot read whether VM {uuid} runs: {error.message}"
    return None if domain is None or domain.state in STOPPED_STATES else f"VM {domain.name} is {domain.state}"


def find_missing_resources(host: Host, domain: DomainInfo) -> tuple[str, ...]:
    """Return what the record of a VM that is not off names and the VM lacks: devices, and the files of its disks."""
    record = parse_domain(domain.xml, domain.state, host.machine_id).record
    if record is None:
        return ()
    return (*_missing_devices(domain, record), *(d.path for d in record.disks if host.storage.image(d.path) is None))


def _missing_devices(domain: DomainInfo, record: VmRecord) -> tuple[str, ...]:
    live_carriers = {h.carrier for h in parse_hostdevs(domain.live_xml or "<domain/>")}
    return tuple(v.carrier for v in record.vgpus if v.carrier not in live_carriers)


class DefineDomain(Step):
    """Define the domain that refers to everything else, with its record in state `making`."""

    records_owner: ClassVar[bool] = True

    design: DomainDesign
    xml: str

    def describe(self) -> str:
        d = self.design
        networks = "; ".join(replace(nic, model=None).text for nic in d.nics) or "none"
        drawn = "" if d.render_node is None else f", drawn through {d.render_node}"
        memory = format_mib(d.memory_mib)
        return f"define VM {d.name} ({d.vcpus} vCPU, {memory}, {d.firmware.upper()}, network {networks}{drawn})"

    def perform(self, host: Host) -> None:
        """Define it, validated against libvirt's schema."""
        host.hypervisor.define(self.xml)

    def verify(self, host: Host) -> None:
        """Compare libvirt's definition with the design: an older libvirt drops elements that it does not know."""
        lost = find_differences(self.design, require_domain(host, self.design.uuid, self.design.name).xml)
        if lost:
            raise VerifyFailed(
                f"libvirt did not keep the definition of {self.design.name}: {'; '.join(lost)}",
                hint="this libvirt may be too old for the template, or the template is incomplete",
                lost=list(lost),
            )

    def undo(self, host: Host) -> None:
        """Undefine it if the domain still has a vgpuctl record."""
        domain = host.hypervisor.find_domain(self.design.uuid)
        if domain is not None and parse_domain(domain.xml, domain.state, host.machine_id).record is not None:
            undefine = UndefineDomain(self.design.name, self.design.uuid)
            undefine.perform(host)
            undefine.verify(host)


class MakePersistent(Removal):
    """Define a running, undefined (transient) VM again, so that changes to its definition survive a stop."""

    precedes_off: ClassVar[bool] = True

    name: str
    uuid: str

    def describe(self) -> str:
        return f"define VM {self.name} again: it runs without a definition"

    def perform(self, host: Host) -> None:
        """Define it as it runs."""
        host.hypervisor.define(require_domain(host, self.uuid, self.name).xml)

    def verify(self, host: Host) -> None:
        """Check that the domain is persistent now."""
        if not require_domain(host, self.uuid, self.name).persistent:
            raise VerifyFailed(f"the VM {self.name} was defined again but is still not persistent", uuid=self.uuid)


class SetRecordState(Step):
    """Write the VM's record into its metadata; with `previous`, only over that record. Undo restores it.

    A VM with reserve_while_running has no claim while it is off. Only this check detects a command that creates it
    while another one removes it. `summary`: shown instead of the state.
    """

    name: str
    uuid: str
    record: VmRecord
    previous: VmRecord | None = None
    summary: str = ""

    def describe(self) -> str:
        return self.summary or f"record {self.name} as {self.record.state}"

    def perform(self, host: Host) -> None:
        """Set the metadata element.

        Raises:
            Busy: somebody else changed the record since it was read; nothing was changed.
        """
        if self.previous is not None and not self._is_recorded(host, self.previous):
            raise Busy(f"the record of {self.name} has just been changed", hint="run the command again", vm=self.name)
        host.hypervisor.set_record(self.uuid, record_to_xml(self.record))

    def verify(self, host: Host) -> None:
        if not self._is_recorded(host, self.record):
            raise VerifyFailed(f"the record of {self.name} reads back differently", uuid=self.uuid)

    def _is_recorded(self, host: Host, record: VmRecord) -> bool:
        domain = require_domain(host, self.uuid, self.name)
        return parse_domain(domain.xml, domain.state, host.machine_id).record == record

    def undo(self, host: Host) -> None:
        """Restore the previous record if the domain still exists and still has the one that this step wrote."""
        if (
            self.previous is None
            or host.hypervisor.find_domain(self.uuid) is None
            or not self._is_recorded(host, self.record)
        ):
            return
        try:
            host.hypervisor.set_record(self.uuid, record_to_xml(self.previous))
        except LibvirtFailed:
            if host.hypervisor.find_domain(self.uuid) is not None:
                raise


class StartDomain(Step):
    """Start the VM. `resumes`: from saved memory, which libvirt deletes then."""

    name: str
    uuid: str
    resumes: bool = False

    def describe(self) -> str:
        return f"start VM {self.name}{' from its saved memory' if self.resumes else ''}"

    def perform(self, host: Host) -> str | None:
        """Start it. A VM that another program started meanwhile, with all its devices and disks, is no error.

        Raises:
            InUse: another program started it without something that its record names.
        """
        try:
            host.hypervisor.start(self.uuid)
        except LibvirtFailed as error:
            domain = require_domain(host, self.uuid, self.name)
            if domain.state not in RUNNING_STATES:
                raise
            missing = find_missing_resources(host, domain)
            if missing:
                raise InUse(
                    f"another program started VM {self.name}, which runs without {', '.join(missing)}",
                    hint=f"vgpuctl stop-vm {self.name}, then vgpuctl start-vm {self.name}",
                    vm=self.name,
                    lacks=list(missing),
                ) from error
            return f"another program started VM {self.name}"
        return None

    def verify(self, host: Host) -> None:
        """Check that it runs, with every vGPU of its record."""
        domain = require_domain(host, self.uuid, self.name)
        if domain.state in STOPPED_STATES:
            raise VerifyFailed(
                f"the VM {self.name} was started but is {domain.state}",
                hint=f"cat /var/log/libvirt/qemu/{self.name}.log",
                state=domain.state,
            )
        record = parse_domain(domain.xml, domain.state, host.machine_id).record
        missing = () if record is None else _missing_devices(domain, record)
        if missing:
            raise VerifyFailed(
                f"the VM {self.name} was started without {', '.join(missing)}, which its record names",
                hint=f"virsh dumpxml {self.name}; vgpuctl start-vm {self.name} again",
                lacks=list(missing),
            )

    def undo(self, host: Host) -> None:
        """Force it off: it has run for a moment only and has no guest system that could lose data.

        One that went on from saved memory stays as it is: its user's work is only there.
        """
        if self.resumes and host.hypervisor.find_domain(self.uuid) is not None:
            state = require_domain(host, self.uuid, self.name).state
            if state not in STOPPED_STATES:
                raise Refused(f"VM {self.name} is {state} with the memory that was saved: it is not forced off")
            return
        if host.hypervisor.find_domain(self.uuid) is not None:
            stop = StopDomain(self.name, self.uuid, force=True, deadline_seconds=0)
            stop.perform(host)
            stop.verify(host)


class StopDomain(Step):
    """Stop the VM: shut the guest down and wait, or force it off."""

    precedes_off: ClassVar[bool] = True

    name: str
    uuid: str
    force: bool
    deadline_seconds: float

    def describe(self) -> str:
        how = "force off" if self.force else "shut down"
        return f"{how} VM {self.name}"

    def perform(self, host: Host) -> None:
        """Stop it. A VM that is off already is no error."""
        if self.force:
            host.hypervisor.destroy(self.uuid)
            return
        if not self._ask(host):
            return
        if not host.hypervisor.wait_stopped(self.uuid, self.deadline_seconds):
            raise Busy(
                f"{self.name} did not shut down within {self.deadline_seconds:g} s",
                hint=(
                    "the guest ignores the power button, or is slow and shuts down later: "
                    f"vgpuctl start-vm {self.name} then starts it again; "
                    f"vgpuctl stop-vm {self.name} --force forces it off"
                ),
                vm=self.name,
            )

    def _ask(self, host: Host) -> bool:
        """Ask the guest to shut down; False if the VM is off already.

        A signal during the request leaves open whether the guest got it. A guest that is off soon afterwards did.
        """
        requested = False
        try:
            if require_domain(host, self.uuid, self.name).state in STOPPED_STATES:
                return False
            requested = True
            host.hypervisor.shutdown(self.uuid)
        except Interrupted as error:
            seconds = min(self.deadline_seconds, REACTION_SECONDS)
            error.changed_nothing = not (requested and host.hypervisor.wait_stopped(self.uuid, seconds))
            if requested and error.changed_nothing:
                error.hint = f"if VM {self.name} shuts down after all, start it: vgpuctl start-vm {self.name}"
            raise
        return True

    def verify(self, host: Host) -> None:
        state = require_domain(host, self.uuid, self.name).state
        if state not in STOPPED_STATES:
            raise VerifyFailed(f"the VM {self.name} was stopped but is {state}", state=state)

    def undo(self, host: Host) -> None:
        """Nothing: vgpuctl does not restart a stopped VM without a request from its user."""


class UndefineDomain(Removal):
    """Remove the domain's definition with its NVRAM, TPM, managed save and snapshot metadata."""

    name: str
    uuid: str
    leftovers: tuple[str, ...] = ()

    def describe(self) -> str:
        extra = f" with {', '.join(self.leftovers)}" if self.leftovers else ""
        return f"undefine VM {self.name}{extra}"

    def perform(self, host: Host) -> None:
        """Undefine it. A domain that is gone already is no error."""
        if host.hypervisor.find_domain(self.uuid) is not None:
            host.hypervisor.undefine(self.uuid)

    def verify(self, host: Host) -> None:
        if host.hypervisor.find_domain(self.uuid) is not None:
            raise VerifyFailed(f"the VM {self.name} was undefined but still exists", uuid=self.uuid)
