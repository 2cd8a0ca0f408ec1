# SPDX-License-Identifier: Apache-2.0
"""The boot unit holds libvirt back until the vGPUs are there, and no longer than host.yaml says.

systemd starts libvirt when the unit says READY (Type=notify). libvirt then starts its autostart VMs, once. A VM whose
GPU is not ready by then does not start: libvirt's hook refuses it. So those VMs are started here when their GPUs are.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

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


class Timer(Protocol):
    """Calls a function once after some time, unless somebody cancels it first; threading.Timer is one."""

    def start(self) -> None:
        """Begin to count."""

    def cancel(self) -> None:
        """Do not call it, if that is not done yet."""


class LibvirtHold:
    """Delays the start of libvirt inside the block until `release`, at most `seconds`; a timer ends a longer wait."""

    def __init__(self, world: World, seconds: float, timer: Callable[[float, Callable[[], None]], Timer]) -> None:
        self._world = world
        self._timer = timer(seconds, self._expire)
        self._turn = threading.Lock()
        self._released = False
        self.early = False
        """Whether libvirt was let go before the work was done, and somebody waited for that."""

    def __enter__(self) -> LibvirtHold:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def release(self) -> None:
        """Let libvirt go: the work is done."""
        with self._turn:
            if not self._released:
                self._tell("the vGPUs are there")

    def _expire(self) -> None:
        with self._turn:
            if not self._released:
                self.early = self._tell("libvirt starts; GPUs that are not ready yet are waited for")

    def _tell(self, status: str) -> bool:
        self._released = True
        system = self._world.system
        return system is not None and system.notify_ready(status)


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
    """Start VMs of vgpuctl's whose autostart came too early for their GPUs; returns the names started, and failures."""
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
