# SPDX-License-Identifier: Apache-2.0
"""Plan the update of a stopped VM: where its vGPUs go, the steps, and the VM afterwards."""

from __future__ import annotations

from typing import Any

from vgpuctl.backends import backend_for
from vgpuctl.config.arguments import NONE
from vgpuctl.config.vm_request import (
    FIELDS,
    VmRequest,
    names_text,
    request_of_record,
    requested_values,
    with_constraints,
)
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.domain.settings import SETTINGS
from vgpuctl.errors import HostCannot, NoCapacity
from vgpuctl.gpu.mixed_size import is_placement_free
from vgpuctl.model.guest_driver import GuestDriver
from vgpuctl.model.numbers import format_ranges
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.results.vms import VmResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, Vm, VmRecord
from vgpuctl.operations.plans.change import (
    VgpuChanges,
    choose_added_vgpus,
    design_hostdev,
    expand_profiles,
    record_with_vgpus,
    with_freed,
    with_recorded_fields,
    with_request_fields,
    with_taken,
)
from vgpuctl.operations.plans.choose import choose_vgpus, make_steps
from vgpuctl.operations.plans.guest_devices import (
    HostTopology,
    check_display,
    check_hugepages,
    default_nic_model,
    needs_opengl,
    resolve_pins,
)
from vgpuctl.operations.plans.remove import unproven_carriers
from vgpuctl.operations.plans.reserve import (
    choose_slots,
    hypothetical_empty,
    request_from_record,
    with_identity,
    with_slot,
    without_slot,
)
from vgpuctl.operations.plans.results import network_result, planned_vgpu, vm_result
from vgpuctl.operations.plans.vm_diff import (
    current_values,
    describe_change,
    record_gpus,
)
from vgpuctl.operations.steps.attach import RedefineDomain, ReleaseReplacedClaim, RemoveForReplace, WriteRecord
from vgpuctl.operations.steps.guest_driver import driver_steps, drop_disc_steps
from vgpuctl.placement.constraints import match_gpus
from vgpuctl.ports.step import Step
from vgpuctl.value import Value, replace


class MoveTarget(Value):
    """The destination of a moved vGPU: a GPU, and a placement where one can be chosen."""

    gpu: str
    placement_id: int | None = None


class VmUpdate(Value):
    """One checked update of one VM. `xml` is its current definition.

    `reserve` is the VM's setting afterwards. `topology`: the host's, when CPUs or huge pages change. `freed_vgpus` stay
    in its record and give up their slots. `move_target` is set when the added vGPU is the removed one at another slot.
    `setup` sets up the guest, where that changes; `driver`: the one that it gets, where that changes.
    `render_node`: the device node by which QEMU draws for it from now on, where that changes.
    """

    snapshot: Snapshot
    vm: Vm
    record: VmRecord
    request: VmRequest
    changed_fields: frozenset[str]
    vgpu_changes: VgpuChanges
    xml: str
    reserve: str
    freed_vgpus: tuple[AssignedVgpu, ...]
    move_target: MoveTarget | None = None
    topology: HostTopology = HostTopology()
    setup: Step | None = None
    driver: GuestDriver | None = None
    warnings: tuple[str, ...] = ()
    render_node: str | None = None

    @property
    def reserves_slots(self) -> bool:
        """Whether each of the VM's vGPUs has a slot afterwards, while the VM is off."""
        return self.reserve == "always"

    @property
    def changed_settings(self) -> dict[str, str]:
        """The settings of the domain that change, by field."""
        return {name: getattr(self.request, FIELDS[name].attribute) for name in SETTINGS if name in self.changed_fields}

    @property
    def settings_after(self) -> dict[str, str]:
        """Every setting of the domain afterwards, by field."""
        return dict(self.vm.settings) | self.changed_settings

    @property
    def vgpus_with_slot(self) -> tuple[AssignedVgpu, ...]:
        """The VM's vGPUs that have a slot now."""
        return with_slot(self.snapshot, self.vm, self.record)


def choose_update_vgpus(snapshot: Snapshot, update: VmUpdate) -> tuple[AssignedVgpu, ...]:
    """Choose slots for the added vGPUs, and for kept ones that need a slot and have none.

    Added vGPUs go next to the removed ones. If they do not fit there, they take the slots of the removed ones.
    """
    kept_record = replace(update.record, vgpus=update.vgpu_changes.kept)
    begins_to_reserve = update.reserves_slots and update.record.reserve_while_running
    kept_slots = choose_slots(snapshot, update.vm, kept_record) if begins_to_reserve else ()
    if not update.vgpu_changes.added_profiles:
        return kept_slots
    kept = kept_slots if begins_to_reserve else update.vgpu_changes.kept
    snapshot = with_taken(snapshot, update.vm, kept)
    removed = update.vgpu_changes.removed
    try:
        return (
            *kept_slots,
            *_apply_move_target(snapshot, update, choose_added_vgpus(snapshot, update.request, update.record, removed)),
        )
    except (NoCapacity, HostCannot) as error:
        if not update.reserves_slots:
            return choose_added_vgpus(
                with_taken(hypothetical_empty(snapshot), update.vm, kept),
                update.request,
                update.record,
                removed=removed,
            )
        if not removed or isinstance(error, HostCannot):
            raise
        removed_with_slot = [v for v in removed if v in update.vgpus_with_slot]
        freed_snapshot = with_freed(snapshot, removed_with_slot)
        return (
            *kept_slots,
            *_apply_move_target(
                freed_snapshot,
                update,
                choose_added_vgpus(freed_snapshot, update.request, update.record, removed),
            ),
        )


def _apply_move_target(
    snapshot: Snapshot, update: VmUpdate, added: tuple[AssignedVgpu, ...]
) -> tuple[AssignedVgpu, ...]:
    return (
        added
        if update.move_target is None
        else place_at_target(snapshot, update.move_target, update.vgpu_changes.removed[0], added)
    )


def place_at_target(
    snapshot: Snapshot, target: MoveTarget, old: AssignedVgpu, added: tuple[AssignedVgpu, ...]
) -> tuple[AssignedVgpu, ...]:
    """Return the moved vGPU at the placement chosen for it, with its own parameters.

    Raises:
        NoCapacity: that placement is not free.
    """
    gpu, placement_id = snapshot.gpu(target.gpu), target.placement_id
    vgpu_type = next((t for t in gpu.types if t.profile == added[0].profile), None) if gpu is not None else None
    if placement_id is None or gpu is None or vgpu_type is None:
        return (replace(added[0], params=old.params),)
    if not is_placement_free(gpu, snapshot.vgpus_on(gpu.address), vgpu_type, placement_id):
        raise NoCapacity(
            f"placement {placement_id} of {gpu.address} is no longer free",
            hint="run the command again",
            gpu=gpu.address,
        )
    return (replace(added[0], params=old.params, placement_id=placement_id),)


def choose_slot_at_target(snapshot: Snapshot, vm: Vm, record: VmRecord, target: MoveTarget) -> tuple[AssignedVgpu, ...]:
    """Return the slot at its destination for the one vGPU of a VM that waits for a place; nothing if it has one again.

    Raises:
        NoCapacity: its destination is not free.
        VgpuctlError: as `choose_vgpus`.
    """
    slots = []
    for assigned in without_slot(snapshot, vm, record):
        request = with_constraints(request_from_record(vm, record, (assigned,)), GpuConstraints(gpus=(target.gpu,)))
        (chosen,) = place_at_target(snapshot, target, assigned, choose_vgpus(snapshot, request, record.vm_uuid))
        slots.append(with_identity(chosen, assigned, record))
    return tuple(slots)


def waiting_record(record: VmRecord, vgpu: AssignedVgpu) -> VmRecord:
    """Return the record in which one of the vGPUs has given up its slot and waits for another."""
    vgpus = (replace(v, waits_for_place=True) if v.carrier == vgpu.carrier else v for v in record.vgpus)
    return replace(record, vgpus=tuple(vgpus))


def leave_steps(
    snapshot: Snapshot, vm: Vm, record: VmRecord, vgpu: AssignedVgpu, claims: tuple[Claim, ...]
) -> tuple[Step, ...]:
    """Return the steps with which a vGPU of a stopped VM gives up its slot; `claims`: those on it.

    From the record on, a crash leaves a VM that waits for a place: reconcile and start-vm give it one.
    """
    what = f"record that VM {vm.name} waits for a place for {vgpu.profile}"
    steps: list[Step] = [WriteRecord(vm.name, vm.uuid, waiting_record(record, vgpu), record, what)]
    unproven = unproven_carriers(snapshot, vm, record)
    type_id = next((v.type_id for v in snapshot.vgpus if v.carrier == vgpu.carrier and v.present), None)
    if type_id is not None and vgpu.carrier not in unproven:
        backend = backend_for(vgpu.backend)
        steps.append(RemoveForReplace(backend.remove_steps(vgpu), backend.create_steps(vgpu, type_id)))
    return (*steps, *(ReleaseReplacedClaim(c) for c in claims))


def update_steps(
    snapshot: Snapshot, update: VmUpdate, new: tuple[AssignedVgpu, ...], old_claims: tuple[Claim, ...]
) -> tuple[Step, ...]:
    """Return the steps after the claims; `old_claims` are the claims on the removed vGPUs."""
    unproven = unproven_carriers(update.snapshot, update.vm, update.record)
    freed_snapshot = with_freed(snapshot, [v for v in update.vgpu_changes.removed if v.carrier not in unproven])
    steps: list[Step] = [] if update.setup is None else [update.setup]
    steps += device_removal_steps(update)
    for vgpu in new if update.reserves_slots else ():
        steps += make_steps(freed_snapshot, vgpu)
    steps += [redefine_step(update, new), *driver_steps(update.driver)]
    steps += [ReleaseReplacedClaim(c) for c in old_claims]
    if "guest_driver" in update.changed_fields:
        steps += drop_disc_steps(update.vm, except_for=update.driver)
    return tuple(steps)


def device_removal_steps(update: VmUpdate) -> tuple[Step, ...]:
    """Return the steps that remove the devices of removed vGPUs where vgpuctl provably owns them."""
    unproven = unproven_carriers(update.snapshot, update.vm, update.record)
    type_ids = {v.carrier: v.type_id for v in update.snapshot.vgpus if v.present}
    removals = [
        (v, backend_for(v.backend))
        for v in reversed((*update.freed_vgpus, *update.vgpu_changes.removed))
        if v.carrier in type_ids.keys() - unproven
    ]
    return tuple(
        RemoveForReplace(backend.remove_steps(v), backend.create_steps(v, type_ids[v.carrier]))
        for v, backend in removals
    )


def redefine_step(update: VmUpdate, new: tuple[AssignedVgpu, ...]) -> Step:
    """Return the step that redefines the VM, including its record."""
    vm, removed = update.vm, update.vgpu_changes.removed
    kept_slots, added = _split_kept_added(update, new)
    new_record = record_with_vgpus(
        update.record, (*update.vgpu_changes.kept, *added), expand_profiles(update.request) if added else ()
    )
    kept = tuple(kept_slots.get(v.index, v) for v in update.vgpu_changes.kept)
    new_record = replace(new_record, vgpus=(*kept, *added), reserve=update.reserve)
    new_record = _with_gpu_restriction(update, new_record)
    new_record = with_recorded_fields(vm, new_record, update.request, update.changed_fields)
    pairs = max(len(removed), len(added))
    old_carriers = [*(v.carrier for v in removed), *[None] * (pairs - len(removed))]
    new_hostdevs = [*(design_hostdev(v, update.record) for v in added), *[None] * (pairs - len(added))]
    moved_vgpus = [(v, m) for v in update.vgpu_changes.kept if (m := kept_slots.get(v.index, v)).carrier != v.carrier]
    edit = DomainEdit(
        memory_mib=update.request.memory_mib if "memory" in update.changed_fields else None,
        vcpus=update.request.vcpus if "vcpus" in update.changed_fields else None,
        **_device_changes(update, new_record, replaces_vgpus=bool(pairs)),
        hostdev_changes=(
            *zip(old_carriers, new_hostdevs, strict=True),
            *((v.carrier, design_hostdev(m, update.record)) for v, m in moved_vgpus),
        ),
        render_node=update.render_node,
        record=new_record if new_record != update.record else None,
    )
    return RedefineDomain(vm.name, vm.uuid, edit_domain(update.xml, edit), update.xml, _describe_changes(update, new))


def _with_gpu_restriction(update: VmUpdate, record: VmRecord) -> VmRecord:
    """Return the record with the requested GPUs, or those to which a VM moved that was restricted to other ones."""
    if "gpu" in update.changed_fields and update.request.gpu:
        return with_request_fields(record, gpu=names_text(update.request.gpu))
    names = request_of_record(record.request_fields).gpu
    gpus = [update.snapshot.gpu(address) for address in sorted({v.gpu for v in record.vgpus})]
    if not names or all(any(match_gpus((gpu,), name) for name in names) for gpu in gpus if gpu is not None):
        return record
    return with_request_fields(record, gpu=names_text(tuple(gpu.address for gpu in gpus if gpu is not None)))


def _device_changes(update: VmUpdate, record: VmRecord, *, replaces_vgpus: bool) -> dict[str, Any]:
    """Return the changes of settings, network cards, CPUs and display as fields of a `DomainEdit`."""
    request, fields, snapshot = update.request, update.changed_fields, update.snapshot
    changes: dict[str, Any] = {"settings": update.changed_settings}
    if "guest_driver" in fields:
        changes["driver_disc"] = "" if update.driver is None else update.driver.disc
    if "networks" in fields:
        changes["nics"] = request.nics
        changes["nic_model"] = default_nic_model(str(record.request_fields.get("os") or "linux"))
    pins = None
    if "cpu_pin" in fields:
        pins = resolve_pins(snapshot, request.cpu_pin, record.vgpus, update.topology)
        changes["pins"] = (pins.cpus, pins.nodes)
    if fields & {"hugepages", "memory", "cpu_pin"}:
        nodes = format_ranges(update.vm.memory_nodes) if pins is None else pins.nodes
        memory = request.memory_mib if "memory" in fields else update.vm.memory_mib
        check_hugepages(memory, update.settings_after.get("hugepages", NONE), nodes, update.topology)
    if "display" in fields or (replaces_vgpus and update.vm.has_display):
        shown = request.display if "display" in fields else True
        if shown:
            check_display(snapshot, record.vgpus[0])
        changes["display"] = shown
        changes["display_needs_gl"] = shown and needs_opengl(snapshot, record.vgpus[0])
    return changes


def _split_kept_added(
    update: VmUpdate, new: tuple[AssignedVgpu, ...]
) -> tuple[dict[int, AssignedVgpu], tuple[AssignedVgpu, ...]]:
    """Split the chosen vGPUs into the kept ones, by index, and the added ones."""
    kept_indexes = {v.index for v in update.vgpu_changes.kept}
    return {v.index: v for v in new if v.index in kept_indexes}, tuple(v for v in new if v.index not in kept_indexes)


def updated_vm_result(update: VmUpdate, new: tuple[AssignedVgpu, ...]) -> VmResult:
    """Return the VM's result after the update."""
    request, fields = update.request, update.changed_fields
    kept_slots, added = _split_kept_added(update, new)
    new_record = replace(update.record, vgpus=update.vgpu_changes.kept, reserve=update.reserve)
    new_record = with_recorded_fields(update.vm, new_record, request, fields)
    removed_carriers = {v.carrier for v in (*update.vgpu_changes.removed, *update.freed_vgpus)}
    remaining_vgpus = tuple(v for v in update.snapshot.vgpus if v.carrier not in removed_carriers)
    node = update.render_node or update.vm.render_node
    settings = tuple(update.settings_after.items())
    changed_vm = replace(update.vm, record=new_record, settings=settings, render_node=node)
    kept = vm_result(replace(update.snapshot, vgpus=remaining_vgpus), changed_vm)
    moved_carriers = {v.carrier for v in update.vgpu_changes.kept if v.index in kept_slots}
    chosen = (planned_vgpu(v, update.vm.name) for v in (*kept_slots.values(), *added))
    return replace(
        kept,
        memory_mib=request.memory_mib if "memory" in fields else kept.memory_mib,
        vcpus=request.vcpus if "vcpus" in fields else kept.vcpus,
        networks=tuple(map(network_result, request.nics)) if "networks" in fields else kept.networks,
        pinned_cpus=_pinned_after(update, kept_slots, added) if "cpu_pin" in fields else kept.pinned_cpus,
        display=request.display if "display" in fields else kept.display,
        reserve=update.reserve,
        vgpus=(*(v for v in kept.vgpus if v.carrier not in moved_carriers), *chosen),
    )


def _pinned_after(update: VmUpdate, kept_slots: dict[int, AssignedVgpu], added: tuple[AssignedVgpu, ...]) -> str | None:
    vgpus = (*(kept_slots.get(v.index, v) for v in update.vgpu_changes.kept), *added)
    return resolve_pins(update.snapshot, update.request.cpu_pin, vgpus, update.topology).cpus or None


def _describe_changes(update: VmUpdate, new: tuple[AssignedVgpu, ...]) -> tuple[str, ...]:
    """Describe each change as "what: before -> after"."""
    vm, request = update.vm, update.request
    added = _split_kept_added(update, new)[1]
    before, after = current_values(vm, request), requested_values(request)
    descriptions = {
        **{name: describe_change(name, before, after) for name in update.changed_fields},
        "profile": f"profile: {_profile_names(update.record.vgpus)} -> "
        f"{_profile_names((*update.vgpu_changes.kept, *added))}"
        if update.move_target is None
        else f"{added[0].profile}: {_describe_slot(update.vgpu_changes.removed[0])} -> {_describe_slot(added[0])}",
        "gpu": f"gpu: {', '.join(sorted(record_gpus(vm)))} -> {', '.join(sorted({v.gpu for v in added}))}",
    }
    if update.render_node is not None:
        descriptions["gpu"] = f"drawn through: {vm.render_node} -> {update.render_node}"
    if "guest_driver" in descriptions and before["guest_driver"] == after["guest_driver"]:
        descriptions["guest_driver"] = (
            f"guest_driver: {after['guest_driver']} is another file now, or its disc was lost"
        )
    return tuple(descriptions[f] for f in sorted(update.changed_fields))


def _describe_slot(vgpu: AssignedVgpu) -> str:
    return vgpu.function if vgpu.placement_id is None else f"{vgpu.function}, placement {vgpu.placement_id}"


def _profile_names(vgpus: tuple[AssignedVgpu, ...]) -> str:
    return ", ".join(sorted(str(v.profile or v.carrier) for v in vgpus)) or "none"
