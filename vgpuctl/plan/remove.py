# SPDX-License-Identifier: Apache-2.0
"""Plan the removal of a VM: the creation backwards. reconcile uses the same steps for what a crash left."""

from __future__ import annotations

from vgpuctl.backends import of
from vgpuctl.errors import Foreign
from vgpuctl.model.gpu import Backend, Vgpu
from vgpuctl.model.records import DomainLeftovers
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan, Step
from vgpuctl.model.vm import DiskRole, MadeDisk, Promise, PromisedVgpu, PromiseState, Vm, VmState
from vgpuctl.plan.reserve import homeless
from vgpuctl.steps.claims import RefuseOthers, ReleaseClaim
from vgpuctl.steps.domain import KeepDefinition, SetRecord, StopDomain, UndefineDomain
from vgpuctl.steps.storage import RemoveVolume
from vgpuctl.value import replace


def own_promise(vm: Vm, doing: str) -> Promise:
    """Return a VM's promise, or refuse to change a VM that is not ours.

    Raises:
        Foreign: vgpuctl did not make it, its record was copied, is lost or cannot be understood. One that only has
            vGPUs from here is not deleted.
    """
    if vm.promise is not None and (vm.promise.made_vm or doing != "delete"):
        return vm.promise
    if vm.promise is not None:
        raise Foreign(
            f"{vm.name} was not made by vgpuctl, which only gave it {len(vm.promise.vgpus)} vGPU(s)",
            hint=f"vgpuctl detach {vm.name} takes them back; then use virsh",
            vm=vm.name,
        )
    if vm.copied_promise is not None:
        raise Foreign(
            f"{vm.name} carries the record of another VM or host ({vm.copied_promise.vm_uuid}): it is a copy",
            hint=f"vgpuctl does not {doing} it; {_by_virsh(vm, doing)}",
            vm=vm.name,
        )
    if vm.unreadable_promise:
        raise Foreign(
            f"{vm.name} has a record that this vgpuctl cannot read: a newer one may have written it",
            hint=f"upgrade vgpuctl; virsh dumpxml {vm.name} shows the record, in <metadata>",
            vm=vm.name,
        )
    raise Foreign(
        f"{vm.name} was not made by vgpuctl, which does not {doing} it",
        hint=f"{_by_virsh(vm, doing)}; if vgpuctl made it and its record was lost: vgpuctl reconcile",
        vm=vm.name,
    )


def _by_virsh(vm: Vm, doing: str) -> str:
    """Return virsh's command for what vgpuctl does not do to a VM."""
    import shlex  # libvirt's hook loads this module, and quotes nothing

    word = {"start": "start", "stop": "shutdown", "delete": "undefine"}.get(doing, "edit")
    return f"virsh {word} {shlex.quote(vm.name)}"


def not_provably_ours(snapshot: Snapshot, vm: Vm, promise: Promise) -> frozenset[str]:
    """Return the promised carriers whose present device may be somebody else's: it stays.

    An mdev's UUID proves its owner. A VF does not: without a claim from this boot, a type that is not the promised
    one, or not known, was set by somebody else after the reboot that took ours. What a VM reserves only while it runs
    and does not have now may be anybody's.
    """
    claimed = {c.carrier for c in snapshot.claims if c.vm_uuid == vm.uuid}
    doubtful = {v.carrier for v in homeless(snapshot, vm, promise)}
    for promised in promise.vgpus:
        if promised.backend is not Backend.VENDOR_VF or promised.carrier in claimed:
            continue
        gpu = snapshot.gpu(promised.gpu)
        function = gpu.function_at(promised.carrier) if gpu else None
        if gpu is None or function is None or function.current_type is None:
            continue
        known = gpu.type_of(function.current_type)
        if known is None or known.profile != promised.profile:
            doubtful.add(promised.carrier)
    return frozenset(doubtful)


def gone_with(promise: Promise, *, keep_disks: bool) -> tuple[MadeDisk, ...]:
    """Return the volumes that go with a VM; seeds and what a refresh left are nobody's work, so they always do."""
    return tuple(d for d in promise.disks if not keep_disks or d.role is not DiskRole.DISK)


def removal_plan(
    vm: Vm,
    promise: Promise,
    leftovers: DomainLeftovers,
    *,
    keep_disks: bool,
    leave: frozenset[str] = frozenset(),
) -> Plan:
    """Return the steps that remove a VM; a crash in between is finished by reconcile.

    `leave`: carriers whose device stays, because it is not provably ours.
    """
    kept = replace(promise, disks=gone_with(promise, keep_disks=keep_disks))
    steps: list[Step] = [] if vm.persistent else [KeepDefinition(vm.name, vm.uuid)]
    if vm.state is not VmState.STOPPED:
        steps.append(StopDomain(vm.name, vm.uuid, force=True, deadline_seconds=0))
    steps.append(SetRecord(vm.name, vm.uuid, replace(kept, state=PromiseState.REMOVING), was=vm.promise))
    if promise.lends:
        steps.append(RefuseOthers(vm.name, vm.uuid))
    for vgpu in reversed(kept.vgpus):
        if vgpu.carrier not in leave:
            steps += of(vgpu.backend).remove(vgpu)
    steps += [RemoveVolume(d) for d in reversed(kept.disks)]
    steps.append(UndefineDomain(vm.name, vm.uuid, describe_leftovers(leftovers)))
    steps += [ReleaseClaim(v.carrier, vm.uuid) for v in reversed(kept.vgpus)]
    notes = tuple(f"disk {d.path} is kept" for d in promise.own_disks()) if keep_disks else ()
    notes += tuple(f"the vGPU on {c} is not {vm.name}'s: somebody else set it; it stays" for c in sorted(leave))
    return Plan(steps=tuple(steps), notes=notes, undo_on_failure=False, off=(vm.uuid,))


def describe_leftovers(leftovers: DomainLeftovers) -> tuple[str, ...]:
    """Return what undefine takes with it, in words."""
    found = []
    if leftovers.nvram:
        found.append(f"NVRAM {leftovers.nvram}")
    if leftovers.tpm:
        found.append("its TPM state")
    if leftovers.managed_save:
        found.append("its managed save")
    if leftovers.snapshots:
        found.append(f"snapshots {', '.join(leftovers.snapshots)}")
    if leftovers.checkpoints:
        found.append(f"checkpoints {', '.join(leftovers.checkpoints)}")
    return tuple(found)


def freeing_steps(vm: Vm, vgpus: tuple[PromisedVgpu, ...]) -> tuple[Step, ...]:
    """Return the steps that give back what a VM that is off has, and keeps nowhere but in its record."""
    steps: list[Step] = []
    for vgpu in reversed(vgpus):
        steps += of(vgpu.backend).remove(vgpu)
    return (*steps, *(ReleaseClaim(v.carrier, vm.uuid) for v in reversed(vgpus)))


def orphan_plan(vgpu: Vgpu) -> Plan:
    """Return the steps that remove a leaked device and its claim."""
    steps: list[Step] = []
    if vgpu.backend is not None:
        steps += of(vgpu.backend).remove(as_promised(vgpu))
    steps.append(ReleaseClaim(vgpu.carrier, vgpu.vm_uuid or ""))
    return Plan(steps=tuple(steps), undo_on_failure=False)


def as_promised(vgpu: Vgpu, index: int = 0) -> PromisedVgpu:
    """Return the promise form of an observed vGPU, as steps want it."""
    if vgpu.backend is None:
        raise ValueError(f"{vgpu.carrier} has no backend")
    return PromisedVgpu(
        index=index,
        backend=vgpu.backend,
        gpu=vgpu.gpu,
        function=vgpu.function,
        carrier=vgpu.carrier,
        profile=vgpu.profile,
        framebuffer_mib=vgpu.framebuffer_mib,
        placement_id=vgpu.placement_id,
    )
