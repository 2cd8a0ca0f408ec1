# SPDX-License-Identifier: Apache-2.0
"""vGPUs without a VM: host.yaml keeps them, and VMs made with virsh or virt-install refer to them.

A VM's record keeps the VM's vGPUs; an entry of host.yaml keeps these. So creation claims the carrier, writes the entry
and creates the device; removal does the reverse. A claim alone is leaked. If only the entry exists, restore-host
creates the device again. The claim stays as long as the entry: it is how libvirt's hook knows the vGPU, which reads
host.yaml only where it places something.

No VM gets such a vGPU by placement. A VM that refers to it is its user, and blocks delete-vgpu and set-mode; a VM that
merely had that VF last, because it reserves one only while it runs, is none.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence

from vgpuctl.backends import backend_for
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.domain.domain_edit import hostdev_xml
from vgpuctl.domain.record import TEXT_KIND
from vgpuctl.errors import Busy, Exists, InUse, InvalidInput, NotFound, Refused, SpecDiffers, Unmanaged
from vgpuctl.gpu.profiles import matches_profile_name, matches_type
from vgpuctl.model import hint_commands
from vgpuctl.model.gpu import Ownership, Vgpu, VgpuType
from vgpuctl.model.names import is_pci_address, normalize_pci
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import HOST_VGPU_CLAIM_PREFIX, AssignedVgpu, HostVgpu, RecordState, Vm, VmRecord, VmState
from vgpuctl.observe.definition import removal_command
from vgpuctl.observe.ownership import host_vgpu_owner, infer_backend
from vgpuctl.operations.plans.choose import choose_vgpus, make_steps, params_text
from vgpuctl.operations.plans.remove import unproven_carriers
from vgpuctl.operations.steps.claims import ReleaseClaim
from vgpuctl.operations.steps.host_file import AddVgpuEntry, RemoveVgpuEntry
from vgpuctl.placement.constraints import match_gpus, select_allowed_gpus
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import replace


def placeholder_owner(machine_id: str, name: str, vgpu: AssignedVgpu) -> tuple[Vm, VmRecord]:
    """Return the owner that claims and devices need for a vGPU without a VM: a VM unknown to libvirt, and a record."""
    owner = host_vgpu_owner(machine_id, name)
    record = VmRecord(RecordState.READY, owner, machine_id, (vgpu,), (), "{}")
    return Vm(f"{HOST_VGPU_CLAIM_PREFIX}{name}", owner, VmState.UNKNOWN, 0, 0, record=record), record


def assigned_from_entry(entry: HostVgpu, observed: Vgpu | None = None) -> AssignedVgpu:
    """Return an entry of host.yaml as steps need it, with the `observed` location, or that of its carrier."""
    is_mdev = ":" not in entry.carrier
    return AssignedVgpu(
        index=0,
        backend=observed.backend
        if observed is not None and observed.backend is not None
        else infer_backend(entry.carrier, None),
        gpu=entry.gpu,
        function=observed.function if observed is not None else entry.gpu if is_mdev else entry.carrier,
        carrier=entry.carrier,
        profile=entry.profile,
        framebuffer_mib=observed.framebuffer_mib if observed is not None else None,
        params=entry.params,
        placement_id=observed.placement_id if observed is not None else None,
    )


def refuse_unreadable_entries(snapshot: Snapshot) -> None:
    """Refuse to decide who owns a vGPU while host.yaml, which may name it, is invalid.

    Raises:
        InvalidInput: with the file's problems.
    """
    if snapshot.host_file_problem is not None:
        raise InvalidInput(
            snapshot.host_file_problem,
            hint=f"{snapshot.host_file_hint}; it lists the vGPUs without a VM",
        )


def carrier_conflicts(snapshot: Snapshot) -> tuple[str, ...]:
    """Return a sentence for each vGPU of host.yaml whose carrier is the vGPU of a VM."""
    vgpu_by_carrier = {v.carrier: v for v in snapshot.vgpus}
    return tuple(
        f"vGPU {entry.name} of host.yaml has no place: "
        f"{entry.carrier} is the vGPU of {vgpu_by_carrier[entry.carrier].holder_text}"
        for entry in snapshot.host_vgpus
        if entry.carrier in vgpu_by_carrier and vgpu_by_carrier[entry.carrier].name != entry.name
    )


def refuse_existing_name(snapshot: Snapshot, name: str) -> None:
    """Refuse a name that already exists in host.yaml.

    Raises:
        Exists: with its location, and whether its device exists.
    """
    entry = next((n for n in snapshot.host_vgpus if n.name == name), None)
    if entry is not None:
        is_present = any(v.name == name and v.present for v in snapshot.vgpus)
        raise Exists(
            f"a vGPU {name} already exists: {entry.profile} on {entry.gpu} ({entry.carrier})"
            f"{'' if is_present else ', its device is missing'}",
            hint="choose another name" if is_present else "vgpuctl restore-host creates it again",
            vgpu=name,
            carrier=entry.carrier,
        )


def refuse_changed_device(snapshot: Snapshot, entry: HostVgpu, observed: Vgpu) -> None:
    """Refuse a device that differs from its host.yaml entry: somebody changed it by hand.

    Raises:
        SpecDiffers: facts hold the vGPU's name and carrier.
    """
    if observed.present and observed.reason is not None and entry.carrier not in snapshot.unreadable_claims:
        raise SpecDiffers(
            f"vGPU {entry.name} differs from host.yaml: {observed.reason}",
            hint=f"vgpuctl delete-vgpu {entry.name}, then run the command again",
            vgpu=entry.name,
            carrier=entry.carrier,
        )


def refuse_different_request(snapshot: Snapshot, entry: HostVgpu, request: VmRequest) -> None:
    """Refuse a request that differs from the existing vGPU of that name; only explicit options count.

    How its GPU was chosen does not count, except GPUs that were named or excluded by name.

    `snapshot` has the types of its GPU when a profile is explicit, and models when a GPU is.

    Raises:
        SpecDiffers: facts hold before and after.
        NotFound: no GPU here matches the requested one.
    """
    gpu = snapshot.gpu(entry.gpu)
    types = [t for t in gpu.types if t.profile == entry.profile] if gpu is not None else []
    profiles = [name for name, _ in request.profiles]
    matches = {
        "profile": all(_is_same_profile(entry.profile, types, name) for name in profiles),
        "gpu": gpu is None or gpu in select_allowed_gpus(snapshot, request.constraints),
        "not_gpu": gpu is None or not any(match_gpus((gpu,), name) for name in request.not_gpu),
        "vgpu_params": not request.vgpu_params or params_text(request) == entry.params,
    }
    before = {"profile": entry.profile, "gpu": entry.gpu, "not_gpu": entry.gpu, "vgpu_params": entry.params}
    after = {
        "profile": ", ".join(profiles),
        "gpu": " or ".join(request.gpu),
        "not_gpu": f"not {' or '.join(request.not_gpu)}",
        "vgpu_params": params_text(request),
    }
    changed = [field for field, is_same in matches.items() if not is_same]
    if changed:
        differences = "; ".join(f"{field}: it is {before[field] or 'none'}, not {after[field]}" for field in changed)
        raise SpecDiffers(
            f"vGPU {entry.name} exists and differs: {differences}",
            hint=f"choose another name, or remove it first: vgpuctl delete-vgpu {entry.name}",
            vgpu=entry.name,
            before={field: before[field] for field in changed},
            after={field: after[field] for field in changed},
        )


def _is_same_profile(profile: str, types: Sequence[VgpuType], text: str) -> bool:
    """Say whether a text names a profile; `types`: the driver's types with it now, empty where it hides them."""
    return any(matches_type(vgpu_type, text) for vgpu_type in types) or any(
        matches_profile_name(profile, alternative) for alternative in text.split("|")
    )


def choose_vgpu(snapshot: Snapshot, request: VmRequest, owner: str) -> AssignedVgpu:
    """Return the one requested vGPU.

    Raises:
        InvalidInput: several are requested, or its GPU has no PCI address, by which host.yaml names GPUs.
        VgpuctlError: as `choose_vgpus`.
    """
    if sum(count for _, count in request.profiles) != 1:
        raise InvalidInput("create-vgpu creates one vGPU", hint="run it once for each vGPU, with its own NAME")
    (vgpu,) = choose_vgpus(snapshot, request, owner)
    if not is_pci_address(vgpu.gpu):
        raise InvalidInput(
            f"{vgpu.gpu} has no PCI address, which host.yaml needs to name a GPU",
            hint="use vgpuctl create-vm, which can use its vGPUs",
            gpu=vgpu.gpu,
        )
    return vgpu


def host_file_entry(name: str, vgpu: AssignedVgpu) -> HostVgpu:
    """Return the entry for host.yaml."""
    return HostVgpu(name, vgpu.profile or "", vgpu.gpu, vgpu.carrier, vgpu.params)


def vgpu_creation_plan(snapshot: Snapshot, name: str, vgpu: AssignedVgpu) -> Plan:
    """Return the steps after the claim: write the entry, create the device."""
    return Plan((AddVgpuEntry(host_file_entry(name, vgpu)), *make_steps(snapshot, vgpu)))


def find_named_vgpu(snapshot: Snapshot, name: str) -> tuple[HostVgpu, Vgpu]:
    """Return an entry of host.yaml and its observed vGPU.

    Raises:
        NotFound: with similar names.
        InUse: its carrier is assigned to a VM.
        Unmanaged: `name` is the UUID or address of a device that another program made.
    """
    entry = next((n for n in snapshot.host_vgpus if n.name == name), None)
    if entry is None:
        _refuse_carrier(snapshot, name)
        similar_names = difflib.get_close_matches(name, [n.name for n in snapshot.host_vgpus], n=3)
        hint = f"did you mean {', '.join(similar_names)}?" if similar_names else "vgpuctl list-vgpus shows the vGPUs"
        raise NotFound(f"there is no vGPU {name} in host.yaml", hint=hint, vgpu=name, near=similar_names)
    observed = next(v for v in snapshot.vgpus if v.carrier == entry.carrier)
    if observed.name != name:
        raise InUse(
            f"{entry.carrier}, which host.yaml names for vGPU {name}, is the vGPU of {observed.holder_text}",
            hint="remove the entry from host.yaml by hand",
            vgpu=name,
            carrier=entry.carrier,
        )
    return entry, observed


def _refuse_carrier(snapshot: Snapshot, name: str) -> None:
    """Refuse the UUID or address of a vGPU in place of a name: say whose it is, and what removes it.

    Raises:
        Unmanaged: another program made it.
        InUse: it is the vGPU of a VM.
        Refused: host.yaml has a name for it, or a command that was killed left it.
    """
    carrier = normalize_pci(name) or name.strip().lower()
    vgpu = next((v for v in snapshot.vgpus if v.carrier == carrier), None)
    if vgpu is None:
        return
    what = f"{vgpu.profile or vgpu.backend or 'device'} {carrier} on GPU {vgpu.gpu}"
    vm = snapshot.vm(vgpu.vm_uuid or "")
    facts = {"carrier": carrier, "vm": vgpu.vm}
    if vgpu.owner is Ownership.UNMANAGED:
        stop = "" if vm is None else f"{removal_command(vm, carrier)}; then "
        commands = "; or ".join(backend_for(vgpu.backend).removal_commands(carrier)) or f"vgpuctl show-gpu {vgpu.gpu}"
        used = "" if vm is None else f", and VM {vm.name} names it"
        raise Unmanaged(
            f"{what} is unmanaged: another program made it{used}; vgpuctl does not remove it",
            hint=f"{stop}{commands}",
            **facts,
        )
    if vgpu.owner is Ownership.LEAKED:
        raise Refused(f"{what} is leaked: {vgpu.reason}", hint="vgpuctl reconcile-host", **facts)
    if vgpu.name is not None:
        raise Refused(f"{what} is vGPU {vgpu.name}", hint=f"vgpuctl delete-vgpu {shlex.quote(vgpu.name)}", **facts)
    hint = f"vgpuctl show-gpu {vgpu.gpu}" if vm is None else hint_commands.detach_command(vm, carrier)
    raise InUse(f"{what} is the vGPU of {vgpu.holder_text}", hint=hint, **facts)


def refuse_used_vgpu(snapshot: Snapshot, entry: HostVgpu) -> None:
    """Refuse to remove a vGPU from VMs that refer to it, running or not.

    VMs that reserve it only while they run do not count while they are off.

    Raises:
        InUse: naming them.
    """
    vms = [vm for vm in snapshot.vms if vm.refers_to(entry.carrier)]
    if vms:
        raise _in_use_error(entry, vms)


def _in_use_error(entry: HostVgpu, vms: list[Vm]) -> InUse:
    names = [vm.name for vm in vms]
    is_text = any(h.kind == TEXT_KIND for h in vms[0].hostdevs if h.carrier == entry.carrier)
    command = f"virsh detach-device {shlex.quote(names[0])} FILE --persistent (--live --config)"
    return InUse(
        f"vGPU {entry.name} ({entry.carrier}) is in use by {', '.join(names)}",
        hint=f"detach it first: {removal_command(vms[0], entry.carrier) if is_text else command}",
        vgpu=entry.name,
        carrier=entry.carrier,
        vms=names,
    )


def unproven_carrier(snapshot: Snapshot, entry: HostVgpu, vgpu: AssignedVgpu) -> frozenset[str]:
    """Return the carrier if its device may be somebody else's; call this before claiming it."""
    return unproven_carriers(snapshot, *placeholder_owner(snapshot.machine_id, entry.name, vgpu))


def vgpu_removal_plan(machine_id: str, entry: HostVgpu, vgpu: AssignedVgpu, keep_devices: frozenset[str]) -> Plan:
    """Return the steps that remove a vGPU without a VM: its device unless kept, its entry, its claim."""
    owner, _ = placeholder_owner(machine_id, entry.name, vgpu)
    steps: list[Step] = [] if keep_devices else list(backend_for(vgpu.backend).remove_steps(vgpu))
    steps += [RemoveVgpuEntry(entry), ReleaseClaim(vgpu.carrier, owner.uuid)]
    notes = tuple(
        f"the vGPU on {c} is not {entry.name}: another program created it; it stays" for c in sorted(keep_devices)
    )
    return Plan(tuple(steps), notes=notes, undo_on_failure=False)


def refuse_assigned_carrier(vms: tuple[Vm, ...], entry: HostVgpu) -> None:
    """Refuse to create a vGPU of host.yaml whose carrier is permanently assigned to a VM.

    Raises:
        Busy: naming the VM.
    """
    for vm in vms:
        record = vm.record
        if record is not None and any(v.carrier == entry.carrier and record.reserves_slot(v) for v in record.vgpus):
            raise Busy(
                f"{entry.carrier} is used by {vm.name}",
                hint=f"remove vGPU {entry.name} from host.yaml; vgpuctl show-gpu {entry.gpu}",
                carrier=entry.carrier,
                vm=vm.name,
            )


def hostdev_element(vgpu: AssignedVgpu) -> str:
    """Return the hostdev element for a VM's definition, without an alias: libvirt chooses a free one."""
    return hostdev_xml(replace(backend_for(vgpu.backend).hostdev(vgpu), alias=""), indented=True)
