# SPDX-License-Identifier: Apache-2.0
"""Make a VM equal to a wish: the one path for ensure-vm, and for Ansible behind it.

In place the state is changed, and of a stopped VM profile, memory, vCPUs, network and reserve. Any other difference of
a VM that exists is refused with before and after, so that a playbook never rebuilds a desktop by surprise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.capacity.where import matching
from vgpuctl.engine import change, power
from vgpuctl.engine.create import create_vm
from vgpuctl.engine.guards import require_libvirt
from vgpuctl.engine.observe import Want, observe, observe_devices
from vgpuctl.errors import InvalidInput, SpecDiffers, VgpuctlError
from vgpuctl.model.gpu import VgpuType
from vgpuctl.model.outcome import Confirm, Outcome, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.model.wish import VmWish
from vgpuctl.plan.create import takes_place
from vgpuctl.plan.differ import Side, differences, meant_profile, promise_gpus, same_gpu, types_of
from vgpuctl.plan.remove import own_promise
from vgpuctl.plan.report import vm_value
from vgpuctl.spec.rules import lacks
from vgpuctl.steps.domain import OFF, StartDomain
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def ensure_vm(
    world: World,
    wish: VmWish,
    *,
    state: str,
    dry_run: bool,
    confirm: Confirm,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    """Bring a VM to `state` ("present", "absent", "started", "stopped") and report before and after.

    A wish that is only a name is enough for a VM that exists, and for one that is to be absent.

    Raises:
        InvalidInput: the VM is not there, and the wish lacks what it takes to make it.
        SpecDiffers: the VM exists and differs in what is not changed in place; facts hold before and after.
    """
    if wish.name is None:
        raise InvalidInput("a VM that is to be ensured needs a name", hint="add name: to the spec")
    snapshot = observe(world, Want(models=False))
    require_libvirt(snapshot)
    vm = snapshot.vm(wish.name)
    before = vm_value(snapshot, vm) if vm is not None else None
    if vm is None:
        if state == "absent":
            return Outcome(False, _nothing(wish.name), warnings=snapshot.warnings, dry_run=dry_run)
        refuse_incomplete(wish)
        start = state != "stopped"
        made = create_vm(world, wish, start=start, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)
        return _with_sides(made, before, "started" if start else "stopped", made=takes_place(wish, start=start))
    if state == "absent":
        gone = power.delete_vm(
            world,
            vm.name,
            keep_disks=False,
            dry_run=dry_run,
            confirm=confirm,
            wait_seconds=wait_seconds,
            progress=progress,
        )
        return replace(gone, data={**gone.data, "before": before, "after": None})
    fields = _differing(world, snapshot, vm, wish)
    if not fields:
        return _with_sides(_to_state(world, snapshot, vm, state, dry_run, wait_seconds, progress), before, state)
    changed = change.change_vm(world, wish, fields, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)
    if state == "started":
        changed = _started(world, vm, changed, wait_seconds, progress)
    return _with_sides(changed, before, state)


def _nothing(name: str) -> dict[str, object]:
    """Return the data of a VM that is not there, with the same fields as that of one that was removed."""
    sides = {"before": None, "after": None}
    return {"name": name, "uuid": None, "state": "absent", "vgpus": [], "disks": [], **sides}


def refuse_incomplete(wish: VmWish) -> None:
    """Refuse a wish that is not enough to make a VM.

    Raises:
        InvalidInput: naming the field that it lacks.
    """
    fields = {"mode": wish.mode, "profile": wish.profiles, "gpu": wish.where.gpus}
    missing = lacks(fields)
    if missing:
        field = "profile" if wish.mode == "vgpu" else "gpu"
        shown = "vgpuctl list-profiles" if field == "profile" else "vgpuctl list-gpus --all"
        raise InvalidInput(
            f"there is no VM {wish.name}, and the spec lacks {field}, without which it cannot be made: "
            + missing[0].text,
            hint=f"add {field}: to the spec; {shown} shows what there is",
            vm=wish.name,
            problems=[{"path": field, "problem": missing[0].text}],
        )


def _with_sides(outcome: Outcome, before: dict[str, object] | None, state: str, *, made: bool = False) -> Outcome:
    """Add what was and what is; after a dry run, what would be. `made`: the VM is new, and so are its vGPUs."""
    after = {k: v for k, v in outcome.data.items() if k != "sources"}
    if outcome.dry_run and outcome.changed:
        after |= _expected(after, state, made=made)
    return replace(outcome, data={**outcome.data, "before": before, "after": after})


def _expected(now: Mapping[str, object], state: str, *, made: bool) -> dict[str, object]:
    """Return the fields that a change of state would change."""
    expected: dict[str, object] = {"state": str(VmState.RUNNING if state == "started" else VmState.STOPPED)}
    vgpus = now.get("vgpus")
    if isinstance(vgpus, list) and (made or state == "started"):
        expected["vgpus"] = [{**v, "present": True} for v in vgpus]
    return expected


def _meant_gpus(world: World, snapshot: Snapshot, vm: Vm, wish: VmWish) -> frozenset[str]:
    """Return which of the VM's GPUs a typed model means; looks at the names only when it must."""
    if not wish.where.gpus or same_gpu(vm, wish):
        return frozenset()
    want = Want(only=frozenset(promise_gpus(vm)))
    named = observe_devices(world, want, vms=snapshot.vms, status=snapshot.hypervisor)
    return frozenset(g.address for text in wish.where.gpus for g in matching(named.gpus, text))


def _meant_types(world: World, snapshot: Snapshot, vm: Vm, wish: VmWish) -> tuple[VgpuType, ...]:
    """Return the types of the VM's GPUs that a typed profile may mean; reads them only when its record does not say."""
    have = {v.profile for v in vm.promise.vgpus} if vm.promise else set()
    unknown = frozenset(text for text, _ in wish.profiles if meant_profile(vm, text) not in have)
    if not unknown:
        return ()
    want = Want(types=True, models=False, only=frozenset(promise_gpus(vm)), profiles=unknown, named=())
    return types_of(observe_devices(world, want, vms=snapshot.vms, status=snapshot.hypervisor), vm)


def refuse_differences(world: World, snapshot: Snapshot, vm: Vm, wish: VmWish) -> None:
    """Refuse a VM that is there and differs from the wish in more than its state.

    Raises:
        SpecDiffers: facts hold before and after.
        Busy: the VM is half made or half removed.
        Foreign: vgpuctl did not make it.
    """
    before, after = _sides(world, snapshot, vm, wish)
    if before:
        raise _differs(vm, before, after, f"see it with vgpuctl show-vm {vm.name}; one VM is changed with ensure-vm")


def _differing(world: World, snapshot: Snapshot, vm: Vm, wish: VmWish) -> frozenset[str]:
    """Return the fields that are to be changed in place.

    Raises:
        SpecDiffers: one of them is not changed in place, or the VM runs.
    """
    before, after = _sides(world, snapshot, vm, wish)
    other = sorted(before.keys() - change.IN_PLACE)
    if other:
        hint = f"{', '.join(other)} cannot be changed in place; delete it first to make it anew"
        if other == ["image"] and before["image"] and after["image"]:
            hint = f"vgpuctl refresh-vm {vm.name} --image {after['image']} gives it a new disk; the present one is lost"
        raise _differs(vm, before, after, hint)
    if before and vm.state not in OFF:
        raise _differs(vm, before, after, f"stop it first: vgpuctl stop-vm {vm.name}; then it is changed in place")
    return frozenset(before)


def _sides(world: World, snapshot: Snapshot, vm: Vm, wish: VmWish) -> tuple[Side, Side]:
    power.settled(vm, own_promise(vm, "change"))
    return differences(vm, wish, _meant_gpus(world, snapshot, vm, wish), _meant_types(world, snapshot, vm, wish))


def _differs(vm: Vm, before: Side, after: Side, hint: str) -> SpecDiffers:
    what = ", ".join(f"{f}: {before[f]} -> {after[f]}" for f in sorted(before))
    text = f"{vm.name} exists and differs from the spec: {what}"
    return SpecDiffers(text, hint=hint, vm=vm.name, before=before, after=after)


def _started(world: World, vm: Vm, changed: Outcome, wait_seconds: float, progress: Progress) -> Outcome:
    """Start a VM that was changed; in a dry run only say so."""
    if changed.dry_run:
        return replace(changed, steps=(*changed.steps, StartDomain(vm.name, vm.uuid).describe()))
    try:
        started = power.start_vm(world, vm.name, dry_run=False, wait_seconds=wait_seconds, progress=progress)
    except VgpuctlError as error:
        error.changed = True
        raise
    return replace(started, changed=True, steps=(*changed.steps, *started.steps))


def _to_state(
    world: World,
    snapshot: Snapshot,
    vm: Vm,
    state: str,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    off = vm.state in OFF
    if state == "started" and off:
        return power.start_vm(world, vm.name, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)
    if state == "stopped" and not off:
        return power.stop_vm(world, vm.name, force=False, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)
    return Outcome(False, vm_value(snapshot, vm), warnings=snapshot.warnings, dry_run=dry_run)
