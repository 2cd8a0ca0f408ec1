# SPDX-License-Identifier: Apache-2.0
"""What libvirt does with a running guest on the simulated host: reboot and reset, and its screen."""

from __future__ import annotations

from socket import socket
from types import TracebackType
from typing import TYPE_CHECKING

from vgpuctl.model.port_values import RebootOutcome
from vgpuctl.sim import domain_xml
from vgpuctl.sim.core import Core, serialize_calls
from vgpuctl.sim.refusals import VirError, VirErrorNumber, read_call, require_libvirt, write_call
from vgpuctl.sim.screen import show_screen

if TYPE_CHECKING:
    from vgpuctl.sim.objects import RunningDomain
    from vgpuctl.sim.state import State

_BOOTABLE_FIRMWARE = ("bios", "uefi", "both")


@serialize_calls
class SimGuestAccess:
    """The part of `ports.Hypervisor` about a running guest."""

    _core: Core

    def _domain_name(self, uuid: str) -> str:
        raise NotImplementedError

    def reboot(self, uuid: str) -> None:
        """Ask the guest to reboot. It does at once, unless a fault of the scenario makes it ignore the request."""
        self._reset(uuid, "reboot")

    def reset(self, uuid: str) -> None:
        """Reset a running domain."""
        self._reset(uuid, "reset")

    def _reset(self, uuid: str, call: str) -> None:
        with write_call(self._core, call, self._domain_name(uuid)) as change:
            change.add("resets", uuid, _require_running(self._core.state, uuid).resets + 1)

    def watch_reboot(self, uuid: str) -> SimReboot:
        """Watch whether a domain reboots inside the `with` block."""
        with read_call(self._core, "find-domain", uuid) as state:
            _require_domain(state, uuid)
            running = state.running.get(uuid)
        return SimReboot(self._core, uuid, None if running is None else (running.pid, running.resets))

    def open_graphics(self, uuid: str, index: int) -> socket:
        """Open a running domain's screen."""
        with read_call(self._core, "open-graphics", self._domain_name(uuid)) as state:
            running = _require_running(state, uuid)
            devices = domain_xml.parse(running.xml).findall("devices/graphics")
            if index >= len(devices) or devices[index].get("type") != "vnc":
                raise VirError(VirErrorNumber.INTERNAL_ERROR, f"internal error: No graphics backend with index {index}")
        pid = running.pid

        def runs() -> bool:
            with self._core.call_lock:
                domain = self._core.read_state().running.get(uuid)
            return domain is not None and domain.pid == pid

        return show_screen(runs)


def _require_domain(state: State, uuid: str) -> None:
    if uuid not in state.domains:
        raise VirError(VirErrorNumber.NO_DOMAIN, f"Domain not found: no domain with matching uuid '{uuid}'")


def _require_running(state: State, uuid: str) -> RunningDomain:
    _require_domain(state, uuid)
    running = state.running.get(uuid)
    if running is None:
        raise VirError(VirErrorNumber.OPERATION_INVALID, "Requested operation is not valid: domain is not running")
    return running


def boots_a_system(state: State, running: RunningDomain) -> bool:
    """Say whether one of a running domain's disks has a system."""
    paths = domain_xml.find_disk_paths(domain_xml.parse(running.xml))
    return any(file is not None and file.firmware in _BOOTABLE_FIRMWARE for file in map(state.find_file, paths))


class SimReboot:
    """Whether a guest rebooted: it does at once or never, so there is nothing to wait for."""

    def __init__(self, core: Core, uuid: str, before: tuple[int, int] | None) -> None:
        self._core = core
        self._uuid = uuid
        self._before = before

    def __enter__(self) -> SimReboot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait(self, deadline_seconds: float) -> RebootOutcome:
        """Return what libvirt reported."""
        with self._core.call_lock:
            require_libvirt(self._core, "watch-reboot")
            running = self._core.read_state().running.get(self._uuid)
        if running is None:
            return RebootOutcome.OFF
        return RebootOutcome.UNKNOWN if (running.pid, running.resets) == self._before else RebootOutcome.REBOOTED
