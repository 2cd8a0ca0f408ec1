# SPDX-License-Identifier: Apache-2.0
"""What a change of a VM reports: the VM as it is now, by a new look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.engine.observe import observe_vm
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.step import Plan
from vgpuctl.plan.report import vm_value
from vgpuctl.steps.claims import HoldClaim

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def done(
    world: World,
    last: Mapping[str, object],
    held: tuple[HoldClaim, ...],
    plan: Plan,
    warnings: Sequence[str] = (),
    **more: object,
) -> Outcome:
    """Look at the host again and report the VM as it is now; `last` is what was known of it before.

    Everything is done and was read back: a look that fails now is a warning, no failure.
    """
    steps = tuple(s.describe() for s in (*held, *plan.steps))
    uuid = str(last["uuid"])
    try:
        snapshot = observe_vm(world, uuid)
    except VgpuctlError as error:
        unseen = (f"it is done, but the host could not be looked at again: {error}",)
        return Outcome(True, {**last, "state": "unknown"} | more, steps, (*warnings, *unseen), plan.notes)
    vm = snapshot.vm(uuid)
    data = dict(vm_value(snapshot, vm)) if vm is not None else {"uuid": uuid, "state": "absent"}
    return Outcome(True, data | more, steps, (*warnings, *snapshot.warnings), plan.notes)
