# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a wish leaves to choose from, and by which of its words the others are out."""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.capacity.left import who
from vgpuctl.errors import NotFound
from vgpuctl.model.address import normal_pci
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.wish import Where
from vgpuctl.value import Value, replace


class Barred(Value):
    """Why a GPU is out: the `word` of the wish that says so, as it is typed, and the reason."""

    word: str
    why: str


def matching(gpus: Iterable[Gpu], wanted: str) -> tuple[Gpu, ...]:
    """Return the GPUs that an address or a model name means; a device that is no GPU only by its address."""
    address = normal_pci(wanted) or wanted
    known = tuple(gpus)
    exact = tuple(g for g in known if g.address == address)
    return exact or tuple(g for g in known if g.display_class and g.called(wanted))


def select_gpus(snapshot: Snapshot, wanted: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that an address or a model name means; None means all that are GPUs.

    Raises:
        NotFound: nothing matches; the message lists what there is.
    """
    if wanted is None:
        return tuple(g for g in snapshot.gpus if g.display_class)
    found = matching(snapshot.gpus, wanted)
    if found:
        return found
    there = ", ".join(f"{g.address} ({g.model})" for g in snapshot.gpus if g.display_class) or "none"
    raise NotFound(
        f"no GPU '{wanted}' on this host",
        hint=f"GPUs here: {there}; vgpuctl list-gpus --all also lists other devices",
        gpu=wanted,
    )


def selected(snapshot: Snapshot, where: Where) -> tuple[Gpu, ...]:
    """Return the GPUs that a wish allows by name, in the snapshot's order; those that it forbids are among them.

    Raises:
        NotFound: a name means no GPU of this host.
    """
    if not snapshot.partial:
        for text in (*where.gpus, *where.not_gpus):
            select_gpus(snapshot, text)
    if not where.gpus:
        return select_gpus(snapshot, None)
    meant = {g.address for text in where.gpus for g in matching(snapshot.gpus, text)}
    return tuple(g for g in snapshot.gpus if g.address in meant)


def bound(snapshot: Snapshot, where: Where, uuid: str | None) -> Where:
    """Return what is asked for together with what the VM is bound to already: the spread group in its record."""
    vm = snapshot.vm(uuid) if uuid is not None else None
    if vm is None or vm.promise is None or where.spread_group is not None:
        return where
    return replace(where, spread_group=vm.promise.spread_group)


def why_barred(snapshot: Snapshot, gpu: Gpu, where: Where, uuid: str | None = None) -> Barred | None:
    """Say why a wish leaves a GPU out; None when it does not. `uuid`: of the VM that it is for.

    A VM whose memory is bound to NUMA nodes gets a GPU of these, or one whose node nobody knows.
    """
    for text in where.not_gpus:
        if any(g.address == gpu.address for g in matching((gpu,), text)):
            return Barred(f"--not-gpu {text}", "it is not to be used")
    if where.numa_node is not None and gpu.numa_node != where.numa_node:
        at = "not known" if gpu.numa_node is None else str(gpu.numa_node)
        return Barred(f"--numa-node {where.numa_node}", f"its NUMA node is {at}")
    vm = snapshot.vm(uuid) if uuid is not None else None
    nodes = vm.memory_nodes if vm is not None else frozenset()
    if nodes and where.numa_node is None and gpu.numa_node is not None and gpu.numa_node not in nodes:
        words = ", ".join(str(n) for n in sorted(nodes))
        return Barred("the VM's memory", f"its NUMA node is {gpu.numa_node}, the VM's memory is bound to {words}")
    if where.scheduler is not None and _running(gpu) != {where.scheduler}:
        runs = ", ".join(sorted(str(p) if p is not None else "not known" for p in _running(gpu))) or "not known"
        return Barred(f"--scheduler {where.scheduler}", f"its scheduler is {runs}")
    return why_not_apart(snapshot, gpu, where.spread_group, uuid)


def why_not_apart(snapshot: Snapshot, gpu: Gpu, group: str | None, uuid: str | None = None) -> Barred | None:
    """Say that a GPU has another VM of a spread group already; None when it has none, or there is no group."""
    if group is None:
        return None
    there = [v for v in snapshot.taken_on(gpu.address) if v.spread_group == group]
    others = [v for v in there if uuid is None or v.vm_uuid != uuid]
    return Barred(f"--spread-group {group}", f"it has {who(others)} of the group") if others else None


def _running(gpu: Gpu) -> set[str | None]:
    """Return the policies that run: of the GPU, or with MIG of each GPU instance that has a scheduler of its own."""
    states = list(gpu.gi_schedulers.values()) if gpu.mig is not None and gpu.mig.enabled else []
    if not states and gpu.scheduler is not None and gpu.scheduler.state is not None:
        states = [gpu.scheduler.state]
    return {state.policy for state in states}
