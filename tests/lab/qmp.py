"""Talks to QEMU over its control socket (QMP): snapshots, hot plug, state.

savevm and loadvm are human monitor commands. They print nothing on success and a message on failure.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.lab.errors import LabDied, LabError


class Qmp:
    """One QMP connection. It runs one command at a time and discards events."""

    def __init__(self, path: Path, *, deadline_seconds: float = 30) -> None:
        self._buffer = b""
        self._socket = _connect(path, deadline_seconds)
        self._read_object(deadline_seconds)
        self.execute("qmp_capabilities")

    def execute(
        self, command: str, arguments: Mapping[str, str | int] | None = None, *, deadline_seconds: float = 60
    ) -> Any:
        """Return the command's result; raise LabError with QEMU's own message if the command fails."""
        message = {"execute": command, "arguments": dict(arguments or {})}
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as exc:
            raise LabDied(f"the emulator is gone ({command})") from exc
        while True:
            answer = self._read_object(deadline_seconds)
            if "error" in answer:
                raise LabError(f"{command} {dict(arguments or {})}: {answer['error'].get('desc')}")
            if "return" in answer:
                return answer["return"]

    def monitor(self, line: str, *, deadline_seconds: float = 120) -> str:
        """Run a human monitor command; return its output."""
        words = {"command-line": line}
        return str(self.execute("human-monitor-command", words, deadline_seconds=deadline_seconds))

    def close(self) -> None:
        """Close only the connection; the emulator continues."""
        self._socket.close()

    def _read_object(self, deadline_seconds: float) -> dict[str, Any]:
        end = time.monotonic() + deadline_seconds
        while b"\n" not in self._buffer:
            self._socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                chunk = self._socket.recv(65536)
            except TimeoutError:
                raise LabDied(f"the emulator did not answer within {deadline_seconds:g} s") from None
            except OSError as exc:
                raise LabDied("the emulator is gone") from exc
            if not chunk:
                raise LabDied("the emulator is gone")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer


def _connect(path: Path, deadline_seconds: float) -> socket.socket:
    end = time.monotonic() + deadline_seconds
    while True:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(str(path))
            return client
        except OSError as exc:
            client.close()
            if time.monotonic() > end:
                raise LabError(f"no emulator answers at {path}") from exc
            time.sleep(0.02)
