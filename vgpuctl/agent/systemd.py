# SPDX-License-Identifier: Apache-2.0
"""What systemd and the agent tell each other: listening sockets, readiness, the watchdog. Standard library alone.

Without systemd nothing is there to be told, and every call says so by its result. The agent's server does:

    sockets = systemd.listen_sockets()                      # {"api": socket} when the .socket unit started it
    systemd.notify("READY=1", "STATUS=3 VMs run")           # once it serves
    limit = systemd.watchdog_seconds()                      # None: nobody watches
    systemd.notify("WATCHDOG=1")                            # every limit / 2 while API loop and libvirt thread answer
    systemd.notify("STOPPING=1")                            # at SIGTERM, before it waits for running operations

Sources: sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket

from vgpuctl import sd_notify

API_SOCKET_NAME = "api"
"""FileDescriptorName= of vgpuctl-agent.socket."""
_FIRST_DESCRIPTOR = 3
_MOST_DIGITS = 18


def notify(*lines: str) -> bool:
    """Tell systemd lines such as READY=1; False if it does not wait for them. Never raises."""
    return sd_notify.notify(*lines)


def listen_sockets() -> dict[str, socket.socket]:
    """Return the listening sockets that systemd opened for this process, by name; the caller owns them.

    A second call returns none: the variables are removed, so that no child takes the sockets for its own. Sockets of
    the same name, as of two ListenStream= lines, get `:1`, `:2` … after it, which no name of systemd has.

    Raises:
        OSError: systemd passed something that is no socket.
    """
    pid, count_text, names_text = (os.environ.pop(f"LISTEN_{name}", "") for name in ("PID", "FDS", "FDNAMES"))
    count = _parse_number(count_text)
    if count is None or _parse_number(pid) != os.getpid():
        return {}
    names = names_text.split(":") if names_text else []
    sockets: dict[str, socket.socket] = {}
    for index in range(count):
        name = names[index] if index < len(names) else "unknown"
        repeated = sum(other.partition(":")[0] == name for other in sockets)
        descriptor = _FIRST_DESCRIPTOR + index
        os.set_inheritable(descriptor, False)  # a child that keeps it would keep the address in use
        sockets[f"{name}:{repeated}" if repeated else name] = socket.socket(fileno=descriptor)
    return sockets


def watchdog_seconds() -> float | None:
    """Return after how many seconds without WATCHDOG=1 systemd kills this process; None if it does not watch it."""
    limit = _parse_number(os.environ.get("WATCHDOG_USEC", ""))
    pid = os.environ.get("WATCHDOG_PID", "")
    if not limit or (pid and _parse_number(pid) != os.getpid()):
        return None
    return limit / 1_000_000


def _parse_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None
