# SPDX-License-Identifier: Apache-2.0
"""Choose the carriers of a VM's vGPUs from a snapshot, for each mode, and check their prerequisites."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vgpuctl.backends import backend_for, backend_of_mode
from vgpuctl.config.arguments import RENDERING_MODE
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoCapacity
from vgpuctl.gpu.division import name_holders
from vgpuctl.gpu.gpu_instances import rank_instances
from vgpuctl.gpu.mixed_size import choose_placement_id, is_placement_free
from vgpuctl.gpu.profiles import vfs_off_error
from vgpuctl.gpu.room import compute_room
from vgpuctl.makers import maker_of, vgpu_driver_hint
from vgpuctl.model.gpu import Gpu, GpuFunction, GpuMode, Ownership, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.observe.definition import require_function
from vgpuctl.operations.plans.choose_whole import choose_vf_gpu, choose_whole_gpus
from vgpuctl.placement.constraints import select_allowed_gpus, unapplied_error, unapplied_settings
from vgpuctl.placement.vm_placement import place_vgpus
from vgpuctl.ports.step import Step
from vgpuctl.value import replace


def vm_name(request: VmRequest, uuid: str) -> str:
    """Return the VM's name: the requested one, or vgpu-<first 8 characters of its UUID>."""
    return request.name or f"vgpu-{uuid[:8]}"


def disk_stem(name: str, uuid: str) -> str:
    """Return the start of the VM's volume names: NAME-<8 of uuid>, or NAME where it already ends in those."""
    return name if name.endswith(f"-{uuid[:8]}") else f"{name}-{uuid[:8]}"


def disk_volume_name(stem: str, number: int, disk_format: str) -> str:
    """Return the name of a VM's n-th disk (from 0); a logical volume, which is raw, has no suffix."""
    name = f"{stem}-{number}" if number else stem
    return name if disk_format == "raw" else f"{name}.{disk_format}"


def choose_vgpus(
    snapshot: Snapshot,
    request: VmRequest,
    uuid: str,
    kept_profiles: Sequence[str] = (),
) -> tuple[AssignedVgpu, ...]:
    """Return the vGPUs that a new VM would get, after checking the host's prerequisites; none in mode virtio-gpu.

    `kept_profiles`: the profiles of the vGPUs that the VM already has and keeps.

    Raises:
        NoCapacity, NotFound, InvalidInput, Refused, InUse, HostCannot, Stuck: as the message says.
    """
    refuse_invalid_host_file(snapshot)
    if request.mode == "vgpu":
        return _choose_by_profile(snapshot, request, uuid, kept_profiles)
    if request.mode == "sriov":
        return _choose_vfs(snapshot, request, uuid)
    if request.mode == RENDERING_MODE:
        return ()
    return choose_whole_gpus(snapshot, request, vm_name(request, uuid), uuid)


def refuse_invalid_host_file(snapshot: Snapshot) -> None:
    """Refuse to place anything while host.yaml is invalid: it may restrict a GPU.

    Raises:
        InvalidInput: with the problem in the file.
    """
    if snapshot.host_file_problem is not None:
        raise InvalidInput(
            snapshot.host_file_problem,
            hint=f"{snapshot.host_file_hint}; it may exclude a GPU",
        )


def as_taken_vgpu(vgpu: AssignedVgpu, name: str, uuid: str, spread_group: str | None = None) -> Vgpu:
    """Return a vGPU just chosen for a VM as an observed one, so that later choices treat it as taken."""
    return Vgpu(
        carrier=vgpu.carrier,
        gpu=vgpu.gpu,
        function=vgpu.function,
        owner=Ownership.MANAGED,
        present=False,
        backend=vgpu.backend,
        profile=vgpu.profile,
        framebuffer_mib=vgpu.framebuffer_mib,
        vm=name,
        vm_uuid=uuid,
        placement_id=vgpu.placement_id,
        spread_group=spread_group,
    )


def params_text(request: VmRequest) -> str:
    """Return the plugin parameters in the format of the driver and of host.yaml."""
    return ",".join(f"{k}={v}" for k, v in request.vgpu_params)


def _choose_by_profile(
    snapshot: Snapshot, request: VmRequest, uuid: str, kept_profiles: Sequence[str]
) -> tuple[AssignedVgpu, ...]:
    if not any(g.types for g in select_allowed_gpus(snapshot, request.constraints)):
        _refuse_no_types(snapshot, request)
    slots = place_vgpus(snapshot, request.profiles, request.constraints, vm_name(request, uuid), uuid, kept_profiles)
    vgpus = []
    for index, slot in enumerate(slots):
        backend = backend_for(slot.gpu.backend)
        function = slot.gpu.find_function(slot.function) or GpuFunction(slot.function, "")
        if request.vgpu_params and not maker_of(slot.gpu).has_vgpu_params:
            raise InvalidInput(
                f"--vgpu-param works only with NVIDIA's vGPU plugin; {slot.gpu.address} ({slot.gpu.model}) has none",
                gpu=slot.gpu.address,
            )
        backend.check(snapshot, slot.gpu, function, force_console=False)
        vgpus.append(
            AssignedVgpu(
                index=index,
                backend=backend.name,
                gpu=slot.gpu.address,
                function=slot.function,
                carrier=backend.carrier(slot.function, uuid, index),
                profile=slot.vgpu_type.profile,
                framebuffer_mib=slot.vgpu_type.framebuffer_mib,
                params=params_text(request),
                placement_id=slot.placement_id,
            )
        )
    return tuple(vgpus)


def _refuse_no_types(snapshot: Snapshot, request: VmRequest) -> None:
    """Refuse with the reason why no GPU offers any type, if VFs are off or a mode is wrong."""
    gpus = select_allowed_gpus(snapshot, request.constraints)
    if any(snapshot.vgpus_on(g.address) for g in gpus):
        return
    gpus_without_vfs = [g for g in gpus if g.backend is None]
    if gpus_without_vfs:
        raise vfs_off_error(gpus_without_vfs[0])
    non_vgpu_gpus = [g for g in gpus if not backend_for(g.backend).creates_devices]
    if non_vgpu_gpus:
        gpu = non_vgpu_gpus[0]
        whole = f"vgpuctl create-vm --mode {backend_for(gpu.backend).mode} --gpu {gpu.address}"
        slicing = maker_of(gpu).slicing
        raise HostCannot(
            f"no GPU offers vGPUs: {gpu.address} ({gpu.model}) is in mode {gpu.mode}, driver {gpu.driver or 'none'}",
            hint=f"{slicing}: {whole}" if slicing else f"{vgpu_driver_hint(gpu)}; or pass it on whole: {whole}",
            check="mode",
            gpu=gpu.address,
        )


def _choose_vfs(snapshot: Snapshot, request: VmRequest, uuid: str) -> tuple[AssignedVgpu, ...]:
    """Return the plain VFs of a VM: each from the GPU that the policy chooses, as if those before were taken."""
    name, backend = vm_name(request, uuid), backend_of_mode(request.mode)
    chosen: list[AssignedVgpu] = []
    current = snapshot
    for number in range(request.gpus):
        gpu = choose_vf_gpu(current, request, name, uuid)
        try:
            (vf,) = backend.assign(current, gpu, force_console=request.force_console)
        except NoCapacity as error:
            if not chosen:
                raise
            raise NoCapacity(
                f"{request.gpus} plain VFs requested, but only {number} can be given now",
                hint=f"vgpuctl show-gpu {gpu.address} shows who has the others",
                requested=request.gpus,
                free=number,
                gpu=gpu.address,
            ) from error
        chosen.append(replace(vf, index=number))
        taken = as_taken_vgpu(vf, name, uuid, request.spread_group)
        current = replace(current, vgpus=(*current.vgpus, taken))
    return tuple(chosen)


def make_steps(snapshot: Snapshot, vgpu: AssignedVgpu) -> tuple[Step, ...]:
    """Return the steps that create an assigned vGPU; on a mixed-size GPU, at its recorded placement.

    Raises:
        InUse: another vGPU occupies that placement, or a VM has the whole GPU.
        NoCapacity: the driver does not offer the profile there now.
        HostCannot: the GPU is gone, or the function.
    """
    gpu = require_function(snapshot, vgpu)
    type_id = _current_type_id(snapshot, gpu, vgpu)
    if gpu.mixed_size is not None:
        vgpu = replace(vgpu, placement_id=_current_placement(snapshot, gpu, vgpu))
    return backend_for(vgpu.backend).create_steps(vgpu, type_id, _candidate_instances(snapshot, gpu, vgpu))


def _candidate_instances(snapshot: Snapshot, gpu: Gpu, vgpu: AssignedVgpu) -> tuple[int, ...]:
    """Return the GPU instances in which to create a vGPU, best first; empty where the driver chooses."""
    vgpu_type = next((t for t in gpu.types if t.profile == vgpu.profile), None)
    if gpu.mig is None or vgpu_type is None:
        return ()
    return rank_instances(
        gpu, gpu.mig, [v for v in snapshot.vgpus_on(gpu.address) if v.carrier != vgpu.carrier], vgpu_type
    )


def _current_placement(snapshot: Snapshot, gpu: Gpu, vgpu: AssignedVgpu) -> int | None:
    """Return the placement at which to create a vGPU; None where the driver chooses, in another mode.

    A record from before mixed sizes has no placement that the driver knows. Such a vGPU goes next to the placements
    assigned to others: the driver itself could choose one of those.
    """
    vgpu_type = next((t for t in gpu.types if t.profile == vgpu.profile), None)
    if not gpu.mixed_size or vgpu_type is None:
        return None
    placement_ids = vgpu_type.placement_ids
    if vgpu.placement_id is None or (placement_ids is not None and vgpu.placement_id not in placement_ids):
        return choose_placement_id(
            gpu, [v for v in snapshot.vgpus_on(gpu.address) if v.carrier != vgpu.carrier], vgpu_type
        )
    others = [v for v in snapshot.vgpus_on(gpu.address) if v.carrier != vgpu.carrier and v.present]
    blocking = [v for v in others if not is_placement_free(gpu, (v,), vgpu_type, vgpu.placement_id)]
    if blocking and vgpu_type.placement_ids is not None:
        raise InUse(
            f"placement {vgpu.placement_id} of {gpu.address}, reserved for {vgpu.profile} on {vgpu.carrier}, is"
            f" taken by {name_holders(blocking)}",
            hint=f"vgpuctl show-gpu {gpu.address}; vgpuctl detach-vgpu and attach-vgpu move a VM to another place",
            gpu=gpu.address,
            placement_id=vgpu.placement_id,
            carriers=[v.carrier for v in blocking],
        )
    return vgpu.placement_id


def _current_type_id(snapshot: Snapshot, gpu: Gpu, vgpu: AssignedVgpu) -> str | None:
    """Return the driver's current id of an assigned vGPU's type; only the profile is recorded.

    Raises:
        NoCapacity: the driver does not offer the profile there now.
    """
    if vgpu.profile is None:
        return None
    vgpu_type = next((t for t in gpu.types if t.profile == vgpu.profile), None)
    if vgpu_type is None:
        raise NoCapacity(
            f"{vgpu.gpu} does not offer {vgpu.profile} now",
            hint="vgpuctl list-profiles shows what this host offers",
            gpu=vgpu.gpu,
        )
    others = tuple(v for v in snapshot.vgpus_on(vgpu.gpu) if v.carrier != vgpu.carrier and not v.needs_device)
    # as in libvirt's hook: sizes may differ
    mixed_size_unknown = gpu.mixed_size is None and backend_for(gpu.backend).may_mix_sizes_unseen
    if gpu.mixed_size or gpu.mode is GpuMode.MIG_VGPU or mixed_size_unknown:
        # an absent vGPU has its own slot, wherever the driver puts this one
        others = tuple(v for v in others if v.present)
    room = compute_room(gpu, others, vgpu_type)
    if vgpu.function not in room.functions and not room.has_room:
        raise NoCapacity(
            f"no room for {vgpu.profile} on {vgpu.gpu}: {'; '.join(room.reasons)}",
            hint=f"vgpuctl explain {vgpu.profile}",
            gpu=vgpu.gpu,
        )
    return vgpu_type.type_id


def refuse_unapplied_settings(snapshot: Snapshot, vgpus: Iterable[AssignedVgpu]) -> None:
    """Refuse to create the first vGPU after a boot of a GPU that lacks settings which restore-host would set now.

    Raises:
        HostCannot: naming the GPU, what runs and what host.yaml says.
    """
    for address in dict.fromkeys(v.gpu for v in vgpus if backend_for(v.backend).creates_devices):
        gpu = snapshot.gpu(address)
        differences = [] if gpu is None else unapplied_settings(snapshot, gpu)
        if gpu is not None and differences:
            raise unapplied_error(gpu, differences)
