# SPDX-License-Identifier: Apache-2.0
"""The kernel's log of a simulated host: a file of messages, `kmsg` in its state directory.

The simulated drivers write nothing into it. To see what happens when a GPU fails, append the driver's line:
`echo 'NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.' >> kmsg`. A thread reads what is new every half a
second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

KMSG_FILE = "kmsg"
LOOK_SECONDS = 0.5
_MAX_READ_BYTES = 1 << 20
_CLOSE_SECONDS = 5.0


class SimKernelMessages:
    """The file behind the port; implements `ports.KernelMessages`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / KMSG_FILE

    def write(self, message: str) -> None:
        """Log a message."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{message}\n")

    def watch(
        self, containing: str, *, on_message: Callable[[str], None], on_lost: Callable[[str], None]
    ) -> SimKernelWatch:
        """Watch the messages that contain a text, from now on, until `close`."""
        return SimKernelWatch(self.path, containing, on_message, on_lost)


class SimKernelWatch:
    """A thread that reads the end of the file; implements `ports.Watch`."""

    def __init__(
        self, path: Path, containing: str, on_message: Callable[[str], None], on_lost: Callable[[str], None]
    ) -> None:
        self._path, self._containing = path, containing
        self._on_message, self._on_lost = on_message, on_lost
        self._offset = path.stat().st_size if path.exists() else 0
        self._ending = Event()
        self._thread = Thread(target=self._run, name="sim-kernel-messages", daemon=True)
        self._thread.start()

    def answers(self) -> bool:
        """Return whether the thread lives."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            for line in self._new_lines():
                if self._containing in line:
                    self._on_message(line)

    def _new_lines(self) -> list[str]:
        """Return the whole lines that are new. A file that became shorter begins again."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._offset:
                    self._offset = 0
                    self._on_lost("the log was emptied")
                file.seek(self._offset)
                data = file.read(_MAX_READ_BYTES)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode("utf-8", "replace").splitlines()
