# SPDX-License-Identifier: Apache-2.0
"""Create a VM: look, plan, claim, carry out, look again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.domain.render import render
from vgpuctl.engine.claim import claim_carriers, claims_of
from vgpuctl.engine.done import done
from vgpuctl.engine.facts import demand_warnings, gather
from vgpuctl.engine.guards import require_system, require_writable
from vgpuctl.engine.observe import looked_for, observe
from vgpuctl.engine.run import carry_out
from vgpuctl.engine.working import working_on
from vgpuctl.errors import Exists, NoCapacity, VgpuctlError
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.sizes import mib_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.model.vm import Claim, DiskRole, PromisedVgpu
from vgpuctl.model.wish import DomainDesign, PlacementSpec, VmWish
from vgpuctl.plan.choose import choose, vm_name
from vgpuctl.plan.create import create_plan, make_design, takes_place
from vgpuctl.plan.facts import Facts, check_facts
from vgpuctl.plan.report import planned_vgpu
from vgpuctl.plan.reserve import someday
from vgpuctl.spec.fields import DEFAULT_PLACEMENT
from vgpuctl.steps.claims import HoldClaim
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World


class Prepared(Value):
    """A new VM, planned: nothing is written yet."""

    snapshot: Snapshot
    wish: VmWish
    uuid: str
    facts: Facts
    design: DomainDesign
    warnings: tuple[str, ...]
    exclude: frozenset[str]
    start: bool


def prepare(world: World, wish: VmWish, exclude: frozenset[str] = frozenset(), *, start: bool = True) -> Prepared:
    """Look at the host and plan a new VM; raises what stands against it before anything is written."""
    uuid = world.new_uuid()
    snapshot = observe(world, looked_for(wish))
    require_system(snapshot)
    refuse_existing(snapshot, vm_name(wish, uuid))
    takes = takes_place(wish, start=start)
    vgpus = choose(snapshot, wish, uuid, exclude) if takes else someday(snapshot, wish, uuid)
    facts = gather(world, snapshot, wish, vgpus)
    warnings = (*check_facts(snapshot, wish, vgpus, facts), *demand_warnings(world, snapshot, wish))
    design = make_design(snapshot, wish, facts, uuid, vgpus)
    return Prepared(snapshot, wish, uuid, facts, design, warnings, exclude, start)


def refuse_existing(snapshot: Snapshot, name: str) -> None:
    """Refuse a name that a VM has.

    Raises:
        Exists: naming the VM and what to do.
    """
    vm = snapshot.vm(name)
    if vm is not None:
        raise Exists(
            f"a VM {name} exists already ({vm.state})",
            hint=f"choose another name, or vgpuctl show-vm {name}",
            vm=name,
            uuid=vm.uuid,
        )


def render_xml(world: World, wish: VmWish) -> str:
    """Return the domain XML that create-vm would define; writes nothing."""
    prepared = prepare(world, wish)
    return render(prepared.design, prepared.facts.template)


def create_vm(
    world: World,
    wish: VmWish,
    *,
    start: bool,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    """Make a VM that does not exist yet; a GPU whose driver refuses is left out and the next one tried.

    Raises:
        VgpuctlError: why not; what was made has been taken back.
    """
    if not dry_run:
        require_writable(world)
    exclude: frozenset[str] = frozenset()
    refused: NoCapacity | None = None
    while True:
        try:
            prepared = prepare(world, wish, exclude, start=start)
        except VgpuctlError:
            if refused is not None:
                raise refused from None
            raise
        if dry_run:
            return _planned(world, prepared)
        try:
            return _create(world, prepared, wait_seconds=wait_seconds, progress=progress)
        except NoCapacity as error:
            gpu = error.facts.get("gpu")
            if not isinstance(gpu, str) or "errno" not in error.facts or gpu in exclude:
                raise
            refused, exclude = error, exclude | {gpu}


def _planned(world: World, prepared: Prepared) -> Outcome:
    takes = takes_place(prepared.wish, start=prepared.start)
    claims = claims_of(world, prepared.design.name, prepared.design.promise) if takes else ()
    plan = create_plan(prepared.snapshot, prepared.wish, prepared.facts, prepared.design, start=prepared.start)
    steps = (*(HoldClaim(c).describe() for c in claims), *(s.describe() for s in plan.steps))
    design = prepared.design
    data: dict[str, object] = {
        "name": design.name,
        "uuid": design.uuid,
        "state": "absent",
        "vgpus": [planned_vgpu(v, design.name) for v in design.promise.vgpus],
        "disks": _planned_disks(design),
        "sources": sources(prepared.wish, prepared.snapshot.placement),
    }
    return Outcome(True, data, steps, prepared.warnings, plan.notes, dry_run=True)


def sources(wish: VmWish, placement: PlacementSpec) -> Mapping[str, object]:
    """Return for every field its value and where it came from. `placement`: what host.yaml says of that."""
    values: dict[str, object] = {
        "memory": mib_text(wish.memory_mib),
        "vcpus": wish.vcpus,
        "image": wish.image,
        "network": wish.network,
        "os": wish.os,
        "storage_pool": wish.storage_pool,
        "mode": wish.mode,
        "hotplug_slots": wish.hotplug_slots,
        "pci_window": wish.pci_window,
        "template": wish.template,
        "reserve": wish.reserve,
    }
    if wish.cloud_init is not None:
        values["cloud_init"] = wish.cloud_init.path
    came = dict(wish.sources)
    if wish.mode != "passthrough":
        values["placement"] = wish.where.policy or placement.policy or DEFAULT_PLACEMENT
        said = "host.yaml" if placement.policy is not None else "built in"
        came["placement"] = "typed" if wish.where.policy is not None else said
    return {name: {"value": value, "source": came.get(name, "built in")} for name, value in values.items()}


def _create(world: World, prepared: Prepared, *, wait_seconds: float, progress: Progress) -> Outcome:
    snapshot, design, held = _claimed(world, prepared, wait_seconds)
    plan = _guarded(world, held, snapshot, prepared, design)
    with working_on(world, () if held else (design.uuid,)):
        told = carry_out(world, plan, progress, held)
    return done(
        world,
        _unseen(design, present=bool(held)),
        held,
        plan,
        (*prepared.warnings, *told),
        sources=sources(prepared.wish, prepared.snapshot.placement),
    )


def _claimed(
    world: World, prepared: Prepared, wait_seconds: float
) -> tuple[Snapshot, DomainDesign, tuple[HoldClaim, ...]]:
    """Claim the places of a new VM; one that has none while it is off is defined as it was planned."""
    wish, uuid = prepared.wish, prepared.uuid
    if not takes_place(wish, start=prepared.start):
        return prepared.snapshot, prepared.design, ()
    looks = iter([prepared.snapshot])

    def look() -> Snapshot:
        return next(looks, None) or observe(world, looked_for(wish))

    def with_vgpus(vgpus: tuple[PromisedVgpu, ...]) -> DomainDesign:
        return make_design(prepared.snapshot, wish, prepared.facts, uuid, vgpus)

    def claims(vgpus: tuple[PromisedVgpu, ...]) -> tuple[Claim, ...]:
        design = with_vgpus(vgpus)
        return claims_of(world, design.name, design.promise)

    def again(snapshot: Snapshot) -> tuple[PromisedVgpu, ...]:
        return choose(snapshot, wish, uuid, prepared.exclude)

    snapshot, vgpus, held = claim_carriers(world, look, again, claims, wait_seconds)
    return snapshot, with_vgpus(vgpus), held


def _guarded(
    world: World,
    held: tuple[HoldClaim, ...],
    snapshot: Snapshot,
    prepared: Prepared,
    design: DomainDesign,
) -> Plan:
    """Make the plan; when even that fails (a template), the claims are given back."""
    try:
        return create_plan(snapshot, prepared.wish, prepared.facts, design, start=prepared.start)
    except BaseException:
        for step in reversed(held):
            step.undo(world)
        raise


def _unseen(design: DomainDesign, *, present: bool) -> dict[str, object]:
    """Return what is known of a VM that was just made, for the case that the host can no longer be looked at."""
    return {
        "name": design.name,
        "uuid": design.uuid,
        "state": "unknown",
        "vgpus": [planned_vgpu(v, design.name) | {"present": present} for v in design.promise.vgpus],
        "disks": _planned_disks(design),
    }


def _planned_disks(design: DomainDesign) -> list[dict[str, object]]:
    return [
        {
            "path": d.path,
            "size_bytes": d.capacity_bytes or None,
            "base": d.base,
            "device": "cdrom" if d.role is DiskRole.SEED else "disk",
            "made": True,
        }
        for d in design.promise.disks
    ]
