# SPDX-License-Identifier: Apache-2.0
"""The boot unit delays libvirt until the vGPUs are present, but no longer than host.yaml allows.

systemd starts libvirt when the unit reports READY (Type=notify). libvirt then starts its autostart VMs, once. A VM
whose GPU is not ready by then does not start: libvirt's hook refuses it. This module starts those VMs as soon as their
GPUs are ready.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import HostCannot, LibvirtFailed, VgpuctlError, unreadable_error
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.operations.devices import DOMAIN_XML_DIRECTORY
from vgpuctl.operations.power import place_vm, start_vm

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Context, Outcome
    from vgpuctl.model.results.vms import VmReport
    from vgpuctl.ports.host import Host

AUTOSTART_DIRECTORY = f"{DOMAIN_XML_DIRECTORY}/autostart"
"""libvirt's links to the definitions of the VMs that it starts itself."""
LIBVIRT_TIMEOUT_SECONDS = 120.0
"""How long libvirt may take to answer after its release; it starts its VMs first."""
POLL_SECONDS = 1.0


def read_domain_files(host: Host) -> tuple[tuple[Vm, ...], tuple[str, ...]]:
    """Return the VMs of libvirt's own files, and a sentence for each file that cannot be parsed.

    Raises:
        Failed: the directory cannot be read, so the VMs are unknown.
    """
    vms: list[Vm] = []
    problems: list[str] = []
    try:
        names = host.sysfs.listdir(DOMAIN_XML_DIRECTORY)
    except FileNotFoundError:
        return (), ()
    except OSError as error:
        raise unreadable_error(DOMAIN_XML_DIRECTORY, error) from error
    for name in (n for n in names if n.endswith(".xml")):
        path = f"{DOMAIN_XML_DIRECTORY}/{name}"
        try:
            vms.append(parse_domain(_strip_xml_declaration(host.sysfs.read(path)), VmState.UNKNOWN, host.machine_id))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LibvirtFailed) as error:
            problems.append(f"{path} cannot be read: {error}")
    return tuple(vms), tuple(problems)


def _strip_xml_declaration(text: str) -> str:
    """Remove the XML declaration: lxml refuses text that names its own encoding."""
    return re.sub(r"^\s*<\?xml[^>]*\?>", "", text)


class Timer(Protocol):
    """Calls a function once after a delay, unless it is cancelled first; threading.Timer is one."""

    def start(self) -> None:
        """Start the delay."""

    def cancel(self) -> None:
        """Prevent the call, unless it has happened already."""


class LibvirtHold:
    """Delays the start of libvirt inside the block until `release`, at most `seconds`; a timer ends a longer wait."""

    def __init__(self, host: Host, seconds: float, make_timer: Callable[[float, Callable[[], None]], Timer]) -> None:
        self._host = host
        self._timer = make_timer(seconds, self._expire)
        self._lock = threading.Lock()
        self._released = False
        self.released_early = False
        """Whether libvirt was released before the work was done, and systemd waited for that."""

    def __enter__(self) -> LibvirtHold:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def release(self) -> None:
        """Release libvirt: the work is done."""
        with self._lock:
            if not self._released:
                self._notify_ready("the vGPUs are ready")

    def _expire(self) -> None:
        with self._lock:
            if not self._released:
                self.released_early = self._notify_ready("libvirt starts; still waiting for GPUs that are not ready")

    def _notify_ready(self, status: str) -> bool:
        self._released = True
        system = self._host.system
        return system is not None and system.notify_ready(status)


def select_autostart_vms(host: Host, vms: Iterable[Vm]) -> tuple[Vm, ...]:
    """Return the VMs that libvirt starts by itself; none if its links cannot be listed."""
    links = read_autostart_links(host) or ()
    return tuple(vm for vm in vms if vm.name in links)


def read_autostart_links(host: Host) -> frozenset[str] | None:
    """Return the names of the VMs that libvirt starts by itself; None if its links cannot be listed."""
    try:
        return frozenset(name.removesuffix(".xml") for name in host.sysfs.listdir(AUTOSTART_DIRECTORY))
    except OSError:
        return None


def start_autostart_vms(
    host: Host, context: Context, vms: tuple[Vm, ...]
) -> tuple[list[str], list[tuple[Vm, VgpuctlError]]]:
    """Start managed VMs whose autostart came too early for their GPUs; return the names started, and the failures."""
    started: list[str] = []
    failed: list[tuple[Vm, VgpuctlError]] = []
    if vms and not _wait_for_libvirt(host):
        return [], [(vm, _no_libvirt_error()) for vm in vms]
    for vm in vms:
        try:
            if start_vm(host, context, vm.name).changed:
                started.append(vm.name)
        except VgpuctlError as error:
            failed.append((vm, error))
    return started, failed


def place_displaced_vms(
    host: Host, context: Context, vms: tuple[Vm, ...]
) -> tuple[list[tuple[Vm, Outcome[VmReport]]], list[tuple[Vm, VgpuctlError]]]:
    """Give VMs whose slots cannot come back other ones, without starting them; return the outcomes and failures."""
    placed: list[tuple[Vm, Outcome[VmReport]]] = []
    failed: list[tuple[Vm, VgpuctlError]] = []
    if vms and not _wait_for_libvirt(host):
        return [], [(vm, _no_libvirt_error()) for vm in vms]
    for vm in vms:
        try:
            placed.append((vm, place_vm(host, context, vm.name)))
        except VgpuctlError as error:
            failed.append((vm, error))
    return placed, failed


def _no_libvirt_error() -> HostCannot:
    return HostCannot(
        f"libvirt does not answer {LIBVIRT_TIMEOUT_SECONDS:g} seconds after its start was released",
        hint="systemctl status libvirtd virtqemud",
        check="libvirt",
    )


def _wait_for_libvirt(host: Host) -> bool:
    """Wait until libvirt answers; return False if it does not in time."""
    deadline = host.clock.monotonic() + LIBVIRT_TIMEOUT_SECONDS
    while not host.hypervisor.status().available:
        if host.clock.monotonic() >= deadline:
            return False
        host.clock.sleep(POLL_SECONDS)
    return True
