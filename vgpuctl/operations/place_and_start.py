# SPDX-License-Identifier: Apache-2.0
"""Start a VM in its slots, or wherever there is room if it does not always reserve them or cannot have them back."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from vgpuctl.backends import backend_for
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.domain.domain_xml import has_no_video, parse_hostdevs
from vgpuctl.errors import Busy, InUse
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.request import DesignHostdev
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import SAVED, AssignedVgpu, Vm, VmRecord
from vgpuctl.observe.definition import find_unreferenced_vgpus, lost_text, read_vm, refuse_changed_definition
from vgpuctl.operations.devices import make_devices
from vgpuctl.operations.drained_vms import is_drained
from vgpuctl.operations.facts import find_gpu_holders
from vgpuctl.operations.guards import (
    changed_meanwhile,
    deleted_meanwhile,
    refuse_busy_vm,
    refuse_stuck_gpus,
    refuse_vgpus_in_other_vms,
)
from vgpuctl.operations.leftovers import read_domain_leftovers
from vgpuctl.operations.plans.change import design_hostdev
from vgpuctl.operations.plans.choose import refuse_unapplied_settings
from vgpuctl.operations.plans.devices import uses_force_console
from vgpuctl.operations.plans.facts import refuse_open_gpus
from vgpuctl.operations.plans.reserve import choose_slots
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.plans.vm_update import MoveTarget, choose_slot_at_target
from vgpuctl.operations.render_node import refuse_unusable_node
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.attach import RedefineDomain
from vgpuctl.operations.steps.domain import StartDomain
from vgpuctl.ports.step import Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host
_MAY_BE_SAVED = (None, SAVED)
"""Why a VM with saved memory is off: saved, or not known, as after a boot of the host."""


class Redefinition(Value):
    """How a VM that is off may be defined again, for `make_devices`, and whether it is started.

    `target`: the only place for a vGPU that waits for one. `start` False: the VM stays off.
    """

    host: Host
    vm: Vm
    record: VmRecord
    dry_run: bool
    target: MoveTarget | None = None
    start: bool = True

    def choose(self, seen: Snapshot, vm: Vm, record: VmRecord) -> tuple[AssignedVgpu, ...]:
        """Return a slot for each vGPU of `record` without one."""
        if self.target is None:
            return choose_slots(seen, vm, record)
        return choose_slot_at_target(seen, vm, record, self.target)

    def check(self, seen: Snapshot, record: VmRecord) -> None:
        """Refuse what prevents the start with the vGPUs of `record`.

        Raises:
            Refused: the definition names other devices than the VM's record.
            InUse: somebody else took a function.
        """
        refuse_stuck_gpus(seen, [v.gpu for v in record.vgpus])
        refuse_changed_definition(self.vm, self.record, seen.gpus)
        refuse_vgpus_in_other_vms(seen, self.vm, record.vgpus)
        if self.start:
            refuse_unusable_node(self.host, self.vm)

    def steps(self, seen: Snapshot, record: VmRecord, *, in_place: bool) -> tuple[Step, ...]:
        """Return the steps that put back the vGPUs that the definition lacks, change it if a slot changed, and start.

        Since the VM was created the host may have rebooted, or taken a whole GPU itself.

        Raises:
            InUse: a process uses a whole GPU.
            HostCannot: a GPU without vGPUs lacks settings of host.yaml, as after a boot.
        """
        whole_gpus = tuple(v for v in record.vgpus if backend_for(v.backend).takes_whole_gpu)
        if whole_gpus:
            refuse_open_gpus(find_gpu_holders(self.host, whole_gpus), force_console=uses_force_console(record))
        if in_place and not is_drained(self.host, self.vm):
            # else the settings of the command that drained it run, and that may have been killed
            refuse_unapplied_settings(seen, record.vgpus)
        is_saved = self.vm.stop_reason in _MAY_BE_SAVED and read_domain_leftovers(self.host, self.vm).managed_save
        if is_saved:
            self._refuse_other_carriers(record)
        steps = definition_steps(self.host, self.vm, self.record, record, dry_run=self.dry_run)
        return (*steps, StartDomain(self.vm.name, self.vm.uuid, is_saved)) if self.start else steps

    def _refuse_other_carriers(self, record: VmRecord) -> None:
        """Refuse a VM with saved memory that would get other functions: libvirt starts it with those that it had.

        Raises:
            InUse: naming the functions.
        """
        now = {v.carrier for v in record.vgpus}
        lost = [v.carrier for v in self.record.vgpus if v.carrier not in now]
        if not lost:
            return
        name = shlex.quote(self.vm.name)
        raise InUse(
            f"{self.vm.name} has saved memory, which goes on only with {', '.join(lost)}, and that is not free",
            hint=f"vgpuctl list-vgpus shows who has it; virsh managedsave-remove {name} gives the memory up, and "
            "start-vm then boots the VM elsewhere",
            vm=self.vm.name,
            carriers=lost,
        )

    def refuse_changed(self) -> None:
        """Refuse a VM that another command changes or just changed: what seems to block it may be its own vGPU.

        Raises:
            Busy: naming the process, if it still runs.
        """
        refuse_busy_vm(self.host, self.vm)
        domain = self.host.hypervisor.find_domain(self.vm.uuid)
        if domain is not None and read_vm(self.host, domain).record != self.record:
            raise Busy(f"{self.vm.name} has just been changed", hint="run the command again", vm=self.vm.name)


def place_and_start(
    host: Host,
    context: Context,
    vm: Vm,
    record: VmRecord,
    *,
    cached: Snapshot | None = None,
    target: MoveTarget | None = None,
    start: bool = True,
) -> Outcome[VmReport]:
    """Start a VM in its recorded slots if they are free and still exist, else in other free ones.

    `cached`: a snapshot of its GPUs, for a VM that always keeps its slots. `target`, `start`: as of `Redefinition`.
    """
    definition = Redefinition(host, vm, record, context.dry_run, target, start)
    made = make_devices(host, context, vm, record, cached=cached, definition=definition)
    before = vm_result(made.making.seen, vm)
    if context.dry_run:
        return Outcome(True, before, made.steps, dry_run=True)
    return report_vm(host, before, made.steps, warnings=made.warnings)


def definition_steps(
    host: Host, vm: Vm, record: VmRecord, target_record: VmRecord, *, dry_run: bool
) -> tuple[Step, ...]:
    """Return the step that writes a changed record and puts back the vGPUs that the definition lacks, if any."""
    if target_record == record and not find_unreferenced_vgpus(vm, record):
        return ()
    return move_steps(vm, record, target_record, read_domain_xml(host, vm, dry_run=dry_run))


def read_domain_xml(host: Host, vm: Vm, *, dry_run: bool) -> str:
    """Return a VM's definition for a change; it includes secrets only if the VM will be defined again.

    Raises:
        NotFound: the VM was deleted.
        Busy: its host devices are no longer those of `vm`, so that a plan made from `vm` does not fit.
    """
    domain = host.hypervisor.find_domain(vm.uuid) if dry_run else None
    if dry_run and domain is None:
        raise deleted_meanwhile(vm)
    xml = host.hypervisor.definition(vm.uuid) if domain is None else domain.xml
    defined = parse_hostdevs(xml)
    live_only = (vm.live_carriers or frozenset()) - {h.carrier for h in defined}
    if defined != tuple(h for h in vm.hostdevs if h.carrier not in live_only):
        raise changed_meanwhile(vm)
    return xml


def move_steps(vm: Vm, old_record: VmRecord, new_record: VmRecord, xml: str) -> tuple[Step, ...]:
    """Return the step that redefines a VM; both records name the same vGPUs in the same order.

    An mdev keeps its UUID on any GPU, so only the record changes. A vGPU that the definition lacks is put back.
    """
    lost = {v.carrier for v in find_unreferenced_vgpus(vm, old_record)}
    pairs = list(zip(old_record.vgpus, new_record.vgpus, strict=True))
    hostdev_changes = tuple(
        (None if old.carrier in lost else old.carrier, _hostdev_of(new, new_record, xml))
        for old, new in pairs
        if old.carrier != new.carrier or old.carrier in lost
    )
    descriptions = tuple(_describe_change(old, new) for old, new in pairs if old != new)
    descriptions += tuple(f"put back {lost_text((new,))}" for old, new in pairs if old.carrier in lost)
    record = None if old_record == new_record else new_record
    new_xml = edit_domain(xml, DomainEdit(hostdev_changes=hostdev_changes, record=record))
    return (RedefineDomain(vm.name, vm.uuid, new_xml, xml, descriptions),)


def _hostdev_of(vgpu: AssignedVgpu, record: VmRecord, xml: str) -> DesignHostdev:
    """Return the hostdev of a vGPU; a VM without a video card shows the screen of its first one."""
    return replace(design_hostdev(vgpu, record), display=vgpu == record.vgpus[0] and has_no_video(xml))


def _describe_change(old: AssignedVgpu, new: AssignedVgpu) -> str:
    name, before = old.profile or old.backend, "no place" if old.waits_for_place else old.function
    return f"{name}: {before} -> {new.function}"
