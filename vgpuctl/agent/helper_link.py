# SPDX-License-Identifier: Apache-2.0
"""The channel of one VM to the helper in its guest, as the agent has it: lines, reports, requests and their answers.

A guest may send whatever it likes. So its lines are short and few, or they are counted and dropped; a guest that sends
more all the time is flooding, and one that does not answer may not read: then the channel is to be closed.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from threading import Event, Lock
from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, HostCannot
from vgpuctl.model.guest_report import MAX_LINE_BYTES, GuestAnswer, GuestReport, parse_line
from vgpuctl.model.vm import Vm

if TYPE_CHECKING:
    from vgpuctl.ports.guests import GuestChannel
    from vgpuctl.ports.system import Clock

LINES_PER_SECOND = 10
BURST_LINES = 40
MAX_LONG_BYTES = 64 << 10
"""A line that is longer than that is a flood."""
ANSWER_SECONDS = 20.0
CHECK = "guest-helper"


class HelperLines:
    """Splits what a guest sends into lines, and drops what is too long or too much. `dropped`: how many lines."""

    def __init__(self) -> None:
        self.dropped = 0
        self._rest = b""
        self._long_bytes = 0
        self._tokens, self._time = float(BURST_LINES), 0.0

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Return the lines that are complete. `now`: on a monotonic clock."""
        self._tokens = min(float(BURST_LINES), self._tokens + (now - self._time) * LINES_PER_SECOND)
        self._time = now
        *lines, rest = (self._rest + data).split(b"\n")
        kept = []
        for line in lines:
            if self._long_bytes or len(line) > MAX_LINE_BYTES or self._tokens < 1:
                self.dropped += 1
            else:
                kept.append(line)
            self._long_bytes = 0
            self._tokens = max(0.0, self._tokens - 1)
        if self._long_bytes or len(rest) > MAX_LINE_BYTES:
            self._long_bytes, rest = self._long_bytes + len(rest), b""
        self._rest = rest
        return kept

    @property
    def is_flooded(self) -> bool:
        """Whether the guest sends more than it may."""
        return self._tokens < 1 or self._long_bytes > MAX_LONG_BYTES


class HelperLink:
    """The channel of one VM, and what came through it. The channel's threads call `receive` and `end`."""

    def __init__(self, vm: Vm, clock: Clock, on_change: Callable[[], None]) -> None:
        """`on_change`: called, in the channel's threads, when the report is the first one, or has other users."""
        self.vm = vm
        self.channel: GuestChannel | None = None
        self.lines = HelperLines()
        self.report: GuestReport | None = None
        self.published: GuestReport | None = None
        self.written: GuestReport | None = None
        self.reason: str | None = None
        """Why the channel has ended; None while it is open."""
        self.is_flooded = False
        self.heard = clock.monotonic()
        """When the last report came."""
        self.bad_lines = 0
        self.has_complained = False
        self.changes: list[float] = []
        self._clock = clock
        self._on_change = on_change
        self._lock = Lock()
        self._asking = Lock()
        self._waiting: dict[int, Event] = {}
        self._answers: dict[int, GuestAnswer] = {}

    def receive(self, data: bytes) -> None:
        """Take what the guest sent."""
        with self._lock:
            for line in self.lines.feed(data, self._clock.monotonic()):
                self._take(line)
            if self.lines.is_flooded and not self.is_flooded:
                self.is_flooded = True
                self._on_change()

    def _take(self, line: bytes) -> None:
        try:
            message = parse_line(line, self._clock.now())
        except ValueError:
            self.bad_lines += 1
            return
        if isinstance(message, GuestReport):
            is_change = self.report is None or users_of(self.report) != users_of(message)
            self.report, self.heard = message, self._clock.monotonic()
            if is_change:
                self._on_change()
        elif message.id in self._waiting:
            self._answers[message.id] = message
            self._waiting.pop(message.id).set()

    def forget_report(self) -> None:
        """Forget what the helper said, until it reports again."""
        with self._lock:
            self.report = None
            self._on_change()

    def end(self, reason: str) -> None:
        """Note that the channel has ended."""
        with self._lock:
            self.reason = reason
            for waiting in self._waiting.values():
                waiting.set()
            self._waiting.clear()
            self._on_change()

    def ask(self, number: int, request: Mapping[str, object]) -> GuestAnswer:
        """Send a request and return its answer. After one without an answer the channel ends: the guest may not read.

        Raises:
            Busy: another request waits for its answer, or there was no answer in time.
            HostCannot: the channel has ended.
        """
        name, verb = self.vm.name, request["verb"]
        if not self._asking.acquire(timeout=ANSWER_SECONDS):
            raise Busy(f"the helper in {name} has not answered another request yet ({verb})", vm=name)
        try:
            with self._lock:
                self._waiting[number] = arrived = Event()
                is_open = self.reason is None
            if is_open:
                self.send({**request, "id": number})
                arrived.wait(ANSWER_SECONDS)
            with self._lock:
                answer, reason = self._answers.pop(number, None), self.reason
            if answer is not None:
                return answer
            if reason is not None:
                raise HostCannot(f"{verb}: the helper in {name} cannot be reached: {reason}", check=CHECK, vm=name)
            self.end("it did not answer a request")
            raise Busy(
                f"the helper in {name} did not answer within {ANSWER_SECONDS:g} s ({verb})",
                hint=f"vgpuctl show-vm {shlex.quote(name)} shows when it reported last; try again",
                vm=name,
            )
        finally:
            with self._lock:
                self._waiting.pop(number, None)
                self._answers.pop(number, None)
            self._asking.release()

    def send(self, message: Mapping[str, object]) -> None:
        """Send a request."""
        if self.channel is not None:
            self.channel.send(json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n")


def users_of(report: GuestReport) -> object:
    """Return who is logged on, and whether connected; idle times are no change."""
    return None if report.users is None else [(user.user, user.state) for user in report.users]
