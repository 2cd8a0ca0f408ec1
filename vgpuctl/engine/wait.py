# SPDX-License-Identifier: Apache-2.0
"""Wait until the system in a VM that was just started can be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.domain.parse import parse
from vgpuctl.engine.guest import SOURCES, address_value, useful
from vgpuctl.errors import Busy, Interrupted, InvalidInput, LibvirtFailed, PartlyApplied
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.value import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from vgpuctl.model.world import World

DEFAULT_SECONDS = 300
PAUSE_SECONDS = 1.0
_OFF = 55
"""libvirt's number for "the domain is not running" (VIR_ERR_OPERATION_INVALID)."""


def refuse_no_wait(*, wait_for: str | None, timeout: float | None, start: bool) -> None:
    """Refuse to wait for what will not come.

    Raises:
        InvalidInput: naming the options.
    """
    if wait_for is not None and not start:
        raise InvalidInput("--wait-for guest and --no-start contradict each other: a VM that is off has no guest")
    if wait_for is None and timeout is not None:
        raise InvalidInput("--wait-timeout says how long --wait-for waits", hint="add --wait-for guest")


def wait_for_guest(world: World, made: Outcome, timeout_seconds: float, progress: Progress) -> Outcome:
    """Wait until the guest agent answers or an address is known; return the outcome with `guest` in its data.

    A dry run only gets one more step. Whatever happens here, the VM stays as it is.

    Raises:
        Busy: the time was over; the VM is left running.
        PartlyApplied: the VM was made and started, and went off meanwhile.
        Interrupted: a signal came; the VM is left running.
    """
    name, uuid = str(made.data["name"]), str(made.data["uuid"])
    text = f"wait until the guest of {name} answers (at most {timeout_seconds:g} s)"
    steps = (*made.steps, text)
    if made.dry_run:
        return replace(made, steps=steps)
    progress.planned(steps)
    try:
        found = _waited(world, name, uuid, timeout_seconds, lambda: progress.started(len(steps), text))
    except Interrupted as error:
        error.left.append(f"VM {name}: it is made and runs")
        raise
    progress.finished(len(steps), text)
    return replace(made, data={**made.data, "guest": found}, steps=steps)


def _waited(world: World, name: str, uuid: str, timeout_seconds: float, shown: Callable[[], None]) -> dict[str, object]:
    """Look again and again until the guest is reached; `shown` tells that it goes on, and ends it at a signal."""
    begun = world.clock.monotonic()
    while True:
        shown()
        found = _reached(world, name, uuid)
        if found is not None:
            return found
        left = begun + timeout_seconds - world.clock.monotonic()
        if left <= 0:
            late = Busy(
                f"{name} was made and runs, but its guest did not answer within {timeout_seconds:g} s",
                hint=f"vgpuctl address {name} asks again; vgpuctl console {name} says where its screen is",
                vm=name,
                uuid=uuid,
                waited_seconds=timeout_seconds,
            )
            late.changed = True
            raise late
        world.clock.pause(min(PAUSE_SECONDS, left))


def _reached(world: World, name: str, uuid: str) -> dict[str, object] | None:
    """Return who knows the guest and its addresses, None when nobody does yet."""
    record = world.hypervisor.find_domain(uuid)
    if record is None or record.live_xml is None:
        raise _off(name)
    macs = frozenset(parse(record.live_xml, record.state, world.machine_id).mac_addresses)
    for source in SOURCES:
        try:
            answer = world.hypervisor.guest_addresses(uuid, source)
        except LibvirtFailed as error:
            if error.facts.get("libvirt_code") == _OFF:
                raise _off(name) from error
            raise
        known = useful(answer or (), macs)
        if known or (source == "agent" and answer is not None):
            return {"source": source, "addresses": [address_value(each) for each in known]}
    return None


def _off(name: str) -> PartlyApplied:
    error = PartlyApplied(
        f"{name} was made and started, and went off before its guest answered",
        hint=f"vgpuctl show-vm {name}; /var/log/libvirt/qemu/{name}.log says why",
        vm=name,
    )
    error.left.append(f"VM {name} with its vGPUs and disks")
    return error
