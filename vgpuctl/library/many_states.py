# SPDX-License-Identifier: Apache-2.0
"""The states of the VMs of --count: those that need it are deleted, started or stopped, each by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vgpuctl.errors import VgpuctlError
from vgpuctl.library import GpuHost
from vgpuctl.library.batch import BatchRequest
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.results import TargetResult, TargetsResult
from vgpuctl.model.results.vms import ManyResultWord, ManyVmResult, ManyVmsResult, NewVmResult, VmReport, VmResult
from vgpuctl.model.vm import VmState
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.value import extend, replace

RunBatch = Callable[[BatchRequest[VmReport]], Outcome[TargetsResult[VmReport]]]
_RESULTS: dict[str, ManyResultWord] = {"absent": "deleted", "started": "started", "stopped": "stopped"}


def bring_to_state(
    vms: Outcome[ManyVmsResult], state: str, run_batch: RunBatch, parallel: int
) -> Outcome[ManyVmsResult]:
    """Delete ("absent"), start or stop those of `vms` that are not in `state` yet; its rows and steps are kept.

    Raises:
        SomeTargetsFailed: it failed for some; `result` has the VMs that it was tried for.
        NeedsConfirmation: the VMs would be deleted, and the answer was no.
    """
    names = tuple(vm.name for vm in vms.data.vms if _needs_change(vm, state))
    if not names:
        return vms
    question = _delete_question if state == "absent" and not vms.dry_run else None
    request = BatchRequest(names, _call(state, dry_run=vms.dry_run), parallel, question, dry_run=vms.dry_run)
    try:
        done = run_batch(request)
    except VgpuctlError as error:
        error.changed = error.changed or vms.changed
        raise
    targets = {target.name: target for target in done.data.targets}
    rows = tuple(_row(vm, targets[vm.name], state) if vm.name in targets else vm for vm in vms.data.vms)
    return replace(
        vms,
        changed=vms.changed or done.changed,
        data=replace(vms.data, vms=rows),
        steps=(*vms.steps, *done.steps),
        warnings=tuple(dict.fromkeys((*vms.warnings, *done.warnings))),
        notes=tuple(dict.fromkeys((*vms.notes, *done.notes))),
    )


def _needs_change(vm: ManyVmResult | NewVmResult, state: str) -> bool:
    if state == "absent":
        return True
    if vm.changed:
        return False
    return vm.state is not VmState.RUNNING if state == "started" else vm.state not in STOPPED_STATES


def _call(state: str, *, dry_run: bool) -> Callable[[GpuHost, str], Outcome[VmReport]]:
    if state == "absent":
        return lambda host, name: host.delete_vm(name, dry_run=dry_run)
    if state == "started":
        return lambda host, name: host.start_vm(name, dry_run=dry_run)
    return lambda host, name: host.stop_vm(name, dry_run=dry_run)


def _delete_question(names: Sequence[str]) -> str:
    return f"Delete {count_text(len(names), 'VM')}?"


def _row(vm: ManyVmResult | NewVmResult, target: TargetResult[VmReport], state: str) -> ManyVmResult | NewVmResult:
    """Return the row of a VM after the change: in full if it still exists."""
    report, result = target.data, _RESULTS[state] if target.changed else "unchanged"
    if type(report) is VmResult:
        return extend(ManyVmResult, report, changed=target.changed, result=result)
    if report is None:
        raise TypeError(f"{vm.name}: a call that worked has a result")
    return NewVmResult(vm.name, vm.uuid, report.state, changed=target.changed, result=result, vgpus=report.vgpus)
