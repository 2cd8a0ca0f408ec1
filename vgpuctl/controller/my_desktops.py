# SPDX-License-Identifier: Apache-2.0
"""The calls that a person makes about desktops of his own; `FleetService` has them with all other calls."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Protocol

from vgpuctl.controller.model import CallerKind, FleetCaller, PoolKind, PoolState, ReadyWhen
from vgpuctl.controller.planning.desktop_address import OPEN_RDP, fill_link
from vgpuctl.controller.planning.rdp_file import RDP_PORT, rdp_lines, rdp_text
from vgpuctl.controller.policy import no_desktop, sees_pool
from vgpuctl.controller.times import time_text
from vgpuctl.errors import Busy, FileFailed, HostKeyRefused, NotAllowed, Refused, Unreachable
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results.fleet import AssignedDesktopResult, DesktopResult
from vgpuctl.model.results.people import MyDesktopResult, MyPoolResult, OpenDesktopResult
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.controller.database.console_rows import WatchedScreen
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.model import Desktop, Pool
    from vgpuctl.controller.rdp_signing import RdpSigner


MOST_MEASURED = 200
"""So many desktops of a pool say how long one takes to start."""
_STARTING = frozenset({"making", "starting", "waiting"})

log = logging.getLogger("vgpuctl.controller")


class _Desktops(Protocol):
    """What `FleetService` has besides."""

    _store: Store
    _signer: RdpSigner | None

    def assign(
        self, caller: FleetCaller, pool: str, user: str, new_password: bool = False, have: int | None = None
    ) -> Outcome[AssignedDesktopResult]: ...

    def _desktop_results(self, desktops: tuple[Desktop, ...]) -> tuple[DesktopResult, ...]: ...


class MyDesktopCalls:
    """The calls."""

    def list_my_pools(self: _Desktops, caller: FleetCaller) -> QueryResult[tuple[MyPoolResult, ...]]:
        """Return the pools of which the caller may have a desktop, and how many he has."""
        name = _person(caller)
        own = self._store.desktops.list(user=name)
        return QueryResult(
            tuple(
                MyPoolResult(
                    pool.name, str(pool.spec.kind), str(pool.state), _reason(pool),
                    sum(one.pool_id == pool.id for one in own), pool.spec.per_user,
                )
                for pool in self._store.pools.list()
                if pool.name in caller.rights and pool.spec.kind is not PoolKind.FIXED
            )
        )  # fmt: skip

    def list_my_desktops(self: _Desktops, caller: FleetCaller) -> QueryResult[tuple[MyDesktopResult, ...]]:
        """Return the caller's desktops."""
        own = self._store.desktops.list(user=_person(caller))
        pools = {pool.name: pool for pool in self._store.pools.list()}
        shown = self._desktop_results(own)
        starting = {one.pool for one in shown if one.phase in _STARTING}
        usual = {pool: _usual_seconds(self._store.desktops.list(pool=pool, limit=MOST_MEASURED)) for pool in starting}
        screens = self._store.consoles.watched(own)
        watched = {one.name: screens.get(one.id) for one in own}
        results = (_watched(_my_result(one, pools.get(one.pool)), watched.get(one.name)) for one in shown)
        return QueryResult(
            tuple(replace(one, usual_seconds=usual[one.pool]) if one.phase in _STARTING else one for one in results)
        )

    def take_desktop(
        self: _Desktops, caller: FleetCaller, pool: str, new_password: bool = False, have: int | None = None
    ) -> Outcome[MyDesktopResult]:
        """Give the caller a desktop of a pool, his own if he has one; one that is off is started.

        Its address is shown once its host has confirmed him. `new_password`: also set a new one-time password.
        `have`: see `assign`.
        """
        name, stored = _person(caller), self._store.pools.find(pool)
        if stored.state is PoolState.PAUSED and stored.paused_by_errors:
            raise Refused(f"pool {pool} gives no desktops just now: {_reason(stored)}", pool=pool)
        try:
            outcome = self.assign(caller, pool, name, new_password, have)
        except (Unreachable, HostKeyRefused) as error:  # its text names hosts
            log.warning("%s's password in a desktop of %s: %s", name, pool, error.message)
            raise Busy("the host of your desktop does not answer just now", hint="try again in a minute") from None
        late = ("your password is not set yet: ask for a new one in a minute",) if outcome.warnings else ()
        return Outcome(outcome.changed, _my_result(outcome.data, stored), warnings=late)

    def open_desktop(self: _Desktops, caller: FleetCaller, name: str) -> QueryResult[OpenDesktopResult]:
        """Return the link or the RDP file that opens a desktop for its user."""
        desktop = self._store.desktops.find(name)
        pool = next((one for one in self._store.pools.list() if one.id == desktop.pool_id), None)
        shown = self._desktop_results((desktop,))
        if desktop.user != caller.name and (pool is None or not sees_pool(caller, pool.name)):
            raise no_desktop(name)  # it was taken from him meanwhile
        if pool is None or pool.spec.open is None:
            raise Refused(
                f"the pool of {name} does not say how its desktops are opened",
                hint="its spec needs open: rdp, or open: with a link; without it a user types the address himself",
                desktop=name,
            )
        if desktop.user is None or not shown or shown[0].address is None:
            raise Busy(f"{name} has no address to open yet: it is {shown[0].phase if shown else 'gone'}", desktop=name)
        try:
            opened = _opened(pool, shown[0].name, shown[0].address, desktop.user, self._signer)
        except FileFailed as error:  # its text names files of the controller
            log.error("%s", error.message)
            raise Busy("RDP files cannot be signed just now: tell an admin", desktop=name) from None
        if desktop.user != caller.name:
            self._store.desktops.note_opened(desktop, caller.name)
        return QueryResult(opened)


def _usual_seconds(desktops: Sequence[Desktop]) -> int | None:
    """Return how long desktops took to start, the median of their last starts; None: none was seen."""
    reports = [one.report for one in desktops if one.report is not None]
    seen = [report.boot_seconds for report in reports if report.boot_seconds is not None]
    return round(median(seen)) if seen else None


def _opened(pool: Pool, name: str, address: str, user: str, signer: RdpSigner | None) -> OpenDesktopResult:
    spec = pool.spec
    if spec.open is not None and spec.open != OPEN_RDP:
        return OpenDesktopResult(name, fill_link(spec.open, address, user, name), None)
    port = spec.port if spec.ready_when is ReadyWhen.PORT else RDP_PORT
    lines = rdp_lines(spec.rdp, address, port, user)
    return OpenDesktopResult(name, None, rdp_text(lines if signer is None else signer.sign(lines)))


def refuse_loss(caller: FleetCaller, desktop: Desktop, pools: Sequence[Pool]) -> None:
    """Refuse that somebody gives back a dedicated desktop, unless he operates its pool.

    Raises:
        NotAllowed: it is one.
    """
    pool = next((one for one in pools if one.id == desktop.pool_id), None)
    if pool is not None and pool.spec.kind is PoolKind.DEDICATED and not sees_pool(caller, pool.name):
        raise NotAllowed(
            f"{desktop.name} is yours for good: what you saved in it would be lost",
            hint="ask an operator of the pool to release it",
            rule="dedicated",
        )


def shown_to(caller: FleetCaller, result: DesktopResult) -> DesktopResult:
    """Return what a caller may see of a desktop: its user sees nothing of its host."""
    if sees_pool(caller, result.pool):
        return result
    failed = None if result.restart_error is None else "its host did not do it"
    return replace(result, host=None, why=None, code=None, error=None, hint=None, restart_error=failed, moving_to=None)


def _person(caller: FleetCaller) -> str:
    if caller.kind is not CallerKind.PERSON:
        raise NotAllowed(
            f"desktops are people's, and {caller.name} is none: it signed in with a token",
            hint="vgpuctl controller assign POOL USER",
            rule="person",
        )
    return caller.name


def _reason(pool: Pool) -> str | None:
    """Return why a pool gives no desktops, as its users may know it: what failed on hosts is not for them."""
    return "it has a problem, and its admins know" if pool.paused_by_errors else pool.reason


def _watched(result: MyDesktopResult, screen: WatchedScreen | None) -> MyDesktopResult:
    """Return a desktop with who saw its screen."""
    if screen is None:
        return result
    closed = None if screen.closed_at is None else time_text(screen.closed_at)
    return replace(result, watched_by=screen.person, watched_at=time_text(screen.opened_at), watched_until=closed)


def _my_result(one: DesktopResult, pool: Pool | None) -> MyDesktopResult:
    password = one.password if isinstance(one, AssignedDesktopResult) else None
    kind = None if pool is None else str(pool.spec.kind)
    logon = None if pool is None or pool.spec.logon is None else str(pool.spec.logon)
    opening = None if pool is None or one.address is None or one.user is None else pool.spec.open
    ports = () if pool is None or one.address is None or one.user is None else pool.spec.connect
    if opening not in (None, OPEN_RDP):
        opening = fill_link(opening, str(one.address), str(one.user), one.name)
    return MyDesktopResult(
        one.name, one.pool, one.phase, None, one.power, one.address, one.assigned, one.lease_until, password, kind,
        logon, opening, restart_failed=one.restart_error is not None, connect=ports,
        console=pool is not None and pool.spec.console,
    )  # fmt: skip
