# SPDX-License-Identifier: Apache-2.0
"""Guests of a simulated host's desktops that run the helper's own program, with a file tree for each disk."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.guests.helper import Programs, listen_for, program
from vgpuctl.agent import guest_helpers
from vgpuctl.controller.database.store import Store

ACCESS = "etc/security/access.d/90-vgpuctl.conf"


class DesktopGuest:
    """The guest of one desktop. `root` and `programs`: of its present disk."""

    def __init__(self, directory: Path, accounts: set[str] | None, *, has_access: bool) -> None:
        self._directory = directory
        self._accounts = accounts
        self._has_access = has_access
        self._disks = 0
        self.is_over = False
        self.new_disk()

    def new_disk(self) -> None:
        """Begin with the image again."""
        self._disks += 1
        self.root = self._directory / str(self._disks)
        self.programs = Programs()
        self.programs.users = None if self._accounts is None else set(self._accounts)
        files = {"run/systemd/sessions/none": "", "bin/bash": ""}
        if self._has_access:
            files["etc/pam.d/sshd"] = "account required pam_access.so\n"
            files["lib64/security/pam_access.so"] = "/etc/security/access.d/*.conf"
        for name, text in files.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)

    def let_in(self) -> list[str] | None:
        """Return whom its rules let in besides administrators and services; None: everybody."""
        try:
            lines = (self.root / ACCESS).read_text().splitlines()
        except FileNotFoundError:
            return None
        assert lines[-1] == "-:ALL:ALL"
        others = {"+:root:ALL", "+:(vgpuctl-logon):ALL", *program.OTHER_RULES, "-:ALL:ALL"}
        return [line.removeprefix("+:").removesuffix(":ALL") for line in lines[1:] if line not in others]

    def log_on(self, user: str) -> None:
        self.programs.log_on(user)
        self._touch()

    def log_off(self) -> None:
        self.programs.sessions.clear()
        self._touch()

    def _touch(self) -> None:
        sessions = self.root / "run/systemd/sessions"
        (sessions / str(len(list(sessions.iterdir())))).write_text("")

    def serve(self, listening: socket.socket, is_clean: Callable[[], bool]) -> None:
        """Be there for each boot of the VM; `is_clean`: whether its disk was made again since the last one."""
        listening.settimeout(0.1)
        while not self.is_over:
            with suppress(TimeoutError, OSError):
                connection, _ = listening.accept()
                if is_clean():
                    self.new_disk()
                connection.setblocking(False)
                guest = program.Guest(self.root, self.programs)
                with connection, suppress(OSError):
                    program.serve(program.Port(connection.fileno()), guest, partial(self._is_off, connection))

    def _is_off(self, connection: socket.socket) -> bool:
        return self.is_over or _ended(connection)


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


class DesktopGuests:
    """The guests of all desktops of a store, by their names; each is there as soon as the desktop's row is."""

    def __init__(self, state: Path, directory: Path, accounts: set[str] | None, *, has_access: bool) -> None:
        self._state = state
        self._directory = directory
        self._make = lambda path: DesktopGuest(path, accounts, has_access=has_access)
        self._guests: dict[str, DesktopGuest] = {}
        self._generations: dict[str, int] = {}
        self._stack = ExitStack()
        self._over = threading.Event()

    def of(self, store: Store, name: str) -> DesktopGuest:
        return self._guests[store.desktops.find(name).id]

    @contextmanager
    def running(self, store: Callable[[], Store]) -> Iterator[DesktopGuests]:
        thread = threading.Thread(target=self._follow, args=(store,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join(10)
            for guest in self._guests.values():
                guest.is_over = True
            self._stack.close()

    def _follow(self, store: Callable[[], Store]) -> None:
        while not self._over.wait(0.02):
            for desktop in store().desktops.list():
                if desktop.id not in self._guests:
                    self._add(store, desktop.id, desktop.name)

    def _add(self, store: Callable[[], Store], id: str, name: str) -> None:
        guest = self._guests[id] = self._make(self._directory / name)
        listening = self._stack.enter_context(listen_for(self._state, id))

        def is_clean() -> bool:
            row = next((one for one in store().desktops.list() if one.id == id), None)
            before, self._generations[id] = self._generations.get(id), row.generation if row is not None else 0
            return row is not None and row.user is None and before not in (None, row.generation)

        threading.Thread(target=guest.serve, args=(listening, is_clean), daemon=True).start()


@pytest.fixture
def quick_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have helpers, and the agent that reads them, look more often."""
    monkeypatch.setattr(program, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(guest_helpers, "LOOK_SECONDS", guest_helpers.PAUSE_SECONDS + 0.1)
