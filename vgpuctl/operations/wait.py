# SPDX-License-Identifier: Apache-2.0
"""Wait until the guest of a VM that was just started can be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import Busy, Interrupted, InvalidInput, LibvirtFailed, PartlyApplied
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.results.vms import ChangedVmResult, GuestResult, PlannedVmResult
from vgpuctl.operations.guest import ADDRESS_SOURCES, address_result, select_reachable
from vgpuctl.value import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from vgpuctl.ports.host import Host

DEFAULT_SECONDS = 300
PAUSE_SECONDS = 1.0
_OPERATION_INVALID = 55
"""libvirt's number for "the domain is not running" (VIR_ERR_OPERATION_INVALID)."""


def check_wait_options(*, wait_for: str | None, timeout: float | None, start: bool) -> None:
    """Refuse to wait for an event that cannot happen.

    Raises:
        InvalidInput: naming the options.
    """
    if wait_for is not None and not start:
        raise InvalidInput("--wait-for guest and --no-start cannot be combined: a VM that is off has no guest")
    if wait_for is None and timeout is not None:
        raise InvalidInput("--wait-timeout requires --wait-for guest", hint="add --wait-for guest")


def wait_for_guest(
    host: Host,
    outcome: Outcome[ChangedVmResult | PlannedVmResult],
    timeout_seconds: float,
    progress: Progress,
) -> Outcome[ChangedVmResult | PlannedVmResult]:
    """Wait until the guest agent answers or an address is known; return the outcome with `guest` in its data.

    A dry run only adds a step. Waiting never changes the VM.

    Raises:
        Busy: the time was over; the VM is left running.
        PartlyApplied: the VM was created and started, and went off meanwhile.
        Interrupted: a signal came; the VM is left running.
    """
    name, uuid = outcome.data.name, outcome.data.uuid or ""
    text = f"wait until the guest of {name} answers (at most {timeout_seconds:g} s)"
    steps = (*outcome.steps, text)
    if outcome.dry_run:
        return replace(outcome, steps=steps)
    progress.on_plan(steps)
    try:
        guest = _poll_guest(host, name, uuid, timeout_seconds, lambda: progress.on_step_start(len(steps), text))
    except Interrupted as error:
        error.left.append(f"VM {name}: it is created and runs")
        raise
    progress.on_step_finish(len(steps), text)
    return replace(outcome, data=replace(outcome.data, guest=guest), steps=steps)


def _poll_guest(host: Host, name: str, uuid: str, timeout_seconds: float, on_poll: Callable[[], None]) -> GuestResult:
    """Poll until the guest is reached; each round calls `shown`, which reports progress and raises after a signal."""
    start_time = host.clock.monotonic()
    while True:
        on_poll()
        guest = _read_guest(host, name, uuid)
        if guest is not None:
            return guest
        seconds_left = start_time + timeout_seconds - host.clock.monotonic()
        if seconds_left <= 0:
            error = Busy(
                f"{name} was created and runs, but its guest did not answer within {timeout_seconds:g} s",
                hint=f"vgpuctl show-address {name} tries again; vgpuctl show-console {name} shows where its screen is",
                vm=name,
                uuid=uuid,
                waited_seconds=timeout_seconds,
            )
            error.changed = True
            raise error
        host.clock.sleep(min(PAUSE_SECONDS, seconds_left))


def _read_guest(host: Host, name: str, uuid: str) -> GuestResult | None:
    """Return the source that knows the guest and its addresses, None if no source does yet."""
    domain = host.hypervisor.find_domain(uuid)
    if domain is None or domain.live_xml is None:
        raise _went_off_error(name)
    macs = frozenset(parse_domain(domain.live_xml, domain.state, host.machine_id).mac_addresses)
    for source in ADDRESS_SOURCES:
        try:
            reported = host.hypervisor.guest_addresses(uuid, source)
        except LibvirtFailed as error:
            if error.facts.get("libvirt_code") == _OPERATION_INVALID:
                raise _went_off_error(name) from error
            raise
        reachable = select_reachable(reported or (), macs)
        if reachable or (source == "agent" and reported is not None):
            return GuestResult(source, tuple(address_result(address) for address in reachable))
    return None


def _went_off_error(name: str) -> PartlyApplied:
    error = PartlyApplied(
        f"{name} was created and started, but stopped before its guest answered",
        hint=f"vgpuctl show-vm {name}; /var/log/libvirt/qemu/{name}.log shows why",
        vm=name,
    )
    error.left.append(f"VM {name} with its vGPUs and disks")
    return error
