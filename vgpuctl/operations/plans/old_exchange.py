# SPDX-License-Identifier: Apache-2.0
"""Resolve an exchange of places that version 0.1 left unfinished in the records of VMs.

No call changes two definitions, so one of the VMs decided. The records of the others said what they were to have. That
counts as soon as the record of the deciding VM names its new vGPU; until then it is undone.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.backends import backend_for
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Claim, Exchange, Vm, VmRecord
from vgpuctl.operations.plans.change import design_hostdev, record_with_vgpus
from vgpuctl.operations.plans.remove import unproven_carriers
from vgpuctl.operations.steps.attach import ReleaseReplacedClaim, SwitchOver, WriteRecord
from vgpuctl.ports.step import Step
from vgpuctl.value import replace


def decided(snapshot: Snapshot, note: Exchange) -> bool:
    """Say whether the VM that decides an exchange has its new vGPU."""
    other = snapshot.vm(note.with_vm)
    record = other.record if other is not None else None
    return record is not None and any(v.carrier == note.with_carrier for v in record.vgpus)


def finishing_steps(
    snapshot: Snapshot, vm: Vm, record: VmRecord, note: Exchange, old_claims: Sequence[Claim]
) -> tuple[Step, ...]:
    """Return what is left of an exchange that was decided: the former device goes, the VM is switched over."""
    leave = unproven_carriers(snapshot, vm, record)
    present = {v.carrier for v in snapshot.vgpus if v.present} - leave
    old = [v for v in record.vgpus if v.carrier == note.carrier and v.carrier in present]
    steps = [step for v in old for step in backend_for(v.backend).remove_steps(v)]
    kept = tuple(v for v in record.vgpus if v.carrier != note.carrier)
    new_record = replace(record_with_vgpus(record, (*kept, note.vgpu)), exchange=None)
    switch = SwitchOver(vm.name, vm.uuid, note.carrier, design_hostdev(note.vgpu, record), new_record, record)
    return (*steps, switch, *(ReleaseReplacedClaim(c) for c in old_claims))


def abandoning_steps(
    snapshot: Snapshot, vm: Vm, record: VmRecord, note: Exchange, new_claims: Sequence[Claim]
) -> tuple[Step, ...]:
    """Return what takes an exchange back that was not decided: the new device goes, then the record of it.

    `new_claims`: the claim on the new place.
    """
    claimed = {c.carrier for c in snapshot.claims if c.vm_uuid == vm.uuid}
    made = [note.vgpu] if note.vgpu.carrier in claimed else []
    steps = [step for v in made for step in backend_for(v.backend).remove_steps(v)]
    stays = WriteRecord(vm.name, vm.uuid, replace(record, exchange=None), record, f"record that VM {vm.name} stays")
    return (*steps, *(ReleaseReplacedClaim(c) for c in new_claims if made), stays)
