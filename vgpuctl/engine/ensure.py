# SPDX-License-Identifier: Apache-2.0
"""Make a VM equal to a wish: the one path for ensure-vm, and for Ansible behind it.

In place only the state is changed. Any other difference of a VM that exists is refused with before and after,
so that a playbook never rebuilds a desktop by surprise.
"""

from __future__ import annotations

from dataclasses import replace

from vgpuctl.engine import power
from vgpuctl.engine.create import create_vm
from vgpuctl.engine.guards import require_libvirt
from vgpuctl.engine.observe import Want, observe
from vgpuctl.errors import InvalidInput, SpecDiffers
from vgpuctl.model.outcome import Confirm, Outcome, Progress
from vgpuctl.model.seams import World
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm
from vgpuctl.model.wish import VmWish
from vgpuctl.plan.differ import differences
from vgpuctl.plan.remove import own_promise
from vgpuctl.plan.report import vm_value
from vgpuctl.steps.domain import OFF


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

    Raises:
        SpecDiffers: the VM exists and differs in more than its state; facts hold before and after.
    """
    if wish.name is None:
        raise InvalidInput("a VM that is to be ensured needs a name", hint="add name: to the spec")
    snapshot = observe(world, Want(models=False))
    require_libvirt(snapshot)
    vm = snapshot.vm(wish.name)
    before = vm_value(snapshot, vm) if vm is not None else None
    if vm is None:
        if state == "absent":
            return Outcome(False, {"name": wish.name, "state": "absent", "before": None, "after": None})
        made = create_vm(
            world, wish, start=state != "stopped", dry_run=dry_run, wait_seconds=wait_seconds, progress=progress
        )
        return _with_sides(made, before)
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
    _refuse_differences(vm, wish)
    return _with_sides(_to_state(world, snapshot, vm, state, dry_run, wait_seconds, progress), before)


def _with_sides(outcome: Outcome, before: dict[str, object] | None) -> Outcome:
    after = {k: v for k, v in outcome.data.items() if k != "sources"}
    return replace(outcome, data={**outcome.data, "before": before, "after": after})


def _refuse_differences(vm: Vm, wish: VmWish) -> None:
    power.settled(vm, own_promise(vm, "change"))
    before, after = differences(vm, wish)
    if before:
        what = ", ".join(f"{f}: {before[f]} -> {after[f]}" for f in sorted(before))
        raise SpecDiffers(
            f"{vm.name} exists and differs from the spec: {what}",
            hint="only its state is changed in place; delete it first to make it anew",
            vm=vm.name,
            before=before,
            after=after,
        )


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
