# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a request allows, and which of its constraints exclude the others."""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.errors import NotFound
from vgpuctl.gpu.division import name_holders
from vgpuctl.model.address import normalize_pci
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.value import Value, replace


class Excluded(Value):
    """Why a GPU is excluded: the constraint of the request, as the user types it, and the reason."""

    constraint: str
    reason: str


def match_gpus(gpus: Iterable[Gpu], name: str) -> tuple[Gpu, ...]:
    """Return the GPUs that an address or a model name selects; only its address selects a device that is no GPU."""
    address = normalize_pci(name) or name
    candidates = tuple(gpus)
    exact = tuple(g for g in candidates if g.address == address)
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
