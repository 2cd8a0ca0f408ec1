# SPDX-License-Identifier: Apache-2.0
"""Which GPUs may take a new vGPU or VM: what the request, host.yaml, and the GPU's state allow.

A request's constraints exclude GPUs. So do host.yaml, a stuck kernel write, and a driver that lost the GPU. Existing
vGPUs and VMs stay on it, and may start and stop, except on a GPU that is lost.

A GPU may lack settings of host.yaml after a boot, before restore-host. The driver changes the scheduler, MIG and mixed
sizes only on a GPU without vGPUs. A vGPU that is created before them would run without them, and then block
restore-host until its VM is drained. So nothing new is placed there, and no room is shown. The scheduler counts only if
VMs have places on the GPU whose vGPUs are all missing, as after a boot: otherwise host.yaml may be ahead of the driver,
where only its next load sets the scheduler. libvirt's hook has no NVML, so it does not know these settings: it creates
the vGPU as the driver is.
"""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.config.arguments import RENDERING_MODE
from vgpuctl.config.name_patterns import expand_braces, matches_glob
from vgpuctl.errors import HostCannot, NotFound
from vgpuctl.gpu.division import name_holders
from vgpuctl.gpu.profiles import matches_type
from vgpuctl.model.gpu import Gpu, GpuMode, VgpuType
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.scheduler.limits import explain_unsupported, running_scheduler, satisfies, scheduler_text
from vgpuctl.value import Value, replace


class Excluded(Value):
    """Why a GPU is excluded: the constraint of the request, as the user types it, and the reason."""

    constraint: str
    reason: str


def match_gpus(gpus: Iterable[Gpu], name: str) -> tuple[Gpu, ...]:
    """Return the GPUs that an address, NVIDIA's UUID or a model name selects.

    Only its address selects a device that is no GPU.
    """
    address = normalize_pci(name) or name
    candidates = tuple(gpus)
    exact = tuple(
        g for g in candidates if g.address == address or (g.uuid is not None and name.lower() == g.uuid.lower())
    )
    return exact or tuple(g for g in candidates if g.is_display_class and g.has_model_name(name))


def select_gpus(snapshot: Snapshot, name: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that an address or a model name selects; None selects every device that is a GPU.

    Raises:
        NotFound: nothing matches; the message lists the GPUs of the host.
    """
    if name is None:
        return tuple(g for g in snapshot.gpus if g.is_display_class)
    matches = match_gpus(snapshot.gpus, name)
    if matches:
        return matches
    available = ", ".join(f"{g.address} ({g.model})" for g in snapshot.gpus if g.is_display_class) or "none"
    raise NotFound(
        f"no GPU '{name}' on this host",
        hint=f"GPUs here: {available}; vgpuctl list-gpus --all also lists other devices",
        gpu=name,
    )


def select_allowed_gpus(snapshot: Snapshot, constraints: GpuConstraints) -> tuple[Gpu, ...]:
    """Return the GPUs that a request allows by name, in the snapshot's order; does not drop those that it forbids.

    Raises:
        NotFound: a name matches no GPU of this host.
    """
    if not snapshot.partial:
        for text in (*constraints.gpus, *constraints.not_gpus):
            select_gpus(snapshot, text)
    if not constraints.gpus:
        return select_gpus(snapshot, None)
    allowed = {g.address for text in constraints.gpus for g in match_gpus(snapshot.gpus, text)}
    return tuple(g for g in snapshot.gpus if g.address in allowed)


def add_spread_group(snapshot: Snapshot, constraints: GpuConstraints, uuid: str | None) -> GpuConstraints:
    """Return the requested constraints with the spread group that the VM's record already has."""
    vm = snapshot.vm(uuid) if uuid is not None else None
    if vm is None or vm.record is None or constraints.spread_group is not None:
        return constraints
    return replace(constraints, spread_group=vm.record.spread_group)


def why_excluded(snapshot: Snapshot, gpu: Gpu, constraints: GpuConstraints, uuid: str | None = None) -> Excluded | None:
    """Return why a request excludes a GPU; None when it does not. `uuid`: of the VM that the GPU is for.

    A VM whose memory is bound to NUMA nodes gets a GPU of these nodes, or one whose node is unknown.
    """
    for text in constraints.not_gpus:
        if any(g.address == gpu.address for g in match_gpus((gpu,), text)):
            return Excluded(f"--not-gpu {text}", "it is excluded")
    if constraints.numa_node is not None and gpu.numa_node != constraints.numa_node:
        at = "not known" if gpu.numa_node is None else str(gpu.numa_node)
        return Excluded(f"--numa-node {constraints.numa_node}", f"its NUMA node is {at}")
    vm = snapshot.vm(uuid) if uuid is not None else None
    nodes = vm.memory_nodes if vm is not None else frozenset()
    if nodes and constraints.numa_node is None and gpu.numa_node is not None and gpu.numa_node not in nodes:
        node_list = ", ".join(str(n) for n in sorted(nodes))
        return Excluded("the VM's memory", f"its NUMA node is {gpu.numa_node}, the VM's memory is bound to {node_list}")
    if constraints.scheduler is not None and _scheduler_policies(gpu) != {constraints.scheduler}:
        policies = (
            ", ".join(sorted(str(p) if p is not None else "not known" for p in _scheduler_policies(gpu))) or "not known"
        )
        return Excluded(f"--scheduler {constraints.scheduler}", f"its scheduler is {policies}")
    return why_group_conflicts(snapshot, gpu, constraints.spread_group, uuid)


def why_group_conflicts(snapshot: Snapshot, gpu: Gpu, group: str | None, uuid: str | None = None) -> Excluded | None:
    """Return the conflict when a GPU has another VM of a spread group; None when it has none, or there is no group."""
    if group is None:
        return None
    members = [v for v in snapshot.vgpus_on(gpu.address) if v.spread_group == group]
    others = [v for v in members if uuid is None or v.vm_uuid != uuid]
    return Excluded(f"--spread-group {group}", f"it has {name_holders(others)} of the group") if others else None


def _scheduler_policies(gpu: Gpu) -> set[str | None]:
    """Return the running policies: of the GPU, or with MIG of each GPU instance that has its own scheduler."""
    states = list(gpu.gi_schedulers.values()) if gpu.mig is not None and gpu.mig.enabled else []
    if not states and gpu.scheduler is not None and gpu.scheduler.state is not None:
        states = [gpu.scheduler.state]
    return {state.policy for state in states}


def allowed_addresses(snapshot: Snapshot, constraints: GpuConstraints) -> set[str]:
    """Return the addresses of the GPUs that constraints name, without the excluded ones.

    Raises:
        NotFound: they match no GPU of this host.
    """
    allowed = {gpu.address for gpu in select_allowed_gpus(snapshot, constraints)}
    return allowed - {gpu.address for name in constraints.not_gpus for gpu in match_gpus(snapshot.gpus, name)}


def why_unschedulable(snapshot: Snapshot, gpu: Gpu, mode: str, vm: str | None = None) -> str | None:
    """Return why nothing new is placed on a GPU now.

    A kernel write has not returned there, `why_restricted`, or settings of host.yaml have to be made first.
    """
    if any(write.gpu == gpu.address for write in snapshot.stuck_writes):
        return "a kernel write on it is blocked"
    restriction = why_restricted(gpu, mode, vm)
    if restriction is None and mode == GpuMode.VGPU and (differences := unapplied_settings(snapshot, gpu)):
        return f"it is not set up as host.yaml says: {'; '.join(differences)}; vgpuctl restore-host sets it up"
    return restriction


def why_restricted(gpu: Gpu, mode: str, vm: str | None = None) -> str | None:
    """Return why nothing new of a mode (of a VM spec) is placed on a GPU; None when it may be.

    `vm`: the name of the VM that it is for; None for any VM.
    """
    if gpu.is_lost:
        return gpu.lost_text
    if gpu.cordoned:
        return f"it is cordoned; vgpuctl uncordon {gpu.address} allows new vGPUs"
    if gpu.desired_mode is GpuMode.UNMANAGED:
        return "host.yaml excludes it from vgpuctl (mode: unmanaged)"
    if mode == RENDERING_MODE and gpu.desired_mode is GpuMode.PASSTHROUGH:
        return "host.yaml keeps it for a VM as a whole (mode: passthrough)"
    if mode != RENDERING_MODE and gpu.desired_mode is not None and gpu.desired_mode != mode:
        return f"host.yaml reserves it for mode {gpu.desired_mode}; vgpuctl set-mode {gpu.address} {mode} changes that"
    if not may_have(gpu.reserved_for, vm or ""):
        return f"host.yaml reserves it for VMs named {' or '.join(gpu.reserved_for)}"
    return None


def may_have(reserved_for: Iterable[str], vm: str) -> bool:
    """Return whether a VM of this name may have a GPU that is reserved for names of these patterns; none: any may."""
    patterns = tuple(reserved_for)
    return not patterns or any(matches_glob(vm, word) for pattern in patterns for word in expand_braces(pattern))


def why_profile_forbidden(gpu: Gpu, vgpu_type: VgpuType) -> str | None:
    """Return why a type may not be placed on a GPU although its driver offers it; None when it may be."""
    if gpu.allowed_profiles is None or any(matches_type(vgpu_type, text) for text in gpu.allowed_profiles):
        return None
    return f"host.yaml allows only {', '.join(gpu.allowed_profiles)} on it (gpus: profiles:)"


def unapplied_settings(snapshot: Snapshot, gpu: Gpu) -> list[str]:
    """Return a sentence for each setting that a GPU without vGPUs lacks and that restore-host would set now."""
    on_gpu = snapshot.vgpus_on(gpu.address)
    if any(v.present for v in on_gpu):
        return []
    return _differences(gpu, lost_vgpus=any(v.needs_device for v in on_gpu))


def unapplied_error(gpu: Gpu, differences: list[str]) -> HostCannot:
    """Return the refusal to create the first vGPU on such a GPU."""
    return HostCannot(
        f"{gpu.address} is not set up as host.yaml says: {'; '.join(differences)}; the driver changes this only on "
        "a GPU without vGPUs, and it has none now",
        hint="vgpuctl restore-host sets it up and creates the recorded vGPUs; then run the command again",
        check="gpu-settings",
        gpu=gpu.address,
    )


def _differences(gpu: Gpu, *, lost_vgpus: bool) -> list[str]:
    """Return a sentence for each setting that is known to differ and that restore-host can set.

    `lost_vgpus`: VMs have places on it, and their vGPUs do not exist.
    """
    if gpu.desired_mode not in (None, GpuMode.VGPU):
        return []
    differences = []
    if gpu.mig is not None and gpu.desired_mig is not None and gpu.mig.enabled is not gpu.desired_mig.is_requested:
        differences.append(f"MIG is {_on_or_off(gpu.mig.enabled)}, not {_on_or_off(gpu.desired_mig.is_requested)}")
    if None not in (gpu.mixed_size, gpu.desired_mixed_size) and gpu.mixed_size is not gpu.desired_mixed_size:
        differences.append(f"mixed sizes are {_on_or_off(gpu.mixed_size)}, not {_on_or_off(gpu.desired_mixed_size)}")
    for mode, configured in (
        (gpu.compute_partition, gpu.desired_compute_partition),
        (gpu.memory_partition, gpu.desired_memory_partition),
    ):
        if None not in (mode, configured) and mode != configured:
            differences.append(f"its partition mode is {mode}, not {configured}")
    desired, state = gpu.desired_scheduler, running_scheduler(gpu)
    if not lost_vgpus or desired is None or state is None:
        return differences
    if gpu.scheduler is None or not gpu.scheduler.can_set:
        return differences
    if not satisfies(state, desired) and explain_unsupported(gpu, None, desired) is None:
        differences.append(f"the scheduler is {state.policy or 'not known'}, not {scheduler_text(desired)}")
    return differences


def _on_or_off(enabled: bool | None) -> str:
    return "on" if enabled else "off"
