# SPDX-License-Identifier: Apache-2.0
"""Observe the host after a change, and report the VM as it is now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.errors import VgpuctlError
from vgpuctl.model.outcome import Outcome, with_data
from vgpuctl.model.results.vms import ChangedVmResult, PlannedVmResult, VmReport, VmResult
from vgpuctl.model.vm import VmState
from vgpuctl.observe import observe_vm
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.value import extend, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def add_to_vm(outcome: Outcome[VmReport], **more: object) -> Outcome[ChangedVmResult | PlannedVmResult]:
    """Return an outcome with additional fields of its VM, such as `sources`."""
    data = outcome.data
    return with_data(
        outcome, extend(ChangedVmResult, data, **more) if isinstance(data, VmResult) else replace(data, **more)
    )


def report_vm(
    host: Host,
    vm_before: VmReport,
    steps: tuple[str, ...],
    notes: tuple[str, ...] = (),
    warnings: Sequence[str] = (),
) -> Outcome[VmReport]:
    """Observe the host again and report the VM as it is now.

    `vm_before`: the VM before the change; `steps`: what was done; `notes`: for people only.

    Call it after all steps were performed and read back: a failure to observe the host is only a warning then.
    """
    uuid = vm_before.uuid or ""
    try:
        snapshot = observe_vm(host, uuid)
    except VgpuctlError as error:
        warning = f"the change is done, but the host could not be checked again: {error}"
        return Outcome(True, replace(vm_before, state=VmState.UNKNOWN), steps, (*warnings, warning), notes)
    vm = snapshot.vm(uuid)
    data = vm_result(snapshot, vm) if vm is not None else PlannedVmResult(vm_before.name, uuid, "absent")
    return Outcome(True, data, steps, (*warnings, *snapshot.warnings), notes)
