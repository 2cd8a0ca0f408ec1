# SPDX-License-Identifier: Apache-2.0
"""Report a VM after a change, as a new snapshot shows it."""

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
    last_known: Mapping[str, object],
    held_claims: tuple[TakeClaim, ...],
    plan: Plan,
    warnings: Sequence[str] = (),
    **extra_data: object,
) -> Outcome:
    """Observe the host again and report the VM as it is now; `last_known`: its values before the change.

    All steps are done and were read back, so a failure to observe the host now is a warning, not an error.
    """
    steps = tuple(s.describe() for s in (*held_claims, *plan.steps))
    uuid = str(last_known["uuid"])
    try:
        snapshot = observe_vm(host, uuid)
    except VgpuctlError as error:
        warning_lines = (f"it is done, but the host could not be looked at again: {error}",)
        return Outcome(
            True, {**last_known, "state": "unknown"} | extra_data, steps, (*warnings, *warning_lines), plan.notes
        )
    vm = snapshot.vm(uuid)
    data = dict(vm_value(snapshot, vm)) if vm is not None else {"uuid": uuid, "state": "absent"}
    return Outcome(True, data | extra_data, steps, (*warnings, *snapshot.warnings), plan.notes)
