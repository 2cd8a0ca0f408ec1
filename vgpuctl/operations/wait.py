# SPDX-License-Identifier: Apache-2.0
"""Waiting until VMs run, are off, or their guests answer, run NVIDIA's driver or have a license; nothing is changed.

libvirt has no event for an address, and a guest's agent may be connected before it answers. So `wait`, and `create-vm
--wait-for`, read each VM again, once in a second. Drivers and licenses they ask of NVML, less often: a process of its
own opens it each time, since changes of a GPU's layout need it closed.
"""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import WINDOWS_11
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import Busy, HostCannot, Interrupted, InvalidInput, NotFound, PartlyApplied, Refused
from vgpuctl.model import hint_commands
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import Context, Outcome, QueryResult
from vgpuctl.model.results.vms import (
    ChangedVmResult,
    GuestResult,
    GuestSoftwareResult,
    PlannedVmResult,
    StateWord,
    WaitedVmResult,
)
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.usage import LICENSED
from vgpuctl.model.vm import NOT_RUNNING_STATES, Vm, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.definition import read_vm
from vgpuctl.operations.guards import deleted_meanwhile, refuse_others_vm
from vgpuctl.operations.guest import read_guest, require_domain
from vgpuctl.operations.guest_software import SoftwareRead, read_guest_software
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vgpuctl.config.vm_request import VmRequest
    from vgpuctl.ports.host import Host

PAUSE_SECONDS = 1.0
NVML_PAUSE_SECONDS = 3.0
_STATES = {"running": VmState.RUNNING, "off": VmState.STOPPED}


class _Event(Value):
    """What a guest is waited for, as texts: what it does then, what it has not done, and why it cannot while off."""

    done: str
    missing: str
    why_not: str


_EVENTS = {
    "guest": _Event("answers", "has not answered", "its guest cannot answer"),
    "address": _Event("has an address", "has no known address", "it has no address"),
    "driver": _Event("runs NVIDIA's driver", "has not started NVIDIA's driver", "no driver runs in it"),
    "license": _Event("has its license", "has no license for all its vGPUs", "it has no license"),
}
_SOFTWARE = ("driver", "license")


class _Seen(Value):
    """A VM as it was read just now. `vm`: from its last definition, for one that is gone."""

    vm: Vm
    state: StateWord
    reached: bool
    guest: GuestResult | None = None
    software: GuestSoftwareResult | None = None


def check_wait_options(request: VmRequest, *, wait_for: str | None, timeout: float | None, start: bool) -> None:
    """Refuse to wait for an event of a new VM that cannot happen, or that this host cannot see.

    Raises:
        InvalidInput: naming the options.
    """
    if wait_for is not None and not start:
        raise InvalidInput(f"--wait-for {wait_for} and --no-start cannot be combined: a VM that is off has no guest")
    if wait_for in _SOFTWARE and request.mode != "vgpu" and not (wait_for == "driver" and request.guest_helper):
        raise InvalidInput(
            f"--wait-for {wait_for} and --mode {request.mode} cannot be combined: the host's driver reports only on "
            "the guests of vGPUs",
            hint="--wait-for guest; then look in the guest" if wait_for == "license" else "add --guest-helper",
        )
    if wait_for is None and timeout is not None:
        raise InvalidInput("--wait-timeout requires --wait-for guest", hint="add --wait-for guest")


def wait(
    host: Host, context: Context, names: Sequence[str], target: str, timeout_seconds: float
) -> QueryResult[tuple[WaitedVmResult, ...]]:
    """Wait until all these VMs have reached `target`: running, off, guest, address, driver or license.

    Raises:
        NotFound: there is no such VM, or it was deleted meanwhile.
        NotYours: the guest of another account's VM is waited for.
        Refused: a VM whose guest is waited for is off.
        HostCannot: no driver of this host reports on the guest of a VM.
        Busy: the time was over; with the state of each VM that has not reached it.
    """
    domains = {domain.uuid: domain for domain in (require_domain(host, name) for name in names)}
    vms = tuple(read_vm(host, domain) for domain in domains.values())
    if target not in _STATES:
        for vm in vms:
            refuse_others_vm(context, vm)
    seen = _poll(host, vms, target, timeout_seconds, context.progress.on_wait)
    return QueryResult(tuple(WaitedVmResult(s.vm.name, s.vm.uuid, s.state, s.guest, s.software) for s in seen))


def wait_for_guest(
    host: Host,
    context: Context,
    outcome: Outcome[ChangedVmResult | PlannedVmResult],
    timeout_seconds: float,
    target: str = "guest",
) -> Outcome[ChangedVmResult | PlannedVmResult]:
    """Wait until a new VM's guest is reached; return the outcome with `guest` in its data.

    A dry run only adds a step. Waiting never changes the VM.

    Raises:
        Busy: the time was over; the VM is left running.
        PartlyApplied: the VM was created and started, and went off meanwhile, or nothing reports on its guest.
        Interrupted: a signal came; the VM is left running.
    """
    name, uuid = outcome.data.name, outcome.data.uuid or ""
    text = f"wait until the guest of {name} {_EVENTS[target].done} (at most {timeout_seconds:g} s)"
    steps = (*outcome.steps, text)
    if outcome.dry_run:
        return replace(outcome, steps=steps)
    context.progress.on_plan((text,))
    try:
        domain = host.hypervisor.find_domain(uuid)
        if domain is None:
            raise _went_off_error(name)
        on_poll = partial(context.progress.on_step_start, 1, text)
        (seen,) = _poll(host, (read_vm(host, domain),), target, timeout_seconds, on_poll)
    except Interrupted as error:
        error.left.append(f"VM {name}: it is created and runs")
        raise
    except (NotFound, Refused) as error:
        raise _went_off_error(name) from error
    except HostCannot as error:
        raise _left(name, f"{name} was created and runs, but {error}", error.hint) from error
    except Busy as time_over:
        late = Busy(
            f"{name} was created and runs, but {time_over.message}",
            hint=f"vgpuctl wait {shlex.quote(name)} --for {target} waits longer",
            vm=name,
            uuid=uuid,
            waited_seconds=timeout_seconds,
        )
        late.changed = True
        raise late from time_over
    context.progress.on_step_finish(1, text)
    return replace(outcome, data=_with_guest(outcome.data, seen), steps=steps)


def _with_guest(data: ChangedVmResult | PlannedVmResult, seen: _Seen) -> ChangedVmResult | PlannedVmResult:
    """Return a new VM's data with what was learned of its guest."""
    if seen.software is not None:
        return replace(data, guest_software=seen.software)
    return data if seen.guest is None else replace(data, guest=seen.guest)


def _poll(
    host: Host, vms: tuple[Vm, ...], target: str, timeout_seconds: float, on_poll: Callable[[], None]
) -> tuple[_Seen, ...]:
    """Read all VMs until they have reached the target at the same time.

    `on_poll`: reports progress, and raises after a signal.
    """
    start_time = host.clock.monotonic()
    asks_nvml = target in _SOFTWARE
    gpus: tuple[Gpu, ...] = ()
    while True:
        on_poll()
        software = None
        if asks_nvml:
            snapshot = _observe(host, vms, gpus)
            gpus = gpus or snapshot.gpus
            software = read_guest_software(host, snapshot, vms)
        seen = tuple(_look(host, vm, target, software) for vm in vms)
        vms = tuple(s.vm for s in seen)
        pending = [s for s in seen if not s.reached]
        if not pending:
            return seen
        seconds_left = start_time + timeout_seconds - host.clock.monotonic()
        if seconds_left <= 0:
            raise _time_over(
                pending, len(seen), target, timeout_seconds, None if software is None else software.problem
            )
        host.clock.sleep(min(NVML_PAUSE_SECONDS if asks_nvml else PAUSE_SECONDS, seconds_left))


def _observe(host: Host, vms: tuple[Vm, ...], known: tuple[Gpu, ...]) -> Snapshot:
    """Return which vGPUs the VMs have now. What NVML tells of GPUs that are known already is not asked again.

    So this process opens NVML once: while it is open, the layout of no GPU can be changed.
    """
    scope = ReadScope(models=False, vm=vms[0].uuid if len(vms) == 1 else None, cached_gpus=known)
    return observe(host, scope)


def _look(host: Host, vm: Vm, target: str, software: SoftwareRead | None) -> _Seen:
    """Read a VM.

    Raises:
        NotFound: it was deleted. A VM without a definition is deleted by its stop, and counts as off.
        Refused: the guest of a VM that is off cannot answer.
        HostCannot: nothing on this host reports on its guest.
    """
    domain = host.hypervisor.find_domain(vm.uuid)
    if domain is None:
        if target == "off" and not vm.persistent:
            return _Seen(vm, "absent", reached=True)
        raise deleted_meanwhile(vm)
    current = replace(vm, state=domain.state, persistent=domain.persistent)
    if target in ("running", "off"):
        return _Seen(current, domain.state, domain.state is _STATES[target])
    if domain.live_xml is None or domain.state in NOT_RUNNING_STATES:
        raise Refused(
            f"{vm.name} is {domain.state}: {_EVENTS[target].why_not}",
            hint=hint_commands.run_command(current),
            vm=vm.name,
            state=str(domain.state),
        )
    if software is not None:
        return _look_at_software(host, current, target, software)
    macs = frozenset(parse_domain(domain.live_xml, domain.state, host.machine_id).mac_addresses)
    guest = read_guest(host, vm.uuid, macs, needs_address=target == "address")
    return _Seen(current, domain.state, guest is not None, guest)


def _look_at_software(host: Host, vm: Vm, target: str, software: SoftwareRead) -> _Seen:
    """Return a running VM with what NVML tells about its guest; of a whole GPU's driver the helper there tells."""
    if vm.uuid in software.unreported and target == "driver":
        report = None if host.guest_reports is None else host.guest_reports.read().get(vm.uuid)
        if report is not None or _expects_helper(vm):
            return _Seen(vm, vm.state, report is not None and report.driver is not None)
    if vm.uuid in software.unreported:
        raise HostCannot(
            f"this host cannot see the {target} in {vm.name}: its NVML reports on no vGPU of it",
            hint=f"vgpuctl wait {shlex.quote(vm.name)} --for guest, then look in the guest",
            vm=vm.name,
        )
    known = software.by_vm.get(vm.uuid)
    is_licensed = known is not None and known.license == LICENSED and vm.uuid not in software.partly
    reached = is_licensed if target == "license" else known is not None
    return _Seen(vm, vm.state, reached, software=known)


def _expects_helper(vm: Vm) -> bool:
    return vm.record is not None and vm.record.requested("guest_helper", bool) is True


def _time_over(pending: Sequence[_Seen], total: int, target: str, seconds: float, problem: str | None) -> Busy:
    """Return the error that says what has not been reached, and the state of each VM. `problem`: why NVML is silent."""
    texts = [_describe(seen, target) for seen in pending]
    first = pending[0].vm
    several = f"{len(pending)} of {total} VMs {'has' if len(pending) == 1 else 'have'} not reached '{target}'"
    return Busy(
        f"{texts[0] if total == 1 else several} after {seconds:g} s" + (f": NVML: {problem}" if problem else ""),
        hint=_hint(first, target),
        lines=[] if total == 1 else texts,
        vms=[{"name": s.vm.name, "uuid": s.vm.uuid, "state": str(s.state)} for s in pending],
        waited_seconds=seconds,
        **({"vm": first.name, "uuid": first.uuid} if total == 1 else {}),
    )


def _describe(seen: _Seen, target: str) -> str:
    name = seen.vm.name
    if target in _STATES:
        return f"{name} is still {seen.state}"
    if target == "license" and seen.software is None:
        return f"the guest of {name} has no license: no NVIDIA driver of it is seen"
    if target == "license" and seen.software is not None and seen.software.license != LICENSED:
        return f"the guest of {name} has no license: {seen.software.license or 'unknown'}"
    return f"the guest of {name} {_EVENTS[target].missing}"


def _hint(vm: Vm, target: str) -> str:
    if target == "off":
        return hint_commands.off_command(vm)
    if target == "running" or vm.state is not VmState.RUNNING:
        return hint_commands.run_command(vm)
    if target == "license":
        return f"vgpuctl doctor license-token licenses; vgpuctl show-vm {shlex.quote(vm.name)}"
    console = f"vgpuctl show-console {shlex.quote(vm.name)} shows how to see what the guest does"
    recorded = {} if vm.record is None else vm.record.request_fields
    if target != "driver" or "guest_driver" not in recorded:
        return console
    log = r"%ProgramFiles%\vgpuctl\setup.log" if recorded.get("os") == WINDOWS_11 else "journalctl -u vgpuctl-driver"
    return f"in the guest: {log}; {console}"


def _went_off_error(name: str) -> PartlyApplied:
    return _left(
        name,
        f"{name} was created and started, but stopped before its guest answered",
        f"vgpuctl show-vm {name}; /var/log/libvirt/qemu/{name}.log shows why",
    )


def _left(name: str, text: str, hint: str | None) -> PartlyApplied:
    """Return the error of a VM that was created, and was not waited for to the end."""
    error = PartlyApplied(text, hint=hint, vm=name)
    error.left.append(f"VM {name} with its vGPUs and disks")
    return error
