# SPDX-License-Identifier: Apache-2.0
"""Run an action while a VM is off: shut it down, run the action, and start it again even if the action fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.errors import Interrupted, PartlyApplied, VgpuctlError
from vgpuctl.model.outcome import Context
from vgpuctl.model.vm import Vm
from vgpuctl.operations.drained_vms import note_drained_vms
from vgpuctl.operations.gpu_transaction import try_start_vm
from vgpuctl.operations.guards import refuse_unresponsive_vm
from vgpuctl.operations.power import stop_for_restart
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.transaction import Transaction

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def with_vm_stopped(host: Host, context: Context, vm: Vm, action: Callable[[], object], outcome_word: str) -> None:
    """Run `action` on a stopped VM; a running one is shut down first, within `wait_seconds`.

    `outcome_word`: the VM's state after the action, such as "moved", for messages.

    Raises:
        PartlyApplied: the action is done, but the VM could not be started again.
        VgpuctlError: why the action failed; the VM runs again, or `left` says why not.
    """
    stop_and_run(host, context, vm, action)
    start_again(host, context, vm, outcome_word)


def stop_and_run(host: Host, context: Context, vm: Vm, action: Callable[[], object]) -> None:
    """Run `action` on a stopped VM, which stays off; a running one is noted as to be started again, and shut down.

    Raises:
        VgpuctlError: why it failed; a VM that ran runs again, or `left` says why not.
    """
    was_running = vm.state not in STOPPED_STATES
    refuse_unresponsive_vm(vm)
    with Transaction(host, context) as tx:
        if was_running:
            tx.on_failure(lambda failure: _start_after_failure(host, context, vm, failure))
            note_drained_vms(host, context, None, (vm,))
            stop_for_restart(host, context, vm.uuid, force=False)
        action()


def start_again(host: Host, context: Context, vm: Vm, outcome_word: str) -> None:
    """Start a VM again if it ran when `vm` was read.

    Raises:
        PartlyApplied: it could not be started.
    """
    if vm.state in STOPPED_STATES:
        return
    start_failure = try_start_vm(host, context, vm, frozenset())
    if start_failure is not None:
        partly_applied = PartlyApplied(
            f"{vm.name} is {outcome_word} and stays off: {start_failure}", hint=f"vgpuctl start-vm {vm.name}"
        )
        partly_applied.left.append(f"VM {vm.name} is not started again")
        raise partly_applied


def _start_after_failure(host: Host, context: Context, vm: Vm, failure: VgpuctlError) -> None:
    """Start the VM again after a failure; if that fails too, add it to `left`."""
    undone_steps = frozenset(failure.undone) if isinstance(failure, Interrupted) else frozenset()
    start_failure = try_start_vm(host, context, vm, undone_steps)
    if start_failure is not None:
        failure.left.append(f"VM {vm.name} is not started again: {start_failure}")
        failure.hint = "; ".join(filter(None, (failure.hint, f"vgpuctl start-vm {vm.name}")))
