# SPDX-License-Identifier: Apache-2.0
"""Reboot a VM. Its QEMU goes on, so the VM keeps its vGPUs, their placements and its claims; libvirt runs no hook.

A guest that reboots resets QEMU, and libvirt reports that (VIR_DOMAIN_EVENT_ID_REBOOT). When its agent answered before,
it is waited for again.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, Interrupted, LibvirtFailed, PartlyApplied, Refused
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.port_values import RebootOutcome
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations.guards import find_vm_to_change, refuse_busy_vm, refuse_unfinished, require_writable
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.vm_results import vm_result
from vgpuctl.operations.report_vm import report_vm

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

RESET_SECONDS = 10.0
"""The least time in which libvirt must report a reset; it takes milliseconds."""

_PAUSE_SECONDS = 1.0


def reboot_vm(host: Host, context: Context, name: str, *, force: bool) -> Outcome[VmReport]:
    """Ask the guest of a running VM to reboot, or with `force` reset it, and wait until it has.

    Raises:
        Unmanaged: vgpuctl did not make the VM.
        Refused: the VM does not run.
        Busy: the guest has not rebooted in `wait_seconds`; it may do so later.
        PartlyApplied: the VM went off instead.
    """
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    refuse_unfinished(vm, own_record(vm, "reboot"))
    refuse_busy_vm(host, vm)
    _refuse_unless_running(vm)
    steps = (f"{'reset' if force else 'reboot'} VM {vm.name}",)
    if context.dry_run:
        return Outcome(True, vm_result(snapshot, vm), steps, snapshot.warnings, dry_run=True)
    context.progress.on_plan(steps)
    context.progress.on_step_start(1, steps[0])
    start_time = host.clock.monotonic()
    had_agent = _agent_answers(host, vm)
    try:
        _reboot(host, context, vm, force=force)
        seconds_left = start_time + context.wait_seconds - host.clock.monotonic()
        notes = _wait_for_agent(host, context, vm, seconds_left) if had_agent else ()
    except Interrupted as error:
        error.left.append(f"VM {vm.name}: it was {'reset' if force else 'asked to reboot'}")
        raise
    context.progress.on_step_finish(1, steps[0])
    return report_vm(host, vm_result(snapshot, vm), steps, notes)


def _refuse_unless_running(vm: Vm) -> None:
    if vm.state is VmState.RUNNING:
        return
    raise Refused(
        f"{vm.name} is {vm.state}: only a running VM can reboot",
        hint=hint_commands.run_command(vm),
        vm=vm.name,
        state=str(vm.state),
    )


def _reboot(host: Host, context: Context, vm: Vm, *, force: bool) -> None:
    name = shlex.quote(vm.name)
    with host.hypervisor.watch_reboot(vm.uuid) as reboot:
        if force:
            host.hypervisor.reset(vm.uuid)
        else:
            host.hypervisor.reboot(vm.uuid)
        outcome = reboot.wait(max(context.wait_seconds, RESET_SECONDS) if force else context.wait_seconds)
    if outcome is RebootOutcome.OFF:
        error = PartlyApplied(f"{vm.name} went off instead of rebooting", hint=f"vgpuctl start-vm {name}", vm=vm.name)
        error.left.append(f"VM {vm.name}: it is off")
        raise error
    if outcome is RebootOutcome.UNKNOWN and force:
        raise Busy(f"libvirt has not reported that {vm.name} was reset", hint=f"vgpuctl show-vm {name}", vm=vm.name)
    if outcome is RebootOutcome.UNKNOWN:
        raise Busy(
            f"{vm.name} did not reboot within {context.wait_seconds:g} s",
            hint=f"the guest ignores the request, or is slow; to reset it: vgpuctl reboot-vm {name} --force",
            vm=vm.name,
        )


def _agent_answers(host: Host, vm: Vm) -> bool:
    try:
        return host.hypervisor.guest_addresses(vm.uuid, "agent") is not None
    except LibvirtFailed:
        return False


def _wait_for_agent(host: Host, context: Context, vm: Vm, seconds: float) -> tuple[str, ...]:
    """Wait until the guest's agent answers again; the VM has rebooted in any case. Returns notes."""
    deadline = host.clock.monotonic() + seconds
    while not _agent_answers(host, vm):
        remaining = deadline - host.clock.monotonic()
        if remaining <= 0:
            return (f"its guest agent does not answer yet: vgpuctl wait {shlex.quote(vm.name)} --for guest",)
        context.progress.on_wait()
        host.clock.sleep(min(_PAUSE_SECONDS, remaining))
    return ()
