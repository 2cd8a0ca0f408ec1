# SPDX-License-Identifier: Apache-2.0
"""What no VM's record asks for: stray and leaked devices and claims, vGPUs of host.yaml, files left half-written.

There may be thousands of each, so nothing here searches all claims or devices for one of them.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from vgpuctl.engine.claim import claims_of
from vgpuctl.model.gpu import Owner, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.model.vm import SETTING_UP, Claim, NamedVgpu, Vm
from vgpuctl.plan.remove import orphan_plan
from vgpuctl.plan.vgpus import holder_of, promised
from vgpuctl.steps.claims import HoldClaim, ReleaseClaim, reading
from vgpuctl.steps.unfinished import RemoveUnfinished
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

About = tuple[str, str, str]


class Finding(Value):
    """One thing that is not as it should be, and what mends it: a plan, or a start. Without both it is only told."""

    kind: str
    what: str
    action: str
    plan: Plan | None = None
    claims: tuple[Claim, ...] = ()
    vm: Vm | None = None
    start: bool = False

    @property
    def about(self) -> About:
        """What tells one finding from another, also when it is found again: what it says may name another process."""
        whose = self.vm.uuid if self.vm is not None else ",".join(c.carrier for c in self.claims)
        return self.kind, self.action, whose or self.what

    @property
    def mends(self) -> bool:
        """Whether anything is done about it."""
        return self.plan is not None or self.start

    @property
    def steps(self) -> tuple[str, ...]:
        """What is done about it, a line each."""
        return (self.action,) if self.plan is None else tuple(step.describe() for step in self.plan.steps)


def of_host_file(world: World, snapshot: Snapshot) -> list[Finding]:
    """Return what is wrong with the vGPUs that host.yaml keeps without a VM."""
    seen = {vgpu.carrier: vgpu for vgpu in snapshot.vgpus}
    claimed = {claim.carrier for claim in snapshot.claims}
    return [
        one for named in snapshot.named for one in _of_named(world, snapshot, named, seen.get(named.carrier), claimed)
    ]


def _of_named(
    world: World, snapshot: Snapshot, named: NamedVgpu, seen: Vgpu | None, claimed: Set[str]
) -> list[Finding]:
    """Return what is wrong with a vGPU that host.yaml keeps without a VM, unless somebody works on it."""
    what = f"vGPU {named.name} of host.yaml ({named.profile} on {named.gpu})"
    if seen is None or named.carrier in snapshot.live_claims:
        return []
    if seen.name != named.name:
        text = f"{what} is the vGPU of {seen.holder}"
        return [Finding("vgpu-conflict", text, "nothing: take one of them away, delete-vm or host.yaml")]
    if seen.reason is not None:
        return [Finding("vgpu-changed", f"{what}: {seen.reason}", "nothing: somebody changed it by hand")]
    if not seen.present:
        return [Finding("vgpu-missing", f"{what} is missing", "nothing: vgpuctl restore-host makes it again")]
    if named.carrier in claimed:
        return []
    holder, promise = holder_of(snapshot.machine_id, named.name, promised(named, seen))
    plan = Plan(tuple(HoldClaim(c) for c in claims_of(world, holder.name, promise)), undo_on_failure=False)
    return [Finding("claim-lost", f"{what} has no claim on {named.carrier}", "write the claim again", plan)]


def unowned(world: World, snapshot: Snapshot) -> list[Finding]:
    """Return the stray and the leaked, but for what is on a GPU on which a kernel write is stuck."""
    stuck = {w.gpu for w in snapshot.stuck}
    me, command = world.processes.this(), world.processes.command()
    claims = {c.carrier: c for c in snapshot.claims}

    def mine(vgpu: Vgpu) -> Claim | None:
        claim = claims.get(vgpu.carrier)
        return None if claim is None else replace(claim, process=me, command=command)

    found = [_stray(mine(vgpu), vgpu, vm) for vgpu, vm in _strays(snapshot) if vgpu.gpu not in stuck]
    for vgpu in snapshot.vgpus:
        if vgpu.owner is Owner.LEAKED and vgpu.gpu not in stuck:
            leak, claim = _leak(mine(vgpu), vgpu), claims.get(vgpu.carrier)
            found.append(leak if claim is None or claim.vm != SETTING_UP else _half_set_up(leak, claim))
    return found


def _strays(snapshot: Snapshot) -> list[tuple[Vgpu, Vm]]:
    """Return what is claimed for a VM whose record and devices do not have it: a change that ended half-way.

    A record that is a copy or cannot be read does not tell what the VM has, so nothing of it is stray.
    """
    by_uuid = {vm.uuid: vm for vm in snapshot.vms}
    seen = {vgpu.carrier: vgpu for vgpu in snapshot.vgpus}
    found = []
    for claim in snapshot.claims:
        vm = by_uuid.get(claim.vm_uuid)
        if vm is None or claim.carrier in snapshot.live_claims or vm.copied_promise is not None:
            continue
        if vm.unreadable_promise:
            continue
        names = {v.carrier for v in vm.promise.vgpus} if vm.promise else set()
        note = vm.promise.exchange if vm.promise else None
        if note is not None:
            names.add(note.vgpu.carrier)
        if claim.carrier in seen and claim.carrier not in names | {h.carrier for h in vm.hostdevs}:
            found.append((seen[claim.carrier], vm))
    return found


def _stray(mine: Claim | None, vgpu: Vgpu, vm: Vm) -> Finding:
    text = f"{vgpu.profile or vgpu.backend} on {vgpu.function} is claimed for VM {vm.name}, which does not have it"
    found = replace(_leak(mine, vgpu), kind="half-changed", what=text, vm=vm)
    if vgpu.name is None and vgpu.vm_uuid == vm.uuid:
        return found
    release = ReleaseClaim(vgpu.carrier, vm.uuid)  # the device is another's: host.yaml or a VM's record says so
    return replace(found, action=release.describe(), plan=Plan((release,), undo_on_failure=False))


def _leak(mine: Claim | None, vgpu: Vgpu) -> Finding:
    """Return a device, or only a claim, that is nobody's; `mine`: its claim as this process's own."""
    plan = orphan_plan(vgpu)
    action = "; ".join(s.describe() for s in plan.steps)
    claims = () if mine is None else (mine,)
    text = f"{vgpu.profile or vgpu.backend} on {vgpu.function}: {vgpu.reason}"
    return Finding("leaked", text, action, plan, claims)


def _half_set_up(found: Finding, asked: Claim) -> Finding:
    """Return what a command that was killed left of a GPU: only its claim knows what the GPU was to be."""
    text = f"GPU {asked.gpu} is half set up: its virtual functions, GPU instances, mixed sizes or scheduler may be"
    again = f"to finish it, run it again: {asked.command}; vgpuctl apply makes it as host.yaml says instead"
    what, action = f"{text} as before, as asked, or gone", f"{found.action}; {again}"
    return replace(found, kind="half-set-up", what=what, action=action)


def unfinished(world: World) -> list[Finding]:
    """Return the files that processes which are gone were writing."""
    if world.unfinished is None:
        return []
    with reading("what killed commands were writing"):
        files = world.unfinished.all()
    found = []
    for file in files:
        text = f"{file.path} was being written by process {file.process.pid}, which is gone"
        step = RemoveUnfinished(file)
        found.append(Finding("unfinished-file", text, step.describe(), Plan((step,), undo_on_failure=False)))
    return found
