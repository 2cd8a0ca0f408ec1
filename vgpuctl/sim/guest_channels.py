# SPDX-License-Identifier: Apache-2.0
"""The channels of simulated VMs; implements `ports.guests.GuestChannels`.

A simulated guest has no programs. One that speaks for it listens at the Unix socket `channels/UUID` in the directory of
the simulated host; while nobody listens, the channel is open and silent, as with a guest without a helper.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from vgpuctl.errors import HostCannot
from vgpuctl.sim import domain_xml
from vgpuctl.sim.core import Core
from vgpuctl.sim.objects import RunningDomain
from vgpuctl.sim.refusals import VirError, VirErrorNumber, read_call
from vgpuctl.sim.state import State

DIRECTORY = "channels"
_LOOK_SECONDS = 0.2
_READ_BYTES = 4096
_CLOSE_SECONDS = 5.0


class SimGuestChannels:
    """The channels of one simulated host."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def open(
        self, uuid: str, name: str, *, on_data: Callable[[bytes], None], on_end: Callable[[str], None]
    ) -> SimGuestChannel:
        """Open a running VM's channel."""
        missing = VirError(VirErrorNumber.INTERNAL_ERROR, f"internal error: cannot find channel {name}")
        with self._core.call_lock, read_call(self._core, "open-channel", uuid) as state:
            running = find_running(state, uuid, name, missing)
        pid = running.pid

        def runs() -> bool:
            with self._core.call_lock:
                domain = self._core.read_state().running.get(uuid)
            return domain is not None and domain.pid == pid

        return SimGuestChannel(self._core.directory / DIRECTORY / uuid, runs, on_data, on_end)


def find_running(state: State, uuid: str, channel: str, missing: VirError) -> RunningDomain:
    """Return a running domain that has a channel.

    Raises:
        VirError: there is no such domain, it is off, or it has no such channel (`missing`).
    """
    if uuid not in state.domains:
        raise VirError(VirErrorNumber.NO_DOMAIN, f"Domain not found: no domain with matching uuid '{uuid}'")
    running = state.running.get(uuid)
    if running is None:
        raise VirError(VirErrorNumber.OPERATION_INVALID, "Requested operation is not valid: domain is not running")
    targets = domain_xml.parse(running.xml).findall("devices/channel[@type='unix']/target[@type='virtio']")
    if channel not in {target.get("name") for target in targets}:
        raise missing
    return running


def connect(path: Path, wait_seconds: float) -> socket.socket | None:
    """Connect to who listens at a socket; None if nobody does.

    A directory's descriptor keeps the path short, as sockets need it.
    """
    if not path.exists():
        return None
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    guest = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    guest.settimeout(wait_seconds)
    try:
        guest.connect(f"/proc/self/fd/{directory}/{path.name}")
    except OSError:
        guest.close()
        return None
    finally:
        os.close(directory)
    return guest


class SimGuestChannel:
    """A thread that connects to who speaks for the guest, and reads."""

    def __init__(
        self,
        path: Path,
        runs: Callable[[], bool],
        on_data: Callable[[bytes], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._path = path
        self._runs = runs
        self._on_data, self._on_end = on_data, on_end
        self._ending = Event()
        self._socket: socket.socket | None = None
        self._thread = Thread(target=self._run, name="sim-channel", daemon=True)
        self._thread.start()

    def send(self, data: bytes) -> None:
        """Send bytes; without a program in the guest they are lost."""
        if self._ending.is_set():
            raise HostCannot("cannot send to the guest's helper: the channel has ended", check="guest-helper")
        if self._socket is not None:
            try:
                self._socket.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                if not self._runs():
                    self._ending.set()
                    self._on_end("the VM stopped")
                    return
                self._socket = self._socket or connect(self._path, _LOOK_SECONDS)
                self._read()
                self._ending.wait(0 if self._socket else _LOOK_SECONDS)
        finally:
            if self._socket is not None:
                self._socket.close()

    def _read(self) -> None:
        if self._socket is None:
            return
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            return
        except OSError:
            data = b""
        if not data:
            self._socket.close()
            self._socket = None
        else:
            self._on_data(data)
