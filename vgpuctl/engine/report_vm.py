# SPDX-License-Identifier: Apache-2.0
"""Observe the host after a change, and report the VM as it is now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vgpuctl.errors import VgpuctlError
from vgpuctl.model.outcome import Outcome
from vgpuctl.observe import observe_vm
from vgpuctl.plan.report import vm_value
from vgpuctl.ports.step import Plan
from vgpuctl.steps.claims import TakeClaim

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def report_vm(
    host: Host,
    vm_before: Mapping[str, object],
    claim_steps: tuple[TakeClaim, ...],
    plan: Plan,
    warnings: Sequence[str] = (),
    **extra_data: object,
) -> Outcome:
    """Observe the host again and report the VM as it is now; `vm_before`: its values before the change.

    Call it after all steps were performed and read back: a failure to observe the host is only a warning then.
    """
    steps = tuple(s.describe() for s in (*claim_steps, *plan.steps))
    uuid = str(vm_before["uuid"])
    try:
        snapshot = observe_vm(host, uuid)
    except VgpuctlError as error:
        warning = f"it is done, but the host could not be looked at again: {error}"
        return Outcome(True, {**vm_before, "state": "unknown"} | extra_data, steps, (*warnings, warning), plan.notes)
    vm = snapshot.vm(uuid)
    data = dict(vm_value(snapshot, vm)) if vm is not None else {"uuid": uuid, "state": "absent"}
    return Outcome(True, data | extra_data, steps, (*warnings, *snapshot.warnings), plan.notes)
