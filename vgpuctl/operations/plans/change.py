# SPDX-License-Identifier: Apache-2.0
"""Plan added and removed vGPUs of an existing VM: which ones, their indexes, and the record afterwards."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence, Set

from vgpuctl.backends import backend_for
from vgpuctl.backends.mdev import MAX_VGPU_INDEXES, carrier_uuid
from vgpuctl.config.labels import limit_labels
from vgpuctl.config.vm_request import (
    CONSTRAINT_FIELDS,
    FIELDS,
    RECORDED_FIELDS,
    VmRequest,
    each_profile,
    names_text,
    request_of_record,
)
from vgpuctl.domain.domain_edit import hostdev_xml
from vgpuctl.errors import Busy, InvalidInput, NotFound, Refused
from vgpuctl.gpu.profiles import check_combination
from vgpuctl.model.autostart import keeps_last_state
from vgpuctl.model.gpu import Gpu, GpuMode, VgpuType
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.planned_fields import PLANNED, planned_fields
from vgpuctl.model.request import DesignHostdev
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, RecordState, Vm, VmRecord
from vgpuctl.operations.plans.choose import as_taken_vgpu, choose_vgpus, make_steps
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.vm_diff import count_devices, resolve_vm_profile
from vgpuctl.operations.plans.whole_gpus import describe_record, whole_functions
from vgpuctl.operations.steps.attach import AttachDevice, DetachDevice, WriteRecord
from vgpuctl.operations.steps.claims import ReleaseClaim
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.ports.step import Step
from vgpuctl.value import Value, replace

ADOPTED_ALIAS_PREFIX = "ua-vgpuctl-plug-"
"""Alias prefix of vGPUs in VMs that vgpuctl did not create: it identifies them even when the record is lost."""


class VgpuChanges(Value):
    """A VM's kept and removed vGPUs, and the profiles of the added ones as given on the command line."""

    kept: tuple[AssignedVgpu, ...]
    removed: tuple[AssignedVgpu, ...]
    added_profiles: tuple[str, ...]

    def moving(self, vgpus: Sequence[AssignedVgpu]) -> VgpuChanges:
        """Return the changes in which these kept vGPUs are removed, and new ones of their profiles added."""
        kept = tuple(v for v in self.kept if v not in vgpus)
        profiles = tuple(v.profile for v in vgpus if v.profile is not None)
        return VgpuChanges(kept, (*self.removed, *vgpus), (*self.added_profiles, *profiles))


def own_record_or_new(vm: Vm, machine_id: str) -> VmRecord:
    """Return a VM's record, or an empty one for a VM that vgpuctl did not create.

    Raises:
        Unmanaged: its record is a copy or unreadable; vgpuctl does not overwrite it.
    """
    if vm.record is not None or vm.copied_record is not None or vm.has_unreadable_record:
        return own_record(vm, "change")
    return VmRecord(RecordState.READY, vm.uuid, machine_id, (), (), "{}", created_vm=False)


def choose_added_vgpus(
    snapshot: Snapshot,
    request: VmRequest,
    record: VmRecord,
    removed: Sequence[AssignedVgpu] = (),
) -> tuple[AssignedVgpu, ...]:
    """Return the vGPUs that a VM gets in addition to the kept ones, with the lowest free indexes.

    `removed`: the vGPUs that it loses. Their indexes stay in use because they still exist.

    Raises:
        NoCapacity, NotFound, InvalidInput, Refused, InUse, HostCannot, Stuck: as `choose_vgpus`.
    """
    vm = snapshot.vm(record.vm_uuid)
    named_request = request if vm is None else replace(request, name=vm.name)  # the request may identify it by its UUID
    kept_profiles = [v.profile for v in record.vgpus if v not in removed and v.profile is not None]
    chosen = choose_vgpus(snapshot, named_request, record.vm_uuid, kept_profiles)
    check_combination([*kept_profiles, *(v.profile for v in chosen if v.profile is not None)])
    taken_carriers = {v.carrier for v in snapshot.vgpus}
    used_indexes = {v.index for v in record.vgpus}
    free_indexes = [
        n
        for n in range(MAX_VGPU_INDEXES)
        if n not in used_indexes and carrier_uuid(record.vm_uuid, n) not in taken_carriers
    ]
    if len(free_indexes) < len(chosen):
        raise Busy(f"all {MAX_VGPU_INDEXES} vGPU slots of this VM are taken", hint="vgpuctl reconcile-host")
    return tuple(
        replace(v, index=n, carrier=backend_for(v.backend).carrier(v.function, record.vm_uuid, n))
        for n, v in zip(free_indexes, chosen, strict=False)
    )


def with_taken(snapshot: Snapshot, vm: Vm, vgpus: Sequence[AssignedVgpu]) -> Snapshot:
    """Return the snapshot with these vGPUs of a VM as taken, including those without a slot now.

    The VM's definition refers to each of them, and never to the same function twice.
    """
    present_carriers = {v.carrier for v in snapshot.vgpus}
    missing_vgpus = (as_taken_vgpu(v, vm.name, vm.uuid) for v in vgpus if v.carrier not in present_carriers)
    return replace(snapshot, vgpus=(*snapshot.vgpus, *missing_vgpus))


def record_with_vgpus(record: VmRecord, vgpus: Sequence[AssignedVgpu], new_profiles: Sequence[str] = ()) -> VmRecord:
    """Return the record with these vGPUs; `new_profiles` are the profiles of the added ones, in order."""
    fields = record.request_fields
    recorded_profiles = fields.get("profile")
    profile_by_carrier: dict[str, str] = {}
    if isinstance(recorded_profiles, list) and len(recorded_profiles) == len(record.vgpus):
        profile_by_carrier = {v.carrier: str(t) for v, t in zip(record.vgpus, recorded_profiles, strict=True)}
    remaining_profiles = iter(new_profiles)
    profiles = [profile_by_carrier.get(v.carrier) or next(remaining_profiles, None) or v.profile or "" for v in vgpus]
    fields["profile"] = profiles if any(profiles) else []
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return replace(record, vgpus=tuple(vgpus), request_json=text)


def with_gpu_fields(record: VmRecord, names: Sequence[str] = ()) -> VmRecord:
    """Return the record with the request for the whole GPUs that it has now; `names`: those named for added ones."""
    whole = whole_functions(record)
    fields = record.request_fields
    if not whole and fields.get("mode") != str(GpuMode.PASSTHROUGH):
        return record
    addresses = {v.gpu for v in whole}
    before = request_of_record(fields).gpu
    kept = [name for name in before if normalize_pci(name) is None or name in addresses]
    count = count_devices(whole)
    return with_request_fields(
        record,
        mode=str(GpuMode.PASSTHROUGH),
        gpus=count if count > 1 else None,
        gpu=names_text(tuple(dict.fromkeys((*kept, *names)))) if before else None,
    )


def with_request_fields(record: VmRecord, **values: object) -> VmRecord:
    """Return the record with these fields of its request changed; None removes one."""
    fields = {name: value for name, value in {**record.request_fields, **values}.items() if value is not None}
    return replace(record, request_json=json.dumps(fields, sort_keys=True, separators=(",", ":")))


PLACING_FIELDS = frozenset({"profile", *CONSTRAINT_FIELDS})
"""Where vGPUs go, and which: one is planned only with the others that belong to it."""


def without_planned(record: VmRecord, fields: Set[str]) -> VmRecord:
    """Return the record in which these fields are no longer planned; those that place vGPUs go together."""
    fields = fields | PLACING_FIELDS if fields & PLACING_FIELDS else fields
    before = planned_fields(record)
    if not before.keys() & fields:
        return record
    left = {name: value for name, value in before.items() if name not in fields}
    return with_request_fields(record, **{PLANNED: left or None})


def with_recorded_fields(vm: Vm, record: VmRecord, request: VmRequest, fields: Set[str]) -> VmRecord:
    """Return the record with the requested values of those of these fields that only it keeps.

    A field that changes now is not planned any more. A VM whose last state counts from now on should run if it is not
    off.

    Raises:
        Refused: the record cannot be read, and would lose everything else.
        InvalidInput: the VM would have too many labels.
    """
    names = sorted(fields & set(RECORDED_FIELDS))
    given = {name for name in planned_fields(record) if name in fields or request.is_explicit(name)}
    record = without_planned(record, given)
    if not names:
        return record
    if record.request_json and not record.request_fields and record.request_json != "{}":
        raise Refused(
            f"the record of {vm.name} cannot be read, so its {', '.join(names)} cannot change",
            hint="virsh dumpxml shows it",
        )
    try:
        limit_labels(request.labels)
    except ValueError as error:
        raise InvalidInput(f"{vm.name}: {error}", hint="remove a label: --label KEY-", vm=vm.name) from error
    values = {name: FIELDS[name].text_in(request) if FIELDS[name].is_given(request) else None for name in names}
    changed = with_request_fields(record, **values)
    if keeps_last_state(changed) is keeps_last_state(record):
        return changed
    return replace(changed, should_run=keeps_last_state(changed) and vm.state not in STOPPED_STATES)


def expand_profiles(request: VmRequest) -> tuple[str, ...]:
    """Return the requested profiles, one for each vGPU."""
    return tuple(each_profile(request.profiles))


def design_hostdev(vgpu: AssignedVgpu, record: VmRecord) -> DesignHostdev:
    """Return the hostdev with which the domain refers to a vGPU that is added later."""
    device = backend_for(vgpu.backend).hostdev(vgpu)
    return device if record.created_vm else replace(device, alias=f"{ADOPTED_ALIAS_PREFIX}{vgpu.index}")


def attach_steps(
    snapshot: Snapshot,
    vm: Vm,
    record: VmRecord,
    new_profiles: Sequence[str],
    new: Sequence[AssignedVgpu],
    *,
    live: bool,
    new_record: VmRecord | None = None,
) -> tuple[Step, ...]:
    """Return the steps after the claims: record, create, attach. `new_record`: the record afterwards, if it is planned.

    A stopped VM that reserves its slots only while it runs gets no device.
    """
    new_record = new_record or record_with_vgpus(record, (*record.vgpus, *new), new_profiles)
    new_record = without_planned(new_record, PLACING_FIELDS)
    summary = describe_record(vm, new_record) if whole_functions(new_record) else ""
    steps: list[Step] = [WriteRecord(vm.name, vm.uuid, new_record, vm.record, summary)]
    for vgpu in new if live or not record.reserve_while_running else ():
        steps += make_steps(snapshot, vgpu)
    steps += [AttachDevice(vm.name, vm.uuid, v.carrier, hostdev_xml(design_hostdev(v, record)), live) for v in new]
    return tuple(steps)


def detach_steps(
    vm: Vm, record: VmRecord, vgpus: Sequence[AssignedVgpu], keep_devices: frozenset[str], wait_seconds: float
) -> tuple[Step, ...]:
    """Return for each vGPU: detach, remove, update the record, release. reconcile uses these after a crash.

    `keep_devices`: carriers whose device stays because vgpuctl does not provably own it.
    """
    steps: list[Step] = []
    current_record = record
    for vgpu in reversed(vgpus):
        if any(h.carrier == vgpu.carrier for h in vm.hostdevs):
            steps.append(DetachDevice(vm.name, vm.uuid, vgpu.carrier, wait_seconds))
        if vgpu.carrier not in keep_devices:
            steps += backend_for(vgpu.backend).remove_steps(vgpu)
        remaining = [v for v in current_record.vgpus if v.carrier != vgpu.carrier]
        new_record = with_gpu_fields(record_with_vgpus(without_planned(current_record, PLACING_FIELDS), remaining))
        kept_record = new_record if new_record.vgpus or new_record.created_vm else None
        summary = describe_record(vm, new_record) if kept_record and whole_functions(current_record) else ""
        write = WriteRecord(vm.name, vm.uuid, kept_record, current_record, summary)
        steps += [write, ReleaseClaim(vgpu.carrier, vm.uuid)]
        current_record = write.written or new_record
    return tuple(steps)


def select_vgpus(vm: Vm, record: VmRecord, carriers: Sequence[str]) -> tuple[AssignedVgpu, ...]:
    """Return the VM's vGPUs with these carriers; its only one if none is given.

    A whole GPU goes with all its functions.

    Raises:
        NotFound: it has no such vGPU.
        InvalidInput: none is given, and it has several.
    """
    whole_gpus = {v.gpu for v in whole_functions(record)}
    if not carriers and len({v.gpu if v.gpu in whole_gpus else v.carrier for v in record.vgpus}) > 1:
        named = [word for vgpu in record.vgpus for word in ("--vgpu", vgpu.carrier)]
        raise InvalidInput(
            f"{vm.name} has {len(record.vgpus)} vGPUs, and none is named: {', '.join(map(_vgpu_text, record.vgpus))}",
            hint=f"name those to remove; all of them: {shlex.join(['vgpuctl', 'detach-vgpu', vm.name, *named])}",
            vm=vm.name,
            carriers=[vgpu.carrier for vgpu in record.vgpus],
        )
    requested = {c.lower() for c in carriers}
    vm_carriers = {v.carrier for v in record.vgpus}
    unknown = sorted(requested - vm_carriers)
    if unknown:
        raise NotFound(
            f"{vm.name} has no vGPU {', '.join(unknown)}",
            hint=f"it has {', '.join(sorted(vm_carriers)) or 'none'}; vgpuctl show-vm {vm.name}",
            vm=vm.name,
            carriers=sorted(vm_carriers),
        )
    whole = {v.gpu for v in whole_functions(record) if v.carrier in requested}
    return tuple(v for v in record.vgpus if not requested or v.carrier in requested or v.gpu in whole)


def _vgpu_text(vgpu: AssignedVgpu) -> str:
    return f"{vgpu.profile or 'GPU'} on {vgpu.gpu} ({vgpu.carrier})"


def diff_vgpus(vm: Vm, record: VmRecord, profiles: Sequence[str], types: Sequence[VgpuType] = ()) -> VgpuChanges:
    """Return the kept, removed and added vGPUs for a VM that shall have these profiles. `types`: those of its GPUs."""
    unmatched = list(record.vgpus)
    kept: list[AssignedVgpu] = []
    added_profiles: list[str] = []
    for profile in profiles:
        match = next((v for v in unmatched if v.profile == resolve_vm_profile(vm, profile, types)), None)
        if match is None:
            added_profiles.append(profile)
        else:
            unmatched.remove(match)
            kept.append(match)
    return VgpuChanges(tuple(kept), tuple(unmatched), tuple(added_profiles))


def with_freed(snapshot: Snapshot, vgpus: Sequence[AssignedVgpu]) -> Snapshot:
    """Return the snapshot without these vGPUs of a stopped VM.

    Nobody can know what the driver would offer then. Where the numbers allow it, the plan tries one more vGPU; if the
    driver refuses, all steps are undone. The functions themselves still count as taken, so no vGPU is created where one
    is removed.
    """
    carriers = {v.carrier for v in vgpus}
    remaining_vgpus = tuple(v for v in snapshot.vgpus if v.carrier not in carriers)
    gpus = tuple(
        _with_more_available(snapshot, g) if any(v.gpu == g.address for v in vgpus) else g for g in snapshot.gpus
    )
    return replace(snapshot, vgpus=remaining_vgpus, gpus=gpus)


def _with_more_available(snapshot: Snapshot, gpu: Gpu) -> Gpu:
    absent = sum(not v.present for v in snapshot.vgpus_on(gpu.address))
    available = 1 if backend_for(gpu.backend).on_vfs else 1 + absent
    functions = tuple(
        replace(
            f,
            available_instances={
                t.type_id: max((f.available_instances or {}).get(t.type_id, 0), available) for t in gpu.types
            },
        )
        for f in gpu.functions
    )
    return replace(gpu, functions=functions)
