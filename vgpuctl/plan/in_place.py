# SPDX-License-Identifier: Apache-2.0
"""Plan the change of a stopped VM in place: where its vGPUs go, the steps, and how the VM is afterwards."""

from __future__ import annotations

from vgpuctl.backends import of
from vgpuctl.capacity.mixed_size import is_free
from vgpuctl.domain.edit import Edit, edited
from vgpuctl.errors import NoCapacity
from vgpuctl.model.sizes import mib_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import Claim, Promise, PromisedVgpu, Vm
from vgpuctl.model.wish import VmWish
from vgpuctl.plan.change import Swap, added, beside, hostdev, promised, typed_profiles, without
from vgpuctl.plan.choose import make_steps
from vgpuctl.plan.remove import not_provably_ours
from vgpuctl.plan.report import planned_vgpu, vm_value
from vgpuctl.plan.reserve import emptied, held, places
from vgpuctl.steps.plug import DropClaim, Redefine, TakeOut
from vgpuctl.value import Value, replace


class Goal(Value):
    """Where a vGPU that is moved is to be: on this GPU, at this placement where it can be chosen."""

    gpu: str
    placement_id: int | None = None


class Job(Value):
    """One change of one VM, looked at and checked. `xml` is its definition as it is.

    `reserve` is the VM's afterwards. `free`: what stays in its record and gives up its place. `goal`: where the one
    that comes is to be, because it is the one that goes, moved.
    """

    snapshot: Snapshot
    vm: Vm
    promise: Promise
    wish: VmWish
    fields: frozenset[str]
    swap: Swap
    xml: str
    reserve: str
    free: tuple[PromisedVgpu, ...]
    goal: Goal | None = None

    @property
    def takes(self) -> bool:
        """Whether the VM has a place for each of its vGPUs afterwards, while it is off."""
        return self.reserve == "always"

    @property
    def has(self) -> tuple[PromisedVgpu, ...]:
        """Those of its vGPUs that have a place now."""
        return held(self.snapshot, self.vm, self.promise)


def chosen(seen: Snapshot, job: Job, exclude: frozenset[str]) -> tuple[PromisedVgpu, ...]:
    """Place those that stay and have no place, if they are to have one, and those that come.

    Those that come go beside those that go; where that does not fit, in their place.
    """
    staying = replace(job.promise, vgpus=job.swap.stay)
    placed = places(seen, job.vm, staying, exclude) if job.takes else ()
    if not job.swap.come:
        return placed
    stay = placed if job.takes else job.swap.stay
    seen = beside(seen, job.vm, stay)
    go = job.swap.go
    try:
        return (*placed, *_moved(seen, job, added(seen, job.wish, job.promise, exclude, go)))
    except NoCapacity:
        if not job.takes:
            return added(beside(emptied(seen), job.vm, stay), job.wish, job.promise, go=go)
        if not go:
            raise
        own = [v for v in go if v in job.has]
        gone = without(seen, own)
        return (*placed, *_moved(gone, job, added(gone, job.wish, job.promise, exclude, go)))


def _moved(seen: Snapshot, job: Job, come: tuple[PromisedVgpu, ...]) -> tuple[PromisedVgpu, ...]:
    return come if job.goal is None else at_goal(seen, job.goal, job.swap.go[0], come)


def at_goal(seen: Snapshot, goal: Goal, old: PromisedVgpu, come: tuple[PromisedVgpu, ...]) -> tuple[PromisedVgpu, ...]:
    """Return what is moved at the placement that was chosen for it and with its own parameters.

    Raises:
        NoCapacity: that placement is not free.
    """
    gpu, place = seen.gpu(goal.gpu), goal.placement_id
    known = next((t for t in gpu.types if t.profile == come[0].profile), None) if gpu is not None else None
    if place is None or gpu is None or known is None:
        return (replace(come[0], params=old.params),)
    if not is_free(gpu, seen.taken_on(gpu.address), known, place):
        raise NoCapacity(
            f"placement {place} of {gpu.address} is not free any more", hint="run the command again", gpu=gpu.address
        )
    return (replace(come[0], params=old.params, placement_id=place),)


def steps_of(seen: Snapshot, job: Job, new: tuple[PromisedVgpu, ...], olds: tuple[Claim, ...]) -> tuple[Step, ...]:
    """Return the steps after the claims; `olds` are the claims on what goes."""
    leave = not_provably_ours(job.snapshot, job.vm, job.promise)
    cleared = without(seen, [v for v in job.swap.go if v.carrier not in leave])
    steps: list[Step] = [*taken_out(job)]
    for vgpu in new if job.takes else ():
        steps += make_steps(cleared, vgpu)
    steps.append(redefined(job, new))
    steps += [DropClaim(c) for c in olds]
    return tuple(steps)


def taken_out(job: Job) -> tuple[Step, ...]:
    """Return the steps that remove the devices of what goes, where they are provably ours."""
    leave = not_provably_ours(job.snapshot, job.vm, job.promise)
    types = {v.carrier: v.type_id for v in job.snapshot.vgpus if v.present}
    gone = [(v, of(v.backend)) for v in reversed((*job.free, *job.swap.go)) if v.carrier in types.keys() - leave]
    return tuple(TakeOut(kind.remove(v), kind.make(v, types[v.carrier])) for v, kind in gone)


def redefined(job: Job, new: tuple[PromisedVgpu, ...]) -> Step:
    """Return the step that switches the VM over, its record with it."""
    vm, go = job.vm, job.swap.go
    placed, come = _parted(job, new)
    after = promised(job.promise, (*job.swap.stay, *come), typed_profiles(job.wish) if come else ())
    stay = tuple(placed.get(v.index, v) for v in job.swap.stay)
    after = replace(after, vgpus=(*stay, *come), reserve=job.reserve)
    pairs = max(len(go), len(come))
    there = [*(v.carrier for v in go), *[None] * (pairs - len(go))]
    news = [*(hostdev(v, job.promise) for v in come), *[None] * (pairs - len(come))]
    moved = [(v, m) for v in job.swap.stay if (m := placed.get(v.index, v)).carrier != v.carrier]
    edit = Edit(
        memory_mib=job.wish.memory_mib if "memory" in job.fields else None,
        vcpus=job.wish.vcpus if "vcpus" in job.fields else None,
        network=job.wish.network if "network" in job.fields else None,
        exchange=(*zip(there, news, strict=True), *((v.carrier, hostdev(m, job.promise)) for v, m in moved)),
        promise=after if pairs or "reserve" in job.fields else None,
    )
    return Redefine(vm.name, vm.uuid, edited(job.xml, edit), job.xml, _words(job, new))


def _parted(job: Job, new: tuple[PromisedVgpu, ...]) -> tuple[dict[int, PromisedVgpu], tuple[PromisedVgpu, ...]]:
    """Return of what was chosen those that stay, by index, and those that come."""
    staying = {v.index for v in job.swap.stay}
    return {v.index: v for v in new if v.index in staying}, tuple(v for v in new if v.index not in staying)


def expected(job: Job, new: tuple[PromisedVgpu, ...]) -> dict[str, object]:
    """Return the VM's value as it would be."""
    value = vm_value(job.snapshot, job.vm)
    if "memory" in job.fields:
        value["memory_mib"] = job.wish.memory_mib
    if "vcpus" in job.fields:
        value["vcpus"] = job.wish.vcpus
    if "network" in job.fields:
        value["networks"] = [job.wish.network, *job.vm.networks[1:]]
    placed, come = _parted(job, new)
    after = replace(job.promise, vgpus=job.swap.stay, reserve=job.reserve)
    gone = {v.carrier for v in (*job.swap.go, *job.free)}
    left = tuple(v for v in job.snapshot.vgpus if v.carrier not in gone)
    stay = vm_value(replace(job.snapshot, vgpus=left), replace(job.vm, promise=after))
    kept = stay["vgpus"] if isinstance(stay["vgpus"], list) else []
    moved = {v.carrier for v in job.swap.stay if v.index in placed}
    chosen = [planned_vgpu(v, job.vm.name) for v in (*placed.values(), *come)]
    value["vgpus"] = [*(v for v in kept if v["carrier"] not in moved), *chosen]
    value["reserve"] = job.reserve
    return value


def _words(job: Job, new: tuple[PromisedVgpu, ...]) -> tuple[str, ...]:
    """Say each change as "what: before -> after"."""
    vm, wish = job.vm, job.wish
    come = _parted(job, new)[1]
    words = {
        "memory": f"memory: {mib_text(vm.memory_mib)} -> {mib_text(wish.memory_mib)}",
        "network": f"network: {vm.networks[0] if vm.networks else 'none'} -> {wish.network}",
        "profile": f"profile: {_names(job.promise.vgpus)} -> {_names((*job.swap.stay, *come))}"
        if job.goal is None
        else f"{come[0].profile}: {_place(job.swap.go[0])} -> {_place(come[0])}",
        "reserve": f"reserve: {job.promise.reserve} -> {job.reserve}",
        "vcpus": f"vcpus: {vm.vcpus} -> {wish.vcpus}",
    }
    return tuple(words[f] for f in sorted(job.fields))


def _place(vgpu: PromisedVgpu) -> str:
    return vgpu.function if vgpu.placement_id is None else f"{vgpu.function}, placement {vgpu.placement_id}"


def _names(vgpus: tuple[PromisedVgpu, ...]) -> str:
    return ", ".join(sorted(str(v.profile or v.carrier) for v in vgpus)) or "none"
