# SPDX-License-Identifier: Apache-2.0
"""The boot unit holds libvirt back until the vGPUs are there, and no longer than host.yaml says.

systemd starts libvirt when the unit says READY (Type=notify). libvirt then starts its autostart VMs, once. A VM whose
GPU is not ready by then does not start: libvirt's hook refuses it. So those VMs are started here when their GPUs are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vgpuctl.domain.parse import parse
from vgpuctl.engine.devices import DOMAINS
from vgpuctl.engine.guards import unreadable
from vgpuctl.engine.power import start_vm
from vgpuctl.errors import HostCannot, LibvirtFailed, VgpuctlError
from vgpuctl.model.vm import Vm, VmState

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Progress
    from vgpuctl.model.world import World

AUTOSTART = f"{DOMAINS}/autostart"
"""libvirt's links to the definitions of the VMs that it starts itself."""
LIBVIRT_SECONDS = 120.0
"""How long libvirt may take to answer after it was let go; it starts its VMs first."""
PAUSE_SECONDS = 1.0


def read_domain_files(world: World) -> tuple[tuple[Vm, ...], tuple[str, ...]]:
    """Return the VMs of libvirt's own files, and a sentence for each file that cannot be understood.

    Raises:
        Failed: the directory cannot be read, so nobody knows which VMs there are.
    """
    vms: list[Vm] = []
    problems: list[str] = []
    try:
        names = world.sysfs.listdir(DOMAINS)
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        raise unreadable(DOMAINS, error) from error
    for name in (n for n in names if n.endswith(".xml")):
        path = f"{DOMAINS}/{name}"
        try:
            vms.append(parse(_without_declaration(world.sysfs.read(path)), VmState.UNKNOWN, world.machine_id))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LibvirtFailed) as error:
            problems.append(f"{path} cannot be read: {error}")
    return tuple(vms), tuple(problems)


def _without_declaration(text: str) -> str:
    """Lxml refuses text that names its own encoding."""
    return re.sub(r"^\s*<\?xml[^>]*\?>", "", text)


class LibvirtHold:
    """Holds libvirt back until `release`, or until the first look at the clock after `seconds`.

    It is the progress of the work as well: each step is such a look, so one long step is all that it can be late by.
    """

    def __init__(self, world: World, seconds: float, progress: Progress) -> None:
        self._world = world
        self._until = world.clock.monotonic() + seconds
        self._progress = progress
        self._released = False
        self.early = False
        """Whether libvirt was let go before the work was done."""

    def check(self) -> None:
        """Let libvirt go if it was held long enough."""
        if not self._released and self._world.clock.monotonic() >= self._until:
            self.early = self._release("libvirt starts; GPUs that are not ready yet are waited for")

    def release(self) -> None:
        """Let libvirt go: the work is done."""
        if not self._released:
            self._release("the vGPUs are there")

    def _release(self, status: str) -> bool:
        self._released = True
        system = self._world.system
        return system is not None and system.notify_ready(status)

    def planned(self, steps: tuple[str, ...]) -> None:
        """Pass it on."""
        self.check()
        self._progress.planned(steps)

    def started(self, number: int, text: str) -> None:
        """Pass it on."""
        self.check()
        self._progress.started(number, text)

    def finished(self, number: int, text: str) -> None:
        """Pass it on."""
        self._progress.finished(number, text)
        self.check()

    def undoing(self, text: str) -> None:
        """Pass it on."""
        self._progress.undoing(text)
        self.check()


def autostarted(world: World, vms: Iterable[Vm]) -> tuple[Vm, ...]:
    """Return the VMs that libvirt starts by itself; none where its links cannot be listed."""
    try:
        names = set(world.sysfs.listdir(AUTOSTART))
    except OSError:
        return ()
    return tuple(vm for vm in vms if f"{vm.name}.xml" in names)


def start_late(
    world: World, vms: tuple[Vm, ...], wait_seconds: float, progress: Progress
) -> tuple[list[str], list[tuple[Vm, VgpuctlError]]]:
    """Start the VMs whose autostart came too early for their GPUs; returns the names started, and each failure."""
    started: list[str] = []
    failed: list[tuple[Vm, VgpuctlError]] = []
    if vms and not _libvirt_answers(world):
        late = HostCannot(
            f"libvirt does not answer {LIBVIRT_SECONDS:g} seconds after it was let go",
            hint="systemctl status libvirtd virtqemud",
            check="libvirt",
        )
        return [], [(vm, late) for vm in vms]
    for vm in vms:
        try:
            if start_vm(world, vm.name, dry_run=False, wait_seconds=wait_seconds, progress=progress).changed:
                started.append(vm.name)
        except VgpuctlError as error:
            failed.append((vm, error))
    return started, failed


def _libvirt_answers(world: World) -> bool:
    """Wait until libvirt answers; False when it did not in time."""
    until = world.clock.monotonic() + LIBVIRT_SECONDS
    while not world.hypervisor.status().available:
        if world.clock.monotonic() >= until:
            return False
        world.clock.pause(PAUSE_SECONDS)
    return True
