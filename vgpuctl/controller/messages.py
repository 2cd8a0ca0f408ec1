# SPDX-License-Identifier: Apache-2.0
"""The call that shows a text to the users of a pool; `FleetService` has it with all other calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from vgpuctl.controller.host_voice import speaking_to
from vgpuctl.controller.model import FleetCaller
from vgpuctl.controller.planning.phase import is_running
from vgpuctl.errors import Busy, InvalidInput, VgpuctlError
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.results.fleet import PoolMessageResult

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.hosts.link import HostLink
    from vgpuctl.controller.model import Desktop, FleetHost

log = logging.getLogger("vgpuctl.controller")

MAX_MESSAGE = 1000
"""As the helper in guests takes it."""
HOSTS_AT_A_TIME = 16
MOST_SENDING = 2
"""So many messages are on their way at a time: the others of the API's threads go on."""


class MessageCalls:
    """The call. `FleetService` says which store and which hosts it is about."""

    _store: Store
    _connect: Callable[[FleetHost], HostLink]
    _sending: BoundedSemaphore

    def message_pool(self, caller: FleetCaller, name: str, text: str) -> Outcome[PoolMessageResult]:
        """Show a text, one line, to everybody who is logged on in a pool's desktops."""
        if not 0 < len(text) <= MAX_MESSAGE or not text.isprintable():
            raise InvalidInput(f"text: 1 to {MAX_MESSAGE} printable characters, in one line")
        pool = self._store.pools.find(name)
        desktops = [one for one in self._store.desktops.of_pool(pool.id) if one.user is not None and _may_see(one)]
        if self._store.changes.is_dry_run or not desktops:
            return Outcome(bool(desktops), PoolMessageResult(name, len(desktops), {}))
        if not self._sending.acquire(blocking=False):
            raise Busy(f"{MOST_SENDING} other messages are on their way", hint="try again in a minute", pool=name)
        try:
            failed = self._send(desktops, text)
        finally:
            self._sending.release()
        reached = len(desktops) - len(failed)
        self._store.pools.note_message(name, text, reached, caller.name)
        warnings = () if not failed else (f"{len(failed)} of {len(desktops)} desktops did not show it",)
        return Outcome(reached > 0, PoolMessageResult(name, reached, failed), warnings=warnings)

    def show_text(self, desktop: Desktop, text: str) -> str | None:
        """Show a text to who is logged on in a desktop; return why that failed, if it did."""
        return self._send_to(desktop.host_id or "", (desktop,), text).get(desktop.name)

    def _send(self, desktops: Sequence[Desktop], text: str) -> Mapping[str, str]:
        """Send a text to desktops, host by host; return those that did not show it, each with the reason."""
        by_host: dict[str, list[Desktop]] = {}
        for one in desktops:
            by_host.setdefault(one.host_id or "", []).append(one)
        failed: dict[str, str] = {}
        with ThreadPoolExecutor(min(HOSTS_AT_A_TIME, len(by_host)), thread_name_prefix="message") as threads:
            for part in threads.map(lambda host_id: self._send_to(host_id, by_host[host_id], text), by_host):
                failed |= part
        return dict(sorted(failed.items()))

    def _send_to(self, host_id: str, desktops: Sequence[Desktop], text: str) -> dict[str, str]:
        failed: dict[str, str] = {}
        try:
            with speaking_to(self._store, self._connect, host_id, desktops[0].name) as host:
                for one in desktops:
                    try:
                        host.message_vm(one.id, text)
                    except VgpuctlError as error:
                        failed[one.name] = error.message
        except VgpuctlError as error:
            for one in desktops:
                failed.setdefault(one.name, error.message)
        return failed


def _may_see(desktop: Desktop) -> bool:
    """Return whether somebody may be logged on in a desktop."""
    report = desktop.report
    return report is not None and is_running(report.state) and desktop.host_id is not None and report.guest_users != ()
