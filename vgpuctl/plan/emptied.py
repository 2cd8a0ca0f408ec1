# SPDX-License-Identifier: Apache-2.0
"""Change what the driver only changes on a GPU without vGPUs: who is stopped for it, whose devices go and come back.

Their claims stay meanwhile, so nobody takes their places.
"""

from __future__ import annotations

from vgpuctl.backends import of
from vgpuctl.errors import Busy, InUse
from vgpuctl.model.gpu import Gpu, Owner, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import Promise, PromisedVgpu, PromiseState, Vm
from vgpuctl.plan.layout import refuse_crashed
from vgpuctl.plan.transient import refuse_transient
from vgpuctl.plan.vgpus import promised
from vgpuctl.steps.domain import OFF
from vgpuctl.steps.scheduler import LendDevice
from vgpuctl.value import Value, replace


class Reason(Value):
    """Why a GPU has to be empty: `because` is the rest of a sentence that begins with what is on it.

    `undrained`: what to type for it, None when VMs may be stopped and their vGPUs removed;
    `otherwise`: how else it can be had, as the rest of a sentence.
    """

    because: str
    undrained: str | None = None
    otherwise: str = ""


class EmptiedWork(Value):
    """A change of an empty GPU: the running VMs to stop, and the steps while they are off.

    `keeps`: by VM, those of its places that would be given back when it is stopped, for it has them only while it runs.
    """

    stops: tuple[Vm, ...] = ()
    steps: tuple[Step, ...] = ()
    keeps: tuple[tuple[str, Promise], ...] = ()


def emptied(
    snapshot: Snapshot, gpu: Gpu, steps: tuple[Step, ...], why: Reason, mixed_size: bool | None = None
) -> EmptiedWork:
    """Return the steps with every device of the GPU removed before and made again after.

    `mixed_size`: whether vGPUs may have several sizes after the steps, None where these do not change that.

    Raises:
        InUse: vGPUs exist on it, and may not be removed meanwhile, or are not vgpuctl's to remove; or a VM crashed.
        Refused: a VM runs without a definition.
        Busy: a VM on it is half made or half removed.
    """
    lent = _lent(snapshot, gpu, why)
    if lent and why.undrained is not None:
        names = sorted({one.holder for one in lent})
        raise InUse(
            f"{gpu.address} has {len(lent)} vGPU(s) of {', '.join(names)}, and {why.because}",
            hint=f"{why.undrained} shuts VMs down, removes their vGPUs for a moment, and starts them again",
            gpu=gpu.address,
            vms=names,
        )
    stops = {one.vm.uuid: one.vm for one in lent if one.vm is not None and one.vm.state not in OFF}
    refuse_crashed(gpu, stops.values())
    refuse_transient(stops.values())
    back = lent if mixed_size is None else _placed(snapshot, lent, mixed_size=mixed_size)
    made = [step for one in back for step in one.make()]
    lend = [
        LendDevice(remove, again)
        for one in reversed(lent)
        for remove, again in zip(of(one.vgpu.backend).remove(one.vgpu), one.make(), strict=True)
    ]
    return EmptiedWork(
        stops=tuple(sorted(stops.values(), key=lambda vm: vm.name)),
        steps=(*lend, *steps, *made),
        keeps=tuple((one.holder, one.kept) for one in lent if one.kept is not None),
    )


class _Lent(Value):
    """A device that is removed for a moment: whose it is in words, the VM that is stopped for it, and what it is."""

    holder: str
    vm: Vm | None
    vgpu: PromisedVgpu
    type_id: str | None

    @property
    def kept(self) -> Promise | None:
        """Return what its VM is promised of it, where libvirt's hook would give it back when the VM is stopped."""
        promise = self.vm.promise if self.vm is not None else None
        return replace(promise, vgpus=(self.vgpu,)) if promise is not None and promise.lends else None

    def make(self) -> tuple[Step, ...]:
        """Return the steps that make it again."""
        return of(self.vgpu.backend).make(self.vgpu, self.type_id)


def _placed(snapshot: Snapshot, lent: list[_Lent], *, mixed_size: bool) -> list[_Lent]:
    """Return what comes back in another mode: where it is recorded to be with mixed sizes, the rest after that.

    A device that is somewhere else than its record says would count at both places. Which places a type has the driver
    tells only with mixed sizes on, so those without a record get the driver's choice of what is left.
    """
    found = []
    for one in lent:
        place = _recorded(snapshot, one) if mixed_size else None
        found.append(replace(one, vgpu=replace(one.vgpu, placement_id=place)))
    return sorted(found, key=lambda one: one.vgpu.placement_id is None)


def _recorded(snapshot: Snapshot, lent: _Lent) -> int | None:
    """Return the placement that the record keeps: the VM's, or the claim where the record says less."""
    promise = lent.vm.promise if lent.vm is not None else None
    kept = promise.vgpus if promise is not None and not promise.lends else snapshot.claims
    return next((one.placement_id for one in kept if one.carrier == lent.vgpu.carrier), None)


def _lent(snapshot: Snapshot, gpu: Gpu, why: Reason) -> list[_Lent]:
    """Return each device on the GPU, sorted by whose it is and index.

    Raises:
        InUse: one is not vgpuctl's, or is in a running VM that vgpuctl would not start again with it.
        Busy: its VM is half made or half removed.
    """
    lent = [_lendable(snapshot, gpu, vgpu, why) for vgpu in snapshot.taken_on(gpu.address) if vgpu.present]
    return sorted(lent, key=lambda one: (one.holder, one.vgpu.index))


def _lendable(snapshot: Snapshot, gpu: Gpu, vgpu: Vgpu, why: Reason) -> _Lent:
    vm = snapshot.vm(vgpu.vm_uuid or "")
    named = next((n for n in snapshot.named if n.name == vgpu.name and n.carrier == vgpu.carrier), None)
    if named is not None and vgpu.reason is None and (vm is None or vm.state in OFF):
        return _Lent(vgpu.holder, None, promised(named, vgpu), vgpu.type_id)
    kept = None if vm is None or vm.promise is None else vm.promise.vgpus
    mine = next((p for p in kept or () if p.carrier == vgpu.carrier), None)
    if vm is not None and vm.promise is not None and vm.promise.state is not PromiseState.READY:
        raise Busy(
            f"{vm.name} on {gpu.address} is half-way: its record says {vm.promise.state}",
            hint="if no vgpuctl works on it any more: vgpuctl reconcile",
            vm=vm.name,
        )
    if vgpu.owner is Owner.OURS and vm is not None and mine is not None:
        back = replace(mine, gpu=vgpu.gpu, function=vgpu.function, placement_id=vgpu.placement_id)
        return _Lent(vm.name, vm, back, vgpu.type_id)
    if named is not None:
        hint = f"shut {vm.name if vm else 'the VM'} down first{why.otherwise}"
    elif vgpu.owner is Owner.LEAKED:
        hint = "vgpuctl reconcile"
    else:
        hint = f"remove it with what made it{why.otherwise}"
    raise InUse(
        f"{gpu.address} has a vGPU of {vgpu.holder} ({vgpu.carrier}), which vgpuctl does not remove; {why.because}",
        hint=hint,
        gpu=gpu.address,
        carrier=vgpu.carrier,
    )
